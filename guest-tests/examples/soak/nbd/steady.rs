//! A server that lives on while clients come and go, some of them without a goodbye.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use super::{BLOCKS, Disk, SIZE, at, connect, flush, read, serve_all, write};
use crate::images::Kind;
use crate::load::Load;
use crate::loop_device::LoopDevice;
use crate::nbd_client::{WRITE, WRITE_ZEROES, request};
use crate::pattern::{BLOCK, Model};
use crate::server::{Place, Process};
use crate::watch::Watch;

pub(crate) struct Steady {
    socket: PathBuf,
    process: Process,
    watch: Watch,
    disks: Vec<Disk>,
    /// Under the last disk, or why there is none.
    device: Result<LoopDevice, String>,
    vanished: u64,
    verified: u64,
}

/// A loop device over a new file.
pub(super) fn device(place: &Place, size: u64) -> Result<LoopDevice, String> {
    let path = place.file("device");
    File::create(&path).and_then(|file| file.set_len(size)).unwrap();
    LoopDevice::attach(&path, &[])
}

/// The device as `--disk` takes it.
pub(super) fn on(device: &LoopDevice) -> String {
    format!("path={},format=passthrough,direct=on", device.path().display())
}

impl Steady {
    pub(crate) fn new(place: &Place) -> Self {
        let mut disks: Vec<Disk> =
            Kind::ALL.into_iter().zip(7..).map(|(kind, seed)| Disk::new(place, kind, seed)).collect();
        let device = device(place, SIZE);
        if let Ok(device) = &device {
            disks.push(Disk { kind: Kind::Raw, disk: on(device), model: Model::new(BLOCKS, 5) });
        }
        let watch = Watch::new(place);
        let (socket, process) = serve_all(place, &disks, &watch.args());
        Self { socket, process, watch, disks, device, vanished: 0, verified: 0 }
    }
}

impl Load for Steady {
    fn cycle(&mut self, number: u64) -> u64 {
        let mut verified = 0;
        for (index, Disk { model, .. }) in self.disks.iter_mut().enumerate() {
            let mut clients = [false, true].map(|structured| connect(&self.socket, index, structured));
            for step in 0..200 {
                let client = &mut clients[step % 2];
                let block = model.block();
                match model.below(10) {
                    0..5 => write(client, model, block),
                    5..8 => verified += read(client, model, block),
                    8 => {
                        client.ask(WRITE_ZEROES, 0, at(block), BLOCK as u32).unwrap();
                        model.zeroed(block);
                    }
                    _ => flush(client),
                }
            }
            // This one is gone before its requests are done.
            let mut gone = connect(&self.socket, index, number.is_multiple_of(2));
            for _ in 0..32 {
                let block = model.block();
                let data = model.write(block);
                let head = request(WRITE, 0, block, at(block), BLOCK as u32);
                gone.stream.write_all(&[&head[..], &data].concat()).unwrap();
            }
            self.vanished += 1;
        }
        // The server has to take what was sent before others write the same blocks.
        self.watch.await_no_queues();
        self.verified += verified;
        self.watch.take(self.verified);
        verified
    }

    fn process(&self) -> Option<u32> {
        Some(self.process.0.id())
    }

    fn events(&self) -> String {
        let device = self
            .device
            .as_ref()
            .map_or_else(|reason| format!(", no loop device: {reason}"), |_| String::new());
        format!("{} clients vanished{device}", self.vanished)
    }
}

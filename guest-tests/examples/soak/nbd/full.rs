//! Images on a small file system that something else fills. A write without space fails, and no other data change.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use super::{BLOCKS, Disk, at, connect, flush, read, serve_all};
use crate::images::Kind;
use crate::load::Load;
use crate::nbd_client::{FLUSH, WRITE_ZEROES};
use crate::pattern::BLOCK;
use crate::server::{Place, Process};
use crate::tmpfs::Tmpfs;

/// Their images are made in the file system.
const KINDS: [Kind; 5] = [Kind::Raw, Kind::Vhd, Kind::VhdChain, Kind::Vhdx, Kind::VhdxChain];
const MEBIBYTES: u32 = 80;

/// The server, and what it serves.
struct Served {
    // Dropped before the file system.
    process: Process,
    socket: PathBuf,
    disks: Vec<Disk>,
    space: Tmpfs,
}

pub(crate) struct Full {
    place: Place,
    /// Or why there is no such file system.
    served: Result<Served, String>,
    failed: u64,
}

impl Full {
    pub(crate) fn new(place: &Place) -> Self {
        let served = Tmpfs::mount(&place.folder, MEBIBYTES).map(|space| {
            let disks: Vec<Disk> =
                KINDS.into_iter().zip(7..).map(|(kind, seed)| Disk::new(place, kind, seed)).collect();
            let (socket, process) = serve_all(place, &disks, &[]);
            Served { process, socket, disks, space }
        });
        Self { place: place.clone(), served, failed: 0 }
    }
}

impl Served {
    /// Write and read without space. Returns the bytes verified, and the writes that failed: disk and block.
    fn without_space(&mut self) -> (u64, Vec<(usize, u64)>) {
        let Self { socket, disks, space, .. } = self;
        let mut verified = 0;
        let mut failed = Vec::new();
        space.filled(|| {
            for (index, Disk { model, .. }) in disks.iter_mut().enumerate() {
                let mut client = connect(socket, index, false);
                for _ in 0..100 {
                    let block = model.block();
                    let data = model.write(block);
                    match client.write(0, at(block), &data) {
                        Ok(_) => model.written(block),
                        Err(_) => failed.push((index, block)),
                    }
                    let block = model.block();
                    verified += read(&mut client, model, block);
                }
                // May fail: there is no space for metadata.
                let _ = client.ask(FLUSH, 0, 0, 0);
            }
        });
        (verified, failed)
    }

    /// With space, those writes succeed. Returns the bytes verified.
    fn with_space(&mut self, place: &Place, failed: &[(usize, u64)]) -> u64 {
        let mut verified = 0;
        for (index, Disk { model, .. }) in self.disks.iter_mut().enumerate() {
            let mut client = connect(&self.socket, index, false);
            for (_, block) in failed.iter().filter(|(disk, _)| *disk == index) {
                let data = model.write(*block);
                if let Err(error) = client.write(0, at(*block), &data) {
                    let kind = KINDS[index];
                    panic!("{kind:?}: error {error} with free space: {}", place.used());
                }
                model.written(*block);
            }
            flush(&mut client);
            for block in 0..BLOCKS {
                verified += read(&mut client, model, block);
            }
            // Space is freed, so that writes need some again.
            for block in 0..BLOCKS {
                client.ask(WRITE_ZEROES, 0, at(block), BLOCK as u32).unwrap();
                model.zeroed(block);
            }
            flush(&mut client);
        }
        verified
    }
}

impl Load for Full {
    fn cycle(&mut self, _number: u64) -> u64 {
        let Ok(served) = &mut self.served else {
            thread::sleep(Duration::from_secs(1));
            return 0;
        };
        let (verified, failed) = served.without_space();
        self.failed += failed.len() as u64;
        verified + served.with_space(&self.place, &failed)
    }

    fn process(&self) -> Option<u32> {
        self.served.as_ref().ok().map(|served| served.process.0.id())
    }

    fn events(&self) -> String {
        match &self.served {
            Err(reason) => format!("skipped: {reason}"),
            Ok(_) => format!("{} writes without space", self.failed),
        }
    }
}

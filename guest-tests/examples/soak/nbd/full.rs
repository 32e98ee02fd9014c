//! Images on a small file system that something else fills. A write without space fails, and no other data change.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::{BLOCKS, Disk, at, connect, flush, read, serve_all};
use crate::Load;
use crate::images::Kind;
use crate::nbd_client::{FLUSH, WRITE_ZEROES};
use crate::pattern::BLOCK;
use crate::server::{Place, Process};

/// Their images are made in the file system.
const KINDS: [Kind; 5] = [Kind::Raw, Kind::Vhd, Kind::VhdChain, Kind::Vhdx, Kind::VhdxChain];
const SPACE: &str = "size=80m";

pub(crate) struct Full {
    place: Place,
    /// Why there is no such file system.
    skipped: Option<String>,
    served: Option<(PathBuf, Process)>,
    disks: Vec<Disk>,
    failed: u64,
}

impl Full {
    pub(crate) fn new(place: &Place) -> Self {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", SPACE, "none"]).arg(&place.folder);
        let skipped = match mount.output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Some(format!("mount: {error}")),
        };
        let made = KINDS.into_iter().zip(7..).filter(|_| skipped.is_none());
        let disks: Vec<Disk> = made.map(|(kind, seed)| Disk::new(place, kind, seed)).collect();
        let served = skipped.is_none().then(|| serve_all(place, &disks, &[]));
        Self { place: place.clone(), skipped, served, disks, failed: 0 }
    }
}

impl Load for Full {
    fn cycle(&mut self, _number: u64) -> u64 {
        let Some((socket, _)) = &self.served else {
            thread::sleep(Duration::from_secs(1));
            return 0;
        };
        let ballast = self.place.file("ballast");
        let free = || rustix::fs::statvfs(&self.place.folder).unwrap().f_bavail;
        let before = free();
        let mut file = File::create(&ballast).unwrap();
        while file.write_all(&[0xaa; 1 << 16]).is_ok() {}
        let mut verified = 0;
        let mut again = Vec::new();
        for (index, Disk { model, .. }) in self.disks.iter_mut().enumerate() {
            let mut client = connect(socket, index, false);
            for _ in 0..100 {
                let block = model.block();
                let data = model.write(block);
                match client.write(0, at(block), &data) {
                    Ok(_) => model.written(block),
                    Err(_) => {
                        self.failed += 1;
                        again.push((index, block));
                    }
                }
                let block = model.block();
                verified += read(&mut client, model, block);
            }
            // May fail: there is no space for metadata.
            let _ = client.ask(FLUSH, 0, 0, 0);
        }
        drop(file);
        fs::remove_file(ballast).unwrap();
        // A process that another load is starting has the file open until it executes its program.
        while free() < before / 2 {
            thread::sleep(Duration::from_millis(10));
        }
        for (index, Disk { model, .. }) in self.disks.iter_mut().enumerate() {
            let mut client = connect(socket, index, false);
            for (_, block) in again.iter().filter(|(failed, _)| *failed == index) {
                let data = model.write(*block);
                if let Err(error) = client.write(0, at(*block), &data) {
                    let kind = KINDS[index];
                    panic!("{kind:?}: error {error} with free space: {}", self.place.used());
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

    fn process(&self) -> Option<u32> {
        self.served.as_ref().map(|(_, process)| process.0.id())
    }

    fn events(&self) -> String {
        match &self.skipped {
            Some(reason) => format!("skipped: {reason}"),
            None => format!("{} writes without space", self.failed),
        }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        self.served = None;
        if self.skipped.is_none() {
            let _ = Command::new("umount").arg("-l").arg(&self.place.folder).status();
        }
    }
}

//! A host whose flushes fail. The server must not complete a later flush, not even when the host is whole again: what it has written may be
//! lost. The next server finds the data of the last good flush, and of later writes old or new data.
//!
//! The disk is a loop device with buffered writes. Its file is on a file system without space.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::steady::device;
use super::{BLOCKS, Disk, at, connect, flush, read, serve_all, write};
use crate::images::Kind;
use crate::load::Load;
use crate::nbd_client::{Client, FLUSH};
use crate::pattern::Model;
use crate::server::Place;
use crate::tmpfs::Tmpfs;

/// More than the disk's `BLOCKS`.
const MEBIBYTES: u32 = 6;
/// Blocks that are written and flushed while there is space.
const FLUSHED: u64 = BLOCKS / 4;

pub(crate) struct Flushes {
    place: Place,
    /// With the folder of the device's file; or why there is no such file system or device.
    space: Result<(Place, Tmpfs), String>,
    failed: u64,
}

impl Flushes {
    pub(crate) fn new(place: &Place) -> Self {
        let full = place.within("full");
        let space = Tmpfs::mount(&full.folder, MEBIBYTES).map(|space| (full, space));
        Self { place: place.clone(), space, failed: 0 }
    }
}

/// Flushes fail, on this connection and on a new one. Returns their number.
fn flushes_fail(client: &mut Client, socket: &Path) -> u64 {
    let failed = "a flush without space, or after a failed flush, has completed";
    assert!(client.ask(FLUSH, 0, 0, 0).is_err(), "{failed}");
    assert!(connect(socket, 0, false).ask(FLUSH, 0, 0, 0).is_err(), "{failed}");
    2
}

impl Load for Flushes {
    fn cycle(&mut self, number: u64) -> u64 {
        let made = self.space.as_ref().map_err(Clone::clone);
        let made = made.and_then(|(full, space)| Ok((full, space, device(full, at(BLOCKS))?)));
        let (full, space, device) = match made {
            Ok(made) => made,
            Err(reason) => {
                assert_eq!(number, 0, "{reason}");
                self.space = Err(reason);
                thread::sleep(Duration::from_secs(1));
                return 0;
            }
        };
        let disk = format!("path={},format=passthrough,direct=off", device.path().display());
        let mut disks = [Disk { kind: Kind::Raw, disk, model: Model::new(BLOCKS, number | 1) }];
        let (socket, process) = serve_all(&self.place, &disks, &[]);
        let model = &mut disks[0].model;
        let mut client = connect(&socket, 0, false);
        for block in 0..FLUSHED {
            write(&mut client, model, block);
        }
        flush(&mut client);
        self.failed += space.filled(|| {
            for block in FLUSHED / 2..BLOCKS {
                // Completes in the page cache, or fails.
                let data = model.write(block);
                let _ = client.write(0, at(block), &data);
            }
            flushes_fail(&mut client, &socket)
        });
        self.failed += flushes_fail(&mut client, &socket);
        drop(client);
        process.end_with_error();
        let (socket, process) = serve_all(&self.place, &disks, &[]);
        let model = &mut disks[0].model;
        let mut client = connect(&socket, 0, false);
        let mut verified = 0;
        for block in 0..BLOCKS {
            verified += read(&mut client, model, block);
            write(&mut client, model, block);
        }
        flush(&mut client);
        for block in 0..BLOCKS {
            verified += read(&mut client, model, block);
        }
        drop(client);
        process.end();
        drop(device);
        fs::remove_file(full.file("device")).unwrap();
        verified
    }

    fn events(&self) -> String {
        match &self.space {
            Err(reason) => format!("skipped: {reason}"),
            Ok(_) => format!("{} flushes failed", self.failed),
        }
    }
}

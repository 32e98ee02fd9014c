//! A host with errors: reads of a part of a block device end with EIO, and writes past the limit on the size of files with EFBIG. Clients see
//! errors there and right data elsewhere. When the device is whole again, all works.
//!
//! The device is a loop device. Its file is truncated: reads past the end fail. The limit is that of the server's process (RLIMIT_FSIZE).

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use super::steady::{device, on};
use super::{BLOCKS, Disk, SIZE, at, connect, flush, read, serve_all, write};
use crate::images::Kind;
use crate::load::Load;
use crate::loop_device::LoopDevice;
use crate::pattern::{BLOCK, Model};
use crate::server::{Place, Process};

/// EIO of the protocol.
const EIO: u32 = 5;
/// Blocks from here on fail.
const BAD: u64 = BLOCKS / 2;

pub(crate) struct Errors {
    socket: PathBuf,
    process: Process,
    /// A raw image, and the device if there is one.
    disks: Vec<Disk>,
    /// The file of the device, or why there is none.
    device: Result<(LoopDevice, File), String>,
    failed: u64,
}

impl Errors {
    pub(crate) fn new(place: &Place) -> Self {
        let place = Place { file_limit: Some(at(BAD)), ..place.clone() };
        let disk = place.image(Kind::Raw, SIZE, |_| ());
        let mut disks = vec![Disk { kind: Kind::Raw, disk, model: Model::new(BLOCKS, 11) }];
        let device = device(&place, at(BLOCKS)).map(|device| {
            let file = OpenOptions::new().write(true).open(place.file("device")).unwrap();
            disks.push(Disk { kind: Kind::Raw, disk: on(&device), model: Model::new(BLOCKS, 9) });
            (device, file)
        });
        let (socket, process) = serve_all(&place, &disks, &[]);
        Self { socket, process, disks, device, failed: 0 }
    }

    /// Blocks past the limit cannot be written, and are as they were.
    fn past_limit(&mut self) -> u64 {
        let model = &mut self.disks[0].model;
        let mut client = connect(&self.socket, 0, false);
        for _ in 0..200 {
            let block = model.block();
            if block < BAD {
                write(&mut client, model, block);
            } else {
                assert!(client.write(0, at(block), &[0xff; BLOCK]).is_err(), "block {block} was written");
                self.failed += 1;
            }
        }
        flush(&mut client);
        (0..BLOCKS).map(|block| read(&mut client, model, block)).sum()
    }

    /// Blocks past the end of the device's file cannot be read.
    fn bad_device(&mut self) -> u64 {
        let Ok((_, file)) = &self.device else { return 0 };
        let model = &mut self.disks[1].model;
        let mut client = connect(&self.socket, 1, false);
        for _ in 0..200 {
            let block = model.block();
            write(&mut client, model, block);
        }
        flush(&mut client);
        file.set_len(at(BAD)).unwrap();
        let mut verified = 0;
        for _ in 0..200 {
            let block = model.block();
            if block < BAD {
                write(&mut client, model, block);
                verified += read(&mut client, model, block);
            } else {
                assert_eq!(client.read(at(block), BLOCK as u32), Err(EIO), "block {block} cannot be read");
                self.failed += 1;
            }
        }
        file.set_len(at(BLOCKS)).unwrap();
        (BAD..BLOCKS).for_each(|block| model.zeroed(block));
        verified + (0..BLOCKS).map(|block| read(&mut client, model, block)).sum::<u64>()
    }
}

impl Load for Errors {
    fn cycle(&mut self, _number: u64) -> u64 {
        self.past_limit() + self.bad_device()
    }

    fn process(&self) -> Option<u32> {
        Some(self.process.0.id())
    }

    fn events(&self) -> String {
        let device = self.device.as_ref().err().map(|reason| format!(", no loop device: {reason}"));
        format!("{} requests failed{}", self.failed, device.unwrap_or_default())
    }
}

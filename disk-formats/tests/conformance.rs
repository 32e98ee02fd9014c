//! Every disk through every engine, buffered and direct.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{LoopDevice, can_direct, image};
use disk_formats::conformance::{Fresh, Peek, Suite};
use disk_formats::vhd::create_fixed;
use disk_formats::{Delayed, Disk, EngineKind, FormatName, NullDisk, OpenOptions, RamDisk, Raw, SectorSize};

const CAPACITY: u64 = 16 << 20;
const BOTH: [(EngineKind, &str); 2] = [(EngineKind::IoUring, "io_uring"), (EngineKind::Threads, "threads")];

fn open(path: &Path, format: FormatName, direct: bool, read_only: bool) -> Arc<dyn Disk> {
    let options = OpenOptions { path: path.into(), format: Some(format), read_only, direct: Some(direct) };
    options.open().expect("a disk")
}

/// Reads the file by a new open: what the disk has written must be there.
fn peek(path: &Path) -> Option<Peek> {
    let path = path.to_path_buf();
    Some(Box::new(move |offset, data| {
        let file = std::fs::File::open(&path).expect("a second open");
        file.read_exact_at(data, offset).expect("a second look");
    }))
}

fn files(name: &str, format: FormatName, create: fn(&Path)) {
    for direct in [false, true] {
        if direct && !can_direct() {
            println!("skipped {name} with O_DIRECT: no direct I/O in the temporary directory");
            continue;
        }
        let make = |read_only: bool| {
            let (folder, path) = image("disk");
            create(&path);
            Fresh { disk: open(&path, format, direct, read_only), peek: peek(&path), hold: Box::new(folder) }
        };
        let suite = Suite {
            name: &format!("{name}{}", if direct { " direct" } else { "" }),
            make: &|| make(false),
            make_read_only: Some(&|| make(true)),
            engines: &BOTH,
            keeps_data: true,
        };
        suite.run();
    }
}

#[test]
fn raw() {
    files("raw", FormatName::Raw, |path| Raw::create(path, CAPACITY).expect("an image"));
}

#[test]
fn fixed_vhd() {
    files("fixed VHD", FormatName::Vhd, |path| create_fixed(path, CAPACITY).expect("an image"));
}

#[test]
fn ram_and_null() {
    for sector in [SectorSize::B512, SectorSize::B4096] {
        let hold = || Box::new(());
        let ram = || Arc::new(RamDisk::new(CAPACITY, sector).expect("memory"));
        let null = || Arc::new(NullDisk::new(CAPACITY, sector).expect("a null disk"));
        let suite = Suite {
            name: "ram",
            make: &|| Fresh { disk: ram(), peek: None, hold: hold() },
            make_read_only: None,
            engines: &[(EngineKind::IoUring, "ram")],
            keeps_data: true,
        };
        suite.run();
        let suite = Suite {
            name: "null",
            make: &|| Fresh { disk: null(), peek: None, hold: hold() },
            engines: &[(EngineKind::IoUring, "null")],
            keeps_data: false,
            ..suite
        };
        suite.run();
    }
}

#[test]
fn delayed() {
    let later = |disk| Arc::new(Delayed::new(disk, Duration::from_micros(50)));
    let ram = || later(Arc::new(RamDisk::new(CAPACITY, SectorSize::B512).expect("memory")));
    Suite {
        name: "ram, delayed",
        make: &|| Fresh { disk: ram(), peek: None, hold: Box::new(()) },
        make_read_only: None,
        engines: &[(EngineKind::IoUring, "ram")],
        keeps_data: true,
    }
    .run();
    let raw = |read_only| {
        let (folder, path) = image("disk");
        Raw::create(&path, CAPACITY).expect("an image");
        let disk = later(open(&path, FormatName::Raw, false, read_only));
        Fresh { disk, peek: peek(&path), hold: Box::new(folder) }
    };
    Suite {
        name: "raw, delayed",
        make: &|| raw(false),
        make_read_only: Some(&|| raw(true)),
        engines: &BOTH,
        keeps_data: true,
    }
    .run();
}

#[test]
fn passthrough() {
    for sector in [512, 4096] {
        for direct in [true, false] {
            if let Err(reason) = LoopDevice::new(CAPACITY, sector) {
                println!("skipped pass-through with sectors of {sector}: {reason}");
                continue;
            }
            let make = |read_only: bool| {
                let device = LoopDevice::new(CAPACITY, sector).expect("a loop device");
                let disk = open(device.path(), FormatName::Passthrough, direct, read_only);
                assert_eq!(disk.info().logical_sector.bytes(), sector);
                // The page cache of the device is not that of a second open while direct writes go past it.
                let peek = if direct { peek(device.path()) } else { None };
                Fresh { disk, peek, hold: Box::new(device) }
            };
            let suite = Suite {
                name: &format!("pass-through, sectors of {sector}{}", if direct { ", direct" } else { "" }),
                make: &|| make(false),
                make_read_only: Some(&|| make(true)),
                engines: &BOTH,
                keeps_data: true,
            };
            suite.run();
        }
    }
}

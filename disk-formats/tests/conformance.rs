//! Every disk through every engine, buffered and direct.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{LARGE_SECTORS, SMALL, can_direct, image, loop_device, run_suite};
use paradisk_disk_formats::conformance::{Driver, Fresh, Peek, Suite};
use paradisk_disk_formats::vhd::{create_differencing, create_dynamic, create_fixed};
use paradisk_disk_formats::vhdx;
use paradisk_disk_formats::{
    Delayed, Disk, EngineKind, FormatName, Metered, NullDisk, OpenOptions, RamDisk, Raw, SectorSize,
};

const CAPACITY: u64 = 16 << 20;

fn open(path: &Path, format: FormatName, direct: bool, read_only: bool) -> Arc<dyn Disk> {
    let options =
        OpenOptions { format: Some(format), read_only, direct: Some(direct), ..OpenOptions::new(path) };
    options.open().expect("a disk")
}

/// Reads the file by a second open, which must see what the disk has written.
fn peek(path: &Path) -> Option<Peek> {
    let path = path.to_path_buf();
    Some(Box::new(move |offset, data| {
        let file = std::fs::File::open(&path).expect("a second open");
        file.read_exact_at(data, offset).expect("a second look");
    }))
}

/// As [`peek`], through a second disk over a copy of the file.
fn peek_image(path: &Path, format: FormatName) -> Option<Peek> {
    let path = path.to_path_buf();
    Some(Box::new(move |offset, data| {
        let copy = path.with_file_name("copy");
        std::fs::copy(&path, &copy).expect("a copy");
        let disk = open(&copy, format, false, true);
        data.copy_from_slice(&Driver::new(&*disk, EngineKind::Threads, 1).read(offset, data.len()));
    }))
}

fn flat(name: &str, format: FormatName, create: fn(&Path)) {
    files(name, format, create, peek);
}

fn blocks(name: &str, create: fn(&Path)) {
    files(name, FormatName::Vhd, create, |path| peek_image(path, FormatName::Vhd));
}

fn blocks_of_vhdx(name: &str, create: fn(&Path)) {
    files(name, FormatName::Vhdx, create, |path| peek_image(path, FormatName::Vhdx));
}

fn files(name: &str, format: FormatName, create: fn(&Path), peek: fn(&Path) -> Option<Peek>) {
    for direct in [false, true] {
        if direct && !can_direct() {
            println!("SKIP: {name} with O_DIRECT: no direct I/O in the temporary directory");
            continue;
        }
        let make = |read_only: bool| {
            let (folder, path) = image("disk");
            create(&path);
            Fresh { disk: open(&path, format, direct, read_only), peek: peek(&path), hold: Box::new(folder) }
        };
        run_suite(&format!("{name}{}", if direct { " direct" } else { "" }), &make);
    }
}

#[test]
fn raw() {
    flat("raw", FormatName::Raw, |path| Raw::create(path, CAPACITY).expect("an image"));
}

#[test]
fn fixed_vhd() {
    flat("fixed VHD", FormatName::Vhd, |path| create_fixed(path, CAPACITY).expect("an image"));
}

#[test]
fn dynamic_vhd() {
    blocks("dynamic VHD", |path| create_dynamic(path, CAPACITY, None).expect("an image"));
    let small = |path: &Path| create_dynamic(path, CAPACITY, Some(16 << 10)).expect("an image");
    blocks("dynamic VHD, small blocks", small);
}

#[test]
fn differencing_vhd() {
    blocks("differencing VHD", |path| {
        let parent = path.with_file_name("parent.vhd");
        create_fixed(&parent, CAPACITY).expect("a parent");
        create_differencing(path, &parent, None).expect("an image");
    });
    // A chain of three images with different block sizes.
    blocks("chain of VHDs", |path| {
        let [base, middle] = ["base.vhd", "middle.vhd"].map(|name| path.with_file_name(name));
        create_dynamic(&base, CAPACITY, Some(4 << 20)).expect("a base");
        create_differencing(&middle, &base, Some(64 << 10)).expect("an image");
        create_differencing(path, &middle, Some(512 << 10)).expect("an image");
    });
}

#[test]
fn vhdx_without_parent() {
    blocks_of_vhdx("fixed VHDX", |path| vhdx::create_fixed(path, CAPACITY, SMALL).expect("an image"));
    blocks_of_vhdx("dynamic VHDX", |path| vhdx::create_dynamic(path, CAPACITY, SMALL).expect("an image"));
    blocks_of_vhdx("dynamic VHDX, large blocks", |path| {
        vhdx::create_dynamic(path, CAPACITY, vhdx::CreateOptions::default()).expect("an image");
    });
    blocks_of_vhdx("dynamic VHDX, sectors of 4096", |path| {
        vhdx::create_dynamic(path, CAPACITY, LARGE_SECTORS).expect("an image");
    });
}

#[test]
fn differencing_vhdx() {
    blocks_of_vhdx("differencing VHDX", |path| {
        let parent = path.with_file_name("parent.vhdx");
        vhdx::create_fixed(&parent, CAPACITY, SMALL).expect("a parent");
        vhdx::create_differencing(path, &parent, Some(1 << 20)).expect("an image");
    });
    blocks_of_vhdx("chain of VHDX with sectors of 4096", |path| {
        let [base, middle] = ["base.vhdx", "middle.vhdx"].map(|name| path.with_file_name(name));
        vhdx::create_dynamic(&base, CAPACITY, LARGE_SECTORS).expect("a base");
        vhdx::create_differencing(&middle, &base, Some(4 << 20)).expect("an image");
        vhdx::create_differencing(path, &middle, None).expect("an image");
    });
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

/// RAM, and an image of this format, below what `layer` adds.
fn layered(
    what: &str,
    layer: &dyn Fn(Arc<dyn Disk>) -> Arc<dyn Disk>,
    format: FormatName,
    create: fn(&Path),
    peek: fn(&Path) -> Option<Peek>,
) {
    let ram = || layer(Arc::new(RamDisk::new(CAPACITY, SectorSize::B512).expect("memory")));
    Suite {
        name: &format!("ram, {what}"),
        make: &|| Fresh { disk: ram(), peek: None, hold: Box::new(()) },
        make_read_only: None,
        engines: &[(EngineKind::IoUring, "ram")],
        keeps_data: true,
    }
    .run();
    let make = |read_only| {
        let (folder, path) = image("disk");
        create(&path);
        let disk = layer(open(&path, format, false, read_only));
        Fresh { disk, peek: peek(&path), hold: Box::new(folder) }
    };
    run_suite(&format!("{format}, {what}"), &make);
}

#[test]
fn delayed() {
    let later = |disk| -> Arc<dyn Disk> { Arc::new(Delayed::new(disk, Duration::from_micros(50))) };
    let create = |path: &Path| Raw::create(path, CAPACITY).expect("an image");
    layered("delayed", &later, FormatName::Raw, create, peek);
}

#[test]
fn metered() {
    let counted = |disk| -> Arc<dyn Disk> {
        let metered = Metered::new(disk, 2_000_000_000);
        metered.metrics().expect("counters").time_requests(true);
        Arc::new(metered)
    };
    let create = |path: &Path| vhdx::create_dynamic(path, CAPACITY, SMALL).expect("an image");
    layered("metered", &counted, FormatName::Vhdx, create, |path| peek_image(path, FormatName::Vhdx));
}

#[test]
fn passthrough() {
    for sector in [512, 4096] {
        for direct in [true, false] {
            if let Err(reason) = loop_device(CAPACITY, sector) {
                println!("SKIP: passthrough with sectors of {sector}: {reason}");
                continue;
            }
            let make = |read_only: bool| {
                let device = loop_device(CAPACITY, sector).expect("a loop device");
                let disk = open(device.path(), FormatName::Passthrough, direct, read_only);
                assert_eq!(disk.info().logical_sector.bytes(), sector);
                // A second open reads the page cache, so it shows the medium only after direct writes.
                let peek = if direct { peek(device.path()) } else { None };
                Fresh { disk, peek, hold: Box::new(device) }
            };
            let name = format!("pass-through, sectors of {sector}{}", if direct { ", direct" } else { "" });
            run_suite(&name, &make);
        }
    }
}

//! Every disk through every engine, buffered and direct.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{LARGE_SECTORS, SMALL, can_direct, image, loop_device, mount_ext4, run_suite};
use paradisk_disk_formats::conformance::{Driver, Fresh, Guest, Peek, Suite};
use paradisk_disk_formats::vhd::{create_differencing, create_dynamic, create_fixed};
use paradisk_disk_formats::vhdx;
use paradisk_disk_formats::{
    Disk, DiskQueue, EngineKind, FormatName, Layered, NullDisk, Op, OpenOptions, QueueConfig, RamDisk, Raw,
    Request, SectorSize, Sectors,
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
    let later = |disk| -> Arc<dyn Disk> { Arc::new(Layered::new(disk).delayed(Duration::from_micros(50))) };
    let create = |path: &Path| Raw::create(path, CAPACITY).expect("an image");
    layered("delayed", &later, FormatName::Raw, create, peek);
}

#[test]
fn metered() {
    let counted = |disk| -> Arc<dyn Disk> {
        let metered = Layered::new(disk).metered(2_000_000_000);
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

/// Direct I/O in units of 4,096 bytes below disks with sectors of 512.
#[test]
fn sectors_smaller_than_the_units_of_direct_io() {
    let sectors = Sectors { logical: Some(SectorSize::B512), physical: None };
    let small = |path: &Path, format, read_only| {
        let sectors = if format == FormatName::Passthrough { sectors } else { Sectors::default() };
        let options = OpenOptions {
            format: Some(format),
            read_only,
            direct: Some(true),
            sectors,
            ..OpenOptions::new(path)
        };
        let disk = options.open().expect("a disk");
        assert_eq!((disk.info().logical_sector, disk.info().physical_sector), (SectorSize::B512, 4096));
        disk
    };
    if let Err(reason) = loop_device(CAPACITY, 4096) {
        return println!("SKIP: sectors_smaller_than_the_units_of_direct_io: {reason}");
    }
    let device = |read_only: bool| {
        let device = loop_device(CAPACITY, 4096).expect("a loop device");
        let disk = small(device.path(), FormatName::Passthrough, read_only);
        Fresh { disk, peek: peek(device.path()), hold: Box::new(device) }
    };
    run_suite("pass-through, sectors of 512 on 4096", &device);
    let device = loop_device(400 << 20, 4096).expect("a loop device");
    let Some(mounted) = mount_ext4(&device) else {
        return println!(
            "SKIP: sectors_smaller_than_the_units_of_direct_io: cannot mount /dev/loop-control's devices"
        );
    };
    for format in [FormatName::Raw, FormatName::Vhd, FormatName::Vhdx] {
        let image = |read_only: bool| {
            let folder = tempfile::tempdir_in(mounted.path()).expect("a folder");
            let path = folder.path().join("disk");
            let created = match format {
                FormatName::Vhd => create_dynamic(&path, CAPACITY, Some(64 << 10)),
                FormatName::Vhdx => vhdx::create_dynamic(&path, CAPACITY, SMALL),
                _ => Raw::create(&path, CAPACITY),
            };
            created.expect("an image");
            let disk = small(&path, format, read_only);
            let peek = if format == FormatName::Raw { peek(&path) } else { peek_image(&path, format) };
            Fresh { disk, peek, hold: Box::new(folder) }
        };
        run_suite(&format!("{format}, sectors of 512 on 4096"), &image);
    }
}

/// Neighbours in one unit of direct I/O, in flight at the same time on two queues: each keeps its own data.
#[test]
fn neighbours_in_a_unit_do_not_disturb_each_other() {
    let device = match loop_device(CAPACITY, 4096) {
        Ok(device) => device,
        Err(reason) => return println!("SKIP: neighbours_in_a_unit_do_not_disturb_each_other: {reason}"),
    };
    let sectors = Sectors { logical: Some(SectorSize::B512), physical: None };
    let disk = OpenOptions { sectors, ..OpenOptions::new(device.path()) }.open().expect("a disk");
    let write = |offset: u64, len: usize, value: u8, queue: &mut Box<dyn DiskQueue>, guest: &Guest| {
        let (tag, bufs) = (offset, [guest.buf(usize::from(value) * 8192, len)]);
        guest.put(usize::from(value) * 8192, &vec![value; len]);
        let len = len as u64;
        queue
            .push(&Request { tag, op: Op::Write { fua: value == 3 }, offset, len, bufs: &bufs })
            .expect("space");
    };
    for round in 0..200u64 {
        let base = round % 100 * 16384;
        let guest = Guest::new(16 * 8192);
        std::thread::scope(|scope| {
            for part in 0..2u64 {
                let (disk, guest) = (&disk, &guest);
                scope.spawn(move || {
                    let config = QueueConfig { depth: 16, engine: EngineKind::IoUring };
                    let mut queue = disk.queue(&config).expect("a queue");
                    // The even or the odd sectors of a unit; and a range that ends in it, or begins in it.
                    for sector in (0..8).filter(|sector| sector % 2 == part) {
                        write(base + 4096 + sector * 512, 512, 1 + sector as u8, &mut queue, guest);
                    }
                    let (start, value) = if part == 0 { (base, 9) } else { (base + 8192, 10) };
                    write(start, 4096, value, &mut queue, guest);
                    queue.submit();
                    let mut done = Vec::new();
                    while done.len() < 5 {
                        queue.wait();
                        queue.reap(&mut done);
                    }
                    assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
                });
            }
        });
        let seen = Driver::new(&*disk, EngineKind::IoUring, 1).read(base, 12288);
        let values: Vec<u8> = seen.chunks(512).map(|sector| sector[0]).collect();
        assert_eq!(values, [[9; 8], [1, 2, 3, 4, 5, 6, 7, 8], [10; 8]].concat(), "round {round}");
        let mut clear = Driver::new(&*disk, EngineKind::IoUring, 1);
        clear.write(base, &[0; 12288]);
    }
}

//! INQUIRY, REPORT LUNS, REQUEST SENSE, mode pages, capacities and the maintenance commands, byte by byte.

use paradisk_disk_formats::{Op, SectorSize};

use super::*;

#[test]
fn standard_inquiry() {
    let mut rig = Rig::fresh(disk::info(64));
    let data = rig.data_in(&[0x12, 0, 0, 0, 255, 0]);
    assert_eq!(data.len(), 74);
    assert_eq!(data[..8], [0, 0, 6, 2, 69, 0, 0, 2]);
    assert_eq!(&data[8..36], b"PARADISKVIRTUAL DISK    1.0 ");
    assert_eq!(data[58..66], [0, 0xa0, 4, 0x60, 4, 0xc0, 0, 0]);
    // Data cut at the allocation length are no overrun, and INQUIRY clears no unit attention.
    let (end, cut) = rig.run(&[0x12, 0, 0, 0, 5, 0], Direction::In, &[], 16);
    assert_eq!((end, &cut[..6]), (good(5, 5), &[0, 0, 6, 2, 69, 0xee][..]));
    // Data cut by a short buffer are an overrun.
    assert_eq!(rig.run(&[0x12, 0, 0, 0, 36, 0], Direction::In, &[], 20).0, good(20, 36));
    assert_eq!(rig.run(&[0x12, 0, 0, 0, 36, 0], Direction::None, &[], 0).0, good(0, 36));
    assert_eq!(rig.run(&[0x12, 0, 0, 0, 36, 0], Direction::Out, &[0; 36], 0).0, TaskEnd::WrongDirection);
    assert_eq!(rig.bad(&[0x12, 0, 0x80, 0, 36, 0]), field(2, None));
    assert_eq!(rig.bad(&[0x12, 2, 0, 0, 36, 0]), field(1, Some(1)));
    assert_eq!(rig.attention(), 0x2901);
}

#[test]
fn vital_product_data() {
    let mut rig = Rig::small();
    let mut page = |code| rig.data_in(&[0x12, 1, code, 1, 0, 0]);
    assert_eq!(page(0), [0, 0, 0, 6, 0, 0x80, 0x83, 0xb0, 0xb1, 0xb2]);
    assert_eq!(page(0x80), *b"\x00\x80\x00\x02S1");
    let identification = page(0x83);
    assert_eq!(identification[..8], [0, 0x83, 0, 42, 2, 1, 0, 26]);
    assert_eq!(&identification[8..34], b"PARADISKVIRTUAL DISK    S1");
    assert_eq!(identification[34..38], [1, 3, 0, 8]);
    assert_eq!((identification[38] >> 4, identification.len()), (3, 46));
    let limits = page(0xb0);
    let mut expected = vec![0, 0xb0, 0, 60, 1, 128, 0, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([0, 0x10, 0, 0, 0, 0, 1, 0, 0, 0, 0, 8, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0]);
    expected.extend([0; 20]);
    assert_eq!(limits, expected);
    let characteristics = page(0xb1);
    assert_eq!((characteristics.len(), &characteristics[..6]), (64, &[0, 0xb1, 0, 60, 0, 1][..]));
    assert!(characteristics[6..].iter().all(|byte| *byte == 0));
    assert_eq!(page(0xb2), [0, 0xb2, 0, 4, 0, 0xe4, 2, 0]);
    assert_eq!(rig.bad(&[0x12, 1, 0x81, 1, 0, 0]), field(2, None));
}

#[test]
fn serial_numbers_make_identifiers_different() {
    let page = |serial: &str| {
        let disk = Arc::new(MemoryDisk::new(disk::info(8)));
        let identity = Identity { serial: serial.into(), ..identity() };
        let mut bus = Bus::new(64);
        bus.attach(HERE, LogicalUnit::new(disk.clone(), disk.memory_queue(1), identity)).unwrap();
        let mut rig = Rig { bus, disk, memory: Scratch::new(8192) };
        rig.data_in(&[0x12, 1, 0x83, 1, 0, 0])[34..].to_vec()
    };
    assert_ne!(page("one")[4..], page("two")[4..]);
    assert_eq!(page("one"), page("one"));
}

#[test]
fn a_uuid_is_a_designator() {
    let disk = Arc::new(MemoryDisk::new(disk::info(8)));
    let identity = Identity { uuid: Some(*b"0123456789abcdef"), ..identity() };
    let mut bus = Bus::new(64);
    bus.attach(HERE, LogicalUnit::new(disk.clone(), disk.memory_queue(1), identity)).unwrap();
    let mut rig = Rig { bus, disk, memory: Scratch::new(8192) };
    let page = rig.data_in(&[0x12, 1, 0x83, 1, 0, 0]);
    assert_eq!((page[3], page.len()), (64, 68));
    assert_eq!(page[46..], [&[1, 0x0a, 0, 18, 0x10, 0][..], b"0123456789abcdef"].concat());
}

#[test]
fn disks_without_discard_and_of_4096_bytes() {
    let mut rig = Rig::with(|info| {
        info.logical_sector = SectorSize::B4096;
        info.discard = None;
    });
    let limits = rig.data_in(&[0x12, 1, 0xb0, 0, 64, 0]);
    assert_eq!(limits[4..12], [1, 16, 0, 1, 0, 0, 0x20, 0]);
    assert_eq!(limits[20..44], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0]);
    assert_eq!(rig.data_in(&[0x12, 1, 0xb2, 0, 64, 0]), [0, 0xb2, 0, 4, 0, 0, 0, 0]);
    assert_eq!(rig.data_in(&ten(0x25, 0, 0, 0)), [0, 0, 0, 7, 0, 0, 16, 0]);
    let long = rig.data_in(&sixteen(0x9e, 0x10, 0, 32));
    assert_eq!(long[..16], [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 16, 0, 0, 0, 0, 0]);
    // UNMAP is not supported, nor is the UNMAP bit of WRITE SAME.
    assert_eq!(rig.bad(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]).1, 0x2000);
    assert_eq!(rig.bad_out(&ten(0x41, 8, 0, 1), &[0; 4096]), field(1, Some(3)));
}

#[test]
#[cfg(feature = "buslogic")]
fn pages_where_cdbs_have_12_bytes() {
    let mut rig = Rig::small();
    let page = |rig: &mut Rig, code| rig.data_in(&[0x12, 1, code, 0, 64, 0]);
    let (limits, provisioning) = (page(&mut rig, 0xb0), page(&mut rig, 0xb2));
    rig.bus.limit_cdbs(12);
    // COMPARE AND WRITE, and the longest WRITE SAME.
    let mut expected = limits.clone();
    expected[5] = 0;
    expected[36..44].copy_from_slice(&0xffff_u64.to_be_bytes());
    assert_eq!(page(&mut rig, 0xb0), expected);
    // WRITE SAME (16) with UNMAP.
    let mut expected = provisioning.clone();
    expected[5] &= !0x40;
    assert_eq!(page(&mut rig, 0xb2), expected);
    assert_eq!(rig.bad(&sixteen(0x9e, 0x10, 0, 32)).1, 0x2000);
    // With 4 KiB blocks, 128 MiB fit into a 16-bit field.
    let mut rig = Rig::with(|info| info.logical_sector = SectorSize::B4096);
    rig.bus.limit_cdbs(12);
    assert_eq!(page(&mut rig, 0xb0)[36..44], 0x8000_u64.to_be_bytes());
}

#[test]
fn capacities() {
    let mut rig = Rig::small();
    assert_eq!(rig.data_in(&ten(0x25, 0, 0, 0)), [0, 0, 0, 63, 0, 0, 2, 0]);
    let long = rig.data_in(&sixteen(0x9e, 0x10, 0, 255));
    assert_eq!(long[..16], [0, 0, 0, 0, 0, 0, 0, 63, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
    assert_eq!(long[16..], [0; 16]);
    assert_eq!(rig.data_in(&sixteen(0x9e, 0x10, 0, 12)).len(), 12);
    assert_eq!(rig.bad(&sixteen(0x9e, 0x11, 0, 32)), field(1, Some(4)));
    assert_eq!(rig.bad(&ten(0x25, 0, 1, 0)), field(5, Some(0)));
    // For more than 2^32 blocks, READ CAPACITY (10) returns the maximum.
    let mut rig = Rig::fresh(disk::info(1 << 33));
    rig.attention();
    assert_eq!(rig.data_in(&ten(0x25, 0, 0, 0)), [0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]);
    assert_eq!(rig.data_in(&sixteen(0x9e, 0x10, 0, 32))[..8], [0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]);
}

#[test]
fn absent_units_and_targets() {
    let mut rig = Rig::small();
    let absent = Address { target: 3, lun: 5 };
    let (end, data) = rig.run_at(absent, &[0x12, 0, 0, 0, 36, 0], Direction::In, &[], 36);
    assert_eq!((end, data[0]), (good(36, 36), 0x7f));
    let (_, data) = rig.run_at(absent, &[0x03, 0, 0, 0, 18, 0], Direction::In, &[], 18);
    assert_eq!((data[0], data[2], data[12], data[13]), (0x70, 5, 0x25, 0));
    assert_eq!(summary(&rig.run_at(absent, &[0; 6], Direction::None, &[], 0).0), (5, 0x2500, [0; 3]));
    assert_eq!(summary(&rig.run_at(absent, &ten(0x28, 0, 0, 1), Direction::In, &[], 512).0).1, 0x2500);
    let luns = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0];
    let (end, data) = rig.run_at(absent, &luns, Direction::In, &[], 16);
    assert_eq!((end, &data[..]), (good(16, 16), &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]));
    let nowhere = Address { target: 4, lun: 0 };
    assert_eq!(rig.run_at(nowhere, &[0x12, 0, 0, 0, 36, 0], Direction::In, &[], 36).0, TaskEnd::NoTarget);
    assert_eq!(rig.run_at(nowhere, &luns, Direction::In, &[], 36).0, TaskEnd::NoTarget);
}

#[test]
fn several_units_of_a_target() {
    let mut rig = Rig::small();
    for lun in [1, 300] {
        let unit = LogicalUnit::new(rig.disk.clone(), rig.disk.memory_queue(4), identity());
        rig.bus.attach(Address { target: 3, lun }, unit).unwrap();
    }
    let unit = LogicalUnit::new(rig.disk.clone(), rig.disk.memory_queue(4), identity());
    assert!(rig.bus.attach(Address { target: 3, lun: 300 }, unit).is_err());
    let unit = LogicalUnit::new(rig.disk.clone(), rig.disk.memory_queue(4), identity());
    assert!(rig.bus.attach(Address { target: 3, lun: 0x4000 }, unit).is_err());
    assert_eq!(rig.attention(), 0x3f0e);
    let luns = rig.data_in(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(luns[..8], [0, 0, 0, 24, 0, 0, 0, 0]);
    assert_eq!((&luns[8..10], &luns[16..18], &luns[24..26]), (&[0, 0][..], &[0, 1][..], &[0x41, 0x2c][..]));
    assert_eq!(rig.data_in(&[0xa0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0]), [0; 8]);
    assert_eq!(rig.bad(&[0xa0, 0, 3, 0, 0, 0, 0, 0, 1, 0, 0, 0]), field(2, None));
    let other = Address { target: 3, lun: 300 };
    assert_eq!(summary(&rig.run_at(other, &[0; 6], Direction::None, &[], 0).0).1, 0x2901);
    assert_eq!(rig.run_at(other, &[0; 6], Direction::None, &[], 0).0, good(0, 0));
    assert_eq!(rig.bus.addresses().count(), 3);
    assert_eq!(rig.bus.events().len(), 3);
    assert!(rig.bus.detach(other));
    assert!(!rig.bus.detach(other));
    // REPORT LUNS returns the change, and clears the condition.
    assert_eq!(rig.data_in(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0])[3], 16);
    rig.good(&[0; 6], Direction::None, &[], 0);
}

#[test]
fn request_sense_takes_unit_attention_away() {
    let mut rig = Rig::fresh(disk::info(8));
    let data = rig.data_in(&[0x03, 0, 0, 0, 252, 0]);
    assert_eq!(data, [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 1, 0, 0, 0, 0]);
    assert_eq!(rig.data_in(&[0x03, 1, 0, 0, 252, 0]), [0x72, 0, 0, 0, 0, 0, 0, 0]);
    rig.good(&[0; 6], Direction::None, &[], 0);
}

#[test]
fn mode_sense() {
    let mut rig = Rig::small();
    let caching = [8, 0x12, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let control = [0x0a, 0x0a, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
    let block = [0, 0, 0, 64, 0, 0, 2, 0];
    let all = rig.data_in(&[0x1a, 0, 0x3f, 0, 255, 0]);
    assert_eq!(all, [&[43, 0, 0x10, 8][..], &block, &caching, &control].concat());
    assert_eq!(rig.data_in(&[0x1a, 8, 8, 0, 255, 0]), [&[23, 0, 0x10, 0][..], &caching].concat());
    assert_eq!(rig.data_in(&[0x1a, 8, 0x0a, 0xff, 255, 0]), [&[15, 0, 0x10, 0][..], &control].concat());
    let long = rig.data_in(&[0x5a, 0x10, 0x0a, 0, 0, 0, 0, 1, 0, 0]);
    let block = [0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 2, 0];
    assert_eq!(long, [&[0, 34, 0, 0x10, 1, 0, 0, 16][..], &block, &control].concat());
    let changeable = rig.data_in(&[0x1a, 8, 0x7f, 0, 255, 0]);
    let mut expected = vec![35, 0, 0x10, 0, 8, 0x12, 4];
    expected.extend([0; 17]);
    expected.extend([0x0a, 0x0a, 4, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(changeable, expected);
    assert_eq!(rig.bad(&[0x1a, 0, 0xc8, 0, 255, 0]), (5, 0x3900, [0; 3]));
    assert_eq!(rig.bad(&[0x1a, 0, 0x01, 0, 255, 0]), field(2, Some(5)));
    assert_eq!(rig.bad(&[0x1a, 0, 0x08, 1, 255, 0]), field(3, None));
}

#[test]
fn mode_select_changes_what_can_change() {
    let mut rig = Rig::small();
    let mut caching = [8, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let list = |page: &[u8]| [&[0, 0, 0, 0][..], page].concat();
    // Clearing WCE flushes the cache, and later every write is on stable storage when it ends.
    rig.good(&[0x15, 0x10, 0, 0, 24, 0], Direction::Out, &list(&caching), 0);
    assert_eq!(rig.control(|control| std::mem::take(&mut control.log)), [(Op::Flush, 0, 0)]);
    rig.good(&ten(0x2a, 0, 1, 1), Direction::Out, &[1; 512], 0);
    assert_eq!(
        rig.control(|control| std::mem::take(&mut control.log)),
        [(Op::Write { fua: true }, 512, 512)]
    );
    assert_eq!(rig.data_in(&[0x1a, 8, 8, 0, 255, 0])[6], 0);
    assert_eq!(rig.data_in(&[0x1a, 8, 0x88, 0, 255, 0])[6], 4);
    // RCD cannot be changed. Then nothing of the list is applied.
    caching[2] = 5;
    let control = [0x0a, 0x0a, 4, 0x10, 8, 0, 0, 0, 0, 0, 0, 0];
    let both = [&[0, 0, 0, 0][..], &control, &caching].concat();
    assert_eq!(rig.bad_out(&[0x15, 0x10, 0, 0, 36, 0], &both), (5, 0x2600, [0x88, 0, 18]));
    assert_eq!(rig.data_in(&[0x1a, 8, 0x0a, 0, 255, 0])[6..9], [0, 0x10, 0]);
    // D_SENSE and SWP through the 10-byte form, with the current block descriptor.
    let ten_list = [&[0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 64, 0, 0, 2, 0][..], &control].concat();
    rig.good(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, 28, 0], Direction::Out, &ten_list, 0);
    let end = rig.run(&ten(0x2a, 0, 0, 1), Direction::Out, &[1; 512], 0).0;
    assert_eq!(sense(&end), [0x72, 7, 0x27, 2, 0, 0, 0, 0]);
    assert_eq!(rig.data_in(&[0x1a, 8, 0x0a, 0, 255, 0])[2], 0x90);
    rig.bus.reset_unit(HERE);
    assert_eq!(rig.attention(), 0x2903);
    assert_eq!(
        rig.data_in(&[0x1a, 8, 0x0a, 0, 255, 0])[2..],
        [0x10, 0, 0x0a, 0x0a, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn bad_mode_parameter_lists() {
    let mut rig = Rig::small();
    let mut bad = |list: &[u8]| rig.bad_out(&[0x15, 0x10, 0, 0, list.len() as u8, 0], list);
    let length_error = (5, 0x1a00, [0; 3]);
    assert_eq!(bad(&[0, 0]), length_error);
    assert_eq!(bad(&[0, 0, 0, 8, 0, 0]), length_error);
    assert_eq!(bad(&[0, 0, 0, 0, 8]), length_error);
    assert_eq!(bad(&[0, 0, 0, 0, 8, 0x12, 0, 0]), length_error);
    assert_eq!(bad(&[0, 1, 0, 0]), (5, 0x2600, [0x80, 0, 1]));
    assert_eq!(bad(&[0, 0, 0, 0, 1, 10, 0, 0]), (5, 0x2600, [0x8d, 0, 4]));
    assert_eq!(bad(&[0, 0, 0, 0, 0x48, 10, 0, 0]), (5, 0x2600, [0x8e, 0, 4]));
    assert_eq!(bad(&[0, 0, 0, 0, 8, 10, 0, 0]), (5, 0x2600, [0x80, 0, 5]));
    assert_eq!(bad(&[0, 0, 0, 8, 0, 0, 0, 65, 0, 0, 2, 0]), (5, 0x2600, [0x80, 0, 4]));
    assert_eq!(bad(&[0, 0, 0, 8, 0, 0, 0, 64, 0, 0, 16, 0]), (5, 0x2600, [0x80, 0, 9]));
    assert_eq!(bad(&[0, 0, 0, 4, 0, 0, 0, 0]), (5, 0x2600, [0x80, 0, 3]));
    // Less data than the list's length is an error; an empty list is not.
    assert_eq!(rig.bad_out(&[0x15, 0x10, 0, 0, 24, 0], &[0; 4]), length_error);
    rig.good(&[0x15, 0x10, 0, 0, 0, 0], Direction::None, &[], 0);
    assert_eq!(rig.run(&[0x15, 0x10, 0, 0, 4, 0], Direction::In, &[], 4).0, TaskEnd::WrongDirection);
}

#[test]
fn maintenance() {
    let mut rig = Rig::small();
    let tmf = |flags, alloc| [0xa3, 0x0d, flags, 0, 0, 0, 0, 0, 0, alloc, 0, 0];
    assert_eq!(rig.data_in(&tmf(0, 64)), [0x8a, 0, 0, 0]);
    assert_eq!(rig.data_in(&tmf(0x80, 64)), [0x8a, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let one = [0xa3, 0x0c, 1, 0x2a, 0, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!(rig.data_in(&one), [0, 3, 0, 10, 0x2a, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0]);
    let all = rig.data_in(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0]);
    // Every reported command is known: it may fail, but not as an invalid operation code.
    for entry in all[4..].chunks_exact(8) {
        let mut cdb = vec![0; usize::from(entry[7])];
        (cdb[0], cdb[1]) = (entry[0], entry[3]);
        if let TaskEnd::Answered { sense: Some(sense), .. } = rig.run(&cdb, Direction::None, &[], 0).0 {
            assert_ne!(sense.as_slice()[12], 0x20, "{cdb:02x?}");
        }
    }
    assert_eq!(rig.bad(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0]), field(1, Some(4)));
    assert_eq!(rig.bad(&[0xc0, 0, 0, 0, 0, 0]), (5, 0x2000, [0; 3]));
}

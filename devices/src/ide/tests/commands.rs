//! Commands without data, limits of addresses, and flushes.

use paradisk_disk_formats::Op;

use super::*;

#[test]
fn addresses_end_with_the_disk() {
    let mut guest = Guest::new();
    let last = SECTORS as u32 - 1;
    let status = |guest: &mut Guest, lba: u32, count: u8| {
        guest.command28(command::READ_VERIFY, 0, lba, count);
        guest.serve();
        guest.in_byte(reg::STATUS)
    };
    assert_eq!(status(&mut guest, last, 1), GOOD);
    assert_eq!(status(&mut guest, SECTORS as u32 - 256, 0), GOOD, "256 sectors");
    for (lba, count) in [(last, 2), (SECTORS as u32, 1), (SECTORS as u32 - 255, 0), (0x0fff_ffff, 0)] {
        assert_eq!(status(&mut guest, lba, count), FAILED, "{lba:#x} {count}");
        assert_eq!(guest.error(), Error::IDNF.bits());
    }
    let status = |guest: &mut Guest, code: u8, lba: u64, count: u16| {
        guest.command48(code, 0, lba, count);
        guest.serve();
        guest.in_byte(reg::STATUS)
    };
    assert_eq!(status(&mut guest, command::READ_VERIFY_EXT, 0, SECTORS as u16), GOOD);
    guest.log(0);
    for (lba, count) in [(0, 0), (SECTORS, 1), (0xffff_ffff_ffff, 0), (1, SECTORS as u16)] {
        for code in [
            command::READ_VERIFY_EXT,
            command::READ_DMA_EXT,
            command::WRITE_DMA_EXT,
            command::READ_MULTIPLE_EXT,
            command::WRITE_SECTORS_EXT,
        ] {
            assert_eq!(status(&mut guest, code, lba, count), FAILED, "{code:#x} {lba:#x} {count}");
            assert_eq!(guest.error(), Error::IDNF.bits());
        }
    }
    assert_eq!(guest.log(0), [], "the disk was not asked");
}

#[test]
fn verify_reads_every_sector() {
    let mut guest = Guest::new();
    guest.command28(command::READ_VERIFY_ONCE, 0, 3, 40);
    assert!(guest.line());
    assert_eq!(guest.in_byte(reg::STATUS), GOOD);
    assert_eq!(guest.log(0), [Op::Read; 3], "16, 16 and 8");
}

/// Disks in memory complete each block at once.
#[test]
fn one_call_verifies_a_limited_number_of_blocks() {
    let mut guest = Guest::new();
    guest.command48(command::READ_VERIFY_EXT, 0, 0, SECTORS as u16);
    let first = guest.log(0).len();
    assert!((2..100).contains(&first), "{first}");
    assert_eq!((guest.alternate_status() & 0x80, guest.line()), (0x80, false));
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No, "the owner calls again");
    guest.serve();
    assert_eq!((guest.in_byte(reg::STATUS), first + guest.log(0).len()), (GOOD, SECTORS as usize / 16));
}

#[test]
fn a_flush_ends_when_the_disk_has_flushed() {
    for code in [command::FLUSH_CACHE, command::FLUSH_CACHE_EXT, 0xe0, 0xe2, 0xe6, 0x94, 0x96, 0x99] {
        let mut guest = Guest::new();
        guest.hold.set(true);
        guest.out_byte(reg::STATUS, code);
        guest.serve();
        assert_eq!((guest.alternate_status() & 0x80, guest.line()), (0x80, false), "{code:#x}");
        guest.hold.set(false);
        guest.serve();
        assert!(guest.line());
        assert_eq!((guest.in_byte(reg::STATUS), guest.log(0)), (GOOD, vec![Op::Flush]));
    }
}

#[test]
fn with_the_write_cache_off_a_write_ends_on_stable_storage() {
    let mut guest = Guest::new();
    guest.check_io();
    assert_eq!(guest.log(0), [Op::Write { fua: false }, Op::Read]);
    // The cache is flushed before it is disabled.
    guest.hold.set(true);
    guest.command28(command::SET_FEATURES, feature::DISABLE_WRITE_CACHE, 0, 0);
    assert!(!guest.line());
    guest.hold.set(false);
    guest.serve();
    assert_eq!((guest.in_byte(reg::STATUS), guest.log(0)), (GOOD, vec![Op::Flush]));
    assert_eq!(guest.identify()[85] & 0x20, 0);
    let durable = &[Op::Write { fua: true }][..];
    guest.check_io();
    assert_eq!(guest.log(0), [durable, &[Op::Read]].concat());
    guest.software_reset();
    guest.check_io();
    assert_eq!(guest.log(0), [durable, &[Op::Read]].concat(), "also after a reset");
    // By programmed I/O: one flush after the last block.
    guest.command28(command::WRITE_SECTORS, 0, 0, 2);
    guest.write_block(&[0; 512]);
    guest.log(0);
    guest.hold.set(true);
    guest.write_block(&[0; 512]);
    guest.in_byte(reg::STATUS);
    guest.serve();
    assert!(!guest.line());
    guest.hold.set(false);
    guest.serve();
    assert_eq!((guest.line(), guest.log(0)), (true, durable.to_vec()));
    guest.simple(command::SET_FEATURES, feature::ENABLE_WRITE_CACHE, 0);
    guest.log(0);
    guest.check_io();
    assert_eq!(guest.log(0), [Op::Write { fua: false }, Op::Read]);
    guest.device.reset(guest.now);
    guest.device.config_write(4, &5u16.to_le_bytes());
    assert_eq!(guest.identify()[85] & 0x20, 0x20);
}

#[test]
fn a_disk_without_a_cache_needs_no_flush() {
    let mut guest = Guest::with(Setup { volatile_cache: false, ..USUAL });
    guest.check_io();
    assert_eq!(guest.log(0), [Op::Write { fua: false }, Op::Read]);
}

#[test]
fn features_that_are_there_and_others() {
    let mut guest = Guest::new();
    for mode in [0x00, 0x01, 0x08, 0x0c, 0x20, 0x22, 0x40, 0x42] {
        assert_eq!(guest.simple(command::SET_FEATURES, feature::TRANSFER_MODE, mode), GOOD, "{mode:#x}");
    }
    for mode in [0x02, 0x0d, 0x10, 0x23, 0x43, 0x80, 0xff] {
        assert_eq!(guest.simple(command::SET_FEATURES, feature::TRANSFER_MODE, mode), FAILED, "{mode:#x}");
        assert_eq!(guest.error(), Error::ABRT.bits());
    }
    assert_eq!(guest.simple(command::SET_FEATURES, feature::DISABLE_LOOK_AHEAD, 0), GOOD);
    assert_eq!(guest.identify()[85] & 0x40, 0);
    assert_eq!(guest.simple(command::SET_FEATURES, feature::ENABLE_LOOK_AHEAD, 0), GOOD);
    assert_eq!(guest.identify()[85] & 0x40, 0x40);
    assert_eq!(guest.simple(command::SET_FEATURES, 0x05, 0), FAILED);
}

#[test]
fn blocks_of_multiple_are_powers_of_two() {
    let mut guest = Guest::new();
    for count in [1, 2, 4, 8, 16] {
        assert_eq!(guest.simple(command::SET_MULTIPLE, 0, count), GOOD);
        assert_eq!(guest.identify()[59], 0x100 | u16::from(count));
    }
    for count in [3, 17, 32, 255] {
        assert_eq!(guest.simple(command::SET_MULTIPLE, 0, count), FAILED);
    }
    assert_eq!(guest.identify()[59], 0x110);
    assert_eq!(guest.simple(command::SET_MULTIPLE, 0, 0), GOOD);
    assert_eq!(guest.identify()[59], 0);
    for code in [command::READ_MULTIPLE, command::WRITE_MULTIPLE, command::READ_MULTIPLE_EXT] {
        assert_eq!(guest.simple(code, 0, 1), FAILED);
        assert_eq!(guest.error(), Error::ABRT.bits());
    }
    guest.software_reset();
    assert_eq!(guest.identify()[59], 0x110);
}

#[test]
fn power_and_old_commands() {
    let mut guest = Guest::new();
    for code in [0xe1, 0xe3, 0x95, 0x97, 0x10, 0x1f, 0x70, 0x7f] {
        assert_eq!(guest.simple(code, 0, 0), GOOD, "{code:#x}");
    }
    for code in [0xe5, 0x98] {
        assert_eq!((guest.simple(code, 0, 0), guest.in_byte(reg::COUNT)), (GOOD, 0xff), "active");
    }
}

#[test]
fn the_native_maximum() {
    let mut guest = Guest::new();
    guest.command28(command::READ_NATIVE_MAX, 0, 0, 0);
    assert_eq!(guest.in_byte(reg::STATUS), GOOD);
    assert_eq!([reg::LBA_LOW, reg::LBA_MID, reg::LBA_HIGH].map(|at| guest.in_byte(at)), [0xff, 7, 0]);
    guest.command48(command::READ_NATIVE_MAX_EXT, 0, 0, 0);
    assert_eq!(guest.in_byte(reg::STATUS), GOOD);
    assert_eq!(guest.shown48().0, SECTORS - 1);
}

#[test]
fn diagnostics_are_of_both_drives() {
    let mut guest = Guest::new();
    guest.select(1);
    guest.out_byte(reg::STATUS, command::DIAGNOSTIC);
    assert!(guest.line());
    assert_eq!((guest.in_byte(reg::STATUS), guest.error()), (GOOD, 1));
    assert_eq!(guest.in_byte(reg::DEVICE) & DEVICE_DEV, 0, "the first drive is selected");
}

#[test]
fn smart_is_well() {
    let mut guest = Guest::new();
    let smart = |guest: &mut Guest, features: u8, count: u8| {
        guest.command28(command::SMART, features, 0xc2_4f00 | 1, count);
        guest.in_byte(reg::STATUS)
    };
    assert_eq!(smart(&mut guest, smart::RETURN_STATUS, 0), GOOD);
    assert_eq!([reg::LBA_MID, reg::LBA_HIGH].map(|at| guest.in_byte(at)), [0x4f, 0xc2]);
    for (features, version) in
        [(smart::READ_DATA, 0x10), (smart::READ_THRESHOLDS, 0x10), (smart::READ_LOG, 1)]
    {
        assert_eq!(smart(&mut guest, features, 1), 0x58);
        let data = guest.read_block(512);
        assert_eq!((data[0], data.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte))), (version, 0));
        assert_eq!(guest.in_byte(reg::STATUS), GOOD);
    }
    assert_eq!(smart(&mut guest, smart::READ_LOG, 2), FAILED);
    assert_eq!(smart(&mut guest, smart::AUTOSAVE, 0), GOOD);
    assert_eq!(smart(&mut guest, smart::DISABLE, 0), GOOD);
    assert_eq!((smart(&mut guest, smart::READ_DATA, 1), guest.identify()[85] & 1), (FAILED, 0));
    assert_eq!(smart(&mut guest, smart::ENABLE, 0), GOOD);
    assert_eq!((smart(&mut guest, smart::READ_DATA, 1), guest.read_block(512)[0]), (0x58, 0x10));
    assert_eq!(guest.simple(command::SMART, smart::RETURN_STATUS, 0), FAILED, "without the signature");
}

#[test]
fn others_are_aborted() {
    let mut guest = Guest::new();
    for code in [0x00, 0x08, 0x2f, 0x37, 0x3d, 0x60, 0x61, 0xa0, 0xa1, 0xb1, 0xce, 0xf1, 0xf5, 0xf9, 0xff] {
        assert_eq!(guest.simple(code, 0, 0), FAILED, "{code:#x}");
        assert_eq!(guest.error(), Error::ABRT.bits());
    }
    assert_eq!(guest.device.stats().errors, 15);
    // The error register belongs to the last command.
    assert_eq!((guest.simple(0xe1, 0, 0), guest.error()), (GOOD, 0));
}

#[test]
fn a_read_only_disk_aborts_writes() {
    let mut guest = Guest::with(Setup { read_only: true, ..USUAL });
    for code in
        [command::WRITE_DMA, command::WRITE_SECTORS, command::WRITE_MULTIPLE, command::DATA_SET_MANAGEMENT]
    {
        assert_eq!(guest.simple(code, 1, 1), FAILED);
        assert_eq!(guest.error(), Error::ABRT.bits());
    }
    assert_eq!(guest.run_dma(false, 0, 1, &[(DATA, 512)]), (4, GOOD));
}

#[test]
fn the_capacity_is_that_of_power_on() {
    let mut guest = Guest::new();
    guest.disks[0].grow(2 * MIB);
    guest.device.refresh(guest.now);
    assert_eq!(guest.identify()[100], SECTORS as u16);
    guest.software_reset();
    assert_eq!(guest.identify()[100], SECTORS as u16);
    guest.device.reset(guest.now);
    assert_eq!(guest.identify()[100], 2 * SECTORS as u16);
}

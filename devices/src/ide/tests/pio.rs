//! Programmed I/O: blocks, their interrupts, and the width of the data port.

use super::*;

/// Write a pattern to the disk, beginning with this sector.
fn with_pattern(guest: &mut Guest, lba: u64, sectors: u16) -> Vec<u8> {
    let len = usize::from(sectors) * 512;
    let data = guest.fill(DATA, len, 0x33);
    assert_eq!(guest.run_dma(true, lba, sectors, &[(DATA, len as u64)]), (4, GOOD));
    guest.raised();
    data
}

#[test]
fn reads_come_in_blocks_with_an_interrupt_each() {
    for (code, block, count) in [
        (command::READ_SECTORS, 512, 5u16),
        (command::READ_SECTORS_EXT, 512, 5),
        (command::READ_MULTIPLE, 16 * 512, 40),
        (command::READ_MULTIPLE_EXT, 16 * 512, 40),
    ] {
        let mut guest = Guest::new();
        let data = with_pattern(&mut guest, 100, count);
        match code {
            command::READ_SECTORS | command::READ_MULTIPLE => guest.command28(code, 0, 100, count as u8),
            _ => guest.command48(code, 0, 100, count),
        }
        let mut read = Vec::new();
        while read.len() < data.len() {
            assert!(guest.line(), "{code:#x}: the block is ready");
            assert_eq!(guest.in_byte(reg::STATUS), 0x58);
            assert!(!guest.line(), "status takes the interrupt back");
            let len = block.min(data.len() - read.len());
            read.extend(guest.read_block(len));
        }
        assert_eq!(read, data, "{code:#x}");
        assert_eq!((guest.in_byte(reg::STATUS), guest.line()), (GOOD, false), "none after the last");
        assert_eq!(guest.raised(), data.len().div_ceil(block) as u32);
        assert_eq!(guest.bm_read(bm::STATUS) & 4, 4, "the bus master saw them, too");
        assert_eq!(guest.read_block(2), [0; 2], "nothing more");
    }
}

#[test]
fn writes_ask_for_each_block_but_the_first() {
    for (code, block, count) in [
        (command::WRITE_SECTORS, 512, 5u16),
        (command::WRITE_SECTORS_EXT, 512, 5),
        (command::WRITE_MULTIPLE, 16 * 512, 40),
        (command::WRITE_MULTIPLE_EXT, 16 * 512, 40),
    ] {
        let mut guest = Guest::new();
        let data: Vec<u8> = (0..usize::from(count) * 512).map(|at| (at / 3) as u8).collect();
        match code {
            command::WRITE_SECTORS | command::WRITE_MULTIPLE => guest.command28(code, 0, 100, count as u8),
            _ => guest.command48(code, 0, 100, count),
        }
        for part in data.chunks(block) {
            assert_eq!((guest.alternate_status(), guest.line()), (0x58, part.as_ptr() != data.as_ptr()));
            assert_eq!(guest.in_byte(reg::STATUS), 0x58);
            guest.write_block(part);
        }
        assert!(guest.line());
        assert_eq!(guest.in_byte(reg::STATUS), GOOD);
        assert_eq!(guest.raised(), data.len().div_ceil(block) as u32);
        assert_eq!(guest.run_dma(false, 100, count, &[(DATA, data.len() as u64)]), (4, GOOD));
        assert_eq!(guest.bytes(DATA, data.len()), data, "{code:#x}");
    }
}

#[test]
fn a_drive_is_busy_until_data_are_there() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    guest.command28(command::READ_SECTORS, 0, 0, 2);
    assert_eq!((guest.alternate_status() & 0x88, guest.line()), (0x80, false));
    assert_eq!(guest.read_block(2), [0; 2], "no data yet");
    // Writes to registers are ignored meanwhile.
    guest.out_byte(reg::COUNT, 0x77);
    guest.out_byte(reg::DEVICE, 0xb0);
    guest.out_byte(reg::STATUS, command::FLUSH_CACHE);
    guest.hold.set(false);
    guest.serve();
    assert_eq!((guest.in_byte(reg::COUNT), guest.alternate_status()), (2, 0x58));
    // They are ignored while DRQ is set, too.
    guest.out_byte(reg::STATUS, command::IDENTIFY);
    guest.read_block(1024);
    assert_eq!(guest.in_byte(reg::STATUS), GOOD);
    assert_eq!(guest.log(0), [paradisk_disk_formats::Op::Read; 2]);
}

#[test]
fn the_port_is_16_or_32_bits_wide() {
    let mut guest = Guest::new();
    let data = with_pattern(&mut guest, 0, 1);
    guest.command28(command::READ_SECTORS, 0, 0, 1);
    let mut read = Vec::new();
    let take = |guest: &mut Guest, len: usize| {
        let mut part = [0; 4];
        guest.device.bar_read(0, reg::DATA, &mut part[..len], guest.now);
        part[..len].to_vec()
    };
    read.extend(take(&mut guest, 2));
    read.extend(take(&mut guest, 4));
    assert_eq!(read, data[..6]);
    // A read of one byte consumes a word.
    assert_eq!(take(&mut guest, 1), data[6..7]);
    assert_eq!(take(&mut guest, 2), data[8..10]);
    // A read beyond the end of the block.
    let mut rest = [0x77; 600];
    guest.device.port_read_string(0, reg::DATA, 4, &mut rest, guest.now);
    assert_eq!(rest[..502], data[10..]);
    assert_eq!(rest[502..], [0; 98]);
    // Single bytes are not written, and reads during a write return nothing.
    guest.command28(command::WRITE_SECTORS, 0, 1, 1);
    guest.device.bar_write(0, reg::DATA, &[1], guest.now);
    assert_eq!(guest.read_block(2), [0; 2]);
    for word in data.chunks(2) {
        guest.device.bar_write(0, reg::DATA, word, guest.now);
    }
    assert_eq!(guest.in_byte(reg::STATUS), GOOD);
    assert_eq!(guest.run_dma(false, 1, 1, &[(DATA + 0x1000, 512)]), (4, GOOD));
    assert_eq!(guest.bytes(DATA + 0x1000, 512), data);
}

#[test]
fn a_string_goes_over_blocks() {
    let mut guest = Guest::new();
    let data = with_pattern(&mut guest, 7, 3);
    guest.command28(command::READ_SECTORS, 0, 7, 3);
    assert_eq!(guest.read_block(1536), data);
    guest.command28(command::WRITE_SECTORS, 0, 20, 3);
    guest.write_block(&data);
    assert_eq!(guest.in_byte(reg::STATUS), GOOD);
    guest.command28(command::READ_MULTIPLE, 0, 20, 3);
    assert_eq!(guest.read_block(1536), data);
}

#[test]
fn registers_follow_a_transfer() {
    let mut guest = Guest::new();
    guest.command48(command::READ_SECTORS_EXT, 0, 500, 3);
    guest.read_block(512);
    guest.in_byte(reg::STATUS);
    assert_eq!(guest.shown48(), (501, 2));
    guest.read_block(1024);
    assert_eq!(guest.shown48(), (503, 0));
    guest.control(0);
    guest.command28(command::READ_SECTORS, 0, 500, 2);
    guest.read_block(1024);
    let shown = [reg::COUNT, reg::LBA_LOW, reg::LBA_MID, reg::LBA_HIGH, reg::DEVICE];
    assert_eq!(shown.map(|offset| guest.in_byte(offset)), [0, 0xf6, 1, 0, 0xe0]);
}

#[test]
fn cylinders_heads_and_sectors() {
    let mut guest = Guest::new();
    let data = with_pattern(&mut guest, 3 * 4 * 17 + 2 * 17 + 5, 1);
    // Four heads, 17 sectors.
    guest.out_byte(reg::DEVICE, 0xa3);
    guest.out_byte(reg::COUNT, 17);
    guest.out_byte(reg::STATUS, command::INITIALIZE_PARAMETERS);
    assert_eq!(guest.in_byte(reg::STATUS), GOOD);
    assert_eq!(guest.identify()[54..57], [(SECTORS / (4 * 17)) as u16, 4, 17]);
    let read = |guest: &mut Guest, cylinder: u8, head: u8, sector: u8| {
        guest.out_byte(reg::DEVICE, 0xa0 | head);
        guest.out_byte(reg::COUNT, 1);
        guest.out_byte(reg::LBA_LOW, sector);
        guest.out_byte(reg::LBA_MID, cylinder);
        guest.out_byte(reg::LBA_HIGH, 0);
        guest.out_byte(reg::STATUS, command::READ_SECTORS);
        guest.in_byte(reg::STATUS)
    };
    assert_eq!(read(&mut guest, 3, 2, 6), 0x58);
    assert_eq!(guest.read_block(512), data);
    for (head, sector) in [(4, 1), (0, 0), (0, 18)] {
        assert_eq!(read(&mut guest, 0, head, sector), FAILED);
        assert_eq!(guest.error(), Error::IDNF.bits());
    }
    assert_eq!(guest.simple(command::INITIALIZE_PARAMETERS, 0, 0), FAILED);
}

//! The bus master: tables of every kind, and the order of its registers.

use super::*;

#[test]
fn tables_that_fit_exactly() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 0x2_0000, 0x42);
    // A count of zero is 64 KiB.
    assert_eq!(guest.run_dma(true, 0, 256, &[(DATA, 0x1_0000), (DATA + 0x1_0000, 0)]), (4, GOOD));
    assert_eq!(guest.log(0).len(), 1, "one disk request");
    // In pieces, in another order, across the border of two regions of memory.
    let to = MIB - 0x8000;
    let regions = [(to, 0x1_0000), (0x2_0000, 0x8000), (0x4_0002, 0x7ffe), (0x6_0000, 2)];
    assert_eq!(guest.run_dma(false, 0, 256, &regions), (4, GOOD));
    let mut read = Vec::new();
    for (address, len) in regions {
        read.extend(guest.bytes(address, len as usize));
    }
    assert_eq!(read, data);
}

#[test]
fn low_bits_of_addresses_and_counts_are_ignored() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 512, 0x21);
    assert_eq!(guest.run_dma(true, 0, 1, &[(DATA + 1, 513)]), (4, GOOD));
    assert_eq!(guest.run_dma(false, 0, 1, &[(DATA + 0x1000, 512)]), (4, GOOD));
    assert_eq!(guest.bytes(DATA + 0x1000, 512), data);
}

#[test]
fn a_longer_table_leaves_the_engine_active() {
    let mut guest = Guest::new();
    let before = guest.fill(DATA + 512, 512, 0x66);
    for regions in [&[(DATA, 1024)][..], &[(DATA, 512), (DATA + 512, 512)]] {
        assert_eq!(guest.run_dma(false, 0, 1, regions), (5, GOOD));
        assert_eq!(guest.bm_read(bm::STATUS) & 7, 0, "stopped by the driver");
    }
    assert_eq!(guest.bytes(DATA + 512, 512), before);
}

#[test]
fn a_shorter_table_ends_without_an_interrupt() {
    for regions in [&[(DATA, 512)][..], &[(DATA, 512), (DATA + 512, 256)]] {
        let mut guest = Guest::new();
        guest.start_dma(false, 0, 2, regions);
        guest.serve();
        assert_eq!((guest.alternate_status(), guest.line(), guest.bm_read(bm::STATUS) & 7), (GOOD, false, 0));
        assert_eq!(guest.log(0), [], "nothing was moved");
        guest.bm_write(bm::COMMAND, &[0]);
        guest.check_io();
    }
}

#[test]
fn memory_that_is_not_there_sets_the_error_bit() {
    let mut guest = Guest::new();
    for regions in
        [&[(0x8000_0000, 1024)][..], &[(MEMORY_END - 512, 1024)], &[(DATA, 512), (MEMORY_END, 512)]]
    {
        assert_eq!(guest.run_dma(true, 0, 2, regions), (6, FAILED), "{regions:x?}");
        assert_eq!(guest.error(), Error::ABRT.bits());
    }
    // The table is outside memory, entirely or in part.
    for table in [0xffff_fffc, MEMORY_END as u32, MEMORY_END as u32 - 4] {
        guest.bm_write(bm::TABLE, &table.to_le_bytes());
        guest.command48(command::READ_DMA_EXT, 0, 0, 1);
        guest.start_engine(false);
        assert_eq!(guest.end_dma(), (6, FAILED), "{table:#x}");
    }
    assert_eq!(guest.log(0), []);
    guest.check_io();
}

#[test]
fn a_table_without_an_end_is_walked_for_a_while() {
    let mut guest = Guest::new();
    for at in (0..MEMORY_END).step_by(8) {
        let prd = Prd { address: (DATA as u32).into(), count: 2.into(), flags: 0.into() };
        guest.memory.write_slice(prd.as_bytes(), GuestAddress(at)).unwrap();
    }
    guest.bm_write(bm::TABLE, &0u32.to_le_bytes());
    guest.command48(command::READ_DMA_EXT, 0, 0, 1024);
    guest.start_engine(false);
    assert_eq!((guest.alternate_status(), guest.line()), (GOOD, false), "too short");
}

#[test]
fn the_engine_may_be_started_first() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 1024, 0x11);
    guest.set_table(&[(DATA, 1024)]);
    guest.start_engine(true);
    assert_eq!((guest.bm_read(bm::STATUS) & 7, guest.log(0).len()), (1, 0));
    guest.command28(command::WRITE_DMA, 0, 10, 2);
    assert_eq!(guest.end_dma(), (4, GOOD));
    guest.set_table(&[(DATA + 0x1000, 1024)]);
    guest.command28(command::READ_DMA, 0, 10, 2);
    assert_eq!((guest.alternate_status() & 0x80, guest.line()), (0x80, false), "it waits for the engine");
    // Writing the start bit again starts nothing.
    guest.start_engine(false);
    assert_eq!(guest.end_dma(), (4, GOOD));
    assert_eq!(guest.bytes(DATA + 0x1000, 1024), data);
}

#[test]
fn without_bus_mastering_nothing_moves() {
    let mut guest = Guest::new();
    guest.device.config_write(4, &1u16.to_le_bytes());
    let before = guest.fill(DATA, 512, 0x55);
    guest.start_dma(false, 0, 1, &[(DATA, 512)]);
    guest.serve();
    assert_eq!((guest.line(), guest.bytes(DATA, 512)), (false, before));
    guest.device.config_write(4, &5u16.to_le_bytes());
    assert!(guest.line());
    assert_eq!(guest.end_dma(), (4, GOOD));
    assert_eq!(guest.bytes(DATA, 512), [0; 512]);
    // Bus mastering is disabled with a transfer in flight: the write waits for the transfer.
    guest.hold.set(true);
    guest.start_dma(false, 0, 1, &[(DATA, 512)]);
    guest.device.config_write(4, &1u16.to_le_bytes());
    assert_eq!((guest.hold.waits(), guest.line()), (1, true));
}

#[test]
fn a_stop_waits_for_the_disk() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    guest.start_dma(false, 0, 8, &[(DATA, 4096)]);
    guest.serve();
    assert_eq!(
        (guest.alternate_status() & 0x80, guest.bm_read(bm::STATUS) & 7, guest.line()),
        (0x80, 1, false)
    );
    guest.bm_write(bm::COMMAND, &[0]);
    assert_eq!(guest.hold.waits(), 1, "memory is the driver's when the write is done");
    assert_eq!((guest.bm_read(bm::STATUS) & 1, guest.alternate_status()), (0, GOOD));
    let data = guest.fill(DATA, 4096, 0x22);
    guest.hold.set(false);
    guest.serve();
    assert_eq!(guest.bytes(DATA, 4096), data);
    guest.in_byte(reg::STATUS);
    guest.check_io();
}

/// The same holds if bus mastering is disabled.
#[test]
fn a_stop_waits_for_nothing_but_transfers() {
    let begin: [fn(&mut Guest); 4] = [
        |guest| guest.out_byte(reg::STATUS, command::FLUSH_CACHE),
        |guest| guest.command28(command::READ_SECTORS, 0, 0, 1),
        |guest| guest.command28(command::READ_VERIFY, 0, 0, 100),
        |guest| {
            guest.memory.write_obj(8u64 | 8 << 48, GuestAddress(DATA)).unwrap();
            guest.set_table(&[(DATA, 512)]);
            guest.command48(command::DATA_SET_MANAGEMENT, TRIM.into(), 0, 1);
            guest.start_engine(true);
        },
    ];
    for begin in begin {
        let mut guest = Guest::new();
        guest.memory.write_slice(&[0; 512], GuestAddress(DATA)).unwrap();
        guest.hold.set(true);
        begin(&mut guest);
        guest.start_engine(false);
        guest.bm_write(bm::COMMAND, &[0]);
        guest.device.config_write(4, &1u16.to_le_bytes());
        guest.device.config_write(4, &5u16.to_le_bytes());
        assert_eq!((guest.hold.waits(), guest.alternate_status() & 0x80, guest.line()), (0, 0x80, false));
        guest.hold.set(false);
        guest.serve();
        assert!(guest.line());
    }
}

#[test]
fn registers_of_the_bus_master() {
    let mut guest = Guest::new();
    let read = |guest: &mut Guest, offset, len: usize| {
        let mut data = [0; 4];
        guest.device.bar_read(4, offset, &mut data[..len], guest.now);
        u32::from_le_bytes(data)
    };
    guest.bm_write(bm::TABLE, &0x1234_5677u32.to_le_bytes());
    assert_eq!(read(&mut guest, 4, 4), 0x1234_5674);
    guest.bm_write(bm::TABLE + 2, &0xabcdu16.to_le_bytes());
    guest.bm_write(bm::TABLE + 1, &[0xef]);
    assert_eq!(
        (read(&mut guest, 4, 4), read(&mut guest, 6, 2), read(&mut guest, 5, 1)),
        (0xabcd_ef74, 0xabcd, 0xef)
    );
    // The bits for firmware are stored, and no others.
    guest.bm_write(bm::STATUS, &[0xff]);
    assert_eq!(read(&mut guest, 2, 1), 0x60);
    guest.bm_write(bm::COMMAND, &[0xf8]);
    assert_eq!(read(&mut guest, 0, 1), 8);
    // Unknown registers, and other widths.
    assert_eq!((read(&mut guest, 1, 1), read(&mut guest, 3, 1)), (0xff, 0xff));
    assert_eq!(
        (read(&mut guest, 0, 4), read(&mut guest, 2, 2), read(&mut guest, 6, 4)),
        (u32::MAX, 0xffff, u32::MAX)
    );
    guest.bm_write(bm::COMMAND, &[1, 0, 0, 0]);
    assert_eq!((read(&mut guest, 0, 1), read(&mut guest, 8, 1)), (8, 0), "the other channel's are its own");
}

#[test]
fn four_disks_on_two_channels() {
    let mut guest = Guest::with(Setup { drives: [true; 4], ..USUAL });
    for round in 0..2 {
        guest.hold.set(true);
        for target in [round, 2 + round] {
            guest.select(target);
            let at = DATA + 0x1_0000 * guest.channel as u64;
            guest.fill(at, 512, target as u8);
            guest.set_table(&[(at, 512)]);
            // Both channels use the same table: the first has used it before it is written for the second.
            guest.command48(command::WRITE_DMA_EXT, 0, 1, 1);
            guest.start_engine(true);
        }
        guest.hold.set(false);
        guest.serve();
        for channel in 0..2 {
            guest.channel = channel;
            assert!(guest.line());
            assert_eq!(guest.end_dma(), (4, GOOD));
        }
    }
    for target in 0..4 {
        guest.select(target);
        let expected = guest.fill(DATA + 0x4_0000, 512, target as u8);
        assert_eq!(guest.run_dma(false, 1, 1, &[(DATA, 512)]), (4, GOOD));
        assert_eq!(guest.bytes(DATA, 512), expected, "{target}");
    }
}

#[test]
fn memory_is_in_use_while_the_disk_has_it() {
    let mut guest = Guest::new();
    let (mine, other) = (DATA..DATA + 1, 0..1);
    let uses = |guest: &mut Guest, range: &std::ops::Range<u64>| {
        guest.device.uses_memory(std::slice::from_ref(range), guest.now)
    };
    guest.hold.set(true);
    guest.start_dma(false, 0, 1, &[(DATA, 512)]);
    assert_eq!((uses(&mut guest, &mine), uses(&mut guest, &other)), (true, false));
    // A software reset does not change that.
    guest.control(0xc);
    assert!(uses(&mut guest, &mine));
    guest.control(8);
    guest.hold.set(false);
    assert!(!uses(&mut guest, &mine));
    guest.device.refuse_memory(std::slice::from_ref(&mine));
    assert_eq!(guest.alternate_status(), GOOD);
    assert_eq!(guest.run_dma(false, 0, 1, &[(DATA, 512)]), (6, FAILED));
    guest.device.memory_replaced(guest.now);
    guest.check_io();
    // Programmed I/O uses the drive's own memory.
    guest.hold.set(true);
    guest.command28(command::READ_SECTORS, 0, 0, 1);
    assert!(!uses(&mut guest, &mine));
    guest.device.quiesce(guest.now);
    assert_eq!(guest.alternate_status(), 0x58);
}

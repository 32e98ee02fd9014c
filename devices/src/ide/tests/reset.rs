//! Resets while disks have requests.

use super::*;

#[test]
fn a_software_reset_is_over_when_the_disk_has_completed() {
    for write in [false, true] {
        let mut guest = Guest::new();
        guest.hold.set(true);
        guest.start_dma(write, 0, 8, &[(DATA, 4096)]);
        guest.software_reset();
        guest.serve();
        assert_eq!(
            (guest.alternate_status() & 0x80, guest.hold.waits()),
            (0x80, 0),
            "busy, and nobody waits"
        );
        // Commands are ignored during the reset.
        guest.out_byte(reg::STATUS, 0xe1);
        guest.out_byte(reg::STATUS, command::DIAGNOSTIC);
        guest.select(1);
        assert_eq!((guest.alternate_status() & 0x80, guest.line()), (0x80, false));
        guest.slave = false;
        guest.hold.set(false);
        guest.serve();
        assert_eq!(
            (guest.alternate_status(), guest.line(), guest.raised()),
            (GOOD, false, 0),
            "no late interrupt"
        );
        assert_eq!(guest.bm_read(bm::STATUS) & 6, 0);
        assert_eq!((guest.in_byte(reg::ERROR), guest.in_byte(reg::COUNT)), (1, 1));
        let data = guest.fill(DATA, 4096, 0x77);
        guest.serve();
        assert_eq!(guest.bytes(DATA, 4096), data, "memory is the driver's");
        guest.bm_write(bm::COMMAND, &[0]);
        guest.check_io();
    }
}

#[test]
fn a_stop_after_a_software_reset_waits_for_the_transfer_of_before() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    guest.start_dma(false, 0, 8, &[(DATA, 4096)]);
    guest.software_reset();
    guest.bm_write(bm::COMMAND, &[0]);
    assert_eq!((guest.hold.waits(), guest.alternate_status(), guest.line()), (1, GOOD, false));
    let data = guest.fill(DATA, 4096, 0x77);
    guest.hold.set(false);
    guest.serve();
    assert_eq!(guest.bytes(DATA, 4096), data, "memory is the driver's");
    guest.check_io();
}

/// A reset in the middle of reads, writes, a flush and a verify.
#[test]
fn a_software_reset_ends_every_kind_of_command() {
    let begin: [fn(&mut Guest); 6] = [
        |guest| guest.command28(command::READ_SECTORS, 0, 0, 3),
        |guest| {
            guest.command28(command::WRITE_MULTIPLE, 0, 0, 3);
            guest.write_block(&[1; 1536]);
        },
        |guest| guest.command28(command::WRITE_SECTORS, 0, 0, 3),
        |guest| guest.out_byte(reg::STATUS, command::FLUSH_CACHE),
        |guest| guest.command28(command::READ_VERIFY, 0, 0, 200),
        // This command waits for the bus master.
        |guest| guest.command28(command::READ_DMA, 0, 0, 3),
    ];
    for begin in begin {
        let mut guest = Guest::new();
        guest.hold.set(true);
        begin(&mut guest);
        guest.software_reset();
        guest.hold.set(false);
        guest.serve();
        assert_eq!((guest.alternate_status(), guest.line()), (GOOD, false));
        assert!(guest.log(0).len() <= 1, "no further step");
        assert_eq!(guest.read_block(2), [0; 2]);
        guest.check_io();
    }
}

/// A reset selects the first drive. If that is absent, its status does not report that the other is busy.
#[test]
fn a_channel_without_a_first_drive_takes_nothing_during_a_reset() {
    let mut guest = Guest::with(Setup { drives: [false, true, false, false], ..USUAL });
    guest.select(1);
    guest.hold.set(true);
    guest.start_dma(false, 0, 8, &[(DATA, 4096)]);
    guest.control(0xc);
    guest.control(8);
    guest.slave = false;
    guest.serve();
    assert_eq!(guest.alternate_status(), 0);
    guest.out_byte(reg::STATUS, command::DIAGNOSTIC);
    guest.select(1);
    assert_eq!((guest.alternate_status(), guest.line()), (0, false));
    guest.hold.set(false);
    guest.serve();
    guest.select(1);
    assert_eq!(guest.alternate_status(), GOOD);
    guest.bm_write(bm::COMMAND, &[0]);
    guest.check_io();
}

#[test]
fn a_pending_interrupt_goes_with_a_reset() {
    let mut guest = Guest::new();
    guest.out_byte(reg::STATUS, 0xe1);
    guest.software_reset();
    assert!(!guest.line());
}

#[test]
fn power_on_waits_and_forgets() {
    let mut guest = Guest::new();
    guest.simple(command::SET_FEATURES, feature::TRANSFER_MODE, 0x20);
    guest.hold.set(true);
    guest.start_dma(false, 0, 8, &[(DATA, 4096)]);
    guest.device.reset(guest.now);
    assert_eq!(guest.hold.waits(), 1);
    let data = guest.fill(DATA, 4096, 0x77);
    guest.hold.set(false);
    guest.serve();
    assert_eq!((guest.bytes(DATA, 4096), guest.line(), guest.alternate_status()), (data, false, GOOD));
    assert_eq!((guest.bm_read(bm::COMMAND), guest.bm_read(bm::STATUS)), (0, 0));
    guest.device.config_write(4, &5u16.to_le_bytes());
    assert_eq!(guest.identify()[88] >> 8, 4);
    guest.check_io();
}

#[test]
fn quiesce_waits_and_completes() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    guest.start_dma(false, 0, 8, &[(DATA, 4096)]);
    guest.device.quiesce(guest.now);
    assert!(guest.line());
    assert_eq!(guest.end_dma(), (4, GOOD));
}

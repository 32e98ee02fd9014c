//! The interrupt of a channel: what raises and what clears it.

use super::*;

#[test]
fn status_and_commands_take_it_back() {
    let mut guest = Guest::new();
    guest.out_byte(reg::STATUS, 0xe1);
    assert!(guest.line());
    assert_eq!((guest.alternate_status(), guest.line()), (GOOD, true), "without effect");
    assert_eq!((guest.in_byte(reg::STATUS), guest.line()), (GOOD, false));
    guest.out_byte(reg::STATUS, 0xe1);
    guest.hold.set(true);
    guest.out_byte(reg::STATUS, command::FLUSH_CACHE);
    assert!(!guest.line());
    guest.hold.set(false);
    guest.serve();
    assert!(guest.line());
    assert_eq!(guest.raised(), 3, "each is an edge");
}

/// Also if the guest has read only the alternate status, and the command completes while its code is written.
#[test]
fn each_command_is_a_new_edge() {
    let mut guest = Guest::new();
    for _ in 0..3 {
        guest.out_byte(reg::STATUS, 0xe1);
        assert_eq!((guest.alternate_status(), guest.line(), guest.raised()), (GOOD, true, 1));
    }
}

#[test]
fn nien_holds_it_back() {
    let mut guest = Guest::new();
    guest.control(Control::NIEN.bits());
    guest.out_byte(reg::STATUS, 0xe1);
    assert_eq!((guest.line(), guest.bm_read(bm::STATUS) & 4), (false, 0));
    // The interrupt is pending.
    guest.control(0);
    assert_eq!((guest.line(), guest.bm_read(bm::STATUS) & 4), (true, 4));
    guest.control(Control::NIEN.bits());
    assert!(!guest.line());
    guest.in_byte(reg::STATUS);
    guest.control(0);
    assert!(!guest.line(), "it was taken back meanwhile");
}

#[test]
fn the_bus_master_notes_each_edge() {
    let mut guest = Guest::new();
    guest.out_byte(reg::STATUS, 0xe1);
    guest.bm_write(bm::STATUS, &[4]);
    assert_eq!(
        (guest.bm_read(bm::STATUS) & 4, guest.line()),
        (0, true),
        "cleared, but the line is the drive's"
    );
    guest.in_byte(reg::STATUS);
    guest.out_byte(reg::STATUS, 0xe1);
    assert_eq!(guest.bm_read(bm::STATUS) & 4, 4);
    guest.bm_write(bm::STATUS, &[0]);
    assert_eq!(guest.bm_read(bm::STATUS) & 4, 4, "ones clear");
}

#[test]
fn channels_have_lines_of_their_own_or_share_one() {
    let mut guest = Guest::new();
    guest.select(2);
    guest.out_byte(reg::STATUS, 0xe1);
    assert!(guest.line());
    guest.channel = 0;
    assert!(!guest.line());
    let mut native = Guest::with(Setup { mode: Mode::Native, ..USUAL });
    for target in [0, 2] {
        native.select(target);
        native.out_byte(reg::STATUS, 0xe1);
        assert!(native.line());
    }
    native.in_byte(reg::STATUS);
    assert!(native.line(), "the other channel's");
    native.channel = 0;
    native.in_byte(reg::STATUS);
    assert!(!native.line());
    assert_eq!(native.device.stats().interrupts, 1);
}

/// The thread of a virtual CPU may make these accesses: they use neither disk nor memory.
#[test]
fn accesses_that_touch_registers_alone() {
    use crate::device::AccessKind;
    let mut guest = Guest::new();
    let alone = |guest: &Guest, bar, offset, write: Option<&[u8]>| {
        guest.device.access_kind(bar, offset, write) == AccessKind::Register
    };
    let stop = |guest: &Guest| alone(guest, 4, bm::COMMAND, Some(&[0]));
    guest.hold.set(true);
    guest.start_dma(false, 0, 8, &[(DATA, 4096)]);
    assert!(!stop(&guest), "it waits for the disk");
    guest.hold.set(false);
    guest.serve();
    assert!(stop(&guest));
    assert_eq!(guest.end_dma(), (4, GOOD));
    assert!(!stop(&guest), "it may be a start");
    let alone = |bar, offset, write: bool| alone(&guest, bar, offset, write.then_some(&[0][..]));
    for offset in 1..8 {
        assert!(alone(0, offset, false), "{offset}");
        assert_eq!(alone(2, offset, true), offset != reg::STATUS, "{offset}");
    }
    for bar in [0, 2] {
        assert!(!alone(bar, reg::DATA, false) && !alone(bar, reg::DATA, true));
    }
    assert!(alone(1, 0, false) && !alone(1, 0, true), "SRST");
    for offset in 0..16 {
        assert!(alone(4, offset, false));
        assert_eq!(alone(4, offset, true), offset % 8 != 0);
    }
}

#[test]
fn moderation_has_no_effect() {
    use crate::moderation::Policy;
    let mut guest = Guest::new();
    for policy in [Policy::Off, Policy::Batch, Policy::Oio, Policy::OioIops] {
        guest.device.set_coalescing(Coalescing::policy(policy));
        guest.check_io();
        assert_eq!(guest.raised(), 2);
    }
}

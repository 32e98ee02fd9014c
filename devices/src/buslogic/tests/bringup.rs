//! The probe of Linux's driver, command by command, and resets.

use super::*;

/// The registers that Linux's probe checks before it accepts an adapter.
#[track_caller]
fn registers_make_sense(guest: &mut Guest) {
    let status = Status::from_bits_truncate(guest.status());
    assert!(!status.is_empty());
    let not = Status::DIAGNOSTIC_ACTIVE | Status::PARAMETER_BUSY | Status::COMMAND_INVALID;
    assert!(!status.intersects(not) && status.bits() & 2 == 0, "{status:?}");
    assert_eq!(guest.interrupt() & INTERRUPT_MASK, 0);
    assert_eq!(guest.read(reg::GEOMETRY), 0x80);
}

#[test]
fn the_probe_of_linux() {
    let mut guest = Guest::powered(Config::default());
    guest.device.config_write(0x3c, &[11]);
    assert_eq!(guest.status(), 0x30);
    // Enumeration.
    guest.acknowledge();
    let pci = guest.command(0x86, &[], 4);
    assert!(pci[0] > 5 && pci[1] == 11 && pci[2] & 0x80 != 0 && pci[3] == 0, "{pci:x?}");
    guest.command(0x95, &[6], 0);
    assert_eq!(guest.command(0x91, &[0x6d, 1], 1), [1]);
    assert_eq!(guest.command(0x04, &[], 4), *b"AA50");
    registers_make_sense(&mut guest);
    guest.reset(Control::HARD_RESET);
    // An adapter that answers this is a MultiMaster.
    let extended = guest.command(0x8d, &[14], 14);
    assert_eq!((extended[0], u16::from_le_bytes([extended[2], extended[3]])), (b'E', 8192));
    // Its configuration.
    assert_eq!(guest.command(0x04, &[], 4), *b"AA50");
    assert_eq!(guest.command(0x0b, &[], 3), [0x40, 1 << 2, 7]);
    let setup = guest.command(0x0d, &[34], 34);
    assert_eq!((setup[0], &setup[17..20]), (3, &b"BDF"[..]));
    let extended = guest.command(0x8d, &[14], 14);
    assert_eq!((&extended[10..13], extended[13] & 3, extended[9]), (&b"07B"[..], 1, 0x40));
    assert_eq!(guest.command(0x84, &[], 1), *b"7");
    assert_eq!(guest.command(0x8b, &[5], 5), *b"958  ");
    assert_eq!(guest.command(0x85, &[], 1), *b"B");
    assert_eq!(guest.read(reg::GEOMETRY), 0x80);
    guest.command(0x86, &[], 4);
    let auto = guest.command(0x91, &[64, 64], 64);
    assert_eq!((auto[10], auto[12], auto[14], auto[15] & 2), (4, 11, 7, 2));
    // Disconnection, else nothing is tagged.
    assert_eq!(auto[27..29], [0xff; 2]);
    // Its initialisation.
    assert_eq!(guest.status(), 0x30);
    guest.command(0x81, &[COUNT, 0, 0x10, 0, 0], 0);
    assert_eq!(guest.status(), 0x10);
    guest.command(0x8f, &[1], 0);
    guest.command(0x96, &[1], 0);
    assert_eq!(guest.command(0x24, &[], 2), [0b1001, 0]);
    let setup = guest.command(0x0d, &[34], 34);
    assert_eq!((setup[4], &setup[5..8]), (COUNT, &[0, 0x10, 0][..]));
    assert_eq!(guest.command(0x8c, &[16], 16), [0; 16]);
    guest.clear_unit_attention(&[0, 3]);
    guest.check_io();
}

#[test]
fn replies_are_as_long_as_they_are_asked_for() {
    let mut guest = Guest::powered(Config::default());
    for code in [0x0d, 0x8b, 0x8c, 0x8d] {
        for len in [0, 1, 4, 100, 255] {
            let reply = guest.command(code, &[len], len.into());
            let beyond = reply.iter().skip(34);
            assert!(beyond.into_iter().all(|byte| *byte == 0));
        }
    }
    for (offset, count) in [(0, 255), (0, 0), (255, 1), (1, 255)] {
        guest.command(0x91, &[offset, count], count.into());
    }
}

#[test]
fn commands_of_other_drivers() {
    let mut guest = Guest::powered(Config::default());
    for (code, parameters) in [
        (0x00, &[][..]),
        (0x05, &[1]),
        (0x06, &[0; 4]),
        (0x07, &[1]),
        (0x08, &[1]),
        (0x09, &[0]),
        (0x21, &[2, 2, 2]),
    ] {
        guest.command(code, parameters, 0);
    }
    assert_eq!(guest.command(0x1f, &[0x5c], 1), [0x5c]);
    assert_eq!(guest.command(0x0a, &[], 8), [1, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(guest.command(0x23, &[], 8), [0; 8]);
    // Only the line is disabled: the register reports the cause.
    guest.write(reg::DATA, 0x25);
    guest.write(reg::DATA, 0);
    assert!(!guest.line());
    assert_eq!(guest.interrupt(), 0x84);
    guest.acknowledge();
    guest.command(0x25, &[1], 0);
}

#[test]
fn an_invalid_command_completes_with_an_interrupt() {
    let mut guest = Guest::powered(Config::default());
    for bytes in [&[0x22][..], &[0x01, 1, 0, 0, 0], &[0x81, 0, 0, 0, 0, 0], &[0x91, 0xff, 2], &[0x95, 9]] {
        bytes.iter().for_each(|byte| guest.write(reg::DATA, *byte));
        assert_eq!((guest.interrupt(), guest.status()), (0x84, 0x31), "{bytes:x?}");
        assert!(guest.line());
        guest.acknowledge();
        assert_eq!((guest.interrupt(), guest.status()), (0, 0x30));
        assert!(!guest.line());
    }
}

#[test]
fn registers_repeat_in_both_spaces() {
    let mut guest = Guest::powered(Config::default());
    let kinds: Vec<_> = guest.device.bars().iter().map(|bar| (bar.kind, bar.size)).collect();
    assert_eq!(kinds, [(BarKind::Io, 32), (BarKind::Memory32, 32)]);
    for bar in 0..2 {
        let mut data = [0xee; 8];
        guest.device.bar_read(bar, 24, &mut data, guest.now);
        assert_eq!(data, [0x30, 0, 0, 0x80, 0x30, 0, 0, 0x80]);
        guest.device.bar_write(bar, 5, &[0x04], guest.now);
        guest.device.bar_read(bar, 0, &mut data[..2], guest.now);
        assert_eq!(data[..2], [0x24, b'A']);
        assert_eq!([guest.read(9), guest.read(13), guest.read(17)], *b"A50");
        guest.write(28, 0x20);
    }
    let mut data = [0xee];
    guest.device.bar_read(2, 0, &mut data, guest.now);
    assert_eq!(data, [0]);
}

#[test]
fn a_reset_in_a_command_forgets_it() {
    let mut guest = Guest::new();
    for bytes in [&[0x91, 1][..], &[0x04], &[0x81, 5, 5]] {
        bytes.iter().for_each(|byte| guest.write(reg::DATA, *byte));
        guest.reset(Control::HARD_RESET);
        assert_eq!((guest.interrupt(), guest.status()), (0, 0x30));
        assert_eq!(guest.command(0x04, &[], 4), *b"AA50");
        guest.ring();
        guest.serve();
    }
    guest.bring_up();
    guest.clear_unit_attention(&[0]);
    guest.check_io();
}

/// The driver frees all memory when its write has returned.
#[test]
fn nothing_is_written_after_a_reset() {
    for control in [Control::HARD_RESET, Control::SOFT_RESET] {
        for tasks in [2, 256] {
            let mut guest = Guest::up(Config { tasks, ..Config::default() });
            guest.hold.set(true);
            for lba in 0..30 {
                let read = guest.transfer(false, lba, 1);
                guest.put(&read);
            }
            guest.ring();
            guest.serve();
            assert!(guest.incoming().is_empty());
            guest.reset(control);
            let before = guest.fill(0, MEMORY_END as usize, 0x77);
            guest.hold.set(false);
            guest.device.on_completions(guest.now);
            guest.serve();
            assert!(guest.bytes(0, MEMORY_END as usize) == before, "written after the reset");
            assert!(!guest.line());
            guest.bring_up();
            assert!(guest.incoming().is_empty());
            guest.clear_unit_attention(&[0, 3]);
            guest.check_io();
        }
    }
}

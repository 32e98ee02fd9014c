//! What Linux and firmware do before the first request (`ata_piix`, libata's reset and probe).

use super::*;
use crate::device::{Bar, BarKind};

fn config(guest: &mut Guest, offset: u16) -> u32 {
    let mut data = [0; 4];
    guest.device.config_read(offset, &mut data);
    u32::from_le_bytes(data)
}

#[test]
fn configuration_space_is_that_of_the_piix4() {
    let mut guest = Guest::new();
    assert_eq!(config(&mut guest, 0), 0x7111_8086);
    assert_eq!(config(&mut guest, 8), 0x0101_8001);
    assert_eq!(config(&mut guest, 4) >> 16, 0x0280);
    assert_eq!(config(&mut guest, 0x3c) >> 8 & 0xff, 0, "no interrupt pin");
    // Ports are decoded after power-on, and timing reads back.
    assert_eq!(config(&mut guest, 0x40), 0x8000_8000);
    guest.device.config_write(0x40, &[0x07, 0xe3, 0x03, 0xa3]);
    guest.device.config_write(0x44, &[0x5b]);
    guest.device.config_write(0x48, &[0x05]);
    assert_eq!((config(&mut guest, 0x40), config(&mut guest, 0x44)), (0xa303_e307, 0x5b));
    assert_eq!(config(&mut guest, 0x48), 5);
    guest.device.reset(guest.now);
    assert_eq!(config(&mut guest, 0x40), 0x8000_8000);
    let mut native = Guest::with(Setup { mode: Mode::Native, ..USUAL });
    assert_eq!(config(&mut native, 8), 0x0101_8f01);
    assert_eq!(config(&mut native, 0x3c) >> 8 & 0xff, 1);
}

#[test]
fn fixed_ports_are_there_while_io_space_is_enabled() {
    let mut guest = Guest::new();
    guest.device.config_write(0x20, &0xc001u32.to_le_bytes());
    let fixed = |index, size, port: u64| Bar { index, kind: BarKind::FixedIo, size, address: Some(port) };
    let bars = guest.device.bars();
    for bar in [
        fixed(0, 8, 0x1f0),
        fixed(1, 1, 0x3f6),
        fixed(2, 8, 0x170),
        fixed(3, 1, 0x376),
        Bar { index: 4, kind: BarKind::Io, size: 16, address: Some(0xc000) },
    ] {
        assert!(bars.contains(&bar), "{bar:?} in {bars:?}");
    }
    guest.device.config_write(4, &4u16.to_le_bytes());
    let bars = guest.device.bars();
    assert_eq!(bars.len(), 5);
    assert!(bars.iter().all(|bar| bar.address.is_none()));
    let native = Guest::with(Setup { mode: Mode::Native, ..USUAL });
    let sizes: Vec<_> = native.device.bars().iter().map(|bar| (bar.index, bar.kind, bar.size)).collect();
    let io = |index, size| (index, BarKind::Io, size);
    assert_eq!(sizes, [io(0, 8), io(1, 4), io(2, 8), io(3, 4), io(4, 16)]);
}

/// `ata_devchk`.
fn is_present(guest: &mut Guest, target: usize) -> bool {
    guest.select(target);
    for (count, low) in [(0x55, 0xaa), (0xaa, 0x55), (0x55, 0xaa)] {
        guest.out_byte(reg::COUNT, count);
        guest.out_byte(reg::LBA_LOW, low);
    }
    (guest.in_byte(reg::COUNT), guest.in_byte(reg::LBA_LOW)) == (0x55, 0xaa)
}

#[test]
fn a_port_is_probed_as_libata_does() {
    let mut guest = Guest::new();
    guest.control(8);
    assert_eq!(guest.in_byte(reg::STATUS), GOOD);
    guest.bm_write(bm::STATUS, &[6]);
    assert!(is_present(&mut guest, 0) && is_present(&mut guest, 1));
    guest.software_reset();
    assert_eq!(guest.in_byte(reg::STATUS), GOOD);
    for target in [0, 1] {
        guest.select(target);
        let signature = [reg::ERROR, reg::COUNT, reg::LBA_LOW, reg::LBA_MID, reg::LBA_HIGH];
        assert_eq!(signature.map(|offset| guest.in_byte(offset)), [1, 1, 1, 0, 0]);
    }
    for target in [1, 0] {
        guest.select(target);
        let words = guest.identify();
        assert_eq!(words[88] >> 8, 4, "Ultra DMA 2");
        // The mode that ata_piix wants, polled.
        guest.control(0xa);
        guest.command28(command::SET_FEATURES, feature::TRANSFER_MODE, 0, 0x22);
        assert_eq!(guest.in_byte(reg::STATUS), GOOD);
        guest.control(8);
        let words = guest.identify();
        assert_eq!((words[63] >> 8, words[88] >> 8), (4, 0), "multiword DMA 2");
    }
    assert_eq!(guest.raised(), 0, "everything was polled");
    guest.check_io();
}

#[test]
fn an_absent_slave_is_not_there() {
    let mut guest = Guest::new();
    assert!(is_present(&mut guest, 2) && !is_present(&mut guest, 3));
    assert_eq!((guest.in_byte(reg::STATUS), guest.alternate_status()), (0, 0));
    guest.out_byte(reg::STATUS, command::IDENTIFY);
    assert_eq!((guest.in_byte(reg::STATUS), guest.line()), (0, false));
    assert_eq!(guest.read_block(4), [0; 4]);
    guest.software_reset();
    guest.select(3);
    assert_eq!((guest.in_byte(reg::STATUS), guest.in_byte(reg::ERROR)), (0, 0));
    guest.select(2);
    guest.check_io();
}

#[test]
fn an_empty_channel_floats() {
    let mut guest = Guest::with(Setup { drives: [true, false, false, false], ..USUAL });
    guest.select(2);
    assert_eq!((guest.in_byte(reg::STATUS), guest.alternate_status()), (0xff, 0xff));
    assert_eq!(guest.read_block(2), [0xff; 2]);
    for offset in 1..8 {
        guest.out_byte(offset, command::DIAGNOSTIC);
        assert_eq!(guest.in_byte(offset), 0xff);
    }
    guest.control(0xc);
    guest.control(8);
    assert_eq!((guest.in_byte(reg::STATUS), guest.line()), (0xff, false));
}

#[test]
fn identify_has_what_drivers_look_at() {
    let mut guest = Guest::new();
    let words = guest.identify();
    assert_eq!((words[0], words[47], words[49], words[53]), (0x40, 0x8010, 0xb00, 7));
    let text = |range: std::ops::Range<usize>| -> String {
        words[range].iter().flat_map(|word| word.to_be_bytes()).map(char::from).collect()
    };
    assert_eq!(text(10..20), format!("{:20}", "SN"));
    assert_eq!(text(27..47), format!("{:40}", "PARADISK VIRTUAL DISK"));
    assert_eq!(u32::from(words[60]) | u32::from(words[61]) << 16, SECTORS as u32);
    assert_eq!(words[100..104], [SECTORS as u16, 0, 0, 0]);
    assert_eq!((words[63] & 0xff, words[88] & 0xff, words[80] & 0x80), (7, 7, 0x80));
    for valid in [83, 84, 87] {
        assert_eq!(words[valid] >> 14, 1, "word {valid}");
    }
    assert_eq!((words[83], words[85] & 0x20, words[86]), (0x7400, 0x20, 0x3400));
    assert_eq!((words[59], words[106]), (0x110, 0x4000));
    assert_eq!((words[69], words[169], words[217]), (0x4020, 1, 1));
    let sum = words.iter().flat_map(|word| word.to_le_bytes()).fold(0u8, u8::wrapping_add);
    assert_eq!((words[255] & 0xff, sum), (0xa5, 0));
    let plain = Guest::with(Setup { discard: false, volatile_cache: false, ..USUAL }).identify();
    assert_eq!((plain[69], plain[169], plain[85] & 0x20), (0, 0, 0));
}

#[test]
fn sectors_of_4096_bytes() {
    let info = {
        let mut disk = TestDisk::new(MIB, Hold::default());
        disk.info.logical_sector = SectorSize::B4096;
        disk.info.physical_sector = 4096;
        disk.info
    };
    let data = identify::identify(&info, &settings::Settings::new(true), "");
    let word = |index: usize| u16::from_le_bytes([data[2 * index], data[2 * index + 1]]);
    assert_eq!((word(106), word(117), word(118), word(100)), (0x5000, 2048, 0, 256));
}

//! The registers of a drive that hold a command's parameters (ATA/ATAPI-7, 5 and 6.1).
//!
//! Each register also keeps its previous content: commands with 48-bit addresses use both values.

use super::spec::{DEVICE_LBA, DEVICE_OBSOLETE, Error, reg};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Register {
    current: u8,
    previous: u8,
}

impl Register {
    const fn write(&mut self, value: u8) {
        self.previous = self.current;
        self.current = value;
    }

    const fn get(self, previous: bool) -> u8 {
        if previous { self.previous } else { self.current }
    }

    const fn set(&mut self, current: u64, previous: u64) {
        self.current = current as u8;
        self.previous = previous as u8;
    }
}

/// Heads and sectors per track, for CHS addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) heads: u8,
    pub(super) sectors: u8,
}

impl Geometry {
    /// The geometry of drives above 8 GB.
    pub(super) const DEFAULT: Self = Self { heads: 16, sectors: 63 };

    /// Sectors of a cylinder, at least one.
    pub(super) fn cylinder(self) -> u64 {
        u64::from(self.heads.max(1)) * u64::from(self.sectors.max(1))
    }
}

/// How a command addresses sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addressing {
    /// Cylinder, head and sector.
    Chs(Geometry),
    /// 28 bits.
    Lba28,
    /// 48 bits.
    Lba48,
}

/// The sectors that a command addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sectors {
    pub(super) lba: u64,
    pub(super) count: u32,
}

/// The registers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taskfile {
    features: Register,
    count: Register,
    /// Low, mid, high.
    lba: [Register; 3],
    device: u8,
}

impl Taskfile {
    /// Write a register of the command block other than data and command.
    pub(super) fn write(&mut self, offset: u64, value: u8) {
        match offset {
            reg::ERROR => self.features.write(value),
            reg::COUNT => self.count.write(value),
            reg::LBA_LOW => self.lba[0].write(value),
            reg::LBA_MID => self.lba[1].write(value),
            reg::LBA_HIGH => self.lba[2].write(value),
            reg::DEVICE => self.device = value,
            _ => {}
        }
    }

    /// Read a register of the command block other than data and status. `previous`: its previous content.
    pub(super) fn read(&self, offset: u64, error: Error, previous: bool) -> u8 {
        match offset {
            reg::ERROR if previous => self.features.previous,
            reg::ERROR => error.bits(),
            reg::COUNT => self.count.get(previous),
            reg::LBA_LOW => self.lba[0].get(previous),
            reg::LBA_MID => self.lba[1].get(previous),
            reg::LBA_HIGH => self.lba[2].get(previous),
            reg::DEVICE => self.device | DEVICE_OBSOLETE,
            _ => 0,
        }
    }

    pub(super) const fn features(&self) -> u8 {
        self.features.current
    }

    pub(super) const fn count(&self) -> u8 {
        self.count.current
    }

    /// The 16-bit sector count, with 0 as 0.
    pub(super) const fn count16(&self) -> u16 {
        u16::from_be_bytes([self.count.previous, self.count.current])
    }

    /// LBA low, mid and high.
    pub(super) const fn bytes(&self) -> [u8; 3] {
        [self.lba[0].current, self.lba[1].current, self.lba[2].current]
    }

    /// The head of a CHS address.
    pub(super) const fn head(&self) -> u8 {
        self.device & 0xf
    }

    /// The command's addressing. `ext`: 48 bits, whatever the device register says.
    pub(super) const fn addressing(&self, ext: bool, geometry: Geometry) -> Addressing {
        match (ext, self.device & DEVICE_LBA != 0) {
            (true, _) => Addressing::Lba48,
            (false, true) => Addressing::Lba28,
            (false, false) => Addressing::Chs(geometry),
        }
    }

    /// The addressed sectors; `None`: the address does not exist in this geometry.
    pub(super) fn sectors(&self, addressing: Addressing) -> Option<Sectors> {
        let [low, mid, high] = self.lba.map(|register| u64::from(register.current));
        let current = low | mid << 8 | high << 16;
        let count28 = match self.count.current {
            0 => 256,
            count => count.into(),
        };
        Some(match addressing {
            Addressing::Lba28 => Sectors { lba: current | u64::from(self.head()) << 24, count: count28 },
            Addressing::Lba48 => {
                let [low, mid, high] = self.lba.map(|register| u64::from(register.previous));
                let count = match self.count16() {
                    0 => 0x1_0000,
                    count => count.into(),
                };
                Sectors { lba: current | low << 24 | mid << 32 | high << 40, count }
            }
            Addressing::Chs(geometry) => {
                let (cylinder, head, sector) = (mid | high << 8, self.head(), low);
                if head >= geometry.heads || sector == 0 || sector > geometry.sectors.into() {
                    return None;
                }
                let track = cylinder * u64::from(geometry.heads) + u64::from(head);
                Sectors { lba: track * u64::from(geometry.sectors) + sector - 1, count: count28 }
            }
        })
    }

    /// Set the registers to an address and the number of remaining sectors.
    pub(super) fn set_sectors(&mut self, addressing: Addressing, Sectors { lba, count }: Sectors) {
        let count = u64::from(count);
        match addressing {
            Addressing::Lba28 => {
                self.set_lba([lba, lba >> 8, lba >> 16], [0; 3]);
                self.set_head((lba >> 24) as u8);
                self.count.set(count, 0);
            }
            Addressing::Lba48 => {
                self.set_lba([lba, lba >> 8, lba >> 16], [lba >> 24, lba >> 32, lba >> 40]);
                self.count.set(count, count >> 8);
            }
            Addressing::Chs(geometry) => {
                let (cylinder, within) = (lba / geometry.cylinder(), lba % geometry.cylinder());
                let sectors = u64::from(geometry.sectors.max(1));
                self.set_lba([within % sectors + 1, cylinder, cylinder >> 8], [0; 3]);
                self.set_head((within / sectors) as u8);
                self.count.set(count, 0);
            }
        }
    }

    fn set_lba(&mut self, current: [u64; 3], previous: [u64; 3]) {
        for ((register, current), previous) in self.lba.iter_mut().zip(current).zip(previous) {
            register.set(current, previous);
        }
    }

    const fn set_head(&mut self, head: u8) {
        self.device = self.device & 0xf0 | head & 0xf;
    }

    pub(super) const fn set_count(&mut self, count: u8) {
        self.count.current = count;
    }

    /// Set LBA mid and high.
    pub(super) const fn set_mid_high(&mut self, [mid, high]: [u8; 2]) {
        self.lba[1].current = mid;
        self.lba[2].current = high;
    }

    /// Set the signature of an ATA disk, as after a reset (ATA/ATAPI-7, 5.14).
    pub(super) fn set_signature(&mut self) {
        *self = Self::default();
        self.count.current = 1;
        self.lba[0].current = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(writes: &[(u64, u8)]) -> Taskfile {
        let mut taskfile = Taskfile::default();
        writes.iter().for_each(|(offset, value)| taskfile.write(*offset, *value));
        taskfile
    }

    #[test]
    fn addresses_of_all_three_kinds() {
        let writes = [
            (reg::COUNT, 0x12),
            (reg::LBA_LOW, 0x34),
            (reg::LBA_MID, 0x56),
            (reg::LBA_HIGH, 0x78),
            (reg::COUNT, 0x9a),
            (reg::LBA_LOW, 0xbc),
            (reg::LBA_MID, 0xde),
            (reg::LBA_HIGH, 0xf0),
            (reg::DEVICE, 0xe5),
        ];
        let taskfile = of(&writes);
        let sectors = |addressing| taskfile.sectors(addressing);
        assert_eq!(sectors(Addressing::Lba28), Some(Sectors { lba: 0x5f0_debc, count: 0x9a }));
        assert_eq!(sectors(Addressing::Lba48), Some(Sectors { lba: 0x7856_34f0_debc, count: 0x129a }));
        let geometry = Geometry { heads: 16, sectors: 63 };
        let chs = of(&[(reg::LBA_LOW, 63), (reg::LBA_MID, 2), (reg::LBA_HIGH, 1), (reg::DEVICE, 0xaf)]);
        let last = Sectors { lba: 0x102 * 16 * 63 + 15 * 63 + 62, count: 256 };
        assert_eq!(chs.sectors(Addressing::Chs(geometry)), Some(last));
        for (sector, head) in [(0, 0), (64, 0), (1, 16)] {
            let geometry = Geometry { heads: 15, sectors: 63 };
            let none = of(&[(reg::LBA_LOW, sector), (reg::DEVICE, head.min(15))]);
            assert_eq!(none.sectors(Addressing::Chs(geometry)), None, "{sector} {head}");
        }
    }

    #[test]
    fn counts_of_zero_are_the_most() {
        let taskfile = Taskfile::default();
        assert_eq!(taskfile.sectors(Addressing::Lba28).map(|sectors| sectors.count), Some(256));
        assert_eq!(taskfile.sectors(Addressing::Lba48).map(|sectors| sectors.count), Some(65_536));
    }

    #[test]
    fn what_is_shown_is_what_is_read() {
        let geometry = Geometry { heads: 5, sectors: 17 };
        for addressing in [Addressing::Lba28, Addressing::Lba48, Addressing::Chs(geometry)] {
            let mut taskfile = of(&[(reg::DEVICE, DEVICE_LBA)]);
            let shown = Sectors { lba: 123_456, count: 77 };
            taskfile.set_sectors(addressing, shown);
            assert_eq!(taskfile.sectors(addressing), Some(shown), "{addressing:?}");
        }
    }
}

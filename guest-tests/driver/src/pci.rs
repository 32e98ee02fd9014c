//! A PCI function from its driver's side (PCI 3.0, chapter 6): identity, base address registers, interrupts.

use crate::platform::Platform;

const COMMAND: u16 = 0x04;
const COMMAND_MEMORY: u32 = 1 << 1;
const COMMAND_BUS_MASTER: u32 = 1 << 2;
const COMMAND_INTX_DISABLE: u32 = 1 << 10;
const STATUS_CAPABILITIES: u32 = 1 << 20;
const BAR0: u16 = 0x10;
const BAR_IO: u32 = 1;
const BAR_64: u32 = 1 << 2;
const CAPABILITIES_POINTER: u16 = 0x34;
const CAP_MSI: u8 = 0x05;
const MSI_ENABLE: u32 = 1 << 16;
const MSI_64: u32 = 1 << 23;
const MSI_MULTIPLE_ENABLE: u32 = 7 << 20;
const CAP_MSIX: u8 = 0x11;
const MSIX_ENABLE: u32 = 1 << 31;
const MSIX_FUNCTION_MASK: u32 = 1 << 30;
/// Entries of a table at the most.
const MSIX_MAX_TABLE: u16 = 2048;

/// How a function interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterruptMode {
    /// MSI-X: vector 0, or as many as the driver has use for.
    #[default]
    MsiX,
    /// MSI, one vector.
    Msi,
    /// The interrupt line.
    Intx,
}

/// Why a function cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciError {
    /// Another vendor or device, as the dword at offset 0 says.
    Identity(u32),
    /// No memory base address register is large enough.
    NoBar,
    /// The function has no such capability.
    NoInterrupt(InterruptMode),
}

/// A function that was found and enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The base address register with the device's registers.
    pub bar: u8,
}

impl Function {
    /// Check identity, find the first memory base address register of at least `bar_size` bytes, and enable memory
    /// decoding and bus mastering.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn enable<P: Platform>(platform: &mut P, id: (u16, u16), bar_size: u64) -> Result<Self, PciError> {
        let found = platform.config_read(0);
        if found != u32::from(id.1) << 16 | u32::from(id.0) {
            return Err(PciError::Identity(found));
        }
        let command = platform.config_read(COMMAND) & 0xffff;
        // Registers must not decode while they are sized. Zeros in the upper half leave the status bits alone.
        platform.config_write(COMMAND, command & !COMMAND_MEMORY);
        let bar = find_bar(platform, bar_size);
        platform.config_write(COMMAND, command | COMMAND_MEMORY | COMMAND_BUS_MASTER);
        bar.map(|bar| Self { bar }).ok_or(PciError::NoBar)
    }

    /// Let the function interrupt in this way, and in no other, with its first vector.
    ///
    /// # Errors
    /// [`PciError::NoInterrupt`] where it lacks the capability.
    pub fn set_interrupts<P: Platform>(&self, platform: &mut P, mode: InterruptMode) -> Result<(), PciError> {
        self.set_vectors(platform, mode, 1).map(|_| ())
    }

    /// The same with as many as `wanted` vectors, all of which arrive alike. How many there are: one but with MSI-X, and
    /// no more than its table has.
    ///
    /// # Errors
    /// [`PciError::NoInterrupt`] where it lacks the capability.
    pub fn set_vectors<P: Platform>(
        &self,
        platform: &mut P,
        mode: InterruptMode,
        wanted: u16,
    ) -> Result<u16, PciError> {
        let msi = find_capability(platform, CAP_MSI);
        let msix = find_capability(platform, CAP_MSIX);
        for (capability, enable) in [(msi, MSI_ENABLE), (msix, MSIX_ENABLE)] {
            if let Some(at) = capability {
                let control = platform.config_read(at);
                platform.config_write(at, control & !enable);
            }
        }
        let command = platform.config_read(COMMAND) & 0xffff & !COMMAND_INTX_DISABLE;
        let disable = if mode == InterruptMode::Intx { 0 } else { COMMAND_INTX_DISABLE };
        platform.config_write(COMMAND, command | disable);
        match (mode, msi, msix) {
            (InterruptMode::Intx, ..) => Ok(1),
            (InterruptMode::Msi, Some(at), _) => {
                set_msi(platform, at);
                Ok(1)
            }
            (InterruptMode::MsiX, _, Some(at)) => Ok(set_msix(platform, at, wanted)),
            _ => Err(PciError::NoInterrupt(mode)),
        }
    }
}

fn find_bar<P: Platform>(platform: &mut P, min: u64) -> Option<u8> {
    let mut index = 0u8;
    while index < 6 {
        let at = BAR0 + 4 * u16::from(index);
        let low = platform.config_read(at);
        let wide = low & BAR_IO == 0 && low & BAR_64 != 0 && index < 5;
        let mut mask = u64::from(size_mask(platform, at, low)) & !0xf;
        if wide {
            let high = platform.config_read(at + 4);
            mask |= u64::from(size_mask(platform, at + 4, high)) << 32;
        } else {
            mask |= 0xffff_ffff << 32;
        }
        let implemented = mask & 0xffff_fff0 != 0 || (wide && mask != 0);
        if low & BAR_IO == 0 && implemented && (!mask).wrapping_add(1) >= min {
            return Some(index);
        }
        index += if wide { 2 } else { 1 };
    }
    None
}

/// The bits of a base address register that can be set; the register is put back as it was.
fn size_mask<P: Platform>(platform: &mut P, at: u16, value: u32) -> u32 {
    platform.config_write(at, u32::MAX);
    let mask = platform.config_read(at);
    platform.config_write(at, value);
    mask
}

fn find_capability<P: Platform>(platform: &mut P, id: u8) -> Option<u16> {
    find_capability_where(platform, |_, _, found| found == id)
}

/// Where the first capability is that suits; `suits` is told place and ID.
pub(crate) fn find_capability_where<P: Platform>(
    platform: &mut P,
    suits: impl Fn(&mut P, u16, u8) -> bool,
) -> Option<u16> {
    if platform.config_read(COMMAND) & STATUS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = platform.config_read(CAPABILITIES_POINTER) as u8 & 0xfc;
    // A list cannot be longer than the configuration space can hold.
    for _ in 0..48 {
        if at < 0x40 {
            return None;
        }
        let header = platform.config_read(u16::from(at));
        if suits(platform, u16::from(at), header as u8) {
            return Some(u16::from(at));
        }
        at = (header >> 8) as u8 & 0xfc;
    }
    None
}

fn set_msi<P: Platform>(platform: &mut P, at: u16) {
    let (address, data) = platform.msi_message();
    let control = platform.config_read(at);
    platform.config_write(at + 4, address as u32);
    if control & MSI_64 != 0 {
        platform.config_write(at + 8, (address >> 32) as u32);
        platform.config_write(at + 12, data);
    } else {
        platform.config_write(at + 8, data);
    }
    platform.config_write(at, control & !MSI_MULTIPLE_ENABLE | MSI_ENABLE);
}

fn set_msix<P: Platform>(platform: &mut P, at: u16, wanted: u16) -> u16 {
    let (address, data) = platform.msi_message();
    let control = platform.config_read(at);
    let count = wanted.min((control >> 16) as u16 % MSIX_MAX_TABLE + 1);
    // Enabled but masked while the entries are written, as the line must not be used meanwhile.
    platform.config_write(at, control | MSIX_ENABLE | MSIX_FUNCTION_MASK);
    let table = platform.config_read(at + 4);
    let (bar, offset) = (table as u8 & 7, u64::from(table & !7));
    for entry in (0..count).map(|vector| offset + 16 * u64::from(vector)) {
        platform.write32(bar, entry, address as u32);
        platform.write32(bar, entry + 4, (address >> 32) as u32);
        platform.write32(bar, entry + 8, data);
        platform.write32(bar, entry + 12, 0);
    }
    platform.config_write(at, control & !MSIX_FUNCTION_MASK | MSIX_ENABLE);
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::DmaRegion;

    /// A function with registers of which some bits can be set.
    struct Fake {
        config: [u32; 64],
        writable: [u32; 64],
        table: [u32; 4],
    }

    impl Fake {
        fn new(bars: &[(u32, u32)], capabilities: &[(u8, u32)]) -> Self {
            let mut fake = Self { config: [0; 64], writable: [0; 64], table: [0, 0, 0, 1] };
            fake.config[0] = 0x07c0_15ad;
            fake.config[1] = STATUS_CAPABILITIES;
            fake.writable[1] = 0x407;
            for (index, &(flags, writable)) in bars.iter().enumerate() {
                fake.config[4 + index] = flags;
                fake.writable[4 + index] = writable;
            }
            fake.config[0x34 / 4] = 0x40;
            for &(at, header) in capabilities {
                fake.config[usize::from(at) / 4] = header;
                fake.writable[usize::from(at) / 4] = 0xffff << 16;
                for field in 1..4 {
                    fake.writable[usize::from(at) / 4 + field] = u32::MAX;
                }
            }
            fake
        }
    }

    impl Platform for Fake {
        fn config_read(&mut self, offset: u16) -> u32 {
            self.config[usize::from(offset) / 4]
        }
        fn config_write(&mut self, offset: u16, value: u32) {
            let at = usize::from(offset) / 4;
            self.config[at] = self.config[at] & !self.writable[at] | value & self.writable[at];
        }
        fn read(&mut self, _: u8, _: u64, _: usize) -> u32 {
            0
        }
        fn write(&mut self, _: u8, offset: u64, _: usize, value: u32) {
            self.table[offset as usize / 4] = value;
        }
        fn dma(&mut self, _: usize, _: usize) -> Option<DmaRegion> {
            None
        }
        fn msi_message(&self) -> (u64, u32) {
            (0x1_fee0_0000, 0x31)
        }
        fn interrupts(&self) -> u32 {
            0
        }
        fn wait_interrupt(&mut self, _: u32) {}
        fn ticks(&self) -> u64 {
            0
        }
    }

    const ID: (u16, u16) = (0x15ad, 0x07c0);

    #[test]
    fn the_first_memory_bar_that_is_large_enough() {
        let small = (0, !0xfff);
        let enough = (0, !0x7fff);
        let wide_low = (4, !0x7fff);
        let find =
            |bars: &[_]| Function::enable(&mut Fake::new(bars, &[]), ID, 0x8000).map(|found| found.bar);
        assert_eq!(find(&[enough]), Ok(0));
        assert_eq!(
            find(&[(1, !0x7fff & 0xffff), small, enough]),
            Ok(2),
            "I/O space and a small one before it"
        );
        assert_eq!(find(&[small, wide_low, (0, u32::MAX), enough]), Ok(1));
        assert_eq!(find(&[(4, 0), (0, !0xf), enough]), Ok(0), "64 GiB");
        assert_eq!(find(&[small]), Err(PciError::NoBar));
        assert_eq!(
            Function::enable(&mut Fake::new(&[enough], &[]), (1, 2), 1),
            Err(PciError::Identity(0x07c0_15ad))
        );
    }

    #[test]
    fn sizing_leaves_addresses_and_enables_decoding() {
        let mut fake = Fake::new(&[(0, !0x7fff)], &[]);
        fake.config[4] = 0xfe00_0000;
        Function::enable(&mut fake, ID, 0x8000).unwrap();
        assert_eq!(
            (fake.config[4], fake.config[1] & 0xffff),
            (0xfe00_0000, COMMAND_MEMORY | COMMAND_BUS_MASTER)
        );
    }

    #[test]
    fn one_interrupt_mode_at_a_time() {
        // MSI at 0x40 (64-bit, offering 8 messages), MSI-X at 0x60.
        let mut fake = Fake::new(&[(0, !0x7fff)], &[(0x40, 0x0086_6005), (0x60, 0x0017_0011)]);
        let function = Function::enable(&mut fake, ID, 0x8000).unwrap();
        function.set_interrupts(&mut fake, InterruptMode::MsiX).unwrap();
        assert_eq!(fake.table, [0xfee0_0000, 1, 0x31, 0]);
        assert_eq!(fake.config[0x60 / 4] & (MSIX_ENABLE | MSIX_FUNCTION_MASK), MSIX_ENABLE);
        assert_eq!((fake.config[0x40 / 4] & MSI_ENABLE, fake.config[1] & COMMAND_INTX_DISABLE), (0, 0x400));
        function.set_interrupts(&mut fake, InterruptMode::Msi).unwrap();
        assert_eq!(fake.config[0x44 / 4..0x50 / 4], [0xfee0_0000, 1, 0x31]);
        assert_eq!(fake.config[0x40 / 4] & (MSI_ENABLE | MSI_MULTIPLE_ENABLE), MSI_ENABLE);
        assert_eq!(fake.config[0x60 / 4] & MSIX_ENABLE, 0);
        function.set_interrupts(&mut fake, InterruptMode::Intx).unwrap();
        assert_eq!((fake.config[0x40 / 4] & MSI_ENABLE, fake.config[1] & COMMAND_INTX_DISABLE), (0, 0));
    }

    #[test]
    fn a_capability_list_that_does_not_end() {
        let mut fake = Fake::new(&[(0, !0x7fff)], &[(0x40, 0x0000_4001)]);
        let function = Function::enable(&mut fake, ID, 0x8000).unwrap();
        let refused = function.set_interrupts(&mut fake, InterruptMode::MsiX);
        assert_eq!(refused, Err(PciError::NoInterrupt(InterruptMode::MsiX)));
    }
}

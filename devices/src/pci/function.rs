//! The function: handles accesses, and sends interrupts in the mode that the guest has enabled.

use super::config::{ConfigSpace, Identity, LayoutError};
use super::msix::Msix;
use super::spec::*;
use crate::device::{Bar, BarKind};
use crate::interrupt::{InterruptSink, MsiMessage};

/// The interrupt mode. If the guest enables several: MSI-X before MSI before INTx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterruptMode {
    /// The interrupt line.
    Intx,
    /// Messages with address and data of the capability.
    Msi,
    /// Messages with addresses and data of the table.
    Msix,
}

/// Effect of a write to configuration space on bus mastering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BusMaster {
    /// Nothing.
    Same,
    /// From now on, the function may access memory.
    On,
    /// From now on, the function must not access memory.
    Off,
}

/// A PCI function.
///
/// Its device builds it (`with_...`). Then the guest accesses it through [`config_read`](Self::config_read),
/// [`config_write`](Self::config_write), [`msix_read`](Self::msix_read) and [`msix_write`](Self::msix_write). The device sends interrupts
/// with [`signal`](Self::signal) and [`set_line`](Self::set_line).
pub(crate) struct Function {
    config: ConfigSpace,
    sink: Box<dyn InterruptSink>,
    /// Offset of the MSI capability, and its number of vectors.
    msi: Option<(usize, u16)>,
    msix: Option<Msix>,
    /// The level that the device requests, and the level of the line.
    line: bool,
    line_asserted: bool,
    /// Derived from configuration space and the MSI-X table by `update`.
    mode: InterruptMode,
    bus_master: bool,
    routes: Vec<Option<MsiMessage>>,
}

impl Function {
    /// A function without base address registers and interrupts.
    #[must_use]
    pub(crate) fn new(identity: &Identity, interrupts: Box<dyn InterruptSink>) -> Self {
        Self {
            config: ConfigSpace::new(identity),
            sink: interrupts,
            msi: None,
            msix: None,
            line: false,
            line_asserted: false,
            mode: InterruptMode::Intx,
            bus_master: false,
            routes: Vec::new(),
        }
    }

    /// Add a base address register.
    ///
    /// # Errors
    /// [`LayoutError`] for a size that cannot be decoded or a register in use.
    pub(crate) fn with_bar(mut self, index: u8, kind: BarKind, size: u64) -> Result<Self, LayoutError> {
        self.config.add_bar(index, kind, size)?;
        Ok(self)
    }

    /// Use the line INTA (1) to INTD (4).
    #[must_use]
    pub(crate) fn with_intx(mut self, pin: u8) -> Self {
        self.config.set_pin(pin.clamp(1, 4));
        self
    }

    /// Add MSI with a 64-bit address and 1, 2, 4 ... 32 vectors, without mask bits.
    ///
    /// # Errors
    /// [`LayoutError`] for another number of vectors, or without free space.
    pub(crate) fn with_msi(mut self, vectors: u16) -> Result<Self, LayoutError> {
        if !vectors.is_power_of_two() || vectors > MSI_MAX_VECTORS {
            return Err(LayoutError::Vectors { count: vectors, expected: "a power of two, 1 to 32" });
        }
        let control = MsiControl::ADDRESS_64.bits() | (vectors.ilog2() as u16) << MSI_MULTIPLE_CAPABLE_SHIFT;
        let mut bytes = [0; MSI_SIZE - 2];
        bytes[..2].copy_from_slice(&control.to_le_bytes());
        let mut writable = [0xff; MSI_SIZE - 2];
        let control_writable = MsiControl::ENABLE.bits() | 7 << MSI_MULTIPLE_ENABLE_SHIFT;
        writable[..2].copy_from_slice(&control_writable.to_le_bytes());
        writable[MSI_ADDRESS - 2] = 0xfc;
        let at = self.config.add_capability(CAP_ID_MSI, &bytes, &writable)?;
        self.msi = Some((at, vectors));
        self.grow_routes(vectors);
        Ok(self)
    }

    /// Add MSI-X with table and pending bits in an existing base address register.
    ///
    /// # Errors
    /// [`LayoutError`] for 0 or more than 2,048 vectors, without free space, or if the structures do not fit.
    pub(crate) fn with_msix(
        mut self,
        vectors: u16,
        bar: u8,
        table: u32,
        pba: u32,
    ) -> Result<Self, LayoutError> {
        if vectors == 0 || vectors > MSIX_MAX_VECTORS {
            return Err(LayoutError::Vectors { count: vectors, expected: "1 to 2048" });
        }
        let size = self.config.bar_size(bar).ok_or(LayoutError::MsixPlace(bar))?;
        let (table_size, pba_size) = Msix::sizes(vectors);
        let fits = |offset: u32, len: u64| offset.is_multiple_of(8) && u64::from(offset) + len <= size;
        if !fits(table, table_size) || !fits(pba, pba_size) {
            return Err(LayoutError::MsixPlace(bar));
        }
        let mut bytes = [0; MSIX_SIZE - 2];
        bytes[..2].copy_from_slice(&(vectors - 1).to_le_bytes());
        bytes[MSIX_TABLE - 2..][..4].copy_from_slice(&(table | u32::from(bar)).to_le_bytes());
        bytes[MSIX_PBA - 2..][..4].copy_from_slice(&(pba | u32::from(bar)).to_le_bytes());
        let mut writable = [0; MSIX_SIZE - 2];
        writable[..2].copy_from_slice(&MsixControl::all().bits().to_le_bytes());
        let at = self.config.add_capability(CAP_ID_MSIX, &bytes, &writable)?;
        self.msix = Some(Msix::new(at, bar, table.into(), pba.into(), vectors));
        self.grow_routes(vectors);
        Ok(self)
    }

    /// Add another capability. `bytes` and the bits that the guest may change (`writable`) exclude the two bytes of the header. Also
    /// returns its offset in configuration space.
    ///
    /// # Errors
    /// [`LayoutError`] without free space.
    pub(crate) fn with_capability(
        mut self,
        id: u8,
        bytes: &[u8],
        writable: &[u8],
    ) -> Result<(Self, u16), LayoutError> {
        let at = self.config.add_capability(id, bytes, writable)?;
        Ok((self, at as u16))
    }

    /// Add a register of the device beside the capabilities, with its value after reset and the bits that the guest may change. It must not
    /// overlap capabilities.
    #[must_use]
    pub(crate) fn with_register(mut self, at: usize, value: &[u8], writable: &[u8]) -> Self {
        self.config.add_register(at, value, writable);
        self
    }

    fn grow_routes(&mut self, vectors: u16) {
        let len = self.routes.len().max(vectors.into());
        self.routes.resize(len, None);
    }

    /// Read configuration space: the contract of [`PciDevice::config_read`](crate::PciDevice::config_read).
    pub(crate) fn config_read(&self, offset: u16, data: &mut [u8]) {
        self.config.read(offset, data);
    }

    /// Write configuration space: the contract of [`PciDevice::config_write`](crate::PciDevice::config_write). Returns the effect on bus
    /// mastering.
    pub(crate) fn config_write(&mut self, offset: u16, data: &[u8]) -> BusMaster {
        let before = self.bus_master;
        self.config.write(offset, data);
        self.update();
        match (before, self.bus_master) {
            (true, false) => BusMaster::Off,
            (false, true) => BusMaster::On,
            _ => BusMaster::Same,
        }
    }

    /// The base address registers.
    #[must_use]
    pub(crate) fn bars(&self) -> Vec<Bar> {
        self.config.bars()
    }

    /// Read from the MSI-X structures. False: the access is not to them, so the device must handle it.
    pub(crate) fn msix_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> bool {
        self.msix.as_ref().is_some_and(|msix| msix.read(bar, offset, data))
    }

    /// Write to the MSI-X structures. False: the access is not to them, so the device must handle it.
    pub(crate) fn msix_write(&mut self, bar: u8, offset: u64, data: &[u8]) -> bool {
        let claimed = self.msix.as_mut().is_some_and(|msix| msix.write(bar, offset, data));
        if claimed {
            self.update();
        }
        claimed
    }

    /// Whether the function may access memory.
    #[must_use]
    pub(crate) const fn bus_master(&self) -> bool {
        self.bus_master
    }

    /// The interrupt mode.
    #[must_use]
    pub(crate) const fn mode(&self) -> InterruptMode {
        self.mode
    }

    /// Send a message for the device's vector `vector`. With MSI-X, a masked vector becomes pending. With MSI, vectors beyond the granted
    /// ones wrap around. With INTx, nothing happens: see [`set_line`](Self::set_line). True: the message was sent.
    #[inline]
    pub(crate) fn signal(&mut self, vector: u16) -> bool {
        let vector = match (self.mode, self.msi) {
            (InterruptMode::Msi, Some((at, vectors))) => vector & (self.msi_granted(at, vectors) - 1),
            (InterruptMode::Intx, _) => return false,
            _ => vector,
        };
        if self.routes.get(usize::from(vector)).is_some_and(Option::is_some) {
            self.sink.message(vector);
            return true;
        }
        if let (InterruptMode::Msix, Some(msix)) = (self.mode, &mut self.msix) {
            msix.set_pending(vector.into());
        }
        false
    }

    /// Set the level that the device requests on its line. The line has this level only while neither MSI nor MSI-X is enabled and the
    /// command register does not disable INTx. True: this call asserted the line.
    #[inline]
    pub(crate) fn set_line(&mut self, wanted: bool) -> bool {
        if self.line == wanted {
            return false;
        }
        self.line = wanted;
        self.update_line();
        self.line_asserted
    }

    /// Set the level of an ISA interrupt line, for functions with PC/AT interrupts.
    pub(crate) fn isa_line(&mut self, irq: u8, asserted: bool) {
        self.sink.isa_line(irq, asserted);
    }

    /// Back to the state after power-on.
    pub(crate) fn reset(&mut self) {
        self.config.reset();
        if let Some(msix) = &mut self.msix {
            msix.reset();
        }
        self.line = false;
        self.update();
    }

    /// Number of MSI vectors that the guest has granted; a power of two.
    fn msi_granted(&self, at: usize, vectors: u16) -> u16 {
        let log2 = self.config.u16(at + MSI_CONTROL) >> MSI_MULTIPLE_ENABLE_SHIFT & 7;
        (1 << log2.min(5)).min(vectors)
    }

    /// Update all fields that depend on configuration space and the MSI-X table, and report routes to the sink.
    fn update(&mut self) {
        self.bus_master = self.config.command().contains(Command::BUS_MASTER);
        let msix_control = self.msix.as_ref().map_or(MsixControl::empty(), |msix| {
            MsixControl::from_bits_truncate(self.config.u16(msix.capability + MSIX_CONTROL))
        });
        let msi = self.msi.filter(|(at, _)| {
            MsiControl::from_bits_truncate(self.config.u16(at + MSI_CONTROL)).contains(MsiControl::ENABLE)
        });
        self.mode = if msix_control.contains(MsixControl::ENABLE) {
            InterruptMode::Msix
        } else if msi.is_some() {
            InterruptMode::Msi
        } else {
            InterruptMode::Intx
        };
        self.update_line();
        for vector in 0..self.routes.len() {
            let message = match (self.mode, &self.msix, msi) {
                // A message is a memory write.
                _ if !self.bus_master => None,
                (InterruptMode::Msix, Some(msix), _)
                    if !msix_control.contains(MsixControl::FUNCTION_MASK) =>
                {
                    msix.message(vector)
                }
                (InterruptMode::Msi, _, Some((at, vectors))) => self.msi_message(at, vectors, vector),
                _ => None,
            };
            if self.routes[vector] != message {
                self.routes[vector] = message;
                self.sink.route(vector as u16, message);
            }
            if message.is_some()
                && self.mode == InterruptMode::Msix
                && self.msix.as_mut().is_some_and(|msix| vector < msix.vectors() && msix.take_pending(vector))
            {
                self.sink.message(vector as u16);
            }
        }
    }

    fn msi_message(&self, at: usize, vectors: u16, vector: usize) -> Option<MsiMessage> {
        let granted = self.msi_granted(at, vectors);
        let vector = u16::try_from(vector).ok().filter(|&vector| vector < granted)?;
        let low = u64::from(self.config.u32(at + MSI_ADDRESS));
        let high = u64::from(self.config.u32(at + MSI_ADDRESS + 4));
        let data = self.config.u16(at + MSI_DATA) & !(granted - 1) | vector;
        Some(MsiMessage { address: low | high << 32, data: data.into() })
    }

    fn update_line(&mut self) {
        self.config.set_interrupt_status(self.line);
        let allowed =
            self.mode == InterruptMode::Intx && !self.config.command().contains(Command::INTERRUPT_DISABLE);
        let asserted = self.line && allowed;
        if asserted != self.line_asserted {
            self.line_asserted = asserted;
            self.sink.line(asserted);
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

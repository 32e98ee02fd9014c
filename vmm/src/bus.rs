//! Dispatches an access of a virtual CPU to the PCI root, or to a handler of the machine's user.

use std::ops::Range;
use std::sync::Arc;

use crate::layout::{CONFIG_ADDRESS, CONFIG_DATA, ECAM};
use crate::pci_root::PciRoot;

/// What a virtual CPU does after an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Continue to run.
    Continue,
    /// Stop: [`StopReason::Handler`](crate::StopReason::Handler).
    Stop,
    /// The guest turned the machine off: [`StopReason::PowerOff`](crate::StopReason::PowerOff).
    PowerOff,
    /// The guest has reset the machine: [`StopReason::Reset`](crate::StopReason::Reset).
    Reset,
}

/// Registers in memory or I/O space, implemented by the machine's user.
///
/// Called on the thread of the virtual CPU, which waits for the return.
pub trait BusHandler: Send + Sync {
    /// Read 1 to 8 bytes at `offset` in the handler's range.
    fn read(&self, offset: u64, data: &mut [u8]);

    /// Write 1 to 8 bytes.
    fn write(&self, offset: u64, data: &[u8]) -> Flow;
}

pub(crate) type Handlers = Vec<(Range<u64>, Arc<dyn BusHandler>)>;

/// Everything that a virtual CPU accesses by an exit.
pub(crate) struct Bus {
    pub(crate) pci: PciRoot,
    pub(crate) memory: Handlers,
    pub(crate) io: Handlers,
}

impl Bus {
    pub(crate) fn memory_read(&self, address: u64, data: &mut [u8]) {
        if ECAM.contains(&address) {
            self.pci.ecam_read(address - ECAM.start, data);
        } else if let Some((handler, offset)) = find(&self.memory, address) {
            handler.read(offset, data);
        } else {
            self.pci.memory_read(address, data);
        }
    }

    pub(crate) fn memory_write(&self, address: u64, data: &[u8]) -> Flow {
        if ECAM.contains(&address) {
            self.pci.ecam_write(address - ECAM.start, data);
        } else if let Some((handler, offset)) = find(&self.memory, address) {
            return handler.write(offset, data);
        } else {
            self.pci.memory_write(address, data);
        }
        Flow::Continue
    }

    /// Read `data.len() / width` times: more than once for a string instruction.
    pub(crate) fn io_read(&self, port: u16, width: usize, data: &mut [u8]) {
        // Reset control is between the ports of configuration mechanism 1, so handlers are searched first.
        if let Some((handler, offset)) = find(&self.io, port.into()) {
            data.chunks_mut(width).for_each(|data| handler.read(offset, data));
        } else if (CONFIG_ADDRESS..CONFIG_DATA + 4).contains(&port) {
            data.chunks_mut(width).for_each(|data| self.pci.mechanism1_read(port, data));
        } else if data.len() > width {
            self.pci.io_read_string(port, width, data);
        } else {
            self.pci.io_read(port, data);
        }
    }

    /// Write `data.len() / width` times.
    pub(crate) fn io_write(&self, port: u16, width: usize, data: &[u8]) -> Flow {
        if let Some((handler, offset)) = find(&self.io, port.into()) {
            let mut flows = data.chunks(width).map(|data| handler.write(offset, data));
            return flows.find(|flow| *flow != Flow::Continue).unwrap_or(Flow::Continue);
        } else if (CONFIG_ADDRESS..CONFIG_DATA + 4).contains(&port) {
            data.chunks(width).for_each(|data| self.pci.mechanism1_write(port, data));
        } else if data.len() > width {
            self.pci.io_write_string(port, width, data);
        } else {
            self.pci.io_write(port, data);
        }
        Flow::Continue
    }
}

fn find(handlers: &Handlers, address: u64) -> Option<(&dyn BusHandler, u64)> {
    let (range, handler) = handlers.iter().find(|(range, _)| range.contains(&address))?;
    Some((&**handler, address - range.start))
}

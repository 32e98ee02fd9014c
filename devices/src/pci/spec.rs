//! Constants of configuration space (PCI Local Bus 3.0, 6.1, 6.2, 6.7 and 6.8).
#![allow(missing_docs, reason = "names of the specification")]

use bitflags::bitflags;

/// Bytes of conventional configuration space.
pub const CONFIG_SIZE: usize = 256;

/// Vendor ID, device ID.
pub const VENDOR_ID: usize = 0x00;
pub const DEVICE_ID: usize = 0x02;
/// Command register.
pub const COMMAND: usize = 0x04;
/// Status register.
pub const STATUS: usize = 0x06;
/// Revision ID; programming interface, sub-class and base class follow.
pub const REVISION_ID: usize = 0x08;
pub const CACHE_LINE_SIZE: usize = 0x0c;
pub const LATENCY_TIMER: usize = 0x0d;
/// First base address register.
pub const BASE_ADDRESS_0: usize = 0x10;
pub const SUBSYSTEM_VENDOR_ID: usize = 0x2c;
pub const SUBSYSTEM_ID: usize = 0x2e;
pub const CAPABILITIES_POINTER: usize = 0x34;
pub const INTERRUPT_LINE: usize = 0x3c;
pub const INTERRUPT_PIN: usize = 0x3d;
/// First offset that capabilities may use.
pub const CAPABILITIES_START: usize = 0x40;

pub const CAP_ID_MSI: u8 = 0x05;
/// Capability ID of a vendor-specific structure.
pub const CAP_ID_VENDOR: u8 = 0x09;
/// Capability ID of MSI-X.
pub const CAP_ID_MSIX: u8 = 0x11;

/// Number of base address registers of a type 0 header.
pub const BAR_COUNT: usize = 6;
/// Base address register: I/O space.
pub const BAR_IO: u32 = 1;
/// Base address register: 64 bits wide, the upper half is the next register.
pub const BAR_MEMORY_64: u32 = 1 << 2;

bitflags! {
    /// Command register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Command: u16 {
        /// Answers I/O accesses.
        const IO_SPACE = 1;
        /// Answers memory accesses.
        const MEMORY_SPACE = 1 << 1;
        /// The function may access memory and send message-signalled interrupts.
        const BUS_MASTER = 1 << 2;
        /// Reports parity errors.
        const PARITY_ERROR_RESPONSE = 1 << 6;
        /// Drives SERR#.
        const SERR_ENABLE = 1 << 8;
        /// Must not assert INTx#.
        const INTERRUPT_DISABLE = 1 << 10;
    }
}

bitflags! {
    /// Status register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Status: u16 {
        /// The function requests INTx#, whether or not it may assert it.
        const INTERRUPT = 1 << 3;
        /// The capability list exists.
        const CAPABILITIES_LIST = 1 << 4;
    }
}

bitflags! {
    /// Message control of MSI.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MsiControl: u16 {
        /// MSI instead of INTx.
        const ENABLE = 1;
        /// 64-bit address.
        const ADDRESS_64 = 1 << 7;
    }
}
/// First bit of Multiple Message Capable in MSI's message control: log2 of the requested vectors.
pub const MSI_MULTIPLE_CAPABLE_SHIFT: u32 = 1;
/// First bit of Multiple Message Enable in MSI's message control: log2 of the granted vectors.
pub const MSI_MULTIPLE_ENABLE_SHIFT: u32 = 4;
/// Maximum number of MSI vectors.
pub const MSI_MAX_VECTORS: u16 = 32;
/// Offsets inside the MSI capability with a 64-bit address.
pub const MSI_CONTROL: usize = 2;
/// Message address, eight bytes.
pub const MSI_ADDRESS: usize = 4;
/// Message data, two bytes.
pub const MSI_DATA: usize = 12;
/// Bytes of the MSI capability with a 64-bit address and without mask bits.
pub const MSI_SIZE: usize = 14;

bitflags! {
    /// Message control of MSI-X.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MsixControl: u16 {
        /// All vectors are masked.
        const FUNCTION_MASK = 1 << 14;
        /// MSI-X instead of INTx.
        const ENABLE = 1 << 15;
    }
}
/// Maximum number of MSI-X vectors.
pub const MSIX_MAX_VECTORS: u16 = 2048;
/// Offset of message control in the MSI-X capability; its low 11 bits are the table's size less one.
pub const MSIX_CONTROL: usize = 2;
/// Table offset, register number in the low three bits.
pub const MSIX_TABLE: usize = 4;
/// Pending bit array offset, register number in the low three bits.
pub const MSIX_PBA: usize = 8;
/// Bytes of the MSI-X capability.
pub const MSIX_SIZE: usize = 12;
/// Bytes of a table entry.
pub const MSIX_ENTRY_SIZE: u64 = 16;
/// Vector control: masked.
pub const MSIX_VECTOR_MASKED: u32 = 1;

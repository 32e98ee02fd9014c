//! Wire format of messages: vfio-user protocol specification, section "Protocol Specification", with constants of
//! Linux's `<linux/vfio.h>` where the specification refers to it. Little-endian, like all supported hosts.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Numbers of commands.
pub mod command {
    /// `VFIO_USER_VERSION`.
    pub const VERSION: u16 = 1;
    /// `VFIO_USER_DMA_MAP`.
    pub const DMA_MAP: u16 = 2;
    /// `VFIO_USER_DMA_UNMAP`.
    pub const DMA_UNMAP: u16 = 3;
    /// `VFIO_USER_DEVICE_GET_INFO`.
    pub const GET_INFO: u16 = 4;
    /// `VFIO_USER_DEVICE_GET_REGION_INFO`.
    pub const GET_REGION_INFO: u16 = 5;
    /// `VFIO_USER_DEVICE_GET_REGION_IO_FDS`.
    pub const GET_REGION_IO_FDS: u16 = 6;
    /// `VFIO_USER_DEVICE_GET_IRQ_INFO`.
    pub const GET_IRQ_INFO: u16 = 7;
    /// `VFIO_USER_DEVICE_SET_IRQS`.
    pub const SET_IRQS: u16 = 8;
    /// `VFIO_USER_REGION_READ`.
    pub const REGION_READ: u16 = 9;
    /// `VFIO_USER_REGION_WRITE`.
    pub const REGION_WRITE: u16 = 10;
    /// `VFIO_USER_DEVICE_RESET`.
    pub const RESET: u16 = 13;
    /// `VFIO_USER_REGION_WRITE_MULTI`.
    pub const REGION_WRITE_MULTI: u16 = 15;
}

/// Major version of the protocol.
pub const MAJOR: u16 = 0;
/// Minor version of the protocol.
pub const MINOR: u16 = 0;

/// Type of a message in its flags.
pub const TYPE_MASK: u32 = 0xf;
/// A command.
pub const TYPE_COMMAND: u32 = 0;
/// A reply.
pub const TYPE_REPLY: u32 = 1;
/// Flag of a command: no reply, even after an error.
pub const NO_REPLY: u32 = 1 << 4;
/// Flag of a reply: the command failed.
pub const ERROR: u32 = 1 << 5;

/// Regions of a PCI function: base address registers 0 to 5, ROM, configuration space, VGA.
pub const REGIONS: u32 = 9;
/// Index of configuration space.
pub const CONFIG_REGION: u32 = 7;

/// Interrupt types of a PCI function.
pub const IRQS: u32 = 5;
/// Index of the line.
pub const IRQ_INTX: u32 = 0;
/// Index of MSI.
pub const IRQ_MSI: u32 = 1;
/// Index of MSI-X.
pub const IRQ_MSIX: u32 = 2;

/// Flag of a device: it supports [`command::RESET`].
pub const DEVICE_RESET: u32 = 1;
/// Flag of a device: a PCI function.
pub const DEVICE_PCI: u32 = 1 << 1;

/// Flag of a region: may be read.
pub const REGION_FLAG_READ: u32 = 1;
/// Flag of a region: may be written.
pub const REGION_FLAG_WRITE: u32 = 1 << 1;
/// Flag of a region: may be mapped.
pub const REGION_FLAG_MMAP: u32 = 1 << 2;

/// Flag of a map: the device may read it.
pub const DMA_READ: u32 = 1;
/// Flag of a map: the device may write it.
pub const DMA_WRITE: u32 = 1 << 1;
/// Flag of an unmap: the bitmap of dirty pages is requested.
pub const UNMAP_DIRTY_BITMAP: u32 = 1;
/// Flag of an unmap: all maps.
pub const UNMAP_ALL: u32 = 1 << 1;

/// Flag of an interrupt type: signalled by eventfd.
pub const IRQ_EVENTFD: u32 = 1;
/// Flag of an interrupt type: can be masked and unmasked.
pub const IRQ_MASKABLE: u32 = 1 << 1;
/// Flag of an interrupt type: masked automatically when triggered.
pub const IRQ_AUTOMASKED: u32 = 1 << 2;

bitflags! {
    /// Data and action of [`command::SET_IRQS`]: one of each.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct IrqSet: u32 {
        /// No data.
        const DATA_NONE = 1;
        /// A byte for each vector: whether the action applies to it.
        const DATA_BOOL = 1 << 1;
        /// A file descriptor for each vector, or none.
        const DATA_EVENTFD = 1 << 2;
        /// Mask.
        const MASK = 1 << 3;
        /// Unmask.
        const UNMASK = 1 << 4;
        /// Trigger.
        const TRIGGER = 1 << 5;
    }
}

/// Type of a sub-region: an ioeventfd.
pub const IO_FD_IOEVENTFD: u32 = 0;
/// Flag of a sub-region: I/O ports (`KVM_IOEVENTFD_FLAG_PIO`).
pub const IOEVENTFD_PIO: u32 = 1 << 1;

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident[$size:literal] { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    )* };
}

wire! {
    /// Precedes each message.
    Header[16] {
        /// Chosen by the sender of a command, repeated in its reply.
        message_id: U16,
        /// [`command`].
        command: U16,
        /// Bytes of the message, this header included.
        size: U32,
        /// [`TYPE_MASK`], [`NO_REPLY`], [`ERROR`].
        flags: U32,
        /// Errno of a reply with [`ERROR`].
        error: U32,
    }
    /// [`command::VERSION`] and its reply; JSON that ends in NUL follows.
    Version[4] {
        /// [`MAJOR`].
        major: U16,
        /// [`MINOR`].
        minor: U16,
    }
    /// [`command::DMA_MAP`].
    DmaMap[32] {
        /// Bytes of this structure.
        argsz: U32,
        /// [`DMA_READ`], [`DMA_WRITE`].
        flags: U32,
        /// Byte offset in the file.
        offset: U64,
        /// Bus address.
        address: U64,
        /// Bytes.
        size: U64,
    }
    /// [`command::DMA_UNMAP`] and its reply.
    DmaUnmap[24] {
        /// Maximum number of bytes of the reply.
        argsz: U32,
        /// [`UNMAP_DIRTY_BITMAP`], [`UNMAP_ALL`].
        flags: U32,
        /// Bus address.
        address: U64,
        /// Bytes.
        size: U64,
    }
    /// [`command::GET_INFO`] and its reply.
    DeviceInfo[16] {
        /// Bytes of the reply.
        argsz: U32,
        /// [`DEVICE_RESET`], [`DEVICE_PCI`].
        flags: U32,
        /// Regions.
        regions: U32,
        /// Interrupt types.
        irqs: U32,
    }
    /// [`command::GET_REGION_INFO`] and its reply.
    RegionInfo[32] {
        /// Bytes of the reply.
        argsz: U32,
        /// [`REGION_FLAG_READ`], [`REGION_FLAG_WRITE`].
        flags: U32,
        /// Region.
        index: U32,
        /// Offset of capabilities; none here.
        cap_offset: U32,
        /// Bytes.
        size: U64,
        /// Offset for mmap.
        offset: U64,
    }
    /// [`command::GET_REGION_IO_FDS`] and the start of its reply.
    RegionIoFds[16] {
        /// Bytes of the reply.
        argsz: U32,
        /// Zero.
        flags: U32,
        /// Region.
        index: U32,
        /// Number of sub-regions that follow.
        count: U32,
    }
    /// A sub-region whose writes signal a file descriptor.
    IoEventFd[40] {
        /// Byte offset in the region.
        offset: U64,
        /// Bytes of the write.
        size: U64,
        /// Index of the descriptor in the message.
        fd_index: U32,
        /// [`IO_FD_IOEVENTFD`].
        kind: U32,
        /// [`IOEVENTFD_PIO`].
        flags: U32,
        /// Zero.
        padding: U32,
        /// Only writes of this value, if a flag requires it; not used here.
        datamatch: U64,
    }
    /// [`command::GET_IRQ_INFO`] and its reply.
    IrqInfo[16] {
        /// Bytes of the reply.
        argsz: U32,
        /// [`IRQ_EVENTFD`], [`IRQ_MASKABLE`], [`IRQ_AUTOMASKED`].
        flags: U32,
        /// Interrupt type.
        index: U32,
        /// Vectors.
        count: U32,
    }
    /// [`command::SET_IRQS`]; bytes follow with [`IrqSet::DATA_BOOL`].
    SetIrqs[20] {
        /// Bytes of this structure and of the data that follow.
        argsz: U32,
        /// [`IrqSet`].
        flags: U32,
        /// Interrupt type.
        index: U32,
        /// First vector.
        start: U32,
        /// Vectors.
        count: U32,
    }
    /// [`command::REGION_READ`], [`command::REGION_WRITE`] and their replies; data follow.
    RegionAccess[16] {
        /// Byte offset.
        offset: U64,
        /// Region.
        region: U32,
        /// Bytes.
        count: U32,
    }
    /// A write of [`command::REGION_WRITE_MULTI`]. A `U64` with the number of writes precedes the first; it is also the
    /// reply.
    MultiWrite[24] {
        /// Region, offset and length.
        access: RegionAccess,
        /// The data, from the first byte.
        data: [u8; 8],
    }
}

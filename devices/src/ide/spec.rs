//! Registers, commands and structures of the IDE function of the PIIX4 (Intel 82371AB) and of the ATA drives behind it.
//! Sources: ATA/ATAPI-7 volume 1 (T13/1532D) for drives, SFF-8038i 1.0 for bus mastering, the PCI IDE Controller Specification 1.0 for the
//! two modes, and Intel's 82371AB data sheet (290562) for configuration space.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// PCI vendor ID (Intel).
pub const PCI_VENDOR_ID_INTEL: u16 = 0x8086;
/// PCI device ID: IDE function of the 82371AB.
pub const PCI_DEVICE_ID_PIIX4_IDE: u16 = 0x7111;
/// Programming interface: bus master, both channels fixed in compatibility mode.
pub const INTERFACE_COMPATIBILITY: u8 = 0x80;
/// Programming interface: bus master, both channels in native mode.
pub const INTERFACE_NATIVE: u8 = 0x8f;
/// Status register of configuration space after reset: fast back-to-back, medium DEVSEL timing.
pub const PCI_STATUS: u16 = 0x0280;

/// Configuration space: timing of the two channels, two bytes each.
pub const IDETIM: usize = 0x40;
/// In [`IDETIM`]: the channel's ports are decoded. Drivers treat a channel without this bit as absent.
pub const IDETIM_DECODE: u16 = 0x8000;
/// Configuration space: timing of the second drives.
pub const SIDETIM: usize = 0x44;
/// Configuration space: Ultra DMA enable.
pub const UDMACTL: usize = 0x48;
/// Configuration space: Ultra DMA timing, two bytes.
pub const UDMATIM: usize = 0x4a;
/// Configuration space: I/O configuration of later members of the family, which drivers read, two bytes.
pub const IOCFG: usize = 0x54;

/// In compatibility mode: first port of each channel's command block, its control register, and its interrupt line.
pub const COMPATIBILITY: [(u64, u64, u8); 2] = [(0x1f0, 0x3f6, 14), (0x170, 0x376, 15)];
/// Ports of a command block.
pub const COMMAND_BLOCK_SIZE: u64 = 8;
/// In native mode: ports of a control block.
pub const CONTROL_BLOCK_SIZE: u64 = 4;
/// In native mode: the control register in the control block.
pub const NATIVE_CONTROL: u64 = 2;
/// Ports of the bus master block.
pub const BUS_MASTER_SIZE: u64 = 16;
/// Ports of one channel's half of the bus master block.
pub const BUS_MASTER_CHANNEL: u64 = 8;

/// Offsets in the command block.
pub mod reg {
    /// Data, 16 or 32 bits wide.
    pub const DATA: u64 = 0;
    /// Read: error. Write: features.
    pub const ERROR: u64 = 1;
    /// Sector count.
    pub const COUNT: u64 = 2;
    /// LBA bits 0 to 7, or sector.
    pub const LBA_LOW: u64 = 3;
    /// LBA bits 8 to 15, or low byte of the cylinder.
    pub const LBA_MID: u64 = 4;
    /// LBA bits 16 to 23, or high byte of the cylinder.
    pub const LBA_HIGH: u64 = 5;
    /// Which drive, and LBA bits 24 to 27 or the head.
    pub const DEVICE: u64 = 6;
    /// Read: status, and clear the interrupt. Write: start a command.
    pub const STATUS: u64 = 7;
}

bitflags! {
    /// Status register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Status: u8 {
        /// The command failed: see the error register.
        const ERR = 1;
        /// The data port has data, or accepts them.
        const DRQ = 1 << 3;
        /// Seek complete.
        const DSC = 1 << 4;
        /// Device fault.
        const DF = 1 << 5;
        /// The drive accepts commands.
        const DRDY = 1 << 6;
        /// A command is being executed; the other bits are not valid.
        const BSY = 1 << 7;
    }
}

bitflags! {
    /// Error register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Error: u8 {
        /// After a reset or EXECUTE DEVICE DIAGNOSTIC: the drive passed.
        const PASSED = 1;
        /// The command was aborted.
        const ABRT = 1 << 2;
        /// No such sector.
        const IDNF = 1 << 4;
        /// The data cannot be read.
        const UNC = 1 << 6;
    }
}

bitflags! {
    /// Device control register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Control: u8 {
        /// The channel must not interrupt.
        const NIEN = 1 << 1;
        /// Software reset of both drives, for as long as it is set.
        const SRST = 1 << 2;
        /// Reads of the registers return their previous content.
        const HOB = 1 << 7;
    }
}

/// Device register: the second drive.
pub const DEVICE_DEV: u8 = 1 << 4;
/// Device register: the address is an LBA.
pub const DEVICE_LBA: u8 = 1 << 6;
/// Device register: bits that read as ones.
pub const DEVICE_OBSOLETE: u8 = 0xa0;

/// Offsets in a channel's half of the bus master block.
pub mod bm {
    /// Command.
    pub const COMMAND: u64 = 0;
    /// Status.
    pub const STATUS: u64 = 2;
    /// Address of the table of physical region descriptors, four bytes.
    pub const TABLE: u64 = 4;
}

bitflags! {
    /// Bus master command.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BmCommand: u8 {
        /// Run.
        const START = 1;
        /// From drive to memory.
        const TO_MEMORY = 1 << 3;
    }
}

bitflags! {
    /// Bus master status.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BmStatus: u8 {
        /// Running.
        const ACTIVE = 1;
        /// An access to memory failed. Written as one: cleared.
        const ERROR = 1 << 1;
        /// The channel's interrupt was raised. Written as one: cleared.
        const INTERRUPT = 1 << 2;
        /// Firmware has set the first drive up for DMA.
        const DRIVE0_DMA = 1 << 5;
        /// Firmware has set the second drive up for DMA.
        const DRIVE1_DMA = 1 << 6;
    }
}

/// A physical region descriptor (SFF-8038i, 1.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Prd {
    /// Guest-physical address; bit 0 is ignored.
    pub address: U32,
    /// Bytes; bit 0 is ignored, 0 means 65,536.
    pub count: U16,
    /// [`PRD_LAST`].
    pub flags: U16,
}
const _: () = assert!(size_of::<Prd>() == 8);

/// In [`Prd::flags`]: the table ends here.
pub const PRD_LAST: u16 = 1 << 15;
/// Maximum number of descriptors of a table, which lies in 64 KiB (SFF-8038i, 1.2).
pub const MAX_PRDS: u64 = 8192;

impl Prd {
    /// First byte.
    #[must_use]
    pub fn start(&self) -> u64 {
        u64::from(self.address.get() & !1)
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self.count.get() & !1 {
            0 => 0x1_0000,
            count => count.into(),
        }
    }

    /// Whether the table ends here.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.flags.get() & PRD_LAST != 0
    }
}

/// An entry of the data of DATA SET MANAGEMENT: 48 bits of LBA, 16 bits of sectors.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TrimRange(pub U64);
const _: () = assert!(size_of::<TrimRange>() == 8);

impl TrimRange {
    /// First sector.
    #[must_use]
    pub fn lba(&self) -> u64 {
        self.0.get() & 0xffff_ffff_ffff
    }

    /// Sectors; 0: the entry is ignored.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.0.get() >> 48
    }
}

/// Command codes (ATA/ATAPI-7, table 10 and clause 6).
pub mod command {
    /// DATA SET MANAGEMENT.
    pub const DATA_SET_MANAGEMENT: u8 = 0x06;
    /// RECALIBRATE; the low four bits are ignored.
    pub const RECALIBRATE: u8 = 0x10;
    /// READ SECTORS.
    pub const READ_SECTORS: u8 = 0x20;
    /// READ SECTORS without retries.
    pub const READ_SECTORS_ONCE: u8 = 0x21;
    /// READ SECTORS EXT.
    pub const READ_SECTORS_EXT: u8 = 0x24;
    /// READ DMA EXT.
    pub const READ_DMA_EXT: u8 = 0x25;
    /// READ NATIVE MAX ADDRESS EXT.
    pub const READ_NATIVE_MAX_EXT: u8 = 0x27;
    /// READ MULTIPLE EXT.
    pub const READ_MULTIPLE_EXT: u8 = 0x29;
    /// WRITE SECTORS.
    pub const WRITE_SECTORS: u8 = 0x30;
    /// WRITE SECTORS without retries.
    pub const WRITE_SECTORS_ONCE: u8 = 0x31;
    /// WRITE SECTORS EXT.
    pub const WRITE_SECTORS_EXT: u8 = 0x34;
    /// WRITE DMA EXT.
    pub const WRITE_DMA_EXT: u8 = 0x35;
    /// WRITE MULTIPLE EXT.
    pub const WRITE_MULTIPLE_EXT: u8 = 0x39;
    /// READ VERIFY SECTORS.
    pub const READ_VERIFY: u8 = 0x40;
    /// READ VERIFY SECTORS without retries.
    pub const READ_VERIFY_ONCE: u8 = 0x41;
    /// READ VERIFY SECTORS EXT.
    pub const READ_VERIFY_EXT: u8 = 0x42;
    /// SEEK; the low four bits are ignored.
    pub const SEEK: u8 = 0x70;
    /// EXECUTE DEVICE DIAGNOSTIC.
    pub const DIAGNOSTIC: u8 = 0x90;
    /// INITIALIZE DEVICE PARAMETERS.
    pub const INITIALIZE_PARAMETERS: u8 = 0x91;
    /// Old codes of the power commands: STANDBY IMMEDIATE, IDLE IMMEDIATE, STANDBY, IDLE, CHECK POWER MODE, SLEEP.
    pub const OLD_POWER: [u8; 6] = [0x94, 0x95, 0x96, 0x97, 0x98, 0x99];
    /// SMART.
    pub const SMART: u8 = 0xb0;
    /// READ MULTIPLE.
    pub const READ_MULTIPLE: u8 = 0xc4;
    /// WRITE MULTIPLE.
    pub const WRITE_MULTIPLE: u8 = 0xc5;
    /// SET MULTIPLE MODE.
    pub const SET_MULTIPLE: u8 = 0xc6;
    /// READ DMA.
    pub const READ_DMA: u8 = 0xc8;
    /// READ DMA without retries.
    pub const READ_DMA_ONCE: u8 = 0xc9;
    /// WRITE DMA.
    pub const WRITE_DMA: u8 = 0xca;
    /// WRITE DMA without retries.
    pub const WRITE_DMA_ONCE: u8 = 0xcb;
    /// The power commands: STANDBY IMMEDIATE, IDLE IMMEDIATE, STANDBY, IDLE, CHECK POWER MODE, SLEEP.
    pub const POWER: [u8; 6] = [0xe0, 0xe1, 0xe2, 0xe3, 0xe5, 0xe6];
    /// FLUSH CACHE.
    pub const FLUSH_CACHE: u8 = 0xe7;
    /// FLUSH CACHE EXT.
    pub const FLUSH_CACHE_EXT: u8 = 0xea;
    /// IDENTIFY DEVICE.
    pub const IDENTIFY: u8 = 0xec;
    /// SET FEATURES.
    pub const SET_FEATURES: u8 = 0xef;
    /// READ NATIVE MAX ADDRESS.
    pub const READ_NATIVE_MAX: u8 = 0xf8;
}

/// Features register of SET FEATURES.
pub mod feature {
    /// Enable the write cache.
    pub const ENABLE_WRITE_CACHE: u8 = 0x02;
    /// The transfer mode is in the sector count register.
    pub const TRANSFER_MODE: u8 = 0x03;
    /// Disable read look-ahead.
    pub const DISABLE_LOOK_AHEAD: u8 = 0x55;
    /// Disable the write cache: a write completes when it is on stable storage.
    pub const DISABLE_WRITE_CACHE: u8 = 0x82;
    /// Enable read look-ahead.
    pub const ENABLE_LOOK_AHEAD: u8 = 0xaa;
}

/// Features register of SMART.
pub mod smart {
    /// Read the attributes' values.
    pub const READ_DATA: u8 = 0xd0;
    /// Read the attributes' thresholds.
    pub const READ_THRESHOLDS: u8 = 0xd1;
    /// Enable or disable the saving of attributes.
    pub const AUTOSAVE: u8 = 0xd2;
    /// Run a test.
    pub const EXECUTE_OFFLINE: u8 = 0xd4;
    /// Read a log.
    pub const READ_LOG: u8 = 0xd5;
    /// Enable SMART.
    pub const ENABLE: u8 = 0xd8;
    /// Disable SMART.
    pub const DISABLE: u8 = 0xd9;
    /// Return whether a threshold was exceeded.
    pub const RETURN_STATUS: u8 = 0xda;
    /// LBA mid and high of each SMART command.
    pub const SIGNATURE: [u8; 2] = [0x4f, 0xc2];
}

/// DATA SET MANAGEMENT, features register: TRIM.
pub const TRIM: u8 = 1;
/// DATA SET MANAGEMENT: maximum number of blocks of 512 bytes.
pub const MAX_TRIM_BLOCKS: u16 = 8;
/// Bytes of a data block that holds no sectors.
pub const BLOCK: usize = 512;
/// Maximum number of sectors that READ MULTIPLE and WRITE MULTIPLE transfer with one interrupt. Also their number after a reset.
pub const MAX_MULTIPLE: u8 = 16;

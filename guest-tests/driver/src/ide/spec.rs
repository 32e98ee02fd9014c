//! Registers and commands of a PCI IDE function and of ATA disks, as Linux's `ata_piix` and libata use them.

/// Vendor and device: IDE function of the PIIX4.
pub const ID: (u16, u16) = (0x8086, 0x7111);
/// Configuration space: revision, and the class in the upper three bytes.
pub const CLASS: u16 = 0x08;
/// Class without the programming interface: mass storage, IDE.
pub const IDE: u32 = 0x0101;
/// Programming interface: both channels in native mode; none of these bits: both in compatibility mode.
pub const NATIVE: u32 = 1 << 2 | 1;
/// In compatibility mode: ports of command and control block of each channel.
pub const COMPATIBILITY_PORTS: [u16; 4] = [0x1f0, 0x3f6, 0x170, 0x376];
/// In compatibility mode: interrupt of each channel.
pub const COMPATIBILITY_IRQS: [u32; 2] = [14, 15];
/// Configuration space: timing of both channels; bit 15 of each half: its ports are decoded.
pub const IDETIM: u16 = 0x40;
/// Bit 15 of a channel's half: its ports are decoded.
pub const DECODE: u32 = 0x8000;

/// Command block: data.
pub const DATA: u64 = 0;
/// Command block: error, features.
pub const ERROR: u64 = 1;
/// Command block: sector count.
pub const COUNT: u64 = 2;
/// Command block: LBA low, mid and high.
pub const LBA: [u64; 3] = [3, 4, 5];
/// Command block: device.
pub const DEVICE: u64 = 6;
/// Command block: status, command.
pub const STATUS: u64 = 7;
/// Control block in native mode: alternate status, device control. In compatibility mode, this register is the whole block.
pub const NATIVE_CONTROL: u64 = 2;

/// Status: a command failed.
pub const ERR: u8 = 1;
/// Status: data are to be moved.
pub const DRQ: u8 = 8;
/// Status: device fault.
pub const DF: u8 = 0x20;
/// Status: ready.
pub const DRDY: u8 = 0x40;
/// Status: busy.
pub const BSY: u8 = 0x80;

/// Device control: always set.
pub const CONTROL_IDLE: u8 = 8;
/// Device control: no interrupts.
pub const NIEN: u8 = 2;
/// Device control: reset.
pub const SRST: u8 = 4;

/// Device: bits that are always set.
pub const DEVICE_ONES: u8 = 0xa0;
/// Device: the second drive.
pub const DEVICE_SLAVE: u8 = 0x10;
/// Device: the address is an LBA.
pub const DEVICE_LBA: u8 = 0x40;

/// Bus master: command, of the channel at 8 times its number.
pub const BM_COMMAND: u64 = 0;
/// Bus master: status.
pub const BM_STATUS: u64 = 2;
/// Bus master: table.
pub const BM_TABLE: u64 = 4;
/// Bus master command: start.
pub const BM_START: u8 = 1;
/// Bus master command: from drive to memory.
pub const BM_TO_MEMORY: u8 = 8;
/// Bus master status: error.
pub const BM_ERROR: u8 = 2;
/// Bus master status: interrupt.
pub const BM_INTERRUPT: u8 = 4;
/// Last entry of a table.
pub const PRD_LAST: u32 = 1 << 31;
/// No entry crosses a multiple of this.
pub const PRD_BOUNDARY: u64 = 0x1_0000;

/// IDENTIFY DEVICE.
pub const IDENTIFY: u8 = 0xec;
/// SET FEATURES.
pub const SET_FEATURES: u8 = 0xef;
/// SET FEATURES: transfer mode.
pub const TRANSFER_MODE: u8 = 3;
/// Transfer mode: Ultra DMA 2.
pub const ULTRA_2: u8 = 0x42;
/// Transfer mode: programmed I/O 4.
pub const PIO_4: u8 = 0x0c;
/// READ and WRITE, with 28 bits of address.
pub const TRANSFER_28: [Codes; 2] =
    [Codes { dma: 0xc8, multiple: 0xc4, sectors: 0x20 }, Codes { dma: 0xca, multiple: 0xc5, sectors: 0x30 }];
/// READ and WRITE EXT, with 48 bits.
pub const TRANSFER_48: [Codes; 2] =
    [Codes { dma: 0x25, multiple: 0x29, sectors: 0x24 }, Codes { dma: 0x35, multiple: 0x39, sectors: 0x34 }];
/// FLUSH CACHE, and FLUSH CACHE EXT.
pub const FLUSH: [u8; 2] = [0xe7, 0xea];
/// Sectors that 28 bits can address.
pub const LBA28_END: u64 = 1 << 28;

/// Codes of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Codes {
    /// By the bus master.
    pub dma: u8,
    /// By the data port, several sectors at once.
    pub multiple: u8,
    /// By the data port, sector by sector.
    pub sectors: u8,
}

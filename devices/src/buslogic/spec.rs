//! Registers, commands and structures of BusLogic's MultiMaster adapters, as their public drivers use them (Linux
//! `drivers/scsi/BusLogic.h`, FreeBSD `sys/dev/buslogic/btreg.h`). Little-endian unless noted otherwise; addresses have 32 bits.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// PCI vendor ID (BusLogic, later Mylex).
pub const PCI_VENDOR_ID_BUSLOGIC: u16 = 0x104b;
/// PCI device ID of the MultiMaster adapters.
pub const PCI_DEVICE_ID_MULTIMASTER: u16 = 0x1040;

/// Bytes of each of the two register spaces, in which the registers repeat.
pub const REGISTER_SPACE: u64 = 32;

/// Registers, each one byte wide.
pub mod reg {
    /// Number of registers; they repeat after it.
    pub const COUNT: u64 = 4;
    /// Read: [`Status`](super::Status). Write: [`Control`](super::Control).
    pub const STATUS_CONTROL: u64 = 0;
    /// Read: the next byte of a reply. Write: an operation code, then its parameters.
    pub const DATA: u64 = 1;
    /// Read: [`Interrupts`](super::Interrupts).
    pub const INTERRUPT: u64 = 2;
    /// Read: [`GEOMETRY`](super::GEOMETRY).
    pub const GEOMETRY: u64 = 3;
}

bitflags! {
    /// Status register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Status: u8 {
        /// DACT: a reset is in progress.
        const DIAGNOSTIC_ACTIVE = 1 << 7;
        /// DFAIL: the last reset failed.
        const DIAGNOSTIC_FAILURE = 1 << 6;
        /// INREQ: no mailboxes are set up.
        const MAILBOXES_REQUIRED = 1 << 5;
        /// HARDY: an operation code may be written.
        const READY = 1 << 4;
        /// CPRBSY: no parameter may be written.
        const PARAMETER_BUSY = 1 << 3;
        /// DIRRDY: a byte of a reply can be read.
        const REPLY_READY = 1 << 2;
        /// CMDINV: the operation code, or a parameter, is invalid.
        const COMMAND_INVALID = 1;
    }
}

bitflags! {
    /// Control register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Control: u8 {
        /// Reset of adapter and SCSI bus.
        const HARD_RESET = 1 << 7;
        /// Reset of the adapter.
        const SOFT_RESET = 1 << 6;
        /// Acknowledge the interrupt.
        const RESET_INTERRUPT = 1 << 5;
        /// Reset of the SCSI bus.
        const RESET_BUS = 1 << 4;
    }
}

bitflags! {
    /// Interrupt register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Interrupts: u8 {
        /// INTV: there is a cause.
        const VALID = 1 << 7;
        /// RSTS: another device has reset the bus. Drivers respond with a reset of the adapter.
        const BUS_RESET = 1 << 3;
        /// CMDC: a command has completed.
        const COMMAND_COMPLETE = 1 << 2;
        /// OMBR: an outgoing mailbox is free.
        const MAILBOX_OUT_READY = 1 << 1;
        /// IMBL: an incoming mailbox is loaded.
        const MAILBOX_IN = 1;
    }
}

/// Geometry register: extended translation.
pub const GEOMETRY: u8 = 0x80;

/// Operation codes of commands, written to the data register.
pub mod opcode {
    /// Does nothing.
    pub const TEST_COMMAND_COMPLETE: u8 = 0x00;
    /// Mailboxes with 24-bit addresses.
    pub const INITIALIZE_MAILBOX: u8 = 0x01;
    /// Poll the outgoing mailboxes: the doorbell. It has neither reply nor interrupt.
    pub const EXECUTE_MAILBOX: u8 = 0x02;
    /// Identity of the board and of its firmware.
    pub const INQUIRE_BOARD_ID: u8 = 0x04;
    /// Interrupt for free outgoing mailboxes.
    pub const ENABLE_OMBR: u8 = 0x05;
    /// Selection timeout.
    pub const SET_SELECTION_TIMEOUT: u8 = 0x06;
    /// Time on the bus.
    pub const SET_PREEMPT_TIME: u8 = 0x07;
    /// Time off the bus.
    pub const SET_TIME_OFF_BUS: u8 = 0x08;
    /// Bus transfer rate.
    pub const SET_TRANSFER_RATE: u8 = 0x09;
    /// Units of targets 0 to 7.
    pub const INQUIRE_INSTALLED_0_TO_7: u8 = 0x0a;
    /// DMA channel, interrupt, own ID.
    pub const INQUIRE_CONFIGURATION: u8 = 0x0b;
    /// Setup of adapter and targets.
    pub const INQUIRE_SETUP: u8 = 0x0d;
    /// Returns its parameter.
    pub const ECHO: u8 = 0x1f;
    /// Options. The first parameter is the number of bytes that follow.
    pub const SET_OPTIONS: u8 = 0x21;
    /// Units of targets 8 to 15.
    pub const INQUIRE_INSTALLED_8_TO_15: u8 = 0x23;
    /// Targets with units.
    pub const INQUIRE_TARGETS: u8 = 0x24;
    /// Enable or disable the interrupt line.
    pub const ENABLE_INTERRUPT: u8 = 0x25;
    /// Mailboxes with 32-bit addresses.
    pub const INITIALIZE_EXTENDED_MAILBOX: u8 = 0x81;
    /// Third digit of the firmware's version.
    pub const INQUIRE_FIRMWARE_3RD: u8 = 0x84;
    /// Letter of the firmware's version.
    pub const INQUIRE_FIRMWARE_LETTER: u8 = 0x85;
    /// ISA port, interrupt, termination.
    pub const INQUIRE_PCI: u8 = 0x86;
    /// Model.
    pub const INQUIRE_MODEL: u8 = 0x8b;
    /// Synchronous periods of targets.
    pub const INQUIRE_SYNC_PERIOD: u8 = 0x8c;
    /// Bus type, scatter-gather limit, mailboxes, firmware.
    pub const INQUIRE_EXTENDED_SETUP: u8 = 0x8d;
    /// Strict or aggressive round robin.
    pub const SET_ROUND_ROBIN: u8 = 0x8f;
    /// Read local RAM.
    pub const FETCH_LOCAL_RAM: u8 = 0x91;
    /// Move or disable the ISA ports.
    pub const MODIFY_IO_ADDRESS: u8 = 0x95;
    /// Format of logical unit number and tag in CCBs.
    pub const SET_CCB_FORMAT: u8 = 0x96;
}

/// Reply to [`INQUIRE_BOARD_ID`](opcode::INQUIRE_BOARD_ID).
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BoardId {
    /// Board type.
    pub board: u8,
    /// Options. The digit 0 or `B` would denote an Adaptec adapter.
    pub options: u8,
    /// First digit of the firmware's version.
    pub firmware_1st: u8,
    /// Second digit.
    pub firmware_2nd: u8,
}

/// Reply to [`INQUIRE_CONFIGURATION`](opcode::INQUIRE_CONFIGURATION).
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Configuration {
    /// DMA channels 5, 6, 7 in bits 5 to 7. An adapter without a DMA channel sets bit 6.
    pub dma: u8,
    /// Interrupts 9 to 12, 14, 15 in bits 0 to 3, 5, 6.
    pub irq: u8,
    /// The adapter's own ID.
    pub id: u8,
}

/// Reply to [`INQUIRE_PCI`](opcode::INQUIRE_PCI).
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PciInfo {
    /// Index of the ISA ports, 0 to 5; 6 and 7: none.
    pub isa_port: u8,
    /// Interrupt line.
    pub irq: u8,
    /// Bits 0 and 1: low and high byte terminated; 7: valid.
    pub flags: u8,
    /// Reserved.
    pub reserved: u8,
}

/// [`PciInfo`]: no ISA ports.
pub const ISA_PORT_NONE: u8 = 7;
/// [`PciInfo::flags`]: both bytes are terminated, and this reply is valid.
pub const PCI_INFO_FLAGS: u8 = 0x83;

/// Reply to [`INQUIRE_SETUP`](opcode::INQUIRE_SETUP).
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Setup {
    /// Bit 0: synchronous transfers; bit 1: parity.
    pub flags: u8,
    /// Transfer rate.
    pub rate: u8,
    /// Time on the bus.
    pub preempt_time: u8,
    /// Time off the bus.
    pub time_off_bus: u8,
    /// Mailboxes of each direction.
    pub mailboxes: u8,
    /// Low 24 bits of their address, big-endian.
    pub mailbox_base: [u8; 3],
    /// Of targets 0 to 7: offset in bits 3:0, period in 6:4, synchronous in 7.
    pub sync: [u8; 8],
    /// Of targets 0 to 7: disconnection (in Linux's header, 1: permitted). The adapter returns 0.
    pub no_disconnect: u8,
    /// Signature.
    pub signature: [u8; 3],
    /// Of targets 0 to 7: wide transfers are allowed.
    pub wide_allowed: u8,
    /// Of targets 0 to 7: wide transfers are in use.
    pub wide_active: u8,
    /// Of targets 8 to 15, as `sync`.
    pub sync_high: [u8; 8],
    /// Of targets 8 to 15: disconnection, as `no_disconnect`.
    pub no_disconnect_high: u8,
    /// Reserved.
    pub reserved: u8,
    /// Of targets 8 to 15: wide transfers are allowed.
    pub wide_allowed_high: u8,
    /// Of targets 8 to 15: wide transfers are in use.
    pub wide_active_high: u8,
}

/// Reply to [`INQUIRE_EXTENDED_SETUP`](opcode::INQUIRE_EXTENDED_SETUP).
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtendedSetup {
    /// Bus type: `E` for EISA, VESA and PCI.
    pub bus_type: u8,
    /// Address of the BIOS in units of 4 KiB; 0: none.
    pub bios_address: u8,
    /// Maximum number of scatter-gather elements of a request.
    pub sg_limit: U16,
    /// Mailboxes of each direction.
    pub mailboxes: u8,
    /// Their address.
    pub mailbox_base: U32,
    /// Bit 2: fast EISA; bit 6: level-triggered interrupt.
    pub flags: u8,
    /// Firmware version without its first digit.
    pub firmware: [u8; 3],
    /// Bit 0 wide, 1 differential, 2 SCAM, 3 ultra, 4 smart termination.
    pub features: u8,
}

/// [`ExtendedSetup`]: level-triggered interrupt.
pub const EXTENDED_SETUP_LEVEL: u8 = 1 << 6;
/// [`ExtendedSetup`]: wide and ultra SCSI.
pub const EXTENDED_SETUP_FEATURES: u8 = 1 | 1 << 3;

/// Bytes of local RAM.
pub const LOCAL_RAM: usize = 256;
/// Offset of [`AutoScsi`] in local RAM.
pub const AUTO_SCSI: usize = 64;

/// AutoSCSI data: the configuration by the board's setup program.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AutoScsi {
    /// Signature.
    pub signature: [u8; 2],
    /// Bytes of information.
    pub size: u8,
    /// Model.
    pub model: [u8; 6],
    /// Reserved.
    pub reserved: u8,
    /// Bit 2: level-triggered interrupt.
    pub flags: u8,
    /// DMA channel.
    pub dma: u8,
    /// Interrupt.
    pub irq: u8,
    /// Transfer rate.
    pub rate: u8,
    /// The adapter's own ID.
    pub id: u8,
    /// Bit 0 low byte terminated, 1 parity, 2 high byte terminated, 5 bus reset enabled.
    pub bus_flags: u8,
    /// Time on the bus.
    pub preempt_time: u8,
    /// Time off the bus.
    pub time_off_bus: u8,
    /// Bit 0 BIOS, 2 extended translation.
    pub bios_flags: u8,
    /// Of each target: enabled.
    pub enabled: U16,
    /// Of each target: wide transfers permitted.
    pub wide: U16,
    /// Of each target: fast transfers permitted.
    pub fast: U16,
    /// Of each target: synchronous transfers permitted.
    pub sync: U16,
    /// Of each target: disconnection permitted. Drivers send tagged requests only to these targets.
    pub disconnect: U16,
    /// Of each target: START UNIT is sent.
    pub start_unit: U16,
    /// Of each target: the BIOS ignores it.
    pub ignored: U16,
    /// Bits 1:0 interrupt pin, 3:2 ISA port, 4 strict round robin.
    pub pins: u8,
    /// Of each target: ultra transfers permitted.
    pub ultra: U16,
    /// Reserved.
    pub reserved2: [u8; 5],
    /// Largest logical unit number.
    pub max_lun: u8,
    /// SCAM.
    pub scam: u8,
    /// Reserved.
    pub reserved3: u8,
    /// Target to boot from.
    pub boot_id: u8,
    /// Bit 0: boards are ordered by slot.
    pub boot_flags: u8,
    /// Reserved.
    pub reserved4: [u8; 16],
    /// Checksum.
    pub checksum: U16,
}

/// [`AutoScsi`]: level-triggered interrupt.
pub const AUTO_SCSI_LEVEL: u8 = 1 << 2;
/// [`AutoScsi`]: both bytes terminated, parity checked, bus reset enabled.
pub const AUTO_SCSI_BUS: u8 = 1 | 1 << 1 | 1 << 2 | 1 << 5;
/// [`AutoScsi`]: extended translation.
pub const AUTO_SCSI_TRANSLATION: u8 = 1 << 2;

/// Bytes of a mailbox.
pub const MAILBOX_SIZE: u32 = 8;
/// In an outgoing mailbox: the action. In an incoming one: the completion code. The address of the CCB is at offset 0.
pub const MAILBOX_CODE: u32 = 7;

/// Actions of an outgoing mailbox.
pub mod action {
    /// None: the mailbox is free.
    pub const FREE: u8 = 0;
    /// Start the CCB.
    pub const START: u8 = 1;
    /// Abort the CCB.
    pub const ABORT: u8 = 2;
}

/// Completion codes of an incoming mailbox.
pub mod completion {
    /// None: the mailbox is free.
    pub const FREE: u8 = 0;
    /// Completed without error, whatever the statuses are.
    pub const GOOD: u8 = 1;
    /// Aborted.
    pub const ABORTED: u8 = 2;
    /// The CCB to abort was not found.
    pub const ABORT_NOT_FOUND: u8 = 3;
    /// Completed with an error.
    pub const ERROR: u8 = 4;
    /// Not a CCB.
    pub const INVALID_CCB: u8 = 5;
}

/// Status of the adapter.
pub mod adapter_status {
    /// Completed.
    pub const NORMAL: u8 = 0x00;
    /// The target did not answer the selection.
    pub const SELECTION_TIMEOUT: u8 = 0x11;
    /// The target had more data than the request has memory for.
    pub const DATA_OVERRUN: u8 = 0x12;
    /// The target chose a phase that the request does not have.
    pub const INVALID_BUS_PHASE: u8 = 0x14;
    /// Outgoing mailbox with an unknown action.
    pub const INVALID_ACTION: u8 = 0x15;
    /// CCB with an unknown operation code.
    pub const INVALID_OPCODE: u8 = 0x16;
    /// CCB with an invalid parameter.
    pub const INVALID_PARAMETER: u8 = 0x1a;
    /// Sense data could not be delivered.
    pub const AUTO_SENSE_FAILED: u8 = 0x1b;
    /// The adapter has reset the device.
    pub const DEVICE_RESET: u8 = 0x25;
    /// Aborted.
    pub const ABORTED: u8 = 0x26;
    /// A software error of the adapter: memory of the request could not be reached.
    pub const SOFTWARE_ERROR: u8 = 0x27;
}

/// Operation codes of a CCB.
pub mod ccb_opcode {
    /// SCSI command.
    pub const INITIATOR: u8 = 0x00;
    /// SCSI command with a scatter-gather list.
    pub const INITIATOR_SG: u8 = 0x02;
    /// As [`INITIATOR`]; the completion replaces the data length by the residual count.
    pub const INITIATOR_RESIDUAL: u8 = 0x03;
    /// As [`INITIATOR_SG`], with the residual count.
    pub const INITIATOR_SG_RESIDUAL: u8 = 0x04;
    /// Reset a target.
    pub const BUS_DEVICE_RESET: u8 = 0x81;
}

/// [`Ccb::control`]: direction of the data; 0: given by the CDB.
pub const CONTROL_DIRECTION: u8 = 3 << 3;
/// [`Ccb::control`]: no data.
pub const CONTROL_NO_DATA: u8 = 3 << 3;
/// [`Ccb::control`] in the extended format, [`Ccb::lun`] in the legacy one: tagged.
pub const TAG_ENABLE: u8 = 1 << 5;
/// As [`TAG_ENABLE`]: the tag, 0 simple, 1 head of queue, 2 ordered.
pub const TAG_SHIFT: u32 = 6;
/// [`Ccb::lun`] in the legacy format: the logical unit number.
pub const LUN_LEGACY: u8 = 0x1f;
/// [`Ccb::lun`] in the extended format: the logical unit number.
pub const LUN_EXTENDED: u8 = 0x3f;
/// Bytes of sense data if [`Ccb::sense_len`] is 0.
pub const SENSE_DEFAULT: u8 = 14;
/// If [`Ccb::sense_len`] is below this and not 0, no sense data are returned.
pub const SENSE_LEAST: u8 = 8;

/// Command control block with 32-bit addresses.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ccb {
    /// Operation code.
    pub opcode: u8,
    /// Direction; in the extended format also the tag.
    pub control: u8,
    /// Bytes of the CDB.
    pub cdb_len: u8,
    /// Bytes of the buffer for sense data.
    pub sense_len: u8,
    /// Bytes of the data, or of the scatter-gather list.
    pub data_len: U32,
    /// Address of the data, or of the scatter-gather list.
    pub data_address: U32,
    /// Reserved.
    pub reserved: U16,
    /// Status of the adapter, written by it.
    pub adapter_status: u8,
    /// Status of the target, written by the adapter.
    pub target_status: u8,
    /// Target.
    pub target: u8,
    /// Logical unit number; in the legacy format also the tag.
    pub lun: u8,
    /// CDB.
    pub cdb: [u8; 12],
    /// Reserved.
    pub reserved2: [u8; 6],
    /// Address of the buffer for sense data.
    pub sense_address: U32,
}

/// Offset of a CCB's data length, which becomes the residual count.
pub const CCB_DATA_LEN: u32 = 4;
/// Offset of a CCB's two statuses.
pub const CCB_STATUS: u32 = 14;

/// Element of a scatter-gather list.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SgElement {
    /// Bytes of the piece.
    pub len: U32,
    /// Address of the piece.
    pub address: U32,
}

/// Maximum number of elements of a scatter-gather list.
pub const SG_LIMIT: u16 = 8192;

const _: () = {
    assert!(size_of::<BoardId>() == 4);
    assert!(size_of::<Configuration>() == 3);
    assert!(size_of::<PciInfo>() == 4);
    assert!(size_of::<Setup>() == 34);
    assert!(size_of::<ExtendedSetup>() == 14);
    assert!(size_of::<AutoScsi>() == 64);
    assert!(size_of::<Ccb>() == 40);
    assert!(size_of::<SgElement>() == 8);
    assert!(std::mem::offset_of!(Setup, no_disconnect) == 16);
    assert!(std::mem::offset_of!(Setup, wide_allowed) == 20);
    assert!(std::mem::offset_of!(Setup, no_disconnect_high) == 30);
    assert!(std::mem::offset_of!(ExtendedSetup, mailboxes) == 4);
    assert!(std::mem::offset_of!(ExtendedSetup, firmware) == 10);
    assert!(std::mem::offset_of!(AutoScsi, flags) == 10);
    assert!(std::mem::offset_of!(AutoScsi, id) == 14);
    assert!(std::mem::offset_of!(AutoScsi, enabled) == 19);
    assert!(std::mem::offset_of!(AutoScsi, disconnect) == 27);
    assert!(std::mem::offset_of!(AutoScsi, pins) == 33);
    assert!(std::mem::offset_of!(AutoScsi, max_lun) == 41);
    assert!(std::mem::offset_of!(AutoScsi, checksum) == 62);
    assert!(std::mem::offset_of!(Ccb, data_len) == CCB_DATA_LEN as usize);
    assert!(std::mem::offset_of!(Ccb, adapter_status) == CCB_STATUS as usize);
    assert!(std::mem::offset_of!(Ccb, cdb) == 18);
    assert!(std::mem::offset_of!(Ccb, sense_address) == 36);
};

//! Fusion-MPT as numbers: registers, message layouts and scatter-gather elements of LSI's MPI 1.5. Offsets are in bytes;
//! all values are little-endian.

/// PCI vendor and device of the LSI53C1030.
pub const PCI_ID_1030: (u16, u16) = (0x1000, 0x0030);
/// PCI vendor and device of the SAS1068.
pub const PCI_ID_SAS1068: (u16, u16) = (0x1000, 0x0054);
/// Bytes of register space that the driver touches.
pub const REGISTER_SPACE: u64 = 0x80;

/// Register: doorbell.
pub const DOORBELL: u64 = 0x00;
/// Register: write sequence, which opens the diagnostic register.
pub const WRITE_SEQUENCE: u64 = 0x04;
/// Register: host diagnostic.
pub const HOST_DIAGNOSTIC: u64 = 0x08;
/// Register: interrupt status.
pub const INT_STATUS: u64 = 0x30;
/// Register: interrupt mask.
pub const INT_MASK: u64 = 0x34;
/// Register: request FIFO.
pub const REQUEST_FIFO: u64 = 0x40;
/// Register: reply FIFO; reading posts, writing frees.
pub const REPLY_FIFO: u64 = 0x44;

/// An empty FIFO reads as this.
pub const FIFO_EMPTY: u32 = u32::MAX;

/// Doorbell: position of the IOC state.
pub const STATE_SHIFT: u32 = 28;
/// Doorbell: a handshake is under way.
pub const DOORBELL_ACTIVE: u32 = 1 << 27;
/// IOC state: waits for IOC INIT.
pub const STATE_READY: u32 = 1;
/// IOC state: takes all requests.
pub const STATE_OPERATIONAL: u32 = 2;
/// IOC state: dead until reset.
pub const STATE_FAULT: u32 = 4;

/// Doorbell function: message unit reset.
pub const DOORBELL_RESET: u32 = 0x40 << 24;
/// Doorbell function: handshake; the number of dwords in bits 23:16.
pub const DOORBELL_HANDSHAKE: u32 = 0x42 << 24;

/// Interrupt status: the doorbell's last write was not yet taken.
pub const INT_DOORBELL_BUSY: u32 = 1 << 31;
/// Interrupt status: a doorbell interrupt.
pub const INT_DOORBELL: u32 = 1;
/// Mask of everything.
pub const MASK_ALL: u32 = u32::MAX;
/// Mask of all but the reply interrupt.
pub const MASK_ALL_BUT_REPLY: u32 = 1;

/// Keys that open the diagnostic register.
pub const KEYS: [u32; 5] = [0x4, 0xb, 0x2, 0x7, 0xd];
/// A key that closes it.
pub const KEY_CLOSE: u32 = 0xff;
/// Diagnostic: writes are enabled.
pub const DIAG_WRITE_ENABLE: u32 = 0x80;
/// Diagnostic: a reset has happened.
pub const DIAG_RESET_HISTORY: u32 = 0x20;
/// Diagnostic: reset the adapter.
pub const DIAG_RESET_ADAPTER: u32 = 0x04;

/// Function: SCSI IO.
pub const SCSI_IO: u8 = 0x00;
/// Function: task management.
pub const TASK_MGMT: u8 = 0x01;
/// Function: IOC INIT.
pub const IOC_INIT: u8 = 0x02;
/// Function: IOC FACTS.
pub const IOC_FACTS: u8 = 0x03;
/// Function: CONFIG.
pub const CONFIG: u8 = 0x04;
/// Function: PORT FACTS.
pub const PORT_FACTS: u8 = 0x05;
/// Function: PORT ENABLE.
pub const PORT_ENABLE: u8 = 0x06;
/// Function: EVENT NOTIFICATION.
pub const EVENT_NOTIFICATION: u8 = 0x07;
/// Function: EVENT ACK.
pub const EVENT_ACK: u8 = 0x08;

/// WhoInit: the host's driver.
pub const WHO_INIT_HOST_DRIVER: u32 = 4;
/// Protocol flag in PORT FACTS: initiator.
pub const PROTOCOL_INITIATOR: u16 = 8;

/// Bytes of a request frame and of a chain buffer.
pub const REQUEST_FRAME: usize = 128;
/// Bytes of a reply frame.
pub const REPLY_FRAME: usize = 80;
/// In a request and its reply: the function (byte).
pub const MSG_FUNCTION: usize = 3;
/// Message flags (byte).
pub const MSG_FLAGS: usize = 7;
/// The context (dword).
pub const MSG_CONTEXT: usize = 8;
/// In a reply: IOCStatus (word).
pub const REPLY_IOC_STATUS: usize = 0x0e;
/// In an event reply: whether an acknowledgement is wanted (byte).
pub const EVENT_ACK_REQUIRED: usize = 6;
/// In an event reply: the event (dword), its context and its first dwords of data behind.
pub const EVENT: usize = 0x14;
/// Message flag of an event that is no answer to a request.
pub const MSG_FLAGS_CONTINUATION: u8 = 0x80;

/// In SCSI IO: LUN, 8 bytes in two dwords.
pub const IO_LUN: usize = 0x0c;
/// Direction and task attribute.
pub const IO_CONTROL: usize = 0x14;
/// CDB, 16 bytes.
pub const IO_CDB: usize = 0x18;
/// Bytes of data.
pub const IO_DATA_LENGTH: usize = 0x28;
/// Low half of the address for sense data.
pub const IO_SENSE_ADDR: usize = 0x2c;
/// The scatter-gather list.
pub const IO_SGL: usize = 0x30;
/// Control: memory to device.
pub const CONTROL_WRITE: u32 = 1 << 24;
/// Control: device to memory.
pub const CONTROL_READ: u32 = 2 << 24;

/// In a SCSI IO reply: SCSI status (byte), SCSI state (byte) behind.
pub const IO_REPLY_STATUS: usize = 0x0c;
/// Bytes moved.
pub const IO_REPLY_TRANSFERRED: usize = 0x14;
/// Bytes of sense data.
pub const IO_REPLY_SENSE: usize = 0x18;

/// IOCStatus without the flag of log information.
pub const IOC_STATUS_MASK: u16 = 0x7fff;
/// IOCStatus: fewer bytes than asked for.
pub const STATUS_UNDERRUN: u16 = 0x45;
/// IOCStatus: the device had more bytes.
pub const STATUS_OVERRUN: u16 = 0x44;
/// IOCStatus: recovered error.
pub const STATUS_RECOVERED: u16 = 0x40;

/// Scatter-gather flags: last element of its segment.
pub const SGE_LAST: u32 = 0x80 << 24;
/// Last of the segment, of the buffer and of the list.
pub const SGE_END: u32 = 0xc1 << 24;
/// A simple element.
pub const SGE_SIMPLE: u32 = 0x10 << 24;
/// A chain element.
pub const SGE_CHAIN: u32 = 0x30 << 24;
/// The address has 64 bits.
pub const SGE_64: u32 = 0x02 << 24;
/// Memory to device.
pub const SGE_WRITE: u32 = 0x04 << 24;

/// Flag of a reply FIFO entry: the address of a reply frame, shifted right by one.
pub const ADDRESS_REPLY: u32 = 0x8000_0000;

//! PVSCSI's registers, commands and structures as numbers: the public interface of VMware's paravirtual SCSI adapter.
//! Offsets are in bytes; all values are little-endian.

/// PCI vendor and device.
pub const PCI_ID: (u16, u16) = (0x15ad, 0x07c0);
/// Bytes of the register space.
pub const REGISTER_SPACE: u64 = 0x8000;

/// Register: command code; starts the collection of its descriptor.
pub const COMMAND: u64 = 0x0000;
/// Register: next dword of the descriptor.
pub const COMMAND_DATA: u64 = 0x0004;
/// Register: result of the last command.
pub const COMMAND_STATUS: u64 = 0x0008;
/// Register: pending interrupt causes, cleared by writing ones.
pub const INTR_STATUS: u64 = 0x100c;
/// Register: enabled interrupt causes.
pub const INTR_MASK: u64 = 0x2010;
/// Register: doorbell for commands other than READ and WRITE.
pub const KICK_NON_RW_IO: u64 = 0x3014;
/// Register: doorbell for READ and WRITE.
pub const KICK_RW_IO: u64 = 0x4018;

/// Interrupt causes of the completion ring.
pub const INTR_CMPL_MASK: u32 = 0x3;
/// Interrupt causes of the message ring.
pub const INTR_MSG_MASK: u32 = 0xc;

/// Command: stop everything.
pub const CMD_ADAPTER_RESET: u32 = 1;
/// Command: set up the request and completion rings.
pub const CMD_SETUP_RINGS: u32 = 3;
/// Command: reset all targets.
pub const CMD_RESET_BUS: u32 = 4;
/// Command: reset one target.
pub const CMD_RESET_DEVICE: u32 = 5;
/// Command: abort one request.
pub const CMD_ABORT_CMD: u32 = 6;
/// Command: read a configuration page.
pub const CMD_CONFIG: u32 = 7;
/// Command: set up the message ring.
pub const CMD_SETUP_MSG_RING: u32 = 8;
/// Command: switch the request-call threshold on or off.
pub const CMD_SETUP_REQCALLTHRESHOLD: u32 = 10;

/// Status of a command: it failed or does not exist.
pub const STATUS_FAILED: u32 = u32::MAX;

/// Page numbers in the descriptor of SETUP_RINGS, for each ring.
pub const SETUP_RINGS_MAX_PAGES: usize = 32;
/// Page numbers in the descriptor of SETUP_MSG_RING.
pub const SETUP_MSG_RING_MAX_PAGES: usize = 16;

/// Configuration page of the controller.
pub const CONFIG_PAGE_CONTROLLER: u32 = 0x1958;
/// Address type of the controller page, upper half of the page address.
pub const CONFIG_CONTROLLER_ADDRESS: u64 = 0x2120;
/// In a configuration page: host status.
pub const CONFIG_HOST_STATUS: usize = 6;
/// In a configuration page: SCSI status.
pub const CONFIG_SCSI_STATUS: usize = 8;
/// In the controller page: number of ports, which is the number of targets.
pub const CONFIG_NUM_PHYS: usize = 472;

/// In the rings-state page: request producer, written by the driver.
pub const REQ_PROD_IDX: usize = 0;
/// Request consumer, written by the device.
pub const REQ_CONS_IDX: usize = 4;
/// Power of two of the request ring's entries, written by the device.
pub const REQ_NUM_ENTRIES_LOG2: usize = 8;
/// Completion producer, written by the device.
pub const CMP_PROD_IDX: usize = 12;
/// Completion consumer, written by the driver.
pub const CMP_CONS_IDX: usize = 16;
/// Power of two of the completion ring's entries, written by the device.
pub const CMP_NUM_ENTRIES_LOG2: usize = 20;
/// Requests not yet fetched from which on the device wants a doorbell, written by the device.
pub const REQ_CALL_THRESHOLD: usize = 24;
/// Message producer, written by the device.
pub const MSG_PROD_IDX: usize = 128;
/// Message consumer, written by the driver.
pub const MSG_CONS_IDX: usize = 132;
/// Power of two of the message ring's entries, written by the device.
pub const MSG_NUM_ENTRIES_LOG2: usize = 136;

/// Bytes of a request descriptor.
pub const REQUEST_SIZE: usize = 128;
/// In a request: the driver's number for it.
pub const REQ_CONTEXT: usize = 0;
/// Address of the data or of the list of segments.
pub const REQ_DATA_ADDR: usize = 8;
/// Bytes of data.
pub const REQ_DATA_LEN: usize = 16;
/// Address for sense data.
pub const REQ_SENSE_ADDR: usize = 24;
/// Bytes for sense data (dword), with the flags (dword) behind.
pub const REQ_SENSE_LEN_FLAGS: usize = 32;
/// Command descriptor block, 16 bytes.
pub const REQ_CDB: usize = 40;
/// CDB length (byte) and the first seven bytes of the LUN.
pub const REQ_CDB_LEN_LUN: usize = 56;
/// Last byte of the LUN, tag, bus, target (bytes) and the processor hint (word).
pub const REQ_TAG_BUS_TARGET: usize = 64;

/// Flag: the data address is that of a list of segments.
pub const FLAG_CMD_WITH_SG_LIST: u32 = 1 << 0;
/// Flag: no data.
pub const FLAG_CMD_DIR_NONE: u32 = 1 << 2;
/// Flag: device to memory.
pub const FLAG_CMD_DIR_TOHOST: u32 = 1 << 3;
/// Flag: memory to device.
pub const FLAG_CMD_DIR_TODEVICE: u32 = 1 << 4;

/// Bytes of an element of a list of segments: address, length (dword), flags (dword).
pub const SG_ELEMENT_SIZE: usize = 16;
/// SIMPLE task attribute.
pub const SIMPLE_QUEUE_TAG: u8 = 0x20;

/// Bytes of a completion descriptor.
pub const COMPLETION_SIZE: usize = 32;
/// In a completion: the request's context.
pub const CMP_CONTEXT: usize = 0;
/// Bytes moved.
pub const CMP_DATA_LEN: usize = 8;
/// Sense bytes (dword), host status and SCSI status (words).
pub const CMP_SENSE_LEN_STATUS: usize = 16;

/// Host status: success.
pub const BTSTAT_SUCCESS: u32 = 0x00;
/// Host status: no such target.
pub const BTSTAT_SELTIMEO: u32 = 0x11;
/// Host status: invalid parameter.
pub const BTSTAT_INVPARAM: u16 = 0x1a;

/// Bytes of a message.
pub const MESSAGE_SIZE: usize = 128;
/// Message: a device was added.
pub const MSG_DEV_ADDED: u32 = 0;
/// Message: a device was removed.
pub const MSG_DEV_REMOVED: u32 = 1;

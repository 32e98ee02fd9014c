//! BusLogic's registers, commands and structures as numbers. Offsets are in bytes; all values are little-endian.

/// PCI vendor and device.
pub const PCI_ID: (u16, u16) = (0x104b, 0x1040);
/// Bytes of the register space.
pub const REGISTER_SPACE: u64 = 32;

/// Register: status (read), control (write).
pub const STATUS: u64 = 0;
/// Register: reply (read), operation codes and parameters (write).
pub const DATA: u64 = 1;
/// Register: interrupt.
pub const INTERRUPT: u64 = 2;
/// Register: geometry.
pub const GEOMETRY: u64 = 3;

/// Status: a reset goes on.
pub const STATUS_DIAGNOSTIC_ACTIVE: u8 = 0x80;
/// Status: a reset has failed.
pub const STATUS_DIAGNOSTIC_FAILURE: u8 = 0x40;
/// Status: the adapter is ready for a command.
pub const STATUS_READY: u8 = 0x10;
/// Status: a parameter may not be written.
pub const STATUS_PARAMETER_BUSY: u8 = 0x08;
/// Status: a byte of a reply is there.
pub const STATUS_REPLY_READY: u8 = 0x04;
/// Status: the command is invalid.
pub const STATUS_INVALID: u8 = 0x01;

/// Control: reset of adapter and bus.
pub const CONTROL_HARD_RESET: u8 = 0x80;
/// Control: reset of the adapter.
pub const CONTROL_SOFT_RESET: u8 = 0x40;
/// Control: acknowledge the interrupt.
pub const CONTROL_RESET_INTERRUPT: u8 = 0x20;
/// Control: reset of the bus.
pub const CONTROL_RESET_BUS: u8 = 0x10;

/// Interrupt: there is a cause.
pub const INTERRUPT_VALID: u8 = 0x80;
/// Interrupt: a command has completed.
pub const INTERRUPT_COMMAND: u8 = 0x04;

/// Written to the data register: look at the outgoing mailboxes.
pub const START_MAILBOX: u8 = 0x02;
/// Command: board and firmware.
pub const INQUIRE_BOARD: u8 = 0x04;
/// Command: interrupt and own ID.
pub const INQUIRE_CONFIGURATION: u8 = 0x0b;
/// Command: setup.
pub const INQUIRE_SETUP: u8 = 0x0d;
/// Command: targets.
pub const INQUIRE_TARGETS: u8 = 0x24;
/// Command: mailboxes.
pub const INITIALIZE_MAILBOXES: u8 = 0x81;
/// Command: third digit of the firmware.
pub const INQUIRE_FIRMWARE_DIGIT: u8 = 0x84;
/// Command: letter of the firmware.
pub const INQUIRE_FIRMWARE_LETTER: u8 = 0x85;
/// Command: PCI.
pub const INQUIRE_PCI: u8 = 0x86;
/// Command: model.
pub const INQUIRE_MODEL: u8 = 0x8b;
/// Command: synchronous periods.
pub const INQUIRE_PERIODS: u8 = 0x8c;
/// Command: extended setup.
pub const INQUIRE_EXTENDED_SETUP: u8 = 0x8d;
/// Command: strict round robin.
pub const STRICT_ROUND_ROBIN: u8 = 0x8f;
/// Command: read local RAM. It ends without an interrupt: only the status shows its end.
pub const READ_LOCAL_RAM: u8 = 0x91;
/// Command: ISA ports. Neither interrupt nor status shows its end.
pub const SET_ISA_PORTS: u8 = 0x95;
/// Command: format of CCBs.
pub const EXTENDED_CCBS: u8 = 0x96;

/// Bytes of a mailbox.
pub const MAILBOX_SIZE: usize = 8;
/// In a mailbox: statuses of an incoming one, the adapter's and behind it the target's.
pub const MAILBOX_STATUS: usize = 4;
/// In a mailbox: action, or completion code.
pub const MAILBOX_CODE: usize = 7;
/// Action: start.
pub const ACTION_START: u8 = 1;
/// Action: abort.
pub const ACTION_ABORT: u8 = 2;
/// Completion code: good.
pub const CODE_GOOD: u8 = 1;
/// Completion code: not found, so not aborted.
pub const CODE_NOT_FOUND: u8 = 3;
/// Completion code: with an error, which the statuses tell.
pub const CODE_ERROR: u8 = 4;

/// Bytes between two CCBs: those of a CCB, and what the driver keeps beside it.
pub const CCB_STRIDE: usize = 64;
/// Operation code, control, CDB length, sense length (bytes), data length (dword).
pub const CCB_HEAD: usize = 0;
/// Data length (dword), which may become a residual count.
pub const CCB_DATA_LEN: usize = 4;
/// Data address (dword), reserved word, statuses.
pub const CCB_DATA: usize = 8;
/// Target, LUN, and the first six bytes of the CDB.
pub const CCB_TARGET: usize = 16;
/// The other six bytes of the CDB.
pub const CCB_CDB: usize = 24;
/// Reserved dword, sense address.
pub const CCB_SENSE: usize = 32;
/// Of the driver: bytes of the request's data (dword).
pub const CCB_WANTED: usize = 40;

/// CCB: command.
pub const OPCODE_PLAIN: u8 = 0x00;
/// CCB: command with a list of segments.
pub const OPCODE_LIST: u8 = 0x02;
/// CCB: command with a residual count.
pub const OPCODE_RESIDUAL: u8 = 0x03;
/// CCB: both.
pub const OPCODE_LIST_RESIDUAL: u8 = 0x04;
/// CCB: reset of a target.
pub const OPCODE_RESET_TARGET: u8 = 0x81;

/// Control byte of a CCB: device to memory.
pub const CCB_IN: u8 = 1 << 3;
/// Control byte of a CCB: memory to device.
pub const CCB_OUT: u8 = 2 << 3;
/// Control byte of a CCB: simple tag.
pub const CCB_TAGGED: u8 = 1 << 5;

/// Bytes of an element of a list: length and address, dwords.
pub const SG_ELEMENT: usize = 8;
/// Longest CDB.
pub const MAX_CDB: u8 = 12;

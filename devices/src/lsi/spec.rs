//! Fusion-MPT 1.x registers, messages, scatter-gather elements and configuration page headers. Source: the MPI 1.5
//! message-passing interface, and the system interface of the LSI53C1030 and LSISAS1068. One long file: it has the
//! constants and structures of one specification, without behavior.
#![allow(missing_docs, reason = "names of the specification")]

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// BARs with the system interface: I/O ports, and the first memory space.
pub const REGISTER_BARS: [u8; 2] = [0, 1];

/// System interface registers: byte offsets, all 32 bits wide.
pub mod reg {
    pub const DOORBELL: u64 = 0x00;
    /// Write sequence: five keys in order enable writes to [`HOST_DIAGNOSTIC`].
    pub const WRITE_SEQUENCE: u64 = 0x04;
    pub const HOST_DIAGNOSTIC: u64 = 0x08;
    /// Host interrupt status.
    pub const INT_STATUS: u64 = 0x30;
    /// Host interrupt mask.
    pub const INT_MASK: u64 = 0x34;
    /// Request post FIFO (write).
    pub const REQUEST_FIFO: u64 = 0x40;
    /// Reply post FIFO (read), reply free FIFO (write).
    pub const REPLY_FIFO: u64 = 0x44;
    /// High-priority request post FIFO (write).
    pub const HI_PRI_REQUEST_FIFO: u64 = 0x48;
}

/// Value of a read of an empty FIFO.
pub const FIFO_EMPTY: u32 = u32::MAX;

/// Doorbell: fields of the value read.
pub mod doorbell {
    /// Position of the IOC state.
    pub const STATE_SHIFT: u32 = 28;
    /// A handshake is in progress.
    pub const USED: u32 = 1 << 27;
    /// Position of WhoInit.
    pub const WHO_INIT_SHIFT: u32 = 24;
}

/// Doorbell functions, bits 31:24 of a write.
pub mod doorbell_fn {
    pub const MESSAGE_UNIT_RESET: u8 = 0x40;
    pub const IO_UNIT_RESET: u8 = 0x41;
    /// Handshake: a request follows, dword by dword. Bits 23:16 are its length in dwords.
    pub const HANDSHAKE: u8 = 0x42;
    pub const REPLY_FRAME_REMOVAL: u8 = 0x43;
    /// Host page buffer access control.
    pub const HOST_PAGEBUF_ACCESS_CONTROL: u8 = 0x44;
}

/// Keys that enable the diagnostic register, low four bits of the writes.
pub const WRITE_SEQUENCE_KEYS: [u32; 5] = [0x4, 0xb, 0x2, 0x7, 0xd];

/// Host diagnostic register bits.
pub mod diag {
    /// Flash has a bad signature.
    pub const FLASH_BAD_SIG: u32 = 0x40;
    /// Diagnostic write enable.
    pub const DRWE: u32 = 0x80;
    /// A reset has happened.
    pub const RESET_HISTORY: u32 = 0x20;
    /// Reads and writes of diagnostic memory enabled.
    pub const RW_ENABLE: u32 = 0x10;
    pub const RESET_ADAPTER: u32 = 0x04;
    /// Hold the IOC's processor.
    pub const DISABLE_ARM: u32 = 0x02;
    pub const MEM_ENABLE: u32 = 0x01;
}

/// Host interrupt status and mask bits.
pub mod int {
    /// The IOC has not yet taken the last doorbell write (status only).
    pub const DOORBELL_BUSY: u32 = 1 << 31;
    /// Reply interrupt: a reply is in the post FIFO. In the mask: the interrupt is disabled.
    pub const REPLY: u32 = 1 << 3;
    /// Doorbell interrupt. In the mask: the interrupt is disabled.
    pub const DOORBELL: u32 = 1 << 0;
}

/// IOC states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IocState {
    Reset = 0,
    /// Waits for IOC INIT.
    Ready = 1,
    /// Processes all requests.
    Operational = 2,
    /// Fault: processes nothing until reset. The doorbell register has the fault code.
    Fault = 4,
}

/// Fault codes.
pub mod fault {
    /// Request message could not be read over the bus.
    pub const REQUEST_MESSAGE_PCI_BUS_FAULT: u16 = 0x8112;
    /// Reply message could not be written.
    pub const REPLY_MESSAGE_PCI_BUS_FAULT: u16 = 0x8114;
}

/// Functions: byte 3 of a message.
pub mod function {
    pub const SCSI_IO_REQUEST: u8 = 0x00;
    /// SCSI task management.
    pub const SCSI_TASK_MGMT: u8 = 0x01;
    pub const IOC_INIT: u8 = 0x02;
    pub const IOC_FACTS: u8 = 0x03;
    pub const CONFIG: u8 = 0x04;
    pub const PORT_FACTS: u8 = 0x05;
    pub const PORT_ENABLE: u8 = 0x06;
    pub const EVENT_NOTIFICATION: u8 = 0x07;
    pub const EVENT_ACK: u8 = 0x08;
    pub const FW_DOWNLOAD: u8 = 0x09;
    pub const FW_UPLOAD: u8 = 0x12;
    pub const RAID_ACTION: u8 = 0x15;
    /// RAID SCSI IO pass-through: laid out as SCSI IO.
    pub const RAID_SCSI_IO_PASSTHROUGH: u8 = 0x16;
    pub const SAS_IO_UNIT_CONTROL: u8 = 0x1b;
}

/// IOCStatus values.
pub mod ioc_status {
    pub const SUCCESS: u16 = 0x0000;
    pub const INVALID_FUNCTION: u16 = 0x0001;
    pub const BUSY: u16 = 0x0002;
    pub const INVALID_SGL: u16 = 0x0003;
    pub const INTERNAL_ERROR: u16 = 0x0004;
    pub const INSUFFICIENT_RESOURCES: u16 = 0x0006;
    pub const INVALID_FIELD: u16 = 0x0007;
    pub const INVALID_STATE: u16 = 0x0008;
    pub const CONFIG_INVALID_ACTION: u16 = 0x0020;
    pub const CONFIG_INVALID_TYPE: u16 = 0x0021;
    pub const CONFIG_INVALID_PAGE: u16 = 0x0022;
    pub const CONFIG_INVALID_DATA: u16 = 0x0023;
    pub const CONFIG_NO_DEFAULTS: u16 = 0x0024;
    pub const CONFIG_CANT_COMMIT: u16 = 0x0025;
    pub const SCSI_INVALID_BUS: u16 = 0x0041;
    /// SCSI INVALID TARGET ID.
    pub const SCSI_INVALID_TARGETID: u16 = 0x0042;
    pub const SCSI_DEVICE_NOT_THERE: u16 = 0x0043;
    pub const SCSI_DATA_OVERRUN: u16 = 0x0044;
    pub const SCSI_DATA_UNDERRUN: u16 = 0x0045;
    pub const SCSI_IO_DATA_ERROR: u16 = 0x0046;
    pub const SCSI_TASK_TERMINATED: u16 = 0x0048;
    /// SCSI TASK MANAGEMENT FAILED.
    pub const SCSI_TASK_MGMT_FAILED: u16 = 0x004a;
    pub const SCSI_IOC_TERMINATED: u16 = 0x004b;
}

/// Events.
pub mod event {
    /// Without this flag, a driver frees the request of the event notification.
    pub const MSGFLAGS_CONTINUATION_REPLY: u8 = 0x80;
    pub const IOC_BUS_RESET: u32 = 0x04;
    /// SCSI device status change (SPI: device added or removed).
    pub const SCSI_DEVICE_STATUS_CHANGE: u32 = 0x0c;
    pub const SAS_DEVICE_STATUS_CHANGE: u32 = 0x0f;
    pub const SAS_PHY_LINK_STATUS: u32 = 0x12;
    /// Link rates: 3 Gbit/s now (upper half), none before.
    pub const LINK_RATE_3_0: u8 = 0x90;
    /// Link rates: none now, 3 Gbit/s before.
    pub const LINK_RATE_WAS_3_0: u8 = 0x09;
    /// Reason of a SAS device status change: added.
    pub const DEVICE_ADDED: u8 = 0x03;
    /// Reason of a SAS device status change: no longer responding.
    pub const DEVICE_NOT_RESPONDING: u8 = 0x04;
}

/// Event notification reply; data of the event follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EventReply {
    /// Dwords of data.
    pub data_length: U16,
    /// Length in dwords, including the data.
    pub msg_length: u8,
    pub function: u8,
    pub reserved: [u8; 2],
    /// The host has to acknowledge.
    pub ack_required: u8,
    pub msg_flags: u8,
    /// Context of the request that enabled the events.
    pub msg_context: U32,
    pub reserved2: [u8; 2],
    pub ioc_status: U16,
    pub ioc_log_info: U32,
    /// The event.
    pub event: U32,
    /// Context for its acknowledgement.
    pub event_context: U32,
}
const _: () = assert!(size_of::<EventReply>() == 28);

/// Data of a SAS phy link status event.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PhyLinkStatus {
    pub phy: u8,
    /// Present and previous link rate.
    pub rates: u8,
    /// Handle of the attached device.
    pub handle: U16,
    /// SAS address of the attached device.
    pub address: U64,
}
const _: () = assert!(size_of::<PhyLinkStatus>() == 12);

/// Data of a SAS device status change event.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SasDeviceStatus {
    pub target: u8,
    pub bus: u8,
    /// Reason of the change.
    pub reason: u8,
    pub reserved: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Its qualifier.
    pub ascq: u8,
    pub handle: U16,
    /// Device information.
    pub info: U32,
    /// Handle of its parent.
    pub parent: U16,
    /// Phy of the parent.
    pub phy: u8,
    pub reserved2: u8,
    /// SAS address.
    pub address: U64,
    /// Logical unit number.
    pub lun: [u8; 8],
    pub task_tag: U16,
    pub reserved3: [u8; 2],
}
const _: () = assert!(size_of::<SasDeviceStatus>() == 36);

/// Message header of all requests and replies. In a reply, the length in dwords is in place of
/// [`chain_offset`](Self::chain_offset).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    pub by_function: [u8; 2],
    /// Dwords to the first chain element; in a reply, the message's length in dwords.
    pub chain_offset: u8,
    pub function: u8,
    pub by_function2: [u8; 3],
    /// Message flags.
    pub msg_flags: u8,
    /// Chosen by the host, and returned unchanged.
    pub msg_context: U32,
}
const _: () = assert!(size_of::<Header>() == 12);

/// SCSI IO request without its scatter-gather list (MPI 1.5, SCSI initiator messages).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ScsiIoRequest {
    pub target_id: u8,
    pub bus: u8,
    /// Offset of the first chain element in dwords; 0 if there is none.
    pub chain_offset: u8,
    pub function: u8,
    /// CDB length in bytes.
    pub cdb_length: u8,
    /// Size of the sense buffer in bytes.
    pub sense_buffer_length: u8,
    pub reserved: u8,
    /// Bit 0: the sense address is 64 bits wide.
    pub msg_flags: u8,
    pub msg_context: U32,
    /// Logical unit number (SAM).
    pub lun: [u8; 8],
    /// Direction and task attribute.
    pub control: U32,
    pub cdb: [u8; 16],
    /// Bytes to move.
    pub data_length: U32,
    /// Low half of the sense buffer's address.
    pub sense_buffer_low_addr: U32,
}
const _: () = assert!(size_of::<ScsiIoRequest>() == 0x30);

/// Fields of [`ScsiIoRequest::control`].
pub mod control {
    /// Bits 25:24: direction.
    pub const DIRECTION_SHIFT: u32 = 24;
    /// No data.
    pub const DIRECTION_NONE: u32 = 0;
    /// Memory to device.
    pub const DIRECTION_WRITE: u32 = 1;
    /// Device to memory.
    pub const DIRECTION_READ: u32 = 2;
    /// Bits 10:8: task attribute.
    pub const ATTRIBUTE_SHIFT: u32 = 8;
    pub const ATTRIBUTE_HEAD_OF_QUEUE: u32 = 1;
    pub const ATTRIBUTE_ORDERED: u32 = 2;
}

/// Bytes of a reply without content: the default reply.
pub const DEFAULT_REPLY_LEN: usize = 20;

/// SCSI IO reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ScsiIoReply {
    pub target_id: u8,
    pub bus: u8,
    /// Length in dwords.
    pub msg_length: u8,
    pub function: u8,
    pub cdb_length: u8,
    pub sense_buffer_length: u8,
    pub reserved: u8,
    pub msg_flags: u8,
    pub msg_context: U32,
    pub scsi_status: u8,
    pub scsi_state: u8,
    pub ioc_status: U16,
    pub ioc_log_info: U32,
    /// Bytes moved.
    pub transfer_count: U32,
    /// Bytes of sense data written.
    pub sense_count: U32,
    pub response_info: U32,
    pub task_tag: U16,
    pub reserved2: U16,
}
const _: () = assert!(size_of::<ScsiIoReply>() == 36);

/// Bits of [`ScsiIoReply::scsi_state`].
pub mod scsi_state {
    /// Sense data were written.
    pub const AUTOSENSE_VALID: u8 = 0x01;
    /// Sense data could not be written.
    pub const AUTOSENSE_FAILED: u8 = 0x02;
    /// There is no SCSI status.
    pub const NO_SCSI_STATUS: u8 = 0x04;
    /// The task was terminated.
    pub const TERMINATED: u8 = 0x08;
}

/// Task management request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TaskMgmtRequest {
    pub target_id: u8,
    pub bus: u8,
    /// Unused.
    pub chain_offset: u8,
    pub function: u8,
    pub reserved: u8,
    /// What to do: [`task_type`].
    pub task_type: u8,
    pub reserved2: u8,
    pub msg_flags: u8,
    pub msg_context: U32,
    /// Logical unit number.
    pub lun: [u8; 8],
    pub reserved3: [U32; 7],
    /// Context of the task to abort or query.
    pub task_msg_context: U32,
}
const _: () = assert!(size_of::<TaskMgmtRequest>() == 52);

/// Kinds of task management.
pub mod task_type {
    /// Abort one task.
    pub const ABORT_TASK: u8 = 1;
    /// Abort all tasks of a unit.
    pub const ABORT_TASK_SET: u8 = 2;
    pub const TARGET_RESET: u8 = 3;
    pub const RESET_BUS: u8 = 4;
    pub const LOGICAL_UNIT_RESET: u8 = 5;
    /// Clear the task set of a unit.
    pub const CLEAR_TASK_SET: u8 = 6;
    /// Query whether a task is outstanding.
    pub const QUERY_TASK: u8 = 7;
}

/// Task management reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TaskMgmtReply {
    pub target_id: u8,
    pub bus: u8,
    /// Length in dwords.
    pub msg_length: u8,
    pub function: u8,
    /// One of [`response`].
    pub response_code: u8,
    /// Echoed.
    pub task_type: u8,
    pub reserved: u8,
    pub msg_flags: u8,
    pub msg_context: U32,
    pub reserved2: [u8; 2],
    pub ioc_status: U16,
    pub ioc_log_info: U32,
    /// Number of tasks that it has ended.
    pub termination_count: U32,
}
const _: () = assert!(size_of::<TaskMgmtReply>() == 24);

/// Task management response codes.
pub mod response {
    /// Completed.
    pub const TM_COMPLETE: u8 = 0x00;
    pub const INVALID_FRAME: u8 = 0x02;
    pub const TM_NOT_SUPPORTED: u8 = 0x04;
    pub const TM_FAILED: u8 = 0x05;
    /// The queried task is outstanding.
    pub const TM_SUCCEEDED: u8 = 0x08;
    /// No such logical unit.
    pub const TM_INVALID_LUN: u8 = 0x09;
}

/// IOC FACTS reply.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IocFactsReply {
    /// MPI version.
    pub msg_version: U16,
    /// Length in dwords.
    pub msg_length: u8,
    pub function: u8,
    pub header_version: U16,
    /// Number of this IOC.
    pub ioc_number: u8,
    pub msg_flags: u8,
    pub msg_context: U32,
    pub ioc_exceptions: U16,
    pub ioc_status: U16,
    pub ioc_log_info: U32,
    /// Longest chain of scatter-gather segments.
    pub max_chain_depth: u8,
    pub who_init: u8,
    /// Unit of the request size hint in dwords; never 0.
    pub block_size: u8,
    pub flags: u8,
    /// Capacity of the reply FIFO.
    pub reply_queue_depth: U16,
    /// Request frame in dwords.
    pub request_frame_size: U16,
    pub reserved: U16,
    pub product_id: U16,
    /// Upper half of frame addresses.
    pub current_host_mfa_high_addr: U32,
    /// Requests that may be posted.
    pub global_credits: U16,
    pub number_of_ports: u8,
    /// Event notification is on.
    pub event_state: u8,
    /// Upper half of sense addresses.
    pub current_sense_buffer_high_addr: U32,
    /// Reply frame in bytes.
    pub cur_reply_frame_size: U16,
    /// Targets on a bus.
    pub max_devices: u8,
    pub max_buses: u8,
    /// Firmware image size in bytes.
    pub fw_image_size: U32,
    pub ioc_capabilities: U32,
    /// Firmware version: development, unit, minor, major.
    pub fw_version: [u8; 4],
    pub high_priority_queue_depth: U16,
    pub reserved2: U16,
    /// Host page buffer element.
    pub host_page_buffer_sge: [U32; 3],
    /// Reply FIFO host signalling address.
    pub reply_fifo_host_signaling_addr: U32,
}
const _: () = assert!(size_of::<IocFactsReply>() == 80);

/// PORT FACTS reply.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PortFactsReply {
    pub reserved: U16,
    /// Length in dwords.
    pub msg_length: u8,
    pub function: u8,
    pub reserved2: U16,
    pub port_number: u8,
    pub msg_flags: u8,
    pub msg_context: U32,
    pub reserved3: U16,
    pub ioc_status: U16,
    pub ioc_log_info: U32,
    pub reserved4: u8,
    /// Kind of port.
    pub port_type: u8,
    /// Targets.
    pub max_devices: U16,
    /// The port's own SCSI identifier.
    pub port_scsi_id: U16,
    pub protocol_flags: U16,
    /// Posted command buffers (target mode), persistent identifiers, LAN buckets.
    pub other: [U16; 4],
    pub reserved5: U32,
}
const _: () = assert!(size_of::<PortFactsReply>() == 40);

/// IOC INIT request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IocInitRequest {
    pub who_init: u8,
    pub reserved: u8,
    /// Unused.
    pub chain_offset: u8,
    pub function: u8,
    pub flags: u8,
    /// Targets on a bus; 0: 256.
    pub max_devices: u8,
    pub max_buses: u8,
    pub msg_flags: u8,
    pub msg_context: U32,
    /// Reply frame in bytes.
    pub reply_frame_size: U16,
    pub reserved2: U16,
    /// Upper half of frame addresses.
    pub host_mfa_high_addr: U32,
    /// Upper half of sense addresses.
    pub sense_buffer_high_addr: U32,
}
const _: () = assert!(size_of::<IocInitRequest>() == 24);

/// CONFIG request without its scatter-gather element.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConfigRequest {
    /// Action: [`config_action`].
    pub action: u8,
    pub reserved: u8,
    /// Unused.
    pub chain_offset: u8,
    pub function: u8,
    /// Extended page length in dwords.
    pub ext_page_length: U16,
    pub ext_page_type: u8,
    pub msg_flags: u8,
    pub msg_context: U32,
    pub reserved2: [u8; 8],
    /// Page header.
    pub header: PageHeader,
    pub page_address: U32,
}
const _: () = assert!(size_of::<ConfigRequest>() == 28);

/// CONFIG reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConfigReply {
    /// Echoed.
    pub action: u8,
    pub reserved: u8,
    /// Length in dwords.
    pub msg_length: u8,
    pub function: u8,
    /// Extended page length in dwords.
    pub ext_page_length: U16,
    pub ext_page_type: u8,
    pub msg_flags: u8,
    pub msg_context: U32,
    pub reserved2: [u8; 2],
    pub ioc_status: U16,
    pub ioc_log_info: U32,
    /// Page header.
    pub header: PageHeader,
}
const _: () = assert!(size_of::<ConfigReply>() == 24);

/// Header of a configuration page.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct PageHeader {
    pub version: u8,
    /// Length in dwords, including this header; 0 in extended pages.
    pub length: u8,
    pub number: u8,
    /// Type in the low four bits, attributes in the high.
    pub page_type: u8,
}
const _: () = assert!(size_of::<PageHeader>() == 4);

/// CONFIG actions.
pub mod config_action {
    /// Return the header.
    pub const PAGE_HEADER: u8 = 0;
    /// Read the current page.
    pub const READ_CURRENT: u8 = 1;
    /// Write the current page.
    pub const WRITE_CURRENT: u8 = 2;
    /// Restore the default.
    pub const RESET_DEFAULT: u8 = 3;
    /// Write the stored page.
    pub const WRITE_NVRAM: u8 = 4;
    pub const READ_DEFAULT: u8 = 5;
    /// Read the stored page.
    pub const READ_NVRAM: u8 = 6;
}

/// Scatter-gather element flags: byte 3 of its first dword.
pub mod sge {
    /// Last element of its segment.
    pub const LAST_ELEMENT: u8 = 0x80;
    pub const END_OF_BUFFER: u8 = 0x40;
    /// Kind of element.
    pub const TYPE_MASK: u8 = 0x30;
    /// Transaction context.
    pub const TYPE_TRANSACTION: u8 = 0x00;
    pub const TYPE_SIMPLE: u8 = 0x10;
    pub const TYPE_CHAIN: u8 = 0x30;
    /// From host to IOC.
    pub const HOST_TO_IOC: u8 = 0x04;
    /// 64-bit address.
    pub const ADDRESS_64: u8 = 0x02;
    pub const END_OF_LIST: u8 = 0x01;
}

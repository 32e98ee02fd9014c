//! Constants and structures of the SCSI host device (VIRTIO 1.2, 5.6).
#![allow(missing_docs, reason = "names of the specification")]

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The control queue (5.6.2).
pub const CONTROL_QUEUE: usize = 0;
pub const EVENT_QUEUE: usize = 1;
/// The first request queue.
pub const REQUEST_QUEUES: usize = 2;

bitflags! {
    /// Feature bits (5.6.3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ScsiFeatures: u64 {
        /// A request may have data in both directions (not offered: no command of the target has).
        const INOUT = 1;
        /// Hot-plug of units is reported.
        const HOTPLUG = 1 << 1;
        /// Changes of units' parameters are reported.
        const CHANGE = 1 << 2;
        /// Protection information (not offered).
        const T10_PI = 1 << 3;
    }
}

/// Configuration (`struct virtio_scsi_config`, 5.6.4).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ScsiConfig {
    /// Request queues.
    pub num_queues: U32,
    /// Maximum number of segments of a request's data.
    pub seg_max: U32,
    /// Maximum number of sectors of 512 bytes of a request.
    pub max_sectors: U32,
    /// Maximum number of requests in flight for a unit.
    pub cmd_per_lun: U32,
    /// Bytes of a buffer in the event queue.
    pub event_info_size: U32,
    /// Size of the sense data in a response, in bytes. The guest may change it.
    pub sense_size: U32,
    /// Bytes of the CDB in a request. The guest may change it.
    pub cdb_size: U32,
    /// Largest channel: zero.
    pub max_channel: U16,
    /// Largest target.
    pub max_target: U16,
    /// Largest logical unit number.
    pub max_lun: U32,
}
const _: () = assert!(size_of::<ScsiConfig>() == 36);

/// Offset of [`ScsiConfig::sense_size`].
pub const SENSE_SIZE: u64 = std::mem::offset_of!(ScsiConfig, sense_size) as u64;
/// Offset of [`ScsiConfig::cdb_size`].
pub const CDB_SIZE: u64 = std::mem::offset_of!(ScsiConfig, cdb_size) as u64;
/// Size of the sense data after reset, in bytes.
pub const VIRTIO_SCSI_SENSE_DEFAULT_SIZE: u32 = 96;
/// Bytes of a CDB after reset.
pub const VIRTIO_SCSI_CDB_DEFAULT_SIZE: u32 = 32;

/// Largest size of the sense data that a guest may set, in bytes.
pub const MAX_SENSE_SIZE: u32 = 0xffff;
/// Largest size of a CDB that a guest may set, in bytes.
pub const MAX_CDB_SIZE: u32 = 0xff;

/// Header of a request (`struct virtio_scsi_req_cmd`, 5.6.6.1). The CDB follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// Logical unit.
    pub lun: [u8; 8],
    /// Identifier of the request for task management.
    pub id: U64,
    /// Task attribute, one of `VIRTIO_SCSI_S_`...
    pub task_attr: u8,
    /// Task priority; ignored.
    pub prio: u8,
    /// Command reference number; ignored.
    pub crn: u8,
}
const _: () = assert!(size_of::<RequestHeader>() == 19);

/// Task attribute: ORDERED.
pub const VIRTIO_SCSI_S_ORDERED: u8 = 1;
/// Task attribute: HEAD OF QUEUE.
pub const VIRTIO_SCSI_S_HEAD: u8 = 2;

/// Header of a response. The sense data and then the data of a read follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ResponseHeader {
    /// Bytes of sense data.
    pub sense_len: U32,
    /// Bytes of data that were not transferred.
    pub residual: U32,
    /// Zero.
    pub status_qualifier: U16,
    /// SCSI status, with [`Response::Ok`].
    pub status: u8,
    pub response: u8,
}
const _: () = assert!(size_of::<ResponseHeader>() == 12);

/// Response codes of requests and of task management (those that the device uses).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Response {
    /// `VIRTIO_SCSI_S_OK`, `VIRTIO_SCSI_S_FUNCTION_COMPLETE`.
    Ok = 0,
    /// `VIRTIO_SCSI_S_OVERRUN`: the command has more data than the request's buffers hold.
    Overrun = 1,
    /// `VIRTIO_SCSI_S_ABORTED`: by task management.
    Aborted = 2,
    /// `VIRTIO_SCSI_S_BAD_TARGET`: there is none.
    BadTarget = 3,
    /// `VIRTIO_SCSI_S_RESET`: ended by a reset.
    Reset = 4,
    /// `VIRTIO_SCSI_S_FAILURE`: the request is invalid.
    Failure = 9,
    /// `VIRTIO_SCSI_S_FUNCTION_SUCCEEDED`: the task is there.
    FunctionSucceeded = 10,
    /// `VIRTIO_SCSI_S_FUNCTION_REJECTED`: no such function.
    FunctionRejected = 11,
    /// `VIRTIO_SCSI_S_INCORRECT_LUN`: the target has no such unit.
    IncorrectLun = 12,
}

/// Control queue: task management (5.6.6.2).
pub const VIRTIO_SCSI_T_TMF: u32 = 0;
/// Control queue: query the supported asynchronous notifications.
pub const VIRTIO_SCSI_T_AN_QUERY: u32 = 1;
/// Control queue: subscribe to asynchronous notifications.
pub const VIRTIO_SCSI_T_AN_SUBSCRIBE: u32 = 2;

/// Task management functions.
pub mod tmf {
    pub const ABORT_TASK: u32 = 0;
    pub const ABORT_TASK_SET: u32 = 1;
    pub const CLEAR_ACA: u32 = 2;
    pub const CLEAR_TASK_SET: u32 = 3;
    pub const I_T_NEXUS_RESET: u32 = 4;
    pub const LOGICAL_UNIT_RESET: u32 = 5;
    pub const QUERY_TASK: u32 = 6;
    pub const QUERY_TASK_SET: u32 = 7;
}

/// A task management function, after its type (`struct virtio_scsi_ctrl_tmf`). The response is a [`Response`] of one byte.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TaskManagement {
    /// Function, one of [`tmf`].
    pub subtype: U32,
    /// Logical unit.
    pub lun: [u8; 8],
    /// The request.
    pub id: U64,
}

/// Query of or subscription to asynchronous notifications after its type (`struct virtio_scsi_ctrl_an`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Notifications {
    /// Logical unit.
    pub lun: [u8; 8],
    /// The requested notifications, one bit for each.
    pub requested: U32,
}

/// The answer to [`Notifications`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NotificationsResponse {
    /// The supported notifications, one bit for each.
    pub actual: U32,
    pub response: u8,
}

/// An event of the event queue (`struct virtio_scsi_event`, 5.6.6.3).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct EventInfo {
    /// One of `VIRTIO_SCSI_T_`..., and [`VIRTIO_SCSI_T_EVENTS_MISSED`].
    pub event: U32,
    /// Logical unit.
    pub lun: [u8; 8],
    /// Details of the event.
    pub reason: U32,
}

/// Events were lost before this one.
pub const VIRTIO_SCSI_T_EVENTS_MISSED: u32 = 1 << 31;
/// Nothing happened.
pub const VIRTIO_SCSI_T_NO_EVENT: u32 = 0;
/// A unit was added, removed or reset.
pub const VIRTIO_SCSI_T_TRANSPORT_RESET: u32 = 1;
/// A unit's parameters changed; the reason is additional sense code and qualifier (in the second byte).
pub const VIRTIO_SCSI_T_PARAM_CHANGE: u32 = 3;
/// Reason: there is a new unit.
pub const VIRTIO_SCSI_EVT_RESET_RESCAN: u32 = 1;
/// Reason: the unit was removed.
pub const VIRTIO_SCSI_EVT_RESET_REMOVED: u32 = 2;

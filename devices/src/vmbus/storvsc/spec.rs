//! The storage protocol of Hyper-V's synthetic controllers ("vstor"). Everything is little-endian and packed.
//! Source: Linux `drivers/scsi/storvsc_drv.c`, structures `vstor_packet` and `vmscsi_request`.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::spec::PacketHeader;

/// Class of synthetic SCSI controllers, ba6163d9-04a1-4d29-b605-72e2ffb1dc7f, as on the wire.
pub const SCSI_CLASS: [u8; 16] =
    [0xd9, 0x63, 0x61, 0xba, 0xa1, 0x04, 0x29, 0x4d, 0xb6, 0x05, 0x72, 0xe2, 0xff, 0xb1, 0xdc, 0x7f];

/// Operations (`enum vstor_packet_operation`).
pub mod operation {
    /// To the guest: the answer to any other operation.
    pub const COMPLETE_IO: u32 = 1;
    /// To the guest: scan for removed units.
    pub const REMOVE_DEVICE: u32 = 2;
    /// A SCSI request.
    pub const EXECUTE_SRB: u32 = 3;
    /// Reset a unit.
    pub const RESET_LUN: u32 = 4;
    /// Reset all units.
    pub const RESET_ADAPTER: u32 = 5;
    /// Reset all units.
    pub const RESET_BUS: u32 = 6;
    /// The initialization begins.
    pub const BEGIN_INITIALIZATION: u32 = 7;
    /// The initialization ends.
    pub const END_INITIALIZATION: u32 = 8;
    /// The guest proposes a version of the protocol.
    pub const QUERY_PROTOCOL_VERSION: u32 = 9;
    /// Query the controller's limits and features.
    pub const QUERY_PROPERTIES: u32 = 10;
    /// To the guest: scan for units.
    pub const ENUMERATE_BUS: u32 = 11;
    /// Offer this many sub-channels.
    pub const CREATE_SUB_CHANNELS: u32 = 13;
}

/// Status of a packet: Windows' `NTSTATUS`. Linux logs it.
pub mod nt_status {
    /// `STATUS_SUCCESS`.
    pub const SUCCESS: u32 = 0;
    /// `STATUS_INVALID_PARAMETER`.
    pub const INVALID_PARAMETER: u32 = 0xc000_000d;
    /// `STATUS_INVALID_DEVICE_REQUEST`.
    pub const INVALID_DEVICE_REQUEST: u32 = 0xc000_0010;
    /// `STATUS_REVISION_MISMATCH`.
    pub const REVISION_MISMATCH: u32 = 0xc000_0059;
    /// `STATUS_DEVICE_DOES_NOT_EXIST`.
    pub const DEVICE_DOES_NOT_EXIST: u32 = 0xc000_00c0;
    /// `STATUS_CANCELLED`.
    pub const CANCELLED: u32 = 0xc000_0120;
    /// `STATUS_INVALID_DEVICE_STATE`.
    pub const INVALID_DEVICE_STATE: u32 = 0xc000_0184;
    /// `STATUS_IO_DEVICE_ERROR`.
    pub const IO_DEVICE_ERROR: u32 = 0xc000_0185;
    /// `STATUS_DEVICE_BUSY`.
    pub const DEVICE_BUSY: u32 = 0x8000_0011;
}

/// Status of a SCSI request (`SRB_STATUS_*`).
pub mod srb_status {
    /// Done.
    pub const SUCCESS: u8 = 0x01;
    /// Ended by an abort.
    pub const ABORTED: u8 = 0x02;
    /// Failed; the SCSI status may say more.
    pub const ERROR: u8 = 0x04;
    /// BUSY or TASK SET FULL.
    pub const BUSY: u8 = 0x05;
    /// The request is invalid.
    pub const INVALID_REQUEST: u8 = 0x06;
    /// Ended by a reset.
    pub const BUS_RESET: u8 = 0x0e;
    /// The command has more data than the buffer.
    pub const DATA_OVERRUN: u8 = 0x12;
    /// There is no such unit.
    pub const INVALID_LUN: u8 = 0x20;
    /// Flag: there are sense data.
    pub const AUTOSENSE_VALID: u8 = 0x80;
}

/// Versions of the protocol: major << 8 | minor.
pub const VERSIONS: [u16; 3] = [0x0602, 0x0600, 0x0501];
/// Flag of [`Properties`]: there may be sub-channels.
pub const STORAGE_CHANNEL_SUPPORTS_MULTI_CHANNEL: u32 = 1;

/// Data are written to the disk.
pub const WRITE_TYPE: u8 = 0;
/// Data are read from the disk.
pub const READ_TYPE: u8 = 1;

/// Flag of a request: [`ScsiRequest::queue_action`] is valid.
pub const SRB_FLAGS_QUEUE_ACTION_ENABLE: u32 = 0x2;
/// Attribute HEAD OF QUEUE.
pub const SRB_HEAD_OF_QUEUE_TAG_REQUEST: u8 = 0x21;
/// Attribute ORDERED.
pub const SRB_ORDERED_QUEUE_TAG_REQUEST: u8 = 0x22;

/// Maximum length of a command descriptor block in bytes.
pub const MAX_CDB: usize = 16;
/// Maximum length of sense data in bytes.
pub const MAX_SENSE: usize = 20;

/// A SCSI request, and its answer (`struct vmscsi_request`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ScsiRequest {
    /// Bytes of this structure.
    pub length: U16,
    /// Answer: [`srb_status`].
    pub srb_status: u8,
    /// Answer: SCSI status.
    pub scsi_status: u8,
    /// Not used.
    pub port: u8,
    /// Path.
    pub path: u8,
    /// Target.
    pub target: u8,
    /// Logical unit.
    pub lun: u8,
    /// Bytes of the command descriptor block.
    pub cdb_length: u8,
    /// Answer: bytes of sense data.
    pub sense_info_length: u8,
    /// [`WRITE_TYPE`], [`READ_TYPE`]; other values: no data.
    pub data_in: u8,
    /// Zero.
    pub reserved: u8,
    /// Bytes of data.
    pub data_transfer_length: U32,
    /// Command descriptor block; in an answer, sense data.
    pub cdb_or_sense: [u8; MAX_SENSE],
    /// Zero.
    pub reserve: U16,
    /// Tag.
    pub queue_tag: u8,
    /// Attribute.
    pub queue_action: u8,
    /// Flags.
    pub srb_flags: U32,
    /// Seconds.
    pub time_out_value: U32,
    /// Sort key.
    pub queue_sort_key: U32,
}
const _: () = assert!(size_of::<ScsiRequest>() == 0x34);
const _: () = assert!(offset_of!(ScsiRequest, queue_action) == 39);

/// Answer to [`operation::QUERY_PROPERTIES`] (`struct vmstorage_channel_properties`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Properties {
    /// Zero.
    pub reserved: U32,
    /// Maximum number of sub-channels.
    pub max_channel_count: U16,
    /// Zero.
    pub reserved1: U16,
    /// Flags.
    pub flags: U32,
    /// Maximum length of a request's data in bytes.
    pub max_transfer_bytes: U32,
    /// Zero.
    pub reserved2: U64,
}
const _: () = assert!(size_of::<Properties>() == 24);

/// Payload of a packet (`struct vstor_packet`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VstorPacket {
    /// [`operation`].
    pub operation: U32,
    /// Flags.
    pub flags: U32,
    /// Answer: [`nt_status`].
    pub status: U32,
    /// The request. Other operations have other content here.
    pub srb: ScsiRequest,
}
const _: () = assert!(size_of::<VstorPacket>() == 64);

/// A packet from the host: an answer, or [`operation::ENUMERATE_BUS`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HostPacket {
    /// Header.
    pub header: PacketHeader,
    /// Payload.
    pub payload: VstorPacket,
}
const _: () = assert!(size_of::<HostPacket>() == 80);

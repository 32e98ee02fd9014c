//! VMBus: control messages, ring pages and packet headers. Everything is little-endian and packed; a page has 4,096 bytes.
//! Source: Linux `include/linux/hyperv.h`, structures `vmbus_channel_*`, `hv_ring_buffer` and `vmpacket_*`.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Type of a hypervisor message that carries one of the bus.
pub const HV_MESSAGE_TYPE_VMBUS: u32 = 1;
/// Maximum length of a message's payload in bytes.
pub const HV_MESSAGE_PAYLOAD_BYTE_COUNT: usize = 240;

/// Connection for messages to the host, up to version 4.1.
pub const VMBUS_MESSAGE_CONNECTION_ID: u32 = 1;
/// Connection for messages to the host, from version 5.0 on.
pub const VMBUS_MESSAGE_CONNECTION_ID_4: u32 = 4;

/// A version number.
pub const fn version(major: u16, minor: u16) -> u32 {
    (major as u32) << 16 | minor as u32
}

/// Synthetic interrupt source of the bus.
pub const VMBUS_MESSAGE_SINT: u8 = 2;

/// Types of control messages (`enum vmbus_channel_message_type`).
pub mod message {
    /// To the guest: offer of a channel.
    pub const OFFERCHANNEL: u32 = 1;
    /// To the guest: a channel is rescinded.
    pub const RESCIND_CHANNELOFFER: u32 = 2;
    /// To the host: request for offers.
    pub const REQUESTOFFERS: u32 = 3;
    /// To the guest: end of the offers.
    pub const ALLOFFERS_DELIVERED: u32 = 4;
    /// To the host: open a channel.
    pub const OPENCHANNEL: u32 = 5;
    /// To the guest: answer to [`OPENCHANNEL`].
    pub const OPENCHANNEL_RESULT: u32 = 6;
    /// To the host: close a channel. No answer.
    pub const CLOSECHANNEL: u32 = 7;
    /// To the host: the first part of a GPADL.
    pub const GPADL_HEADER: u32 = 8;
    /// To the host: a further part of a GPADL.
    pub const GPADL_BODY: u32 = 9;
    /// To the guest: the GPADL is created or refused.
    pub const GPADL_CREATED: u32 = 10;
    /// To the host: tear a GPADL down.
    pub const GPADL_TEARDOWN: u32 = 11;
    /// To the guest: answer to [`GPADL_TEARDOWN`].
    pub const GPADL_TORNDOWN: u32 = 12;
    /// To the host: the number of a rescinded channel is released. No answer.
    pub const RELID_RELEASED: u32 = 13;
    /// To the host: connect, in any state.
    pub const INITIATE_CONTACT: u32 = 14;
    /// To the guest: answer to [`INITIATE_CONTACT`].
    pub const VERSION_RESPONSE: u32 = 15;
    /// To the host: disconnect.
    pub const UNLOAD: u32 = 16;
    /// To the guest: answer to [`UNLOAD`].
    pub const UNLOAD_RESPONSE: u32 = 17;
    /// To the host: signal another virtual processor for this channel.
    pub const MODIFYCHANNEL: u32 = 22;
    /// To the guest, from version 5.3 on: answer to [`MODIFYCHANNEL`].
    pub const MODIFYCHANNEL_RESPONSE: u32 = 24;
}

/// Status in answers: Windows' `NTSTATUS`.
pub mod status {
    /// Done.
    pub const SUCCESS: u32 = 0;
    /// `STATUS_INVALID_PARAMETER`.
    pub const INVALID_PARAMETER: u32 = 0xc000_000d;
    /// `STATUS_INSUFFICIENT_RESOURCES`.
    pub const INSUFFICIENT_RESOURCES: u32 = 0xc000_009a;
    /// `STATUS_INVALID_DEVICE_STATE`.
    pub const INVALID_DEVICE_STATE: u32 = 0xc000_0184;
}

/// Header of each message. Some messages have nothing else.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MessageHeader {
    /// [`message`].
    pub kind: U32,
    /// Zero.
    pub padding: U32,
}
const _: () = assert!(size_of::<MessageHeader>() == 8);

impl MessageHeader {
    /// A header of this type.
    #[must_use]
    pub const fn new(kind: u32) -> Self {
        Self { kind: U32::new(kind), padding: U32::ZERO }
    }
}

/// [`message::INITIATE_CONTACT`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InitiateContact {
    /// Header.
    pub header: MessageHeader,
    /// The version that the guest requests.
    pub version: U32,
    /// Virtual processor for messages.
    pub target_vp: U32,
    /// From version 5.0 on: synthetic interrupt source. Before 5.0, this and the following bytes are the address of an unused interrupt
    /// page.
    pub sint: u8,
    /// From version 5.0 on: virtual trust level.
    pub vtl: u8,
    reserved: U16,
    feature_flags: U32,
    /// Address of the monitor page for signals to the guest.
    pub monitor_page_parent_to_child: U64,
    /// Address of the monitor page for signals to the host.
    pub monitor_page_child_to_parent: U64,
}
const _: () = assert!(size_of::<InitiateContact>() == 40);

/// [`message::VERSION_RESPONSE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VersionResponse {
    /// Header.
    pub header: MessageHeader,
    /// Whether the version is supported.
    pub supported: u8,
    /// Zero.
    pub connection_state: u8,
    /// Zero.
    pub padding: U16,
    /// From version 5.0 on: connection for the guest's further messages.
    pub connection_id: U32,
}
const _: () = assert!(size_of::<VersionResponse>() == 16);

/// [`message::OFFERCHANNEL`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OfferChannel {
    /// Header.
    pub header: MessageHeader,
    /// Class of the device.
    pub interface_type: [u8; 16],
    /// Instance of the device; its sub-channels have the same.
    pub interface_instance: [u8; 16],
    /// Zero.
    pub reserved: [U64; 2],
    /// Flags.
    pub channel_flags: U16,
    /// Megabytes of address space.
    pub mmio_megabytes: U16,
    /// Defined by the class.
    pub user_defined: [u8; 120],
    /// 0: the primary channel.
    pub sub_channel_index: U16,
    /// Zero.
    pub reserved3: U16,
    /// The channel's number, which is also its event flag.
    pub relid: U32,
    /// Bit of the monitor pages.
    pub monitor_id: u8,
    /// Bit 0: the monitor pages are used.
    pub monitor_allocated: u8,
    /// Bit 0: the channel has a connection of its own.
    pub is_dedicated_interrupt: U16,
    /// Connection for signals to the host.
    pub connection_id: U32,
}
const _: () = assert!(size_of::<OfferChannel>() == 196);
const _: () = assert!(offset_of!(OfferChannel, user_defined) == 60);
const _: () = assert!(offset_of!(OfferChannel, relid) == 184);

/// Messages with a channel's number alone: [`message::RESCIND_CHANNELOFFER`], [`message::CLOSECHANNEL`], [`message::RELID_RELEASED`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChannelMessage {
    /// Header.
    pub header: MessageHeader,
    /// Channel.
    pub relid: U32,
}
const _: () = assert!(size_of::<ChannelMessage>() == 12);

/// Start of [`message::GPADL_HEADER`]; page numbers of one range follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GpadlHeader {
    /// Header.
    pub header: MessageHeader,
    /// Channel.
    pub relid: U32,
    /// The list's number, assigned by the guest.
    pub gpadl: U32,
    /// Bytes of all ranges, including their page numbers in this and later messages.
    pub range_buflen: U16,
    /// Ranges.
    pub rangecount: U16,
    /// The first range.
    pub range: GpaRange,
}
const _: () = assert!(size_of::<GpadlHeader>() == 28);

/// Start of a range of guest memory; page numbers follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GpaRange {
    /// Bytes.
    pub byte_count: U32,
    /// Offset in the first page.
    pub byte_offset: U32,
}
const _: () = assert!(size_of::<GpaRange>() == 8);

/// Start of [`message::GPADL_BODY`]; page numbers follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GpadlBody {
    /// Header.
    pub header: MessageHeader,
    /// Linux writes zero.
    pub number: U32,
    /// The list.
    pub gpadl: U32,
}
const _: () = assert!(size_of::<GpadlBody>() == 16);

/// [`message::GPADL_CREATED`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GpadlCreated {
    /// Header.
    pub header: MessageHeader,
    /// Channel.
    pub relid: U32,
    /// The list.
    pub gpadl: U32,
    /// [`status`].
    pub status: U32,
}
const _: () = assert!(size_of::<GpadlCreated>() == 20);

/// [`message::GPADL_TEARDOWN`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GpadlTeardown {
    /// Header.
    pub header: MessageHeader,
    /// Channel.
    pub relid: U32,
    /// The list.
    pub gpadl: U32,
}
const _: () = assert!(size_of::<GpadlTeardown>() == 16);

/// [`message::GPADL_TORNDOWN`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GpadlTorndown {
    /// Header.
    pub header: MessageHeader,
    /// The list.
    pub gpadl: U32,
}
const _: () = assert!(size_of::<GpadlTorndown>() == 12);

/// [`message::OPENCHANNEL`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OpenChannel {
    /// Header.
    pub header: MessageHeader,
    /// Channel.
    pub relid: U32,
    /// Returned in the answer.
    pub open_id: U32,
    /// The pages of both rings.
    pub ringbuffer_gpadl: U32,
    /// Virtual processor to be signalled.
    pub target_vp: U32,
    /// Page of the list at which the ring from host to guest begins.
    pub downstream_page_offset: U32,
    /// Defined by the class.
    pub user_data: [u8; 120],
}
const _: () = assert!(size_of::<OpenChannel>() == 148);

/// [`message::OPENCHANNEL_RESULT`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OpenResult {
    /// Header.
    pub header: MessageHeader,
    /// Channel.
    pub relid: U32,
    /// As in the request.
    pub open_id: U32,
    /// [`status`].
    pub status: U32,
}
const _: () = assert!(size_of::<OpenResult>() == 20);

/// [`message::MODIFYCHANNEL`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ModifyChannel {
    /// Header.
    pub header: MessageHeader,
    /// Channel.
    pub relid: U32,
    /// Virtual processor to be signalled.
    pub target_vp: U32,
}
const _: () = assert!(size_of::<ModifyChannel>() == 16);

/// [`message::MODIFYCHANNEL_RESPONSE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ModifyChannelResponse {
    /// Header.
    pub header: MessageHeader,
    /// Channel.
    pub relid: U32,
    /// [`status`].
    pub status: U32,
}
const _: () = assert!(size_of::<ModifyChannelResponse>() == 16);

/// Start of a ring's first page (`struct hv_ring_buffer`); the data pages follow it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RingControl {
    /// Byte offset at which the writer continues.
    pub write_index: U32,
    /// Byte offset at which the reader continues.
    pub read_index: U32,
    /// Set by the reader: if not zero, the writer does not signal.
    pub interrupt_mask: U32,
    /// Set by the writer: the reader signals when more bytes than this are free; 0: never.
    pub pending_send_sz: U32,
    reserved: [U32; 12],
    /// [`FEAT_PENDING_SEND_SZ`].
    pub feature_bits: U32,
}
const _: () = assert!(size_of::<RingControl>() == 68);
const _: () = assert!(offset_of!(RingControl, feature_bits) == 64);

/// Feature of a ring: its writer sets [`RingControl::pending_send_sz`].
pub const FEAT_PENDING_SEND_SZ: u32 = 1;

/// Packet type: only a payload.
pub const VM_PKT_DATA_INBAND: u16 = 6;
/// Packet type: a list of guest memory, and a payload.
pub const VM_PKT_DATA_USING_GPA_DIRECT: u16 = 9;
/// Packet type: the answer to another packet.
pub const VM_PKT_COMP: u16 = 0xb;
/// Packet flag: an answer is requested.
pub const VMBUS_DATA_PACKET_FLAG_COMPLETION_REQUESTED: u16 = 1;

/// Start of a packet (`struct vmpacket_descriptor`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PacketHeader {
    /// Type.
    pub kind: U16,
    /// Where the payload begins, in qwords.
    pub offset8: U16,
    /// Length without the trailer, in qwords.
    pub len8: U16,
    /// Flags.
    pub flags: U16,
    /// Transaction ID, which the answer repeats.
    pub trans_id: U64,
}
const _: () = assert!(size_of::<PacketHeader>() == 16);

/// A message as bytes, for the guest.
pub(super) fn bytes_of<T: IntoBytes + Immutable>(message: &T) -> Vec<u8> {
    message.as_bytes().to_vec()
}

impl OfferChannel {
    /// An offer of this channel with its own connection and without monitor pages. All other fields are zero.
    pub(super) fn new(relid: u32, connection_id: u32) -> Self {
        Self {
            header: MessageHeader::new(message::OFFERCHANNEL),
            relid: relid.into(),
            monitor_id: 0xff,
            is_dedicated_interrupt: 1.into(),
            connection_id: connection_id.into(),
            ..Self::new_zeroed()
        }
    }
}

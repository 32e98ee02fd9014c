//! Constants of the hypervisor's interface, of the VMBus and of the storage protocol on it, as Linux's `drivers/hv` and
//! `storvsc_drv.c` have them.
#![allow(missing_docs, reason = "names of the specification")]

pub const MSR_GUEST_OS_ID: u32 = 0x4000_0000;
pub const MSR_HYPERCALL: u32 = 0x4000_0001;
pub const MSR_SCONTROL: u32 = 0x4000_0080;
pub const MSR_SIEFP: u32 = 0x4000_0082;
pub const MSR_SIMP: u32 = 0x4000_0083;
pub const MSR_EOM: u32 = 0x4000_0084;
pub const MSR_SINT0: u32 = 0x4000_0090;
/// The synthetic interrupt source of the VMBus.
pub const SINT: u32 = 2;
/// Enable, in the registers of pages.
pub const ENABLE: u64 = 1;
/// An operating system that is none of the known ones.
pub const GUEST_OS_ID: u64 = 0x8100 << 48;

pub const POST_MESSAGE: u64 = 0x5c;
/// With its input in registers.
pub const SIGNAL_EVENT: u64 = 0x1_005d;
/// No free buffers: try again.
pub const STATUS_INSUFFICIENT_BUFFERS: u64 = 19;

/// In a message page, of the VMBus' slot: type, then size and flags, then the payload.
pub const SLOT: usize = 256 * SINT as usize;
pub const SLOT_FLAGS: usize = SLOT + 5;
pub const SLOT_PAYLOAD: usize = SLOT + 16;
pub const MESSAGE_PENDING: u8 = 1;
/// Bytes of a message's payload at the most.
pub const PAYLOAD: usize = 240;
/// In the event flags page, the flags of the VMBus' source: bytes.
pub const FLAGS: usize = 256 * SINT as usize;
pub const FLAGS_LEN: usize = 256;

/// VMBus version 5.3.
pub const VERSION: u32 = 5 << 16 | 3;
/// Where the first message goes, from version 5.0 on.
pub const CONTACT_CONNECTION: u32 = 4;

pub const OFFER_CHANNEL: u32 = 1;
pub const REQUEST_OFFERS: u32 = 3;
pub const ALL_OFFERS_DELIVERED: u32 = 4;
pub const OPEN_CHANNEL: u32 = 5;
pub const OPEN_RESULT: u32 = 6;
pub const CLOSE_CHANNEL: u32 = 7;
pub const GPADL_HEADER: u32 = 8;
pub const GPADL_BODY: u32 = 9;
pub const GPADL_CREATED: u32 = 10;
pub const GPADL_TEARDOWN: u32 = 11;
pub const GPADL_TORNDOWN: u32 = 12;
pub const INITIATE_CONTACT: u32 = 14;
pub const VERSION_RESPONSE: u32 = 15;

/// Page numbers in the first message of a list of pages, and in those that follow.
pub const PAGES_IN_HEADER: usize = 26;
pub const PAGES_IN_BODY: usize = 28;

/// Class of SCSI controllers, ba6163d9-04a1-4d29-b605-72e2ffb1dc7f, as two little-endian words.
pub const SCSI_CLASS: [u64; 2] = [0x4d29_04a1_ba61_63d9, 0x7fdc_b1ff_e272_05b6];

/// Of a ring's first page.
pub const WRITE_INDEX: usize = 0;
pub const READ_INDEX: usize = 4;
pub const INTERRUPT_MASK: usize = 8;
pub const FEATURES: usize = 64;
/// The writer says how much space it waits for.
pub const FEATURE_PENDING_SIZE: u32 = 1;

pub const PACKET_IN_BAND: u64 = 6;
pub const PACKET_GPA_DIRECT: u64 = 9;
pub const PACKET_COMPLETION: u64 = 11;
pub const COMPLETION_REQUESTED: u64 = 1;

pub const COMPLETE_IO: u32 = 1;
pub const EXECUTE_SRB: u64 = 3;
pub const BEGIN_INITIALIZATION: u64 = 7;
pub const END_INITIALIZATION: u64 = 8;
pub const QUERY_PROTOCOL_VERSION: u64 = 9;
pub const QUERY_PROPERTIES: u64 = 10;
/// From the host: units have come or gone.
pub const ENUMERATE_BUS: u32 = 11;
/// Storage protocol 6.0.
pub const PROTOCOL_VERSION: u64 = 6 << 8;
/// Words of a storage packet.
pub const STORAGE_WORDS: usize = 8;

/// Bytes of a SCSI request block.
pub const SRB_LEN: u64 = 0x34;
/// Bytes of sense data in it.
pub const SENSE_LEN: usize = 20;
pub const SRB_SUCCESS: u8 = 1;
pub const SRB_STATUS_MASK: u8 = 0x3f;
/// How data move: to the disk, from it, not at all.
pub const DATA_OUT: u64 = 0;
pub const DATA_IN: u64 = 1;
pub const DATA_NONE: u64 = 2;
pub const SRB_FLAGS_IN: u64 = 0x40;
pub const SRB_FLAGS_OUT: u64 = 0x80;

//! Numbers and structures of SPC-4 (ISO/IEC 14776-454) and SBC-3 (ISO/IEC 14776-323). All fields are big-endian.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Operation codes (SPC-4 annex F.3.1).
pub(super) mod opcode {
    pub(in crate::scsi) const TEST_UNIT_READY: u8 = 0x00;
    pub(in crate::scsi) const REQUEST_SENSE: u8 = 0x03;
    pub(in crate::scsi) const READ_6: u8 = 0x08;
    pub(in crate::scsi) const WRITE_6: u8 = 0x0a;
    pub(in crate::scsi) const INQUIRY: u8 = 0x12;
    pub(in crate::scsi) const MODE_SELECT_6: u8 = 0x15;
    pub(in crate::scsi) const RESERVE_6: u8 = 0x16;
    pub(in crate::scsi) const RELEASE_6: u8 = 0x17;
    pub(in crate::scsi) const MODE_SENSE_6: u8 = 0x1a;
    pub(in crate::scsi) const START_STOP_UNIT: u8 = 0x1b;
    pub(in crate::scsi) const SEND_DIAGNOSTIC: u8 = 0x1d;
    pub(in crate::scsi) const READ_CAPACITY_10: u8 = 0x25;
    pub(in crate::scsi) const READ_10: u8 = 0x28;
    pub(in crate::scsi) const WRITE_10: u8 = 0x2a;
    pub(in crate::scsi) const WRITE_AND_VERIFY_10: u8 = 0x2e;
    pub(in crate::scsi) const VERIFY_10: u8 = 0x2f;
    pub(in crate::scsi) const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub(in crate::scsi) const WRITE_SAME_10: u8 = 0x41;
    pub(in crate::scsi) const UNMAP: u8 = 0x42;
    pub(in crate::scsi) const LOG_SENSE: u8 = 0x4d;
    pub(in crate::scsi) const MODE_SELECT_10: u8 = 0x55;
    pub(in crate::scsi) const RESERVE_10: u8 = 0x56;
    pub(in crate::scsi) const RELEASE_10: u8 = 0x57;
    pub(in crate::scsi) const MODE_SENSE_10: u8 = 0x5a;
    pub(in crate::scsi) const PERSISTENT_RESERVE_IN: u8 = 0x5e;
    pub(in crate::scsi) const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
    pub(in crate::scsi) const READ_16: u8 = 0x88;
    pub(in crate::scsi) const COMPARE_AND_WRITE: u8 = 0x89;
    pub(in crate::scsi) const WRITE_16: u8 = 0x8a;
    pub(in crate::scsi) const WRITE_AND_VERIFY_16: u8 = 0x8e;
    pub(in crate::scsi) const VERIFY_16: u8 = 0x8f;
    pub(in crate::scsi) const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    pub(in crate::scsi) const WRITE_SAME_16: u8 = 0x93;
    pub(in crate::scsi) const SERVICE_ACTION_IN_16: u8 = 0x9e;
    pub(in crate::scsi) const REPORT_LUNS: u8 = 0xa0;
    pub(in crate::scsi) const MAINTENANCE_IN: u8 = 0xa3;
    pub(in crate::scsi) const READ_12: u8 = 0xa8;
    pub(in crate::scsi) const WRITE_12: u8 = 0xaa;
    pub(in crate::scsi) const WRITE_AND_VERIFY_12: u8 = 0xae;
    pub(in crate::scsi) const VERIFY_12: u8 = 0xaf;
}

/// Service actions, named after their operation code.
pub(super) mod action {
    pub(in crate::scsi) const IN_16_READ_CAPACITY: u8 = 0x10;
    pub(in crate::scsi) const IN_16_GET_LBA_STATUS: u8 = 0x12;
    pub(in crate::scsi) const MAINTENANCE_IN_REPORT_OPCODES: u8 = 0x0c;
    pub(in crate::scsi) const MAINTENANCE_IN_REPORT_TMFS: u8 = 0x0d;
    pub(in crate::scsi) const PR_IN_READ_KEYS: u8 = 0x00;
    pub(in crate::scsi) const PR_IN_READ_RESERVATION: u8 = 0x01;
    pub(in crate::scsi) const PR_IN_REPORT_CAPABILITIES: u8 = 0x02;
    pub(in crate::scsi) const PR_IN_READ_FULL_STATUS: u8 = 0x03;
    pub(in crate::scsi) const PR_OUT_REGISTER: u8 = 0x00;
    pub(in crate::scsi) const PR_OUT_RESERVE: u8 = 0x01;
    pub(in crate::scsi) const PR_OUT_RELEASE: u8 = 0x02;
    pub(in crate::scsi) const PR_OUT_CLEAR: u8 = 0x03;
    pub(in crate::scsi) const PR_OUT_PREEMPT: u8 = 0x04;
    pub(in crate::scsi) const PR_OUT_PREEMPT_AND_ABORT: u8 = 0x05;
    pub(in crate::scsi) const PR_OUT_REGISTER_AND_IGNORE: u8 = 0x06;
    pub(in crate::scsi) const PR_OUT_REGISTER_AND_MOVE: u8 = 0x07;
}

/// Vital product data page codes.
pub(super) mod vpd {
    pub(in crate::scsi) const SUPPORTED_PAGES: u8 = 0x00;
    pub(in crate::scsi) const UNIT_SERIAL_NUMBER: u8 = 0x80;
    pub(in crate::scsi) const DEVICE_IDENTIFICATION: u8 = 0x83;
    pub(in crate::scsi) const BLOCK_LIMITS: u8 = 0xb0;
    pub(in crate::scsi) const BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xb1;
    pub(in crate::scsi) const LOGICAL_BLOCK_PROVISIONING: u8 = 0xb2;
}

/// Bits of CDB bytes, by the command that has them.
pub(super) mod bits {
    /// READ, WRITE, VERIFY, WRITE SAME: disable page out.
    pub(in crate::scsi) const DPO: u8 = 0x10;
    /// READ, WRITE: force unit access.
    pub(in crate::scsi) const FUA: u8 = 0x08;
    /// VERIFY: byte check, two bits.
    pub(in crate::scsi) const BYTCHK: u8 = 0x06;
    /// WRITE AND VERIFY: the low bit of BYTCHK.
    pub(in crate::scsi) const BYTCHK_DATA: u8 = 0x02;
    /// WRITE SAME.
    pub(in crate::scsi) const UNMAP: u8 = 0x08;
    /// WRITE SAME (16): no Data-Out Buffer.
    pub(in crate::scsi) const NDOB: u8 = 0x01;
    /// SYNCHRONIZE CACHE: status at once.
    pub(in crate::scsi) const SYNC_IMMED: u8 = 0x02;
    /// INQUIRY.
    pub(in crate::scsi) const EVPD: u8 = 0x01;
    /// REQUEST SENSE: descriptor format.
    pub(in crate::scsi) const DESC: u8 = 0x01;
    /// MODE SENSE: disable block descriptors.
    pub(in crate::scsi) const DBD: u8 = 0x08;
    /// MODE SENSE (10): long LBA accepted.
    pub(in crate::scsi) const LLBAA: u8 = 0x10;
    /// MODE SELECT: page format.
    pub(in crate::scsi) const PF: u8 = 0x10;
    /// MODE SELECT: save pages.
    pub(in crate::scsi) const SP: u8 = 0x01;
    /// START STOP UNIT, byte 1.
    pub(in crate::scsi) const START_IMMED: u8 = 0x01;
    /// START STOP UNIT, byte 4.
    pub(in crate::scsi) const NO_FLUSH: u8 = 0x04;
    /// START STOP UNIT, byte 4.
    pub(in crate::scsi) const LOEJ: u8 = 0x02;
    /// START STOP UNIT, byte 4.
    pub(in crate::scsi) const START: u8 = 0x01;
    /// SEND DIAGNOSTIC: default self-test.
    pub(in crate::scsi) const SELFTEST: u8 = 0x04;
    /// REPORT SUPPORTED OPERATION CODES: return command timeouts descriptors.
    pub(in crate::scsi) const RCTD: u8 = 0x80;
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS: extended parameter data.
    pub(in crate::scsi) const REPD: u8 = 0x80;
}

/// Version descriptors (SPC-4, 6.6.2): SAM-5, SPC-4 and SBC-3 with no version claimed.
pub(super) const VERSION_DESCRIPTORS: [u16; 3] = [0x00a0, 0x0460, 0x04c0];
/// VERSION of standard INQUIRY data: SPC-4.
pub(super) const VERSION_SPC_4: u8 = 0x06;
/// PERIPHERAL QUALIFIER 011b and device type 1Fh: no logical unit can be there.
pub(super) const NO_UNIT: u8 = 0x7f;

macro_rules! wire {
    ($(#[$doc:meta])* $name:ident [$size:literal] { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub(super) struct $name { $($(#[$field_doc])* pub(super) $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

wire! {
    /// A CDB of 6 bytes.
    Cdb6 [6] { opcode: u8, lba: [u8; 3], len: u8, control: u8, }
}
wire! {
    /// A CDB of 10 bytes.
    Cdb10 [10] { opcode: u8, flags: u8, lba: U32, group: u8, len: U16, control: u8, }
}
wire! {
    /// A CDB of 12 bytes.
    Cdb12 [12] { opcode: u8, flags: u8, lba: U32, len: U32, group: u8, control: u8, }
}
wire! {
    /// A CDB of 16 bytes.
    Cdb16 [16] { opcode: u8, flags: u8, lba: U64, len: U32, group: u8, control: u8, }
}
wire! {
    /// Standard INQUIRY data (SPC-4, 6.6.2), up to the version descriptors.
    StandardInquiry [74] {
        peripheral: u8, rmb: u8, version: u8, response_format: u8, additional_length: u8, flags: [u8; 3],
        vendor: [u8; 8], product: [u8; 16], revision: [u8; 4], vendor_specific: [u8; 20], reserved: [u8; 2],
        versions: [U16; 8],
    }
}
wire! {
    /// Header of a VPD page (SPC-4, 7.8).
    VpdHeader [4] { peripheral: u8, page: u8, len: U16, }
}
wire! {
    /// Header of a designation descriptor (SPC-4, 7.8.6).
    DesignatorHeader [4] { code_set: u8, kind: u8, reserved: u8, len: u8, }
}
wire! {
    /// Block limits VPD page B0h without its header (SBC-3, 6.6.4).
    BlockLimits [60] {
        wsnz: u8, max_compare_and_write: u8, optimal_granularity: U16, max_transfer: U32, optimal_transfer: U32,
        max_prefetch: U32, max_unmap_lbas: U32, max_unmap_descriptors: U32, optimal_unmap_granularity: U32,
        /// Bit 31: UGAVALID.
        unmap_alignment: U32,
        max_write_same: U64, reserved: [[u8; 10]; 2],
    }
}
wire! {
    /// Block device characteristics VPD page B1h without its header (SBC-3, 6.6.3).
    BlockCharacteristics [60] { rotation_rate: U16, product_type: u8, form_factor: u8, flags: u8, reserved: Zeros55, }
}
wire! {
    /// Logical block provisioning VPD page B2h without its header (SBC-3, 6.6.6).
    Provisioning [4] { threshold_exponent: u8, flags: u8, kind: u8, reserved: u8, }
}
wire! {
    /// READ CAPACITY (10) data.
    Capacity10 [8] { last_lba: U32, block_len: U32, }
}
wire! {
    /// READ CAPACITY (16) data.
    Capacity16 [32] {
        last_lba: U64, block_len: U32, protection: u8,
        /// Logical blocks per physical block exponent.
        exponent: u8,
        /// LBPME (15), LBPRZ (14), lowest aligned LBA.
        provisioning: U16,
        reserved: [u8; 16],
    }
}
wire! {
    /// Mode parameter header (6).
    ModeHeader6 [4] { len: u8, medium: u8, device: u8, descriptors: u8, }
}
wire! {
    /// Mode parameter header (10).
    ModeHeader10 [8] { len: U16, medium: u8, device: u8, long_lba: u8, reserved: u8, descriptors: U16, }
}
wire! {
    /// Short LBA mode parameter block descriptor; the block length has 3 bytes, after a reserved one.
    ShortBlockDescriptor [8] { blocks: U32, block_len: U32, }
}
wire! {
    /// Long LBA mode parameter block descriptor.
    LongBlockDescriptor [16] { blocks: U64, reserved: U32, block_len: U32, }
}
wire! {
    /// Caching mode page 08h (SBC-3, 6.5.5).
    CachingPage [20] { code: u8, len: u8, flags: u8, retention: u8, limits: [U16; 4], more: u8, segments: u8, obsolete: [u8; 6], }
}
wire! {
    /// Control mode page 0Ah (SPC-4, 7.5.8).
    ControlPage [12] {
        code: u8, len: u8, flags: u8, queue: u8, protect: u8, more: u8, obsolete: U16, busy_timeout: U16, self_test: U16,
    }
}
wire! {
    /// Fixed format sense data (SPC-4, 4.5.3).
    FixedSense [18] {
        response: u8, obsolete: u8, key: u8, information: U32, additional: u8, command_specific: U32, asc: U16, fru: u8,
        specific: [u8; 3],
    }
}
wire! {
    /// Header of descriptor format sense data (SPC-4, 4.5.2).
    DescriptorSense [8] { response: u8, key: u8, asc: U16, reserved: [u8; 3], additional: u8, }
}
wire! {
    /// Information sense data descriptor.
    InformationDescriptor [12] { kind: u8, len: u8, valid: u8, reserved: u8, information: U64, }
}
wire! {
    /// Sense key specific sense data descriptor.
    SpecificDescriptor [8] { kind: u8, len: u8, reserved: [u8; 2], specific: [u8; 3], reserved2: u8, }
}
wire! {
    /// UNMAP parameter list header.
    UnmapHeader [8] { len: U16, descriptors: U16, reserved: U32, }
}
wire! {
    /// UNMAP block descriptor.
    UnmapDescriptor [16] { lba: U64, blocks: U32, reserved: U32, }
}
wire! {
    /// GET LBA STATUS parameter data header.
    LbaStatusHeader [8] { len: U32, reserved: U32, }
}
wire! {
    /// LBA status descriptor.
    LbaStatusDescriptor [16] { lba: U64, blocks: U32, status: u8, reserved: [u8; 3], }
}
wire! {
    /// Header of a log page (SPC-4, 7.3.2).
    LogHeader [4] { page: u8, subpage: u8, len: U16, }
}
wire! {
    /// PERSISTENT RESERVE OUT parameter list.
    ReserveOut [24] { key: U64, action_key: U64, obsolete: U32, flags: u8, reserved: u8, obsolete2: U16, }
}
wire! {
    /// PERSISTENT RESERVE OUT parameter list of REGISTER AND MOVE (SPC-4, 6.16.4), up to the TransportID.
    MoveOut [24] {
        key: U64, action_key: U64, reserved: u8, flags: u8,
        /// Relative target port identifier.
        port: U16,
        transport_len: U32,
    }
}
wire! {
    /// TransportID of a SAS initiator port (SPC-4, 7.6.4.7).
    SasTransportId [24] { protocol: u8, reserved: [u8; 3], address: U64, reserved2: [U32; 3], }
}
wire! {
    /// Full status descriptor of READ FULL STATUS data (SPC-4, 6.15.5), up to the TransportID.
    FullStatus [24] {
        key: U64, reserved: U32, flags: u8, scope_type: u8, reserved2: U32,
        /// Relative target port identifier.
        port: U16,
        transport_len: U32,
    }
}
wire! {
    /// Start of PERSISTENT RESERVE IN data.
    ReserveInHeader [8] { generation: U32, len: U32, }
}
wire! {
    /// The reservation in READ RESERVATION data.
    ReservationDescriptor [16] { key: U64, obsolete: U32, reserved: u8, scope_type: u8, obsolete2: U16, }
}
wire! {
    /// REPORT CAPABILITIES data.
    ReserveCapabilities [8] { len: U16, flags: [u8; 2], types: U16, reserved: U16, }
}
wire! {
    /// Command descriptor in the list of all commands (REPORT SUPPORTED OPERATION CODES).
    CommandDescriptor [8] { opcode: u8, reserved: u8, action: U16, reserved2: u8, flags: u8, len: U16, }
}
wire! {
    /// Command timeouts descriptor.
    CommandTimeouts [12] { len: U16, reserved: u8, specific: u8, nominal: U32, recommended: U32, }
}

/// 55 reserved bytes, which have a default unlike an array of them.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Zeros55([u8; 55]);

impl Default for Zeros55 {
    fn default() -> Self {
        Self([0; 55])
    }
}

//! Registers, commands and structures of VMware's paravirtual SCSI adapter, as its public drivers use them
//! (Linux `drivers/scsi/vmw_pvscsi.h`). Everything is little-endian; a page has 4,096 bytes.

use std::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// PCI vendor ID (VMware).
pub const PCI_VENDOR_ID_VMWARE: u16 = 0x15ad;
/// PCI device ID.
pub const PCI_DEVICE_ID_VMWARE_PVSCSI: u16 = 0x07c0;

/// Bytes of register space.
pub const PVSCSI_MEM_SPACE_SIZE: u64 = 0x8000;
/// MSI-X table.
pub const MSIX_TABLE_OFFSET: u32 = 0x6000;
/// MSI-X pending bits.
pub const MSIX_PBA_OFFSET: u32 = 0x7000;

/// Write: a command's number, which starts it.
pub const REG_COMMAND: u64 = 0x0;
/// Write: the next dword of the command's descriptor.
pub const REG_COMMAND_DATA: u64 = 0x4;
/// Read: status of the last command.
pub const REG_COMMAND_STATUS: u64 = 0x8;
/// Causes of interrupts; writing ones clears them.
pub const REG_INTR_STATUS: u64 = 0x100c;
/// Enabled causes (1: the cause interrupts).
pub const REG_INTR_MASK: u64 = 0x2010;
/// Write: doorbell for requests other than reads and writes.
pub const REG_KICK_NON_RW_IO: u64 = 0x3014;
/// Scratch.
pub const REG_DEBUG: u64 = 0x3018;
/// Write: doorbell for reads and writes.
pub const REG_KICK_RW_IO: u64 = 0x4018;

bitflags! {
    /// Causes of interrupts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Interrupts: u32 {
        /// Completions.
        const CMPL_0 = 1;
        /// Completions of a second ring, which no driver uses.
        const CMPL_1 = 1 << 1;
        /// Messages.
        const MSG_0 = 1 << 2;
        /// Messages of a second ring, which no driver uses.
        const MSG_1 = 1 << 3;
    }
}

/// Status of a command: done.
pub const COMMAND_SUCCEEDED: u32 = 0;
/// Status of a command: refused or unknown.
pub const COMMAND_FAILED: u32 = u32::MAX;

/// Numbers of the commands.
pub mod command {
    /// Reset the adapter and drop the rings.
    pub const ADAPTER_RESET: u32 = 1;
    /// Run a command without rings; no driver uses it.
    pub const ISSUE_SCSI: u32 = 2;
    /// Set up the request and completion rings.
    pub const SETUP_RINGS: u32 = 3;
    /// Reset all devices.
    pub const RESET_BUS: u32 = 4;
    /// Reset one device.
    pub const RESET_DEVICE: u32 = 5;
    /// Abort one request.
    pub const ABORT_CMD: u32 = 6;
    /// Read a configuration page.
    pub const CONFIG: u32 = 7;
    /// Set up the message ring.
    pub const SETUP_MSG_RING: u32 = 8;
    /// Eject a device; no driver uses it.
    pub const DEVICE_UNPLUG: u32 = 9;
    /// Enable the request-call threshold: the driver does not kick for fewer waiting requests than the rings' state says.
    pub const SETUP_REQCALLTHRESHOLD: u32 = 10;
}

/// Maximum number of pages of the request ring, and of the completion ring.
pub const SETUP_RINGS_MAX_NUM_PAGES: usize = 32;
/// Maximum number of pages of the message ring.
pub const SETUP_MSG_RING_MAX_NUM_PAGES: usize = 16;

/// Descriptor of [`command::SETUP_RINGS`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CmdDescSetupRings {
    /// Pages of the request ring.
    pub req_ring_num_pages: U32,
    /// Pages of the completion ring.
    pub cmp_ring_num_pages: U32,
    /// Page number of the rings' state.
    pub rings_state_ppn: U64,
    /// Page numbers of the request ring.
    pub req_ring_ppns: [U64; SETUP_RINGS_MAX_NUM_PAGES],
    /// Page numbers of the completion ring.
    pub cmp_ring_ppns: [U64; SETUP_RINGS_MAX_NUM_PAGES],
}
const _: () = assert!(size_of::<CmdDescSetupRings>() == 528);

/// Descriptor of [`command::SETUP_MSG_RING`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CmdDescSetupMsgRing {
    /// Pages.
    pub num_pages: U32,
    pad: U32,
    /// Page numbers.
    pub ring_ppns: [U64; SETUP_MSG_RING_MAX_NUM_PAGES],
}
const _: () = assert!(size_of::<CmdDescSetupMsgRing>() == 136);

/// Descriptor of [`command::RESET_DEVICE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CmdDescResetDevice {
    /// Target.
    pub target: U32,
    /// Logical unit.
    pub lun: [u8; 8],
}
const _: () = assert!(size_of::<CmdDescResetDevice>() == 12);

/// Descriptor of [`command::ABORT_CMD`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CmdDescAbortCmd {
    /// The request's context.
    pub context: U64,
    /// Its target.
    pub target: U32,
    pad: U32,
}
const _: () = assert!(size_of::<CmdDescAbortCmd>() == 16);

/// Descriptor of [`command::CONFIG`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CmdDescConfigCmd {
    /// Guest-physical address that the page is written to.
    pub cmp_addr: U64,
    /// The object that the page describes; the kind of object in the upper half.
    pub page_address: U64,
    /// Page number, for instance [`CONFIG_PAGE_CONTROLLER`].
    pub page_num: U32,
    pad: U32,
}
const _: () = assert!(size_of::<CmdDescConfigCmd>() == 24);

/// Number of the configuration page of the controller.
pub const CONFIG_PAGE_CONTROLLER: u32 = 0x1958;
/// Kind of page address: the controller.
pub const CONFIG_CONTROLLER_ADDRESS: u64 = 0x2120;

/// The page [`CONFIG_PAGE_CONTROLLER`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConfigPageController {
    /// [`CONFIG_PAGE_CONTROLLER`].
    pub page_num: U32,
    /// Dwords of the page after the header.
    pub num_dwords: U16,
    /// As in a completion.
    pub host_status: U16,
    /// As in a completion.
    pub scsi_status: U16,
    reserved: [U16; 3],
    /// World-wide name.
    pub node_wwn: U64,
    /// Text.
    pub manufacturer: [u8; 128],
    /// Text.
    pub serial_number: [u8; 128],
    /// Text.
    pub oprom_version: [u8; 64],
    /// Text.
    pub hw_version: [u8; 64],
    /// Text.
    pub firmware_version: [u8; 64],
    /// Targets.
    pub num_phys: U32,
    /// No meaning known.
    pub flags: u8,
    pad: [u8; 3],
}
const _: () = assert!(size_of::<ConfigPageController>() == 480);
/// Bytes of a configuration page's header.
pub const CONFIG_PAGE_HEADER_SIZE: usize = 16;

/// The page that both sides keep their indices in. Indices run freely; a slot is the index modulo the ring's size.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RingsState {
    /// Driver: requests put in.
    pub req_prod_idx: U32,
    /// Device: requests taken out.
    pub req_cons_idx: U32,
    /// Device: size of the request ring.
    pub req_num_entries_log2: U32,
    /// Device: completions put in.
    pub cmp_prod_idx: U32,
    /// Driver: completions taken out.
    pub cmp_cons_idx: U32,
    /// Device: size of the completion ring.
    pub cmp_num_entries_log2: U32,
    /// Device: with fewer waiting requests than these, the driver does not kick.
    pub req_call_threshold: U32,
    pad: [u8; 100],
    /// Device: messages put in.
    pub msg_prod_idx: U32,
    /// Driver: messages taken out.
    pub msg_cons_idx: U32,
    /// Device: size of the message ring.
    pub msg_num_entries_log2: U32,
}
const _: () = assert!(offset_of!(RingsState, msg_prod_idx) == 128 && size_of::<RingsState>() == 140);

bitflags! {
    /// Flags of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RequestFlags: u32 {
        /// The data are in pieces, listed at the data address.
        const CMD_WITH_SG_LIST = 1;
        /// The CDB is elsewhere. Reserved.
        const CMD_OUT_OF_BAND_CDB = 1 << 1;
        /// No data.
        const CMD_DIR_NONE = 1 << 2;
        /// Device to memory.
        const CMD_DIR_TOHOST = 1 << 3;
        /// Memory to device.
        const CMD_DIR_TODEVICE = 1 << 4;
    }
}

/// Entry of the request ring.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RingReqDesc {
    /// Comes back in the completion.
    pub context: U64,
    /// Data, or the list of its pieces.
    pub data_addr: U64,
    /// Bytes of data.
    pub data_len: U64,
    /// Guest-physical address that sense data are written to.
    pub sense_addr: U64,
    /// Bytes available there.
    pub sense_len: U32,
    /// [`RequestFlags`].
    pub flags: U32,
    /// Command descriptor block.
    pub cdb: [u8; 16],
    /// Its length.
    pub cdb_len: u8,
    /// Logical unit.
    pub lun: [u8; 8],
    /// Task attribute, as the message codes of parallel SCSI.
    pub tag: u8,
    /// Always 0.
    pub bus: u8,
    /// Target.
    pub target: u8,
    /// Virtual CPU that submitted the request.
    pub vcpu_hint: U16,
    unused: [u8; 58],
}
const _: () = assert!(size_of::<RingReqDesc>() == 128 && offset_of!(RingReqDesc, vcpu_hint) == 68);

/// Message code of parallel SCSI: HEAD OF QUEUE.
pub const MSG_HEAD_OF_QUEUE_TAG: u8 = 0x21;
/// Message code of parallel SCSI: ORDERED.
pub const MSG_ORDERED_TAG: u8 = 0x22;

/// Piece of a scatter list.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SgElement {
    /// Address of the piece, or of the next list.
    pub addr: U64,
    /// Bytes.
    pub length: U32,
    /// [`SGE_FLAG_CHAIN_ELEMENT`].
    pub flags: U32,
}
const _: () = assert!(size_of::<SgElement>() == 16);

/// The element points to the next list. No public header defines the bit; bit 0 is unverified. No known driver sets it.
pub const SGE_FLAG_CHAIN_ELEMENT: u32 = 1;

/// Entry of the completion ring.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RingCmpDesc {
    /// The request's.
    pub context: U64,
    /// Bytes moved.
    pub data_len: U64,
    /// Bytes of sense data delivered.
    pub sense_len: U32,
    /// [`HostStatus`].
    pub host_status: U16,
    /// Status of the device server.
    pub scsi_status: U16,
    /// Padding.
    pub pad: [U32; 2],
}
const _: () = assert!(size_of::<RingCmpDesc>() == 32);

/// The adapter's status of a request (the values that this adapter uses).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum HostStatus {
    /// The device server answered; `scsi_status` has its status.
    Success = 0x00,
    /// There is no such device.
    SelectionTimeout = 0x11,
    /// A field of the request is invalid.
    InvalidParam = 0x1a,
    /// Sense data could not be delivered.
    SenseFailed = 0x1b,
    /// The request's direction is not that of its CDB.
    BadMsg = 0x1d,
    /// Ended by a reset.
    BusReset = 0x25,
    /// Ended by an abort.
    AbortQueue = 0x26,
}

/// Message: a device is there.
pub const MSG_DEV_ADDED: u32 = 0;
/// Message: a device has gone.
pub const MSG_DEV_REMOVED: u32 = 1;

/// Entry of the message ring, of either type.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RingMsgDesc {
    /// [`MSG_DEV_ADDED`] or [`MSG_DEV_REMOVED`].
    pub kind: U32,
    /// Always 0.
    pub bus: U32,
    /// Target.
    pub target: U32,
    /// Logical unit.
    pub lun: [u8; 8],
    /// Padding.
    pub pad: [U32; 27],
}
const _: () = assert!(size_of::<RingMsgDesc>() == 128);

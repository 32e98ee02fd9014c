//! The state of a SCSI I/O until its reply.

use super::spec::{ScsiIoReply, ScsiIoRequest};
use crate::scsi::{Address, single_level_lun};

/// Marks a reply as an address reply: the frame's address, shifted right by one.
pub(super) const ADDRESS_REPLY: u32 = 0x8000_0000;

/// The state of a request in flight.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub(super) context: u32,
    pub(super) target: u8,
    /// `None` for a LUN that no unit can have.
    lun: Option<u16>,
    function: u8,
    cdb_length: u8,
    pub(super) sense_length: u8,
    pub(super) sense_address: u64,
    pub(super) data_length: u32,
}

impl Pending {
    /// The state of `request`; `sense_high` is the upper half of the sense buffer's address.
    #[inline]
    pub(super) fn new(request: &ScsiIoRequest, sense_high: u64) -> Self {
        Self {
            context: request.msg_context.get(),
            target: request.target_id,
            lun: single_level_lun(&request.lun),
            function: request.function,
            cdb_length: request.cdb_length,
            sense_length: request.sense_buffer_length,
            sense_address: sense_high | u64::from(request.sense_buffer_low_addr.get()),
            data_length: request.data_length.get(),
        }
    }

    /// The unit that the request is for.
    pub(super) fn address(&self) -> Option<Address> {
        Some(Address { target: self.target, lun: self.lun? })
    }

    /// A reply with this status and no data transferred.
    pub(super) fn reply(&self, status: u16) -> ScsiIoReply {
        ScsiIoReply {
            target_id: self.target,
            bus: 0,
            msg_length: 0,
            function: self.function,
            cdb_length: self.cdb_length,
            sense_buffer_length: self.sense_length,
            reserved: 0,
            msg_flags: 0,
            msg_context: self.context.into(),
            scsi_status: 0,
            scsi_state: 0,
            ioc_status: status.into(),
            ioc_log_info: 0.into(),
            transfer_count: 0.into(),
            sense_count: 0.into(),
            response_info: 0.into(),
            task_tag: 0xffff.into(),
            reserved2: 0.into(),
        }
    }

    /// Whether a context reply may report success. Its highest bit must be 0, because 1 marks an address reply. The
    /// next two bits are the type of reply (`MPI_CONTEXT_REPLY_TYPE_MASK`), which an initiator does not need. SeaBIOS
    /// uses time stamps as contexts, and takes any other reply as a failure.
    pub(super) const fn has_short_reply(&self) -> bool {
        self.context & ADDRESS_REPLY == 0
    }
}

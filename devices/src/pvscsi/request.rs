//! Parses a request descriptor into a task, and makes the completion descriptor of a task.

use std::mem::offset_of;

use paradisk_disk_formats::IoBuf;
use vm_memory::GuestAddressSpace;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::spec::{
    HostStatus, MSG_HEAD_OF_QUEUE_TAG, MSG_ORDERED_TAG, RequestFlags, RingCmpDesc, RingReqDesc,
    SGE_FLAG_CHAIN_ELEMENT, SgElement,
};
use crate::dma::{Access, Dma};
use crate::scsi::{Address, Attribute, Direction, SenseData, Status, TaskEnd, single_level_lun};

/// Maximum number of elements of a scatter list, empty and chain elements included. Linux uses at most 128.
pub(super) const MAX_SEGMENTS: usize = 1024;

/// The first 72 of the 128 bytes of a [`RingReqDesc`], which hold all its fields. The device does not read the rest.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes)]
#[repr(C)]
pub struct Request {
    pub(super) context: U64,
    data_addr: U64,
    data_len: U64,
    sense_addr: U64,
    sense_len: U32,
    flags: U32,
    pub(super) cdb: [u8; 16],
    cdb_len: u8,
    lun: [u8; 8],
    tag: u8,
    bus: u8,
    target: u8,
    vcpu_hint: U16,
    unused: [u8; 2],
}
const _: () = assert!(
    size_of::<Request>() == 72 && offset_of!(Request, vcpu_hint) == offset_of!(RingReqDesc, vcpu_hint)
);

/// The fields of a request in flight that its completion needs.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub(super) context: u64,
    pub(super) target: u8,
    pub(super) sense_addr: u64,
    sense_len: u32,
}

impl Pending {
    #[inline]
    pub(super) fn of(request: &Request) -> Self {
        Self {
            context: request.context.get(),
            target: request.target,
            sense_addr: request.sense_addr.get(),
            sense_len: request.sense_len.get(),
        }
    }

    /// The completion. Sense data go to guest memory.
    #[inline(always)]
    pub(super) fn completion<A: GuestAddressSpace>(&self, end: &TaskEnd, dma: &mut Dma<A>) -> RingCmpDesc {
        match end {
            TaskEnd::Answered { status: Status::Good, transferred, .. } => {
                completion(self.context, *transferred, 0, HostStatus::Success, Status::Good as u16)
            }
            _ => self.failure(end, dma),
        }
    }

    #[cold]
    fn failure<A: GuestAddressSpace>(&self, end: &TaskEnd, dma: &mut Dma<A>) -> RingCmpDesc {
        match end {
            // A transfer that is shorter than the buffer is no adapter error: drivers compare the lengths.
            TaskEnd::Answered { status, transferred, sense, .. } => {
                let (host, sense_len) = self.deliver_sense(sense.as_ref(), dma);
                completion(self.context, *transferred, sense_len, host, *status as u16)
            }
            TaskEnd::NoTarget => failed(self.context, HostStatus::SelectionTimeout),
            TaskEnd::WrongDirection => failed(self.context, HostStatus::BadMsg),
            TaskEnd::Aborted => failed(self.context, HostStatus::AbortQueue),
            TaskEnd::Reset => failed(self.context, HostStatus::BusReset),
        }
    }

    #[cold]
    fn deliver_sense<A: GuestAddressSpace>(
        &self,
        sense: Option<&SenseData>,
        dma: &mut Dma<A>,
    ) -> (HostStatus, u32) {
        let sense = sense.map_or(&[][..], SenseData::as_slice);
        let sense = &sense[..sense.len().min(self.sense_len as usize)];
        match dma.write_bytes(self.sense_addr, sense) {
            Ok(()) => (HostStatus::Success, sense.len() as u32),
            Err(_) if sense.is_empty() => (HostStatus::Success, 0),
            Err(_) => (HostStatus::SenseFailed, 0),
        }
    }
}

#[inline(always)]
fn completion(context: u64, data_len: u64, sense_len: u32, host: HostStatus, scsi: u16) -> RingCmpDesc {
    RingCmpDesc {
        context: context.into(),
        data_len: data_len.into(),
        sense_len: sense_len.into(),
        host_status: (host as u16).into(),
        scsi_status: scsi.into(),
        pad: [U32::ZERO; 2],
    }
}

/// The completion of a request that was not executed.
pub(super) fn failed(context: u64, host: HostStatus) -> RingCmpDesc {
    completion(context, 0, 0, host, 0)
}

/// A checked request, without the memory of its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parsed {
    pub(super) address: Address,
    pub(super) attribute: Attribute,
    pub(super) direction: Direction,
    /// Length of the CDB, 1 to 16.
    pub(super) cdb_len: usize,
    /// Bytes of data.
    pub(super) len: u64,
    /// The data address is that of a scatter list.
    sg_list: bool,
}

/// Check a request. The error is the host status of its completion. Always inlined, for requests from the ring.
#[inline(always)]
pub(super) fn parse(request: &Request, targets: u8) -> Result<Parsed, HostStatus> {
    let flags = RequestFlags::from_bits_truncate(request.flags.get());
    let cdb_len = usize::from(request.cdb_len);
    if cdb_len == 0 || cdb_len > request.cdb.len() || flags.contains(RequestFlags::CMD_OUT_OF_BAND_CDB) {
        return Err(HostStatus::InvalidParam);
    }
    if request.bus != 0 || request.target >= targets {
        return Err(HostStatus::SelectionTimeout);
    }
    let lun = single_level_lun(&request.lun).ok_or(HostStatus::SelectionTimeout)?;
    let ways = flags & (RequestFlags::CMD_DIR_TOHOST | RequestFlags::CMD_DIR_TODEVICE);
    let direction = if flags.contains(RequestFlags::CMD_DIR_NONE) {
        Direction::None
    } else if ways == RequestFlags::CMD_DIR_TOHOST {
        Direction::In
    } else if ways == RequestFlags::CMD_DIR_TODEVICE {
        Direction::Out
    } else if ways.is_empty() {
        Direction::Either
    } else {
        return Err(HostStatus::InvalidParam);
    };
    Ok(Parsed {
        address: Address { target: request.target, lun },
        attribute: match request.tag {
            MSG_HEAD_OF_QUEUE_TAG => Attribute::HeadOfQueue,
            MSG_ORDERED_TAG => Attribute::Ordered,
            _ => Attribute::Simple,
        },
        direction,
        cdb_len,
        len: if direction == Direction::None { 0 } else { request.data_len.get() },
        sg_list: flags.contains(RequestFlags::CMD_WITH_SG_LIST),
    })
}

/// The host memory of a request's data, in total `parsed.len` bytes: in `one` on the fast path, else in `list`.
#[inline(always)]
pub(super) fn map_data<'a, A: GuestAddressSpace>(
    request: &Request,
    parsed: &Parsed,
    dma: &mut Dma<A>,
    one: &'a mut IoBuf,
    list: &'a mut Vec<IoBuf>,
) -> Result<&'a [IoBuf], HostStatus> {
    let address = request.data_addr.get();
    if !parsed.sg_list
        && let Some(piece) = dma.piece(address, parsed.len)
    {
        *one = piece;
        return Ok(std::slice::from_ref(one));
    }
    map_pieces(address, parsed, dma, list)?;
    Ok(list)
}

/// [`map_data`] for data in several pieces, or for none.
#[inline(never)]
fn map_pieces<A: GuestAddressSpace>(
    address: u64,
    parsed: &Parsed,
    dma: &mut Dma<A>,
    bufs: &mut Vec<IoBuf>,
) -> Result<(), HostStatus> {
    bufs.clear();
    if parsed.len == 0 {
        return Ok(());
    }
    // The memory must be writable, unless the data go to the device.
    let access = if parsed.direction == Direction::Out { Access::Read } else { Access::Write };
    if parsed.sg_list {
        return map_list(address, parsed.len, access, dma, bufs);
    }
    dma.translate(address, parsed.len, access, bufs).map_err(|_| HostStatus::InvalidParam)
}

/// Walk a scatter list until its pieces cover `len` bytes. A list that does not cover them within [`MAX_SEGMENTS`] elements is refused. A
/// last piece that is longer than needed is cut.
fn map_list<A: GuestAddressSpace>(
    mut at: u64,
    len: u64,
    access: Access,
    dma: &mut Dma<A>,
    bufs: &mut Vec<IoBuf>,
) -> Result<(), HostStatus> {
    let mut left = len;
    for _ in 0..MAX_SEGMENTS {
        let element: SgElement = dma.read(at).map_err(|_| HostStatus::InvalidParam)?;
        if element.flags.get() & SGE_FLAG_CHAIN_ELEMENT != 0 {
            at = element.addr.get();
            continue;
        }
        let piece = left.min(element.length.get().into());
        dma.translate(element.addr.get(), piece, access, bufs).map_err(|_| HostStatus::InvalidParam)?;
        left -= piece;
        if left == 0 {
            return Ok(());
        }
        at = at.checked_add(size_of::<SgElement>() as u64).ok_or(HostStatus::InvalidParam)?;
    }
    Err(HostStatus::InvalidParam)
}

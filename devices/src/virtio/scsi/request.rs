//! A chain is parsed into a task, and the end of a task is written as a response (VIRTIO 1.2, 5.6.6.1).

use std::slice;

use paradisk_disk_formats::IoBuf;
use vm_memory::GuestAddressSpace;
use zerocopy::FromBytes;

use super::super::chain::{Chain, map};
use super::answer::{Answer, Remainder};
use super::lun::{Place, place};
use super::spec::*;
use crate::dma::{Access, Dma};
use crate::scsi::{Attribute, Direction, SenseData, Status, TaskEnd};

/// Length of the longest CDB that the target reads, in bytes.
const MAX_CDB: usize = 32;
const HEADER: usize = size_of::<RequestHeader>();

/// A request, checked.
pub(super) struct Request<'a> {
    pub(super) place: Place,
    pub(super) id: u64,
    pub(super) attribute: Attribute,
    pub(super) direction: Direction,
    /// Bytes of data.
    pub(super) len: u64,
    pub(super) bufs: &'a [IoBuf],
    /// The command descriptor block.
    pub(super) cdb: &'a [u8],
}

/// Copies of the header and the CDB, and the buffer of a request with only one. They are not moved: a move would load them right
/// after they were stored, which stalls the processor.
pub(super) struct Space {
    bytes: [u8; HEADER + MAX_CDB],
    one: IoBuf,
}

impl Space {
    #[inline(always)]
    pub(super) const fn new() -> Self {
        Self { bytes: [0; HEADER + MAX_CDB], one: IoBuf::empty() }
    }
}

/// Parse a chain. `data_in` is the rest of its writable segments, after the response was taken. The data are mapped into `space` or
/// `list`. The error is the response for the guest.
#[inline(always)]
pub(super) fn parse<'a, A: GuestAddressSpace>(
    chain: &mut Chain,
    data_in: Remainder,
    cdb_size: usize,
    targets: u16,
    dma: &mut Dma<A>,
    space: &'a mut Space,
    list: &'a mut Vec<IoBuf>,
) -> Result<Request<'a>, Response> {
    let Space { bytes, one } = space;
    let taken = match cdb_size {
        MAX_CDB => chain.take_array(bytes, dma),
        _ => take_odd(chain, cdb_size, bytes, dma),
    };
    taken.ok_or(Response::Failure)?;
    let (header, cdb) = RequestHeader::ref_from_prefix(&bytes[..]).map_err(|_| Response::Failure)?;
    let cdb = cdb.get(..cdb_size).unwrap_or(cdb);
    let place = place(&header.lun, targets).ok_or(Response::BadTarget)?;
    let data = data_in.other(&chain.writable).filter(|_| chain.readable().is_empty());
    let (direction, len, bufs) = match data.and_then(|data| dma.piece(data.address, data.len)) {
        // Most requests: a read into one piece.
        Some(piece) => {
            let len = piece.len() as u64;
            *one = piece;
            (Direction::In, len, slice::from_ref(one))
        }
        None => map_data(chain, data_in, dma, one, list)?,
    };
    let id = header.id.get();
    let attribute = match header.task_attr {
        VIRTIO_SCSI_S_ORDERED => Attribute::Ordered,
        VIRTIO_SCSI_S_HEAD => Attribute::HeadOfQueue,
        _ => Attribute::Simple,
    };
    Ok(Request { place, id, attribute, direction, len, bufs, cdb })
}

/// Map the data of a request whose header was taken.
#[inline(always)]
fn map_data<'a, A: GuestAddressSpace>(
    chain: &Chain,
    data_in: Remainder,
    dma: &mut Dma<A>,
    one: &'a mut IoBuf,
    list: &'a mut Vec<IoBuf>,
) -> Result<(Direction, u64, &'a [IoBuf]), Response> {
    let writable = data_in.of(&chain.writable);
    let (direction, mapped) = match (chain.readable(), writable.clone().next()) {
        ([], None) => (Direction::None, Ok((0, &[][..]))),
        ([], Some(_)) => (Direction::In, map(writable, Access::Write, dma, one, list)),
        (data, None) => (Direction::Out, map(data.iter().copied(), Access::Read, dma, one, list)),
        _ => return Err(Response::Failure),
    };
    let (len, bufs) = mapped.map_err(|_| Response::Failure)?;
    Ok((direction, len, bufs))
}

/// Take a header with a CDB of another size than the target reads: a shorter one is padded with zeros, a longer one truncated.
#[cold]
fn take_odd<A: GuestAddressSpace>(
    chain: &mut Chain,
    cdb_size: usize,
    bytes: &mut [u8; HEADER + MAX_CDB],
    dma: &mut Dma<A>,
) -> Option<()> {
    chain.take_bytes(bytes.get_mut(..HEADER + cdb_size.min(MAX_CDB))?, dma)?;
    if cdb_size > MAX_CDB {
        let mut ignored = [0; MAX_CDB_SIZE as usize];
        chain.take_bytes(ignored.get_mut(..cdb_size - MAX_CDB)?, dma)?;
    }
    Some(())
}

/// The response to a request.
pub(super) struct Outcome {
    response: Response,
    status: Status,
    residual: u32,
    sense_len: u32,
    sense: Option<SenseData>,
    /// The request succeeded.
    pub(super) good: bool,
}

impl Outcome {
    /// The response to a request with `len` bytes of data, none of which was transferred.
    pub(super) fn nothing(response: Response, len: u64) -> Self {
        Self::new(response, Status::Good, len)
    }

    /// The response to a request with `len` bytes of data and at most `sense_size` bytes of sense data.
    #[inline(always)]
    pub(super) fn of(end: &TaskEnd, len: u64, sense_size: u32) -> Self {
        match end {
            // An overrun has no residual: the transferred data are not meaningful.
            TaskEnd::Answered { status: Status::Good, wanted, .. } if *wanted > len => {
                Self::new(Response::Overrun, Status::Good, 0)
            }
            TaskEnd::Answered { status, transferred, sense, .. } => {
                let mut outcome = Self::new(Response::Ok, *status, len.saturating_sub(*transferred));
                if let Some(sense) = sense {
                    outcome.sense_len = (sense.as_slice().len() as u32).min(sense_size);
                    outcome.sense = Some(*sense);
                }
                outcome
            }
            TaskEnd::NoTarget => Self::nothing(Response::BadTarget, len),
            TaskEnd::WrongDirection => Self::nothing(Response::Overrun, len),
            TaskEnd::Aborted => Self::nothing(Response::Aborted, len),
            TaskEnd::Reset => Self::nothing(Response::Reset, len),
        }
    }

    #[inline(always)]
    fn new(response: Response, status: Status, residual: u64) -> Self {
        let residual = u32::try_from(residual).unwrap_or(u32::MAX);
        let good = response == Response::Ok && status == Status::Good;
        Self { response, status, residual, sense_len: 0, sense: None, good }
    }

    /// [`ResponseHeader`] as a qword and a dword, computed in registers: storing its fields and then loading it whole stalls the
    /// processor.
    #[inline(always)]
    const fn words(&self) -> (u64, u32) {
        let first = self.sense_len as u64 | (self.residual as u64) << 32;
        (first, (self.status as u32) << 16 | (self.response as u32) << 24)
    }

    /// Write it to guest memory. Returns the bytes written; `None`: the address is not in memory.
    #[inline(always)]
    pub(super) fn write<A: GuestAddressSpace>(&self, answer: &Answer, dma: &mut Dma<A>) -> Option<u32> {
        const LEN: u32 = size_of::<ResponseHeader>() as u32;
        match answer.write_words(self.words(), dma) {
            Some(written) if self.sense.is_none() => written.then_some(LEN),
            _ => self.write_all(answer, dma),
        }
    }

    /// The same with sense data, or for a response in several segments.
    #[cold]
    fn write_all<A: GuestAddressSpace>(&self, answer: &Answer, dma: &mut Dma<A>) -> Option<u32> {
        let (first, second) = self.words();
        let sense = self.sense.as_ref().and_then(|sense| sense.as_slice().get(..self.sense_len as usize));
        let bytes = [&first.to_le_bytes()[..], &second.to_le_bytes(), sense.unwrap_or_default()].concat();
        answer.write(&bytes, dma).then_some(bytes.len() as u32)
    }
}

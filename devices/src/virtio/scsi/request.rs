//! A chain becomes a task, and the end of a task becomes an answer (VIRTIO 1.2, 5.6.6.1).

use disk_formats::IoBuf;
use vm_memory::GuestAddressSpace;
use zerocopy::{FromBytes, IntoBytes};

use super::super::chain::{Chain, Segment};
use super::answer::{Answer, Rest};
use super::lun::{Place, place};
use super::spec::*;
use crate::dma::{Access, Dma};
use crate::scsi::{Attribute, Direction, SenseData, Status, TaskEnd};

/// Bytes of the longest CDB that the target looks at.
const MAX_CDB: usize = 32;
const HEADER: usize = size_of::<RequestHeader>();

/// A request, checked.
pub(super) struct Request {
    pub(super) place: Place,
    pub(super) id: u64,
    pub(super) attribute: Attribute,
    pub(super) direction: Direction,
    /// Bytes of data.
    pub(super) len: u64,
    cdb: [u8; MAX_CDB],
    cdb_len: usize,
}

impl Request {
    /// The command descriptor block.
    pub(super) fn cdb(&self) -> &[u8] {
        self.cdb.get(..self.cdb_len).unwrap_or(&self.cdb)
    }
}

/// Parse a chain of whose writable part `data_in` is left beside the answer. Host memory of the data is appended to
/// `bufs`. The error is what the guest gets.
#[inline]
pub(super) fn parse<A: GuestAddressSpace>(
    chain: &mut Chain,
    data_in: Rest,
    cdb_size: usize,
    targets: u16,
    dma: &mut Dma<A>,
    bufs: &mut Vec<IoBuf>,
) -> Result<Request, Response> {
    let mut bytes = [0; HEADER + MAX_CDB];
    let cdb_len = cdb_size.min(MAX_CDB);
    let start = bytes.get_mut(..HEADER + cdb_len).ok_or(Response::Failure)?;
    chain.take_bytes(start, dma).ok_or(Response::Failure)?;
    if cdb_size > MAX_CDB {
        let mut ignored = [0; MAX_CDB_SIZE as usize];
        let ignored = ignored.get_mut(..cdb_size - MAX_CDB).ok_or(Response::Failure)?;
        chain.take_bytes(ignored, dma).ok_or(Response::Failure)?;
    }
    let (header, cdb) = RequestHeader::read_from_prefix(&bytes).map_err(|_| Response::Failure)?;
    let place = place(&header.lun, targets).ok_or(Response::BadTarget)?;
    let out = map(chain.readable().iter().copied(), Access::Read, dma, bufs)?;
    let into = map(data_in.of(&chain.writable), Access::Write, dma, bufs)?;
    let (direction, len) = match (out, into) {
        (0, 0) => (Direction::None, 0),
        (0, len) => (Direction::In, len),
        (len, 0) => (Direction::Out, len),
        _ => return Err(Response::Failure),
    };
    Ok(Request {
        place,
        id: header.id.get(),
        attribute: match header.task_attr {
            VIRTIO_SCSI_S_ORDERED => Attribute::Ordered,
            VIRTIO_SCSI_S_HEAD => Attribute::HeadOfQueue,
            _ => Attribute::Simple,
        },
        direction,
        len,
        cdb: cdb.try_into().map_err(|_| Response::Failure)?,
        cdb_len,
    })
}

/// Bytes of the segments, with their host memory appended to `bufs`.
#[inline]
fn map<A: GuestAddressSpace>(
    segments: impl Iterator<Item = Segment>,
    access: Access,
    dma: &mut Dma<A>,
    bufs: &mut Vec<IoBuf>,
) -> Result<u64, Response> {
    let mut len = 0;
    for segment in segments {
        dma.translate(segment.address, segment.len, access, bufs).map_err(|_| Response::Failure)?;
        len += segment.len;
    }
    Ok(len)
}

/// The answer to a request.
pub(super) struct Outcome {
    header: ResponseHeader,
    sense: Option<SenseData>,
    /// It went well.
    pub(super) good: bool,
}

impl Outcome {
    /// The answer to a request with `len` bytes of data that nothing was done for.
    pub(super) fn nothing(response: Response, len: u64) -> Self {
        Self::new(response, Status::Good, len)
    }

    /// The answer to a request with `len` bytes of data and room for `sense_size` of sense data.
    #[inline]
    pub(super) fn of(end: &TaskEnd, len: u64, sense_size: u32) -> Self {
        match end {
            // Nothing is to be read into data that were moved in part.
            TaskEnd::Answered { status: Status::Good, wanted, .. } if *wanted > len => {
                Self::new(Response::Overrun, Status::Good, 0)
            }
            TaskEnd::Answered { status, transferred, sense, .. } => {
                let mut outcome = Self::new(Response::Ok, *status, len.saturating_sub(*transferred));
                if let Some(sense) = sense {
                    outcome.header.sense_len = (sense.as_slice().len() as u32).min(sense_size).into();
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

    #[inline]
    fn new(response: Response, status: Status, residual: u64) -> Self {
        let header = ResponseHeader {
            sense_len: 0.into(),
            residual: u32::try_from(residual).unwrap_or(u32::MAX).into(),
            status_qualifier: 0.into(),
            status: status as u8,
            response: response as u8,
        };
        let good = response == Response::Ok && status == Status::Good;
        Self { header, sense: None, good }
    }

    /// Show the guest: the bytes written, `None` where there is no memory.
    #[inline]
    pub(super) fn write<A: GuestAddressSpace>(&self, answer: &Answer, dma: &mut Dma<A>) -> Option<u32> {
        let header = self.header.as_bytes();
        let Some(sense) = &self.sense else {
            return answer.write(header, dma).then_some(header.len() as u32);
        };
        let len = self.header.sense_len.get() as usize;
        let bytes = [header, sense.as_slice().get(..len).unwrap_or_default()].concat();
        answer.write(&bytes, dma).then_some(bytes.len() as u32)
    }
}

//! A chain becomes a request: checked once, right or answered with the status that the specification has for it
//! (VIRTIO 1.2, 5.2.6).

use disk_formats::{DiskInfo, IoBuf, Op};
use vm_memory::GuestAddressSpace;

use super::super::chain::{Chain, Segment};
use super::config::{MAX_RANGE_SECTORS, MAX_RANGES};
use super::spec::*;
use crate::dma::{Access, Dma};

/// A step of a request: what the disk does at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: u64,
}

pub(super) const FLUSH: Step = Step { op: Op::Flush, offset: 0, len: 0 };

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// A read, a write or a flush.
    Transfer(Step),
    /// Discards or writes of zeros, one range after the other.
    Ranges(Vec<Step>),
    /// The serial number.
    GetId,
}

/// Parse a chain of which the status byte is taken. Data to transfer are appended to `bufs`. The error is what the guest
/// gets.
pub(super) fn parse<A: GuestAddressSpace>(
    chain: &mut Chain,
    info: &DiskInfo,
    dma: &mut Dma<A>,
    bufs: &mut Vec<IoBuf>,
) -> Result<Command, Status> {
    let header: RequestHeader = chain.take_header(dma).ok_or(Status::IoErr)?;
    let request_type = header.request_type.get();
    let writes = matches!(request_type, VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES);
    if chain.malformed || writes && info.read_only {
        return Err(Status::IoErr);
    }
    match request_type {
        VIRTIO_BLK_T_IN => {
            let len = map(&chain.writable, Access::Write, dma, bufs)?;
            transfer(Op::Read, &header, len, chain.readable())
        }
        VIRTIO_BLK_T_OUT => {
            let len = map(chain.readable(), Access::Read, dma, bufs)?;
            transfer(Op::Write { fua: false }, &header, len, &chain.writable)
        }
        VIRTIO_BLK_T_FLUSH => Ok(Command::Transfer(FLUSH)),
        VIRTIO_BLK_T_GET_ID => {
            map(&chain.writable, Access::Write, dma, bufs)?;
            Ok(Command::GetId)
        }
        VIRTIO_BLK_T_DISCARD if info.discard.is_some() => ranges(true, chain, info, dma),
        VIRTIO_BLK_T_WRITE_ZEROES => ranges(false, chain, info, dma),
        _ => Err(Status::Unsupp),
    }
}

/// A transfer has data one way only, and whole sectors. What lies outside the disk, the disk refuses.
fn transfer(op: Op, header: &RequestHeader, len: u64, other_way: &[Segment]) -> Result<Command, Status> {
    let offset = header.sector.get().checked_mul(SECTOR_SIZE);
    let offset = offset.filter(|_| other_way.is_empty() && len > 0 && len.is_multiple_of(SECTOR_SIZE));
    Ok(Command::Transfer(Step { op, offset: offset.ok_or(Status::IoErr)?, len }))
}

/// Bytes of the segments, with their host memory appended to `bufs`.
#[inline]
fn map<A: GuestAddressSpace>(
    segments: &[Segment],
    access: Access,
    dma: &mut Dma<A>,
    bufs: &mut Vec<IoBuf>,
) -> Result<u64, Status> {
    let mut len = 0;
    for segment in segments {
        dma.translate(segment.address, segment.len, access, bufs).map_err(|_| Status::IoErr)?;
        len += segment.len;
    }
    Ok(len)
}

/// All ranges are checked before the first is done.
fn ranges<A: GuestAddressSpace>(
    discard: bool,
    chain: &mut Chain,
    info: &DiskInfo,
    dma: &mut Dma<A>,
) -> Result<Command, Status> {
    let mut steps = Vec::new();
    while !chain.readable().is_empty() {
        if steps.len() >= MAX_RANGES as usize {
            return Err(Status::IoErr);
        }
        let range: RangeDesc = chain.take_header(dma).ok_or(Status::IoErr)?;
        let flags = range.flags.get();
        if flags & !RANGE_UNMAP != 0 || discard && flags != 0 {
            return Err(Status::Unsupp);
        }
        let offset = range.sector.get().checked_mul(SECTOR_SIZE).ok_or(Status::IoErr)?;
        let len = u64::from(range.num_sectors.get()) * SECTOR_SIZE;
        let inside = offset.checked_add(len).is_some_and(|end| end <= info.capacity);
        if !inside || range.num_sectors.get() > MAX_RANGE_SECTORS {
            return Err(Status::IoErr);
        }
        let op = if discard { Op::Discard } else { Op::WriteZeroes { may_unmap: flags & RANGE_UNMAP != 0 } };
        if len > 0 {
            steps.push(Step { op, offset, len });
        }
    }
    if steps.is_empty() || !chain.writable.is_empty() {
        Err(Status::IoErr)
    } else {
        Ok(Command::Ranges(steps))
    }
}

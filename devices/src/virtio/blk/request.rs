//! Parses a chain into a request. If the chain is not a valid request, it completes with the status that the specification requires
//! (VIRTIO 1.2, 5.2.6).

use paradisk_disk_formats::{DiskInfo, IoBuf, Op};
use vm_memory::GuestAddressSpace;

use super::super::chain::{Chain, map};
use super::config::{MAX_RANGE_SECTORS, MAX_RANGES};
use super::spec::*;
use crate::dma::{Access, Dma};

/// A step of a request: one operation of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: u64,
}

pub(super) const FLUSH: Step = Step { op: Op::Flush, offset: 0, len: 0 };

/// A request other than a read or a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// A flush.
    Flush,
    /// Discards or writes of zeros, one range after the other.
    Ranges(Vec<Step>),
    /// The serial number.
    GetId,
}

/// Type and sector of a chain whose status byte was taken. `None`: it has no header.
#[inline(always)]
pub(super) fn take_header<A: GuestAddressSpace>(chain: &mut Chain, dma: &mut Dma<A>) -> Option<(u32, u64)> {
    // `RequestHeader`: a type, a dword that is ignored, and the sector.
    const { assert!(size_of::<RequestHeader>() == 16) };
    let [request_type, sector] = chain.take_qwords(dma)?;
    Some((request_type as u32, sector))
}

/// A read or a write.
pub(super) struct Transfer<'a> {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) bufs: &'a [IoBuf],
}

/// Parse a read or a write, from a chain whose status byte and header were taken. Its data are mapped into `one` or `list`. The
/// error is the status for the guest.
#[inline(always)]
pub(super) fn parse_transfer<'a, A: GuestAddressSpace>(
    chain: &Chain,
    (write, sector): (bool, u64),
    info: &DiskInfo,
    dma: &mut Dma<A>,
    one: &'a mut IoBuf,
    list: &'a mut Vec<IoBuf>,
) -> Result<Transfer<'a>, Status> {
    if chain.malformed || write && info.read_only {
        return Err(Status::IoErr);
    }
    let (data, other_way, access) = match write {
        true => (chain.readable(), &chain.writable[..], Access::Read),
        false => (&chain.writable[..], chain.readable(), Access::Write),
    };
    let mapped = map(data.iter().copied(), access, dma, one, list);
    let (len, bufs) = mapped.map_err(|_| Status::IoErr)?;
    // Data in one direction only, and whole sectors. The disk refuses offsets beyond its end.
    if !other_way.is_empty() || len == 0 || !len.is_multiple_of(SECTOR_SIZE) {
        return Err(Status::IoErr);
    }
    let offset = sector.checked_mul(SECTOR_SIZE).ok_or(Status::IoErr)?;
    Ok(Transfer { offset, len, bufs })
}

/// Parse a request other than a read or a write, from a chain whose status byte and header were taken. Its data buffers are
/// appended to `bufs`. The error is the status for the guest.
pub(super) fn parse<A: GuestAddressSpace>(
    chain: &mut Chain,
    request_type: u32,
    info: &DiskInfo,
    dma: &mut Dma<A>,
    bufs: &mut Vec<IoBuf>,
) -> Result<Command, Status> {
    let writes = matches!(request_type, VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES);
    if chain.malformed || writes && info.read_only {
        return Err(Status::IoErr);
    }
    match request_type {
        VIRTIO_BLK_T_FLUSH => Ok(Command::Flush),
        VIRTIO_BLK_T_GET_ID => {
            for segment in &chain.writable {
                let mapped = dma.translate(segment.address, segment.len, Access::Write, bufs);
                mapped.map_err(|_| Status::IoErr)?;
            }
            Ok(Command::GetId)
        }
        VIRTIO_BLK_T_DISCARD if info.discard.is_some() => ranges(true, chain, info, dma),
        VIRTIO_BLK_T_WRITE_ZEROES => ranges(false, chain, info, dma),
        _ => Err(Status::Unsupp),
    }
}

/// All ranges are checked before the first one is executed.
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

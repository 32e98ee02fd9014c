//! The commands of several disk requests, as [`steps`](super::steps): VERIFY, WRITE AND VERIFY, WRITE SAME, UNMAP, COMPARE AND
//! WRITE and the self-test (SBC-3, 5). WRITE SAME of zeros is one request.

use paradisk_disk_formats::Op;
use zerocopy::FromBytes;

use super::cdb::{Against, Blocks, Same};
use super::data::{buffer_len, data_out};
use super::medium::Medium;
use super::sense::{Sense, asc};
use super::spec::{UnmapDescriptor, UnmapHeader, opcode};
use super::steps::{Flush, Outcome, Step, Then, command, pieces};
use super::task::{Direction, Failure, Task, TaskEnd};
use super::{gather, limits};

/// VERIFY: blocks in a volatile cache are written to the medium before they are read from it (SBC-3, 5.30).
pub(super) fn verify(
    medium: &Medium,
    task: &Task<'_>,
    blocks: Blocks,
    against: Against,
) -> Result<Outcome, Failure> {
    let (offset, len) = verified_range(medium, blocks)?;
    let needed = match against {
        Against::Nothing => 0,
        Against::Data => len,
        Against::OneBlock => len.min(1 << medium.shift()),
    };
    whole_data_out(task, needed)?;
    let flush = (len > 0 && medium.volatile()).then(Step::flush);
    let steps = flush.into_iter().chain(reads(offset, len, against));
    Ok(command(steps, Flush::Never, blocks.lba, (needed, needed)))
}

/// WRITE AND VERIFY: the blocks are on the medium before they are read back.
pub(super) fn write_and_verify(
    medium: &Medium,
    task: &Task<'_>,
    blocks: Blocks,
    against: Against,
) -> Result<Outcome, Failure> {
    let (offset, len) = verified_range(medium, blocks)?;
    medium.writable()?;
    whole_data_out(task, len)?;
    if len == 0 {
        return Ok(Outcome::good(0, 0));
    }
    let write = Step::transfer(medium.write_op(true), offset, len, 0);
    let steps = [write].into_iter().chain(reads(offset, len, against));
    Ok(command(steps, Flush::Never, blocks.lba, (len, len)))
}

/// Byte offset and length of blocks that one command may verify.
fn verified_range(medium: &Medium, blocks: Blocks) -> Result<(u64, u64), Sense> {
    let (offset, len) = medium.range(blocks)?;
    if len > limits::TRANSFER_BYTES {
        return Err(Sense::illegal(asc::INVALID_FIELD_IN_CDB));
    }
    Ok((offset, len))
}

/// Read blocks and compare them.
fn reads(offset: u64, len: u64, against: Against) -> impl Iterator<Item = Step> + Send {
    pieces(offset, len).map(move |(start, at, len)| {
        let then = match against {
            Against::Nothing => Then::Nothing,
            Against::Data => Then::Verify(start),
            Against::OneBlock => Then::VerifyEach,
        };
        Step::read(at, len, then)
    })
}

/// The default self-test of SEND DIAGNOSTIC reads the first and the last block.
pub(super) fn self_test(medium: &Medium) -> Outcome {
    let (last, block) = (medium.blocks().saturating_sub(1) << medium.shift(), 1 << medium.shift());
    let steps = [0, last].map(|offset| Step::read(offset, block, Then::SelfTest));
    command(steps, Flush::Never, 0, (0, 0))
}

/// COMPARE AND WRITE. It is a barrier in the order of tasks, so no other task of the unit runs. FUA applies to both of its parts (SBC-3, 5.2):
/// the blocks are compared as the medium has them, so those in a volatile cache are written to it first.
pub(super) fn compare_and_write(
    medium: &Medium,
    task: &Task<'_>,
    blocks: Blocks,
    fua: bool,
) -> Result<Outcome, Failure> {
    let (offset, len) = medium.range(blocks)?;
    if len > limits::COMPARE_BYTES {
        return Err(Sense::cdb(13).into());
    }
    medium.writable()?;
    exact_data_out(task, 2 * len)?;
    if len == 0 {
        return Ok(Outcome::good(0, 0));
    }
    let write = Step::transfer(medium.write_op(fua), offset, len, len);
    let before = (fua && medium.volatile()).then(Step::flush);
    let steps = before.into_iter().chain([Step::read(offset, len, Then::Compare), write]);
    Ok(command(steps, Flush::Never, blocks.lba, (2 * len, 2 * len)))
}

/// WRITE SAME: zeros are one disk request, any other pattern is written in steps.
pub(super) fn write_same(medium: &Medium, task: &Task<'_>, same: Same) -> Result<Outcome, Failure> {
    let (offset, len) = medium.range(same.blocks)?;
    // WSNZ: zero does not mean "to the end of the medium" here.
    if len == 0 || len > limits::SAME_BYTES {
        let ten = task.cdb.first() == Some(&opcode::WRITE_SAME_10);
        return Err(Sense::cdb(if ten { 7 } else { 10 }).into());
    }
    if same.unmap && medium.info().discard.is_none() {
        return Err(Sense::cdb_bit(1, 3).into());
    }
    medium.writable()?;
    let needed = if same.ndob { 0 } else { 1 << medium.shift() };
    exact_data_out(task, needed)?;
    let mut pattern = [0; 4096];
    let pattern = pattern.get_mut(..needed as usize).unwrap_or_default();
    gather::gather(task.bufs, pattern);
    let lba = same.blocks.lba;
    if pattern.iter().any(|byte| *byte != 0) {
        let steps = pieces(offset, len).map(|(start, at, len)| Step::fill(at, len, start == 0));
        return Ok(command(steps, Flush::WriteThrough, lba, (needed, needed)));
    }
    let zeroes = Step::of(Op::WriteZeroes { may_unmap: same.unmap }, offset, len);
    Ok(command([zeroes], Flush::WriteThrough, lba, (needed, needed)))
}

/// UNMAP. The whole list is checked before the first block is unmapped.
pub(super) fn unmap(medium: &Medium, task: &Task<'_>, len: u32) -> Result<Outcome, Failure> {
    medium.writable()?;
    if len == 0 {
        return Ok(Outcome::good(0, 0));
    }
    let list = data_out(task, len)?;
    let (header, rest) =
        UnmapHeader::ref_from_prefix(&list).map_err(|_| Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR))?;
    // A descriptor that is cut short by either length is ignored (SBC-3, 5.28.2).
    let descriptors = usize::from(header.descriptors.get());
    let rest = rest.get(..descriptors).unwrap_or(rest);
    let (descriptors, _) = rest.as_chunks::<{ size_of::<UnmapDescriptor>() }>();
    if descriptors.len() > limits::UNMAP_DESCRIPTORS as usize {
        return Err(Sense::list(2).into());
    }
    let mut ranges = Vec::new();
    let mut total = 0u64;
    for descriptor in descriptors {
        let descriptor: UnmapDescriptor = zerocopy::transmute!(*descriptor);
        let blocks = Blocks { lba: descriptor.lba.get(), count: descriptor.blocks.get() };
        // A count of 0 blocks is no error, even at the end of the medium (SBC-3, 5.28.2).
        if blocks.count == 0 && blocks.lba <= medium.blocks() {
            continue;
        }
        ranges.push(medium.range(blocks)?);
        total += u64::from(blocks.count);
    }
    if total > limits::UNMAP_BLOCKS.into() {
        return Err(Sense::illegal(asc::INVALID_FIELD_IN_PARAMETER_LIST).into());
    }
    let lba = ranges.first().map_or(0, |(offset, _)| offset >> medium.shift());
    let steps = ranges.into_iter().map(|(offset, len)| Step::of(Op::Discard, offset, len));
    let moved = len.into();
    Ok(command(steps, Flush::WriteThrough, lba, (moved, moved)))
}

/// Fails with an invalid field if the Data-Out Buffer is too short.
fn whole_data_out(task: &Task<'_>, needed: u64) -> Result<(), Failure> {
    if needed > 0 && task.direction == Direction::In {
        return Err(Failure::End(TaskEnd::WrongDirection));
    }
    if needed > buffer_len(task) {
        return Err(Failure::Check(Sense::illegal(asc::INVALID_FIELD_IN_CDB), needed));
    }
    Ok(())
}

/// Fails unless the Data-Out Buffer has exactly this length. A longer buffer shows that the command's number of blocks was truncated: that
/// of COMPARE AND WRITE has 8 bits, so 256 blocks become 0.
fn exact_data_out(task: &Task<'_>, needed: u64) -> Result<(), Failure> {
    if needed > 0 && task.direction == Direction::In {
        return Err(Failure::End(TaskEnd::WrongDirection));
    }
    match buffer_len(task) == needed {
        true => Ok(()),
        false => Err(Sense::illegal(asc::INVALID_FIELD_IN_CDB).into()),
    }
}

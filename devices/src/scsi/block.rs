//! READ, WRITE and flushes (SBC-3, 5.10 and following): one disk request, if the initiator's buffer has the command's length and no flush
//! goes before a READ; else [`steps`].

use paradisk_disk_formats::{IoError, Op};

use super::cdb::Transfer;
use super::data::buffer_len;
use super::medium::Medium;
use super::sense::{Sense, asc};
use super::steps::{self, Flush, Outcome, Step, Then};
use super::task::{Direction, Failure, Task, TaskEnd};
use super::tasks::{Entry, State};

/// The fast path: push the request of a READ or WRITE that is one disk request. `None`: another command, an error, or a full queue; nothing
/// was done.
#[inline(always)]
pub(super) fn start(medium: &mut Medium, task: &Task<'_>) -> Option<Entry> {
    let transfer = Transfer::parse(task.cdb)?;
    let (offset, len) = medium.transfer_range(transfer.blocks).ok()?;
    if len == 0 || len != task.len || !task.direction.allows(transfer.write) {
        return None;
    }
    if transfer.write {
        medium.writable().ok()?;
    } else if flushes_first(medium, transfer) {
        return None;
    }
    let (op, state) = request(medium, transfer);
    let pushed = medium.push(task.id, op, offset, len, task.bufs);
    pushed.then(|| Entry::new(state, transfer.blocks.lba, len, len))
}

/// READ or WRITE, whatever the initiator's buffer.
pub(super) fn transfer(medium: &mut Medium, task: &Task<'_>, transfer: Transfer) -> Result<Outcome, Failure> {
    let (offset, wanted) = medium.transfer_range(transfer.blocks)?;
    if transfer.write {
        medium.writable()?;
    }
    let wrong = if transfer.write { Direction::In } else { Direction::Out };
    if task.direction == wrong && wanted > 0 {
        return Err(Failure::End(TaskEnd::WrongDirection));
    }
    let (lba, shift) = (transfer.blocks.lba, medium.shift());
    let fits = wanted.min(buffer_len(task));
    let whole = fits >> shift << shift;
    let flush = flushes_first(medium, transfer).then(Step::flush).into_iter();
    if !transfer.write && fits > whole {
        // The whole last block is read, and its start is copied to the buffer.
        let copy = move |(start, at, len): (u64, u64, u64)| {
            Step::read(at, len, Then::Copy { start, len: len.min(fits - start) })
        };
        let copies = steps::pieces(offset, whole + (1 << shift)).map(copy);
        return Ok(steps::command(flush.chain(copies), Flush::Never, lba, (fits, wanted)));
    }
    if whole == 0 {
        return Ok(Outcome::good(0, wanted));
    }
    let (op, state) = request(medium, transfer);
    if flush.len() > 0 {
        let read = Step::transfer(op, offset, whole, 0);
        return Ok(steps::command(flush.chain([read]), Flush::Never, lba, (whole, wanted)));
    }
    Ok(match medium.push_part(task.id, op, (offset, whole), task.bufs, 0) {
        true => Outcome::Started(Entry::new(state, lba, whole, wanted)),
        false => Outcome::Full,
    })
}

/// The operation, and the state of a task that is this one request.
#[inline(always)]
fn request(medium: &Medium, transfer: Transfer) -> (Op, State) {
    if transfer.write { (medium.write_op(transfer.fua), State::Write) } else { (Op::Read, State::Read) }
}

/// Whether cached data must be written to the medium before a READ with FUA reads the medium (SBC-3, 4.15.4).
#[inline(always)]
fn flushes_first(medium: &Medium, transfer: Transfer) -> bool {
    !transfer.write && transfer.fua && medium.volatile()
}

/// Flush. The task ends after the flush; with `immediate`, it ends now.
pub(super) fn flush(medium: &mut Medium, id: u32, immediate: bool) -> Outcome {
    if medium.volatile() && immediate && medium.push_background_flush() {
        return Outcome::good(0, 0);
    }
    flush_for(medium, id, 0)
}

/// Flush, and end the task after it. The task has moved `transferred` bytes.
pub(super) fn flush_for(medium: &mut Medium, id: u32, transferred: u64) -> Outcome {
    if !medium.volatile() {
        return Outcome::good(transferred, transferred);
    }
    match medium.push_flush(id) {
        true => Outcome::Started(Entry::new(State::Flush, 0, transferred, transferred)),
        false => Outcome::Full,
    }
}

/// The sense data of a task whose only request failed.
pub(super) fn error(error: IoError, entry: &Entry) -> Sense {
    let (medium, lba) = match entry.state {
        State::Read => (asc::UNRECOVERED_READ_ERROR, Some(entry.lba)),
        State::Flush => (asc::WRITE_ERROR, None),
        _ => (asc::WRITE_ERROR, Some(entry.lba)),
    };
    Sense::from_io(error, medium, lba)
}

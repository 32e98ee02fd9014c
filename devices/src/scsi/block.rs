//! The I/O path of most tasks: READ, WRITE and flushes, as one or two disk requests (SBC-3, 5.10 and following). A READ whose buffer ends
//! inside a block needs [`steps`](super::steps).

use paradisk_disk_formats::{IoBuf, IoError, Op};

use super::cdb::Transfer;
use super::data::buffer_len;
use super::medium::Medium;
use super::sense::{Sense, asc};
use super::steps::{self, Flush, Outcome, Step, Then};
use super::task::{Direction, Failure, Task, TaskEnd};
use super::tasks::{Entry, State, Tasks};

/// The fast path: push the request of a READ or WRITE that is one disk request. `None`: another command, an error, or a full queue; nothing
/// was done.
#[inline(always)]
pub(super) fn start(medium: &mut Medium, task: &Task<'_>) -> Option<Entry> {
    let Transfer { write, fua, blocks } = Transfer::parse(task.cdb)?;
    let (offset, len) = medium.transfer_range(blocks).ok()?;
    if len == 0 || len != task.len || !task.direction.allows(write) {
        return None;
    }
    let (op, state) = if write {
        medium.writable().ok()?;
        let (op, flush) = medium.write_op(fua);
        (op, if flush { State::WriteThenFlush } else { State::Write })
    } else if flushes_first(medium, fua) {
        return None;
    } else {
        (Op::Read, State::Read)
    };
    medium.push(task.id, op, offset, len, task.bufs).then(|| Entry::new(state, blocks.lba, len, len))
}

/// READ or WRITE.
pub(super) fn transfer(medium: &mut Medium, task: &Task<'_>, transfer: Transfer) -> Result<Outcome, Failure> {
    let (offset, wanted) = medium.transfer_range(transfer.blocks)?;
    if transfer.write {
        medium.writable()?;
    }
    let wrong = if transfer.write { Direction::In } else { Direction::Out };
    if task.direction == wrong && wanted > 0 {
        return Err(Failure::End(TaskEnd::WrongDirection));
    }
    if wanted != buffer_len(task) {
        return Ok(uneven(medium, task, transfer, (offset, wanted)));
    }
    if wanted == 0 {
        return Ok(Outcome::good(0, 0));
    }
    let entry = Entry::new(State::Read, transfer.blocks.lba, wanted, wanted);
    Ok(begin(medium, task.id, transfer, entry, offset, task.bufs))
}

/// READ or WRITE whose buffer has another length than the command.
#[cold]
fn uneven(medium: &mut Medium, task: &Task<'_>, transfer: Transfer, (offset, wanted): (u64, u64)) -> Outcome {
    let (lba, shift) = (transfer.blocks.lba, medium.shift());
    let fits = wanted.min(buffer_len(task));
    let whole = fits >> shift << shift;
    if !transfer.write && fits > whole {
        // The whole last block is read, and its start is copied to the buffer.
        let pieces = steps::pieces(offset, whole + (1 << shift));
        let copy = move |(start, at, len): (u64, u64, u64)| {
            Step::read(at, len, Then::Copy { start, len: len.min(fits - start) })
        };
        let flush = flushes_first(medium, transfer.fua).then(Step::flush);
        return steps::command(flush.into_iter().chain(pieces.map(copy)), Flush::Never, lba, (fits, wanted));
    }
    if whole == 0 {
        return Outcome::good(0, wanted);
    }
    let mut list = Vec::new();
    super::gather::slice(task.bufs, 0, whole, &mut list);
    begin(medium, task.id, transfer, Entry::new(State::Read, lba, whole, wanted), offset, &list)
}

/// Whether cached data must be written to the medium before a READ with this FUA bit reads the medium (SBC-3, 4.15.4).
#[inline]
fn flushes_first(medium: &Medium, fua: bool) -> bool {
    fua && medium.volatile()
}

/// Push a transfer's first request. `entry` has the state Read, which is replaced if the transfer needs another.
fn begin(
    medium: &mut Medium,
    id: u32,
    transfer: Transfer,
    mut entry: Entry,
    offset: u64,
    bufs: &[IoBuf],
) -> Outcome {
    let op = if transfer.write {
        let (op, flush) = medium.write_op(transfer.fua);
        entry.state = if flush { State::WriteThenFlush } else { State::Write };
        op
    } else {
        if flushes_first(medium, transfer.fua) {
            entry.state = State::FlushThenRead;
            return if medium.push_flush(id) { Outcome::Kept(entry) } else { Outcome::Full };
        }
        Op::Read
    };
    match medium.push(id, op, offset, entry.transferred, bufs) {
        true => Outcome::Started(entry),
        false => Outcome::Full,
    }
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

/// Push the second request of a task; false: the queue is full.
pub(super) fn push_next(medium: &mut Medium, id: u32, tasks: &mut Tasks) -> bool {
    let Some(entry) = tasks.get(id) else { return true };
    let (state, taken) = match entry.state {
        State::PendingFlush => (State::Flush, medium.push_flush(id)),
        State::PendingRead => {
            let range = (entry.lba << medium.shift(), entry.transferred);
            (State::Read, medium.push_part(id, Op::Read, range, tasks.bufs(id), 0))
        }
        _ => return true,
    };
    if taken {
        tasks.set_state(id, state);
    }
    taken
}

/// The sense data of a task whose request failed. The task has at most two requests.
pub(super) fn error(error: IoError, entry: &Entry) -> Sense {
    let (medium, lba) = match entry.state {
        State::Read => (asc::UNRECOVERED_READ_ERROR, Some(entry.lba)),
        State::Flush | State::FlushThenRead => (asc::WRITE_ERROR, None),
        _ => (asc::WRITE_ERROR, Some(entry.lba)),
    };
    Sense::from_io(error, medium, lba)
}

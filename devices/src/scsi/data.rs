//! Parameter data of commands: to and from the initiator's buffers.

use super::sense::{Sense, asc};
use super::task::{Direction, Failure, Task, TaskEnd};
use super::{gather, limits};

/// Usable bytes of a task's buffers.
#[inline]
pub(super) fn buffer_len(task: &Task<'_>) -> u64 {
    if task.direction == Direction::None { 0 } else { task.len }
}

/// GOOD with parameter data, cut at the allocation length.
pub(super) fn data_in(task: &Task<'_>, data: &[u8], alloc: u32) -> TaskEnd {
    let data = data.get(..alloc as usize).unwrap_or(data);
    let wanted = data.len() as u64;
    if wanted > 0 && task.direction == Direction::Out {
        return TaskEnd::WrongDirection;
    }
    let fits = usize::try_from(buffer_len(task)).unwrap_or(usize::MAX).min(data.len());
    TaskEnd::good(gather::scatter(task.bufs, data.get(..fits).unwrap_or_default()), wanted)
}

/// A parameter list of exactly `len` bytes.
pub(super) fn data_out(task: &Task<'_>, len: u32) -> Result<Vec<u8>, Failure> {
    if len > 0 && task.direction == Direction::In {
        return Err(Failure::End(TaskEnd::WrongDirection));
    }
    if u64::from(len) > buffer_len(task) || len as usize > limits::LIST_BYTES {
        return Err(Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    let mut data = vec![0; len as usize];
    if gather::gather(task.bufs, &mut data) < data.len() {
        return Err(Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    Ok(data)
}

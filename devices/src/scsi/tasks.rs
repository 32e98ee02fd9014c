//! The table of tasks in flight, one entry for each task number, all allocated at once.

use paradisk_disk_formats::IoBuf;

use super::task::{Address, Attribute, Direction, Task, TaskEnd};

/// Longest CDB that is stored: that of the longest supported command.
const MAX_CDB: usize = 16;

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The number is free.
    Free,
    /// Stored, not begun. It waits for earlier tasks or for a free slot in the disk's queue.
    Waiting,
    /// A read that is one disk request.
    Read,
    /// A write that is one disk request.
    Write,
    /// A flush.
    Flush,
    /// A command of several steps ([`steps`](super::steps)), running or waiting.
    Steps,
}

/// How a task will end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// With an answer.
    Answer,
    /// It was aborted.
    Abort,
    /// Its unit was reset.
    Reset,
    /// Its unit is faulted.
    Fault,
}

/// The fields that every completion needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    pub(super) reason: EndReason,
    /// Index of the unit.
    pub(super) unit: u16,
    /// First block, for sense data.
    pub(super) lba: u64,
    /// Bytes moved on success.
    pub(super) transferred: u64,
    /// Bytes that the command asks for.
    pub(super) wanted: u64,
}

impl Entry {
    /// Of a task that begins.
    #[inline]
    pub(super) const fn new(state: State, lba: u64, transferred: u64, wanted: u64) -> Self {
        Self { state, reason: EndReason::Answer, unit: 0, lba, transferred, wanted }
    }
}

/// A stored task without its buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    cdb: [u8; MAX_CDB],
    cdb_len: u8,
    address: Address,
    attribute: Attribute,
    direction: Direction,
    len: u64,
}

/// A stored task.
#[derive(Debug)]
struct StoredTask {
    head: Head,
    bufs: Vec<IoBuf>,
}

impl Head {
    /// The task with its buffers.
    pub(super) fn task<'a>(&'a self, id: u32, bufs: &'a [IoBuf]) -> Task<'a> {
        Task {
            id,
            address: self.address,
            cdb: self.cdb.get(..usize::from(self.cdb_len)).unwrap_or_default(),
            attribute: self.attribute,
            direction: self.direction,
            bufs,
            len: self.len,
        }
    }
}

/// All task numbers.
#[derive(Debug)]
pub(super) struct Tasks {
    entries: Vec<Entry>,
    stored: Vec<StoredTask>,
}

impl Tasks {
    pub(super) fn new(tasks: u32) -> Self {
        let free = Entry::new(State::Free, 0, 0, 0);
        let head = Head {
            cdb: [0; MAX_CDB],
            cdb_len: 0,
            address: Address { target: 0, lun: 0 },
            attribute: Attribute::Simple,
            direction: Direction::None,
            len: 0,
        };
        let stored = || StoredTask { head, bufs: Vec::new() };
        Self { entries: vec![free; tasks as usize], stored: (0..tasks).map(|_| stored()).collect() }
    }

    /// Number of task numbers.
    pub(super) fn limit(&self) -> usize {
        self.entries.len()
    }

    /// Whether the number exists and is free.
    pub(super) fn free(&self, id: u32) -> bool {
        self.entries.get(id as usize).is_some_and(|entry| entry.state == State::Free)
    }

    /// The entry of a task in flight.
    pub(super) fn get(&self, id: u32) -> Option<Entry> {
        self.entries.get(id as usize).copied().filter(|entry| entry.state != State::Free)
    }

    /// Store the entry of a task of this unit, which is in flight from now on.
    #[inline]
    pub(super) fn insert(&mut self, id: u32, unit: u16, entry: Entry) {
        if let Some(slot) = self.entries.get_mut(id as usize) {
            *slot = Entry { unit, ..entry };
        }
    }

    /// A disk request of this unit's task has succeeded. `Some`: it was the last one, and the task has ended.
    #[inline]
    pub(super) fn complete(&mut self, id: u32, unit: u16) -> Option<TaskEnd> {
        let entry = self.entries.get_mut(id as usize)?;
        let last = matches!(entry.state, State::Read | State::Write | State::Flush);
        if !last || entry.unit != unit || entry.reason != EndReason::Answer {
            return None;
        }
        entry.state = State::Free;
        Some(TaskEnd::good(entry.transferred, entry.wanted))
    }

    /// Set the state of a task.
    pub(super) fn set_state(&mut self, id: u32, state: State) {
        if let Some(entry) = self.entries.get_mut(id as usize) {
            entry.state = state;
        }
    }

    /// Set how the task will end when its disk request completes.
    pub(super) fn set_reason(&mut self, id: u32, reason: EndReason) {
        if let Some(entry) = self.entries.get_mut(id as usize) {
            entry.reason = reason;
        }
    }

    /// Store the task with a copy of its CDB.
    pub(super) fn store(&mut self, task: &Task<'_>) {
        let Some(stored) = self.stored.get_mut(task.id as usize) else { return };
        let mut cdb = [0; MAX_CDB];
        for (to, from) in cdb.iter_mut().zip(task.cdb) {
            *to = *from;
        }
        stored.head = Head {
            cdb,
            cdb_len: task.cdb.len().min(MAX_CDB) as u8,
            address: task.address,
            attribute: task.attribute,
            direction: task.direction,
            len: task.len,
        };
        stored.bufs.clear();
        stored.bufs.extend_from_slice(task.bufs);
    }

    /// The stored task without its buffers.
    pub(super) fn head(&self, id: u32) -> Option<Head> {
        self.stored.get(id as usize).map(|stored| stored.head)
    }

    /// The stored buffers.
    pub(super) fn bufs(&self, id: u32) -> &[IoBuf] {
        self.stored.get(id as usize).map_or(&[], |stored| &stored.bufs)
    }

    /// Take the stored buffers, so that the table can be used at the same time.
    pub(super) fn take_bufs(&mut self, id: u32) -> Vec<IoBuf> {
        self.stored.get_mut(id as usize).map(|stored| std::mem::take(&mut stored.bufs)).unwrap_or_default()
    }

    /// Return the buffers, so that the next task of this number reuses their memory.
    pub(super) fn put_bufs(&mut self, id: u32, bufs: Vec<IoBuf>) {
        if let Some(stored) = self.stored.get_mut(id as usize) {
            stored.bufs = bufs;
        }
    }

    /// Tasks of a unit that are in flight.
    pub(super) fn of_unit(&self, unit: u16) -> Vec<u32> {
        let all = (0u32..).zip(&self.entries);
        let ours = all.filter(|(_, entry)| entry.state != State::Free && entry.unit == unit);
        ours.map(|(id, _)| id).collect()
    }
}

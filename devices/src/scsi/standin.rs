//! Placeholder for the SCSI target until it is merged.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use disk_formats::{Completion, Disk, DiskQueue, Op, QueueStats, Request};

use super::{Address, Direction, SenseData, Status, Task, TaskEnd};

#[derive(Debug, thiserror::Error)]
#[error("address taken")]
pub struct AttachError;

#[derive(Default)]
pub struct Identity;

pub struct LogicalUnit {
    _disk: Arc<dyn Disk>,
    queue: Box<dyn DiskQueue>,
}

impl LogicalUnit {
    pub fn new(disk: Arc<dyn Disk>, queue: Box<dyn DiskQueue>, _identity: Identity) -> Self {
        Self { _disk: disk, queue }
    }
}

#[derive(Clone, Copy)]
struct Slot {
    address: Address,
    len: u64,
    fate: Option<TaskEnd>,
}

pub struct Bus {
    units: BTreeMap<Address, LogicalUnit>,
    slots: Vec<Option<Slot>>,
    completions: Vec<Completion>,
    ended: Vec<(u32, TaskEnd)>,
    in_flight: usize,
}

const fn answered(status: Status, transferred: u64, sense: Option<SenseData>) -> TaskEnd {
    TaskEnd::Answered { status, transferred, wanted: transferred, sense }
}

fn check(key: u8, asc: u8) -> TaskEnd {
    let mut bytes = [0; 32];
    bytes[0] = 0x70;
    bytes[2] = key;
    bytes[7] = 10;
    bytes[12] = asc;
    answered(Status::CheckCondition, 0, Some(SenseData { bytes, len: 18 }))
}

impl Bus {
    pub fn new(tasks: u32) -> Self {
        Self {
            units: BTreeMap::new(),
            slots: vec![None; tasks as usize],
            completions: Vec::new(),
            ended: Vec::new(),
            in_flight: 0,
        }
    }
    pub fn attach(&mut self, address: Address, unit: LogicalUnit) -> Result<(), AttachError> {
        if self.units.contains_key(&address) {
            return Err(AttachError);
        }
        self.units.insert(address, unit);
        Ok(())
    }
    pub fn detach(&mut self, address: Address) -> bool {
        self.reset_unit(address);
        self.units.remove(&address).is_some()
    }
    pub fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        self.units.keys().copied()
    }
    pub fn submit(&mut self, task: &Task<'_>) -> Option<TaskEnd> {
        let Some(unit) = self.units.get_mut(&task.address) else { return Some(TaskEnd::NoTarget) };
        let (op, want) = match task.cdb[0] {
            0 => return Some(answered(Status::Good, 0, None)),
            0x12 => {
                let data = [b'P'; 36];
                let mut at = 0;
                for buf in task.bufs {
                    at += buf.write(&data[at..]);
                }
                return Some(answered(Status::Good, at as u64, None));
            }
            0x28 => (Op::Read, Direction::In),
            0x2a => (Op::Write { fua: false }, Direction::Out),
            _ => return Some(check(5, 0x20)),
        };
        if task.direction != want && task.direction != Direction::Either {
            return Some(TaskEnd::WrongDirection);
        }
        let lba = u32::from_be_bytes(task.cdb[2..6].try_into().unwrap());
        let len = u64::from(u16::from_be_bytes(task.cdb[7..9].try_into().unwrap())) * 512;
        if len != task.len {
            return Some(check(5, 0x24));
        }
        let request = Request { tag: task.id.into(), op, offset: u64::from(lba) * 512, len, bufs: task.bufs };
        unit.queue.push(&request).unwrap();
        self.slots[task.id as usize] = Some(Slot { address: task.address, len, fate: None });
        self.in_flight += 1;
        None
    }
    pub fn kick(&mut self) {
        for unit in self.units.values_mut() {
            unit.queue.submit();
        }
    }
    pub fn reap(&mut self, ended: &mut Vec<(u32, TaskEnd)>) {
        for unit in self.units.values_mut() {
            unit.queue.reap(&mut self.completions);
        }
        for completion in self.completions.drain(..) {
            let slot = self.slots[completion.tag as usize].take().unwrap();
            let end = slot.fate.unwrap_or(match completion.result {
                Ok(()) => answered(Status::Good, slot.len, None),
                Err(_) => check(5, 0x21),
            });
            self.in_flight -= 1;
            self.ended.push((completion.tag as u32, end));
        }
        ended.append(&mut self.ended);
    }
    pub fn abort(&mut self, id: u32) -> bool {
        self.slots[id as usize].as_mut().map(|slot| slot.fate = Some(TaskEnd::Aborted)).is_some()
    }
    pub fn reset_unit(&mut self, address: Address) {
        for slot in self.slots.iter_mut().flatten().filter(|slot| slot.address == address) {
            slot.fate = Some(TaskEnd::Reset);
        }
        self.drain();
    }
    pub fn reset_target(&mut self, target: u8) {
        let all: Vec<_> = self.addresses().filter(|address| address.target == target).collect();
        all.into_iter().for_each(|address| self.reset_unit(address));
    }
    pub fn reset_all(&mut self) {
        let all: Vec<_> = self.addresses().collect();
        all.into_iter().for_each(|address| self.reset_unit(address));
    }
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
    pub fn drain(&mut self) {
        while self.in_flight > 0 {
            self.units.values_mut().for_each(|unit| unit.queue.wait());
            let mut ended = Vec::new();
            self.reap(&mut ended);
            self.ended = ended;
        }
    }
    pub fn events(&self) -> Vec<BorrowedFd<'_>> {
        self.units.values().map(|unit| unit.queue.event()).collect()
    }
    pub fn queue_stats(&self) -> QueueStats {
        QueueStats::default()
    }
}

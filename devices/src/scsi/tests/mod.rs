//! Tests of the target as an adapter sees it, over a disk in memory whose completions the test controls.

mod conformance;
mod disk;
mod management;
mod medium;
mod pages;
mod random;
mod scheduling;
mod steps;

use std::sync::Arc;

use paradisk_disk_formats::{DiskInfo, IoBuf};

use super::{Address, Attribute, Bus, Direction, Identity, LogicalUnit, Status, Task, TaskEnd};
use crate::scratch::Scratch;
use disk::{Control, MemoryDisk};

const HERE: Address = Address { target: 3, lun: 0 };

fn identity() -> Identity {
    Identity { revision: *b"1.0 ", serial: "S1".into(), ..Identity::default() }
}

/// A bus with one unit, and memory for one task at a time.
struct Rig {
    bus: Bus,
    disk: Arc<MemoryDisk>,
    memory: Scratch,
}

/// The end of a task, and the data that it returned.
type Answer = (TaskEnd, Vec<u8>);

impl Rig {
    fn fresh(info: DiskInfo) -> Self {
        let disk = Arc::new(MemoryDisk::new(info));
        let mut bus = Bus::new(64);
        let unit = LogicalUnit::new(disk.clone(), disk.memory_queue(16), identity());
        bus.attach(HERE, unit).unwrap();
        Self { bus, disk, memory: Scratch::new(1 << 20) }
    }

    /// 64 sectors of 512 bytes, with a volatile cache and discard.
    fn small() -> Self {
        let mut rig = Self::fresh(disk::info(64));
        rig.attention();
        rig
    }

    fn with(change: impl FnOnce(&mut DiskInfo)) -> Self {
        let mut info = disk::info(64);
        change(&mut info);
        let mut rig = Self::fresh(info);
        rig.attention();
        rig
    }

    /// Take the unit attention condition, which must exist. Returns its code and qualifier.
    fn attention(&mut self) -> u16 {
        let sense = sense(&self.run(&[0; 6], Direction::None, &[], 0).0);
        assert_eq!((sense[0], sense[2]), (0x70, 6));
        u16::from_be_bytes([sense[12], sense[13]])
    }

    fn control<T>(&self, change: impl FnOnce(&mut Control) -> T) -> T {
        self.disk.control(change)
    }

    /// Buffers over the rig's memory, in two pieces.
    fn bufs(&self, len: usize) -> Vec<IoBuf> {
        let first = len / 3;
        vec![self.memory.buf(0, first), self.memory.buf(first, len - first)]
    }

    fn submit(
        &mut self,
        id: u32,
        cdb: &[u8],
        attribute: Attribute,
        direction: Direction,
        bufs: &[IoBuf],
    ) -> Option<TaskEnd> {
        let len = paradisk_disk_formats::total_len(bufs).unwrap();
        self.bus.submit(&Task { id, address: HERE, cdb, attribute, direction, bufs, len })
    }

    /// Run one task to its end. `out` is its data, or `capacity` is the buffer size for returned data.
    fn run_at(
        &mut self,
        address: Address,
        cdb: &[u8],
        direction: Direction,
        out: &[u8],
        capacity: usize,
    ) -> Answer {
        let len = out.len().max(capacity);
        let fill: Vec<u8> = if out.is_empty() { vec![0xee; capacity] } else { out.to_vec() };
        self.memory.buf(0, len).write(&fill);
        let bufs = self.bufs(len);
        let task = Task {
            id: 7,
            address,
            cdb,
            attribute: Attribute::Simple,
            direction,
            bufs: &bufs,
            len: len as u64,
        };
        let end = self.bus.submit(&task).unwrap_or_else(|| {
            self.bus.submit_pushed();
            self.end_of(7)
        });
        let mut data = vec![0; len];
        self.memory.buf(0, len).read(&mut data);
        (end, data)
    }

    fn run(&mut self, cdb: &[u8], direction: Direction, out: &[u8], capacity: usize) -> Answer {
        self.run_at(HERE, cdb, direction, out, capacity)
    }

    /// Reap until this task, the only one, has ended.
    fn end_of(&mut self, id: u32) -> TaskEnd {
        let mut ended = Vec::new();
        for _ in 0..100_000 {
            self.bus.reap(&mut ended);
            if let [(one, end)] = ended[..] {
                assert_eq!(one, id);
                return end;
            }
            assert!(ended.is_empty());
        }
        panic!("task {id} does not end");
    }

    fn reap(&mut self) -> Vec<(u32, TaskEnd)> {
        let mut ended = Vec::new();
        self.bus.reap(&mut ended);
        ended
    }

    /// Run a command that must end with GOOD. Returns its data.
    fn good(&mut self, cdb: &[u8], direction: Direction, out: &[u8], capacity: usize) -> Vec<u8> {
        let (end, mut data) = self.run(cdb, direction, out, capacity);
        let TaskEnd::Answered { status: Status::Good, transferred, sense: None, .. } = end else {
            panic!("{cdb:02x?}: {end:?}");
        };
        data.truncate(transferred as usize);
        data
    }

    /// Run a command, without Data-Out, that must end with CHECK CONDITION. Returns key, code and field bytes.
    fn bad(&mut self, cdb: &[u8]) -> (u8, u16, [u8; 3]) {
        summary(&self.run(cdb, Direction::Either, &[], 8192).0)
    }

    fn bad_out(&mut self, cdb: &[u8], out: &[u8]) -> (u8, u16, [u8; 3]) {
        summary(&self.run(cdb, Direction::Out, out, 0).0)
    }

    fn data_in(&mut self, cdb: &[u8]) -> Vec<u8> {
        self.good(cdb, Direction::In, &[], 8192)
    }
}

/// The sense data of CHECK CONDITION.
fn sense(end: &TaskEnd) -> Vec<u8> {
    match end {
        TaskEnd::Answered { status: Status::CheckCondition, sense: Some(sense), .. } => {
            sense.as_slice().to_vec()
        }
        other => panic!("no check condition: {other:?}"),
    }
}

/// Sense key, additional sense code and qualifier, sense key specific bytes of fixed format.
fn summary(end: &TaskEnd) -> (u8, u16, [u8; 3]) {
    let sense = sense(end);
    assert_eq!(sense[0] & 0x7f, 0x70);
    (sense[2], u16::from_be_bytes([sense[12], sense[13]]), [sense[15], sense[16], sense[17]])
}

/// INVALID FIELD IN CDB at a whole byte or a bit.
fn field(byte: u8, bit: Option<u8>) -> (u8, u16, [u8; 3]) {
    (5, 0x2400, [0xc0 | bit.map_or(0, |bit| 8 | bit), 0, byte])
}

fn good(transferred: u64, wanted: u64) -> TaskEnd {
    TaskEnd::Answered { status: Status::Good, transferred, wanted, sense: None }
}

fn ten(code: u8, flags: u8, lba: u32, count: u16) -> [u8; 10] {
    let ([a, b, c, d], [e, f]) = (lba.to_be_bytes(), count.to_be_bytes());
    [code, flags, a, b, c, d, 0, e, f, 0]
}

fn sixteen(code: u8, flags: u8, lba: u64, count: u32) -> [u8; 16] {
    let mut cdb = [code, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

#[test]
fn luns_of_one_level() {
    use super::single_level_lun;
    assert_eq!(single_level_lun(&[0, 7, 0, 0, 0, 0, 0, 0]), Some(7));
    assert_eq!(single_level_lun(&[0x41, 2, 0, 0, 0, 0, 0, 0]), Some(0x102));
    assert_eq!(single_level_lun(&[1, 0, 0, 0, 0, 0, 0, 0]), None);
    assert_eq!(single_level_lun(&[0x80, 0, 0, 0, 0, 0, 0, 0]), None);
    assert_eq!(single_level_lun(&[0, 0, 0, 0, 0, 0, 0, 1]), None);
}

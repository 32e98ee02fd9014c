//! The SCSI target with any CDBs and data, without an adapter.
//!
//! Each step of the input is a task with its CDB, data and direction, or something that an adapter does with its bus: aborts, resets,
//! hot-plug. Every task ends once.
#![allow(unsafe_code, reason = "buffers of tasks in memory of the host")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use paradisk_devices::Attachment;
use paradisk_devices::scsi::{Address, Attribute, Bus, Direction, LogicalUnit, Task, TaskEnd};
use paradisk_disk_formats::HostMemory;

use crate::common::disk::{Behaviour, FuzzDisk};
use crate::common::input::Input;

const TASKS: u32 = 8;
/// Bytes of data of a task at the most.
const DATA: usize = 8192;
const OPCODES: [u8; 48] = [
    0x00, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x16, 0x17, 0x1a, 0x1b, 0x1d, 0x1e, 0x25, 0x28, 0x2a, 0x2e, 0x2f,
    0x34, 0x35, 0x41, 0x42, 0x4d, 0x55, 0x56, 0x57, 0x5a, 0x5e, 0x5f, 0x7f, 0x88, 0x89, 0x8a, 0x8e, 0x8f,
    0x90, 0x91, 0x93, 0x9d, 0x9e, 0xa0, 0xa2, 0xa3, 0xa8, 0xaa, 0xae, 0xaf, 0xb7, 0xc1,
];

struct Rig {
    // Dropped before the memory that its tasks use.
    bus: Bus,
    in_flight: HashSet<u32>,
    behaviour: Arc<Behaviour>,
    memory: HostMemory,
}

impl Rig {
    fn new() -> Self {
        let memory = HostMemory::new(TASKS as usize * DATA).expect("memory");
        let mut rig =
            Self { bus: Bus::new(TASKS), in_flight: HashSet::new(), behaviour: Arc::default(), memory };
        for target in [0, 3] {
            let unit = rig.unit();
            rig.bus.attach(Address { target, lun: 0 }, unit).expect("a free target");
        }
        rig
    }

    fn unit(&self) -> LogicalUnit {
        Attachment::new(Arc::new(FuzzDisk::new(Arc::clone(&self.behaviour)))).unit(TASKS).expect("a queue")
    }

    fn task(&mut self, input: &mut Input<'_>, code: u8) {
        let (how, opcode) = (input.u8(), input.u8());
        let Some(id) = (0..TASKS).find(|id| !self.in_flight.contains(id)) else { return };
        let opcode = *OPCODES.get(usize::from(opcode)).unwrap_or(&opcode);
        let mut cdb = vec![opcode];
        cdb.extend(input.bytes([5, 9, 15, 31][usize::from(how >> 6)]));
        let direction =
            [Direction::None, Direction::In, Direction::Out, Direction::Either][usize::from(how & 3)];
        let attribute = [Attribute::Simple, Attribute::Simple, Attribute::Ordered, Attribute::HeadOfQueue]
            [usize::from(how >> 2 & 3)];
        let len = if how & 0x10 == 0 {
            512 * usize::from(code >> 4)
        } else {
            usize::from(input.u16()) % (DATA + 1)
        };
        let at = id as usize * DATA;
        // SAFETY: the memory lives until `self` is dropped, and the bus with its queues is dropped before it.
        let bufs =
            unsafe { [self.memory.piece(at, len / 3), self.memory.piece(at + len / 3, len - len / 3)] };
        if how & 0x20 != 0 {
            bufs[0].write(input.bytes(64));
            bufs[1].write(input.bytes(32));
        }
        let address = Address { target: 3 * (code >> 4 & 1), lun: u16::from(code == 0) };
        match self.bus.submit(&Task {
            id,
            address,
            cdb: &cdb,
            attribute,
            direction,
            bufs: &bufs,
            len: len as u64,
        }) {
            None => assert!(self.in_flight.insert(id)),
            Some(TaskEnd::Answered { transferred, wanted, .. }) => {
                assert!(transferred <= wanted && transferred <= len as u64, "{cdb:02x?}");
            }
            Some(_) => {}
        }
    }

    /// MODE SELECT (6) of what MODE SENSE (6) returns, with one byte changed, and cut.
    fn modes(&mut self, input: &mut Input<'_>, code: u8) {
        let Some(id) = (0..TASKS).find(|id| !self.in_flight.contains(id)) else { return };
        let address = Address { target: 3 * (code >> 4 & 1), lun: 0 };
        // SAFETY: as in `task`.
        let buf = unsafe { self.memory.piece(id as usize * DATA, 255) };
        let (page, how) = (input.u8(), input.u8());
        for cdb in [[0x1a, how & 8, page & 0x3f, page, 255, 0], [0x15, 0x10 | how & 1, 0, 0, input.u8(), 0]] {
            let task = Task {
                id,
                address,
                cdb: &cdb,
                attribute: Attribute::Simple,
                direction: Direction::Either,
                bufs: &[buf],
                len: 255,
            };
            if self.bus.submit(&task).is_none() {
                assert!(self.in_flight.insert(id));
                return;
            }
            // The length of mode data is reserved in the list.
            buf.write(&[0]);
            let at = usize::from(input.u8());
            buf.slice(at, 1).write(&[input.u8()]);
        }
    }

    fn reap(&mut self) {
        let mut ended = Vec::new();
        self.bus.reap(&mut ended);
        for (id, end) in ended {
            assert!(self.in_flight.remove(&id), "task {id} ended as {end:?}");
        }
        assert_eq!(self.bus.in_flight(), self.in_flight.len());
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut rig = Rig::new();
    while !input.is_empty() {
        let code = input.u8();
        let address = Address { target: 3 * (code >> 4 & 1), lun: u16::from(code >> 6) };
        match code & 0xf {
            0..=8 => rig.task(&mut input, code),
            9 => rig.modes(&mut input, code),
            10 => rig.bus.submit_pushed(),
            11 => rig.reap(),
            12 => {
                rig.behaviour.hold.store(code & 0x20 != 0, Relaxed);
                rig.behaviour.failing.store(code >> 6, Relaxed);
            }
            13 => drop(rig.bus.abort(u32::from(code >> 4))),
            14 if code & 0x20 == 0 => drop(rig.bus.detach(address)),
            14 => {
                let unit = rig.unit();
                let _ = rig.bus.attach(address, unit);
            }
            _ => match code >> 5 {
                0 => rig.bus.reset_unit(address),
                1 => rig.bus.reset_target(address.target),
                2 => rig.bus.reset_all(),
                3 => drop(rig.bus.refresh()),
                _ => rig.bus.submit_pushed(),
            },
        }
    }
    rig.behaviour.hold.store(false, Relaxed);
    rig.bus.drain();
    rig.reap();
    assert!(rig.in_flight.is_empty(), "{:?} never end", rig.in_flight);
}

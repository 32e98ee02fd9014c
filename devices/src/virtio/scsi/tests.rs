//! A guest that executes what the test requires, valid or not.

mod control;
mod events;
mod malformed;
mod queues;
mod random;
mod requests;
mod small_tables;

use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::{FromBytes, IntoBytes};

use super::spec::*;
use super::*;
use crate::device::{IoDevice, PciDevice, Sleep};
use crate::moderation::{Coalescing, Policy};
use crate::scsi::{Address, AttachError};
use crate::testing::{Hold, MIB, Owner, bus, transfer10, unit};
use crate::virtio::spec::*;
use crate::virtio::testing::*;

/// The header of request `n` is at `REQUESTS + STEP * n`, its response half a step later.
const REQUESTS: u64 = 0x8_0000;
const STEP: u64 = 0x200;
const DATA: u64 = 0x10_0000;

const HERE: Address = Address { target: 0, lun: 0 };
const THERE: Address = Address { target: 3, lun: 7 };
const CONTROL: u16 = CONTROL_QUEUE as u16;
const EVENTS: u16 = EVENT_QUEUE as u16;
const FIRST: u16 = REQUEST_QUEUES as u16;
const TEST_UNIT_READY: &[u8] = &[0; 6];

type Device = VirtioScsi<Arc<GuestMemoryMmap>>;

/// A guest in front of a host with a unit [`HERE`] and one [`THERE`].
type Guest = Driver<Device>;

/// A response as the guest reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answered {
    response: u8,
    status: u8,
    residual: u32,
    sense: Vec<u8>,
}

impl Guest {
    /// A guest that has only enabled memory and bus mastering.
    fn powered(config: Config) -> Self {
        let hold = Hold::default();
        let bus = bus(config.tasks, &[HERE, THERE], &hold);
        let queues = usize::from(config.queues) + REQUEST_QUEUES;
        Self::over(queues, config.tasks, hold, |memory, sink| Device::new(memory, bus, sink, config).unwrap())
    }

    /// A guest with a driver that accepts these features, and units without unit attention.
    fn with(features: u64, config: Config) -> Self {
        let mut guest = Self::powered(config);
        guest.bring_up(features, 64);
        guest.clear_unit_attention();
        guest
    }

    fn new() -> Self {
        Self::with(ALL, batch())
    }

    /// After power-on and resets, the first command is answered with a unit attention.
    fn clear_unit_attention(&mut self) {
        for address in [HERE, THERE] {
            self.run(address, TEST_UNIT_READY, &[]);
        }
    }

    /// Requests that the device has taken and not posted.
    fn in_flight(&self) -> usize {
        self.device.requests().unwrap().in_flight.count() as usize
    }

    /// The header of request `n`, whose identifier for task management is also `n`.
    fn header(&self, n: u64, lun: [u8; 8], attribute: u8, cdb: &[u8]) -> Piece {
        let at = REQUESTS + STEP * n;
        let header = RequestHeader { lun, id: n.into(), task_attr: attribute, prio: 0, crn: 0 };
        self.memory.write_slice(&[0; STEP as usize / 2], GuestAddress(at)).unwrap();
        self.memory.write_slice(&[0xff; STEP as usize / 2], GuestAddress(at + STEP / 2)).unwrap();
        self.memory.write_slice(header.as_bytes(), GuestAddress(at)).unwrap();
        self.memory.write_slice(cdb, GuestAddress(at + 19)).unwrap();
        reads(at, 19 + 32)
    }

    fn answer(&self, n: u64) -> Piece {
        writes(REQUESTS + STEP * n + STEP / 2, 12 + 96)
    }

    /// The pieces of request `n`.
    fn pieces(&self, n: u64, address: Address, cdb: &[u8], data: &[Piece]) -> Vec<Piece> {
        let mut pieces = vec![self.header(n, lun::lun(address), 0, cdb)];
        let out = |piece: &&Piece| piece.flags & WRITE == 0;
        pieces.extend(data.iter().filter(out));
        pieces.push(self.answer(n));
        pieces.extend(data.iter().filter(|piece| !out(piece)));
        pieces
    }

    /// Make request `n` available, without a notification.
    fn request(&mut self, queue: u16, n: u64, address: Address, cdb: &[u8], data: &[Piece]) -> u16 {
        let pieces = self.pieces(n, address, cdb, data);
        self.put(queue, &pieces)
    }

    /// The response to request `n`. Checks that nothing is written beyond its end.
    fn answered(&self, n: u64) -> Answered {
        let bytes = self.bytes(REQUESTS + STEP * n + STEP / 2, STEP as usize / 2);
        let (header, sense) = ResponseHeader::read_from_prefix(&bytes).unwrap();
        let (sense, rest) = sense.split_at(header.sense_len.get().min(96) as usize);
        assert!(rest.iter().all(|byte| *byte == 0xff));
        assert_eq!(header.status_qualifier.get(), 0);
        Answered {
            response: header.response,
            status: header.status,
            residual: header.residual.get(),
            sense: sense.to_vec(),
        }
    }

    /// Run a request while no other is outstanding.
    fn run(&mut self, address: Address, cdb: &[u8], data: &[Piece]) -> Answered {
        let head = self.request(FIRST, 0, address, cdb, data);
        let len = self.run_chain(FIRST, head);
        let answered = self.answered(0);
        assert_eq!(len as usize, 12 + answered.sense.len());
        answered
    }

    /// Make a READ or WRITE of one sector available, and notify the device.
    fn start(&mut self, queue: u16, n: u64, address: Address, write: bool) {
        let at = DATA + 512 * n;
        let data = if write { reads(at, 512) } else { writes(at, 512) };
        self.request(queue, n, address, &transfer10(write, n as u32, 1), &[data]);
        self.kick(queue);
    }

    /// Make a chain available in the control queue, and notify the device.
    fn control(&mut self, request: &[u8], answer: u32) -> u16 {
        let at = REQUESTS - 0x1000;
        self.memory.write_slice(request, GuestAddress(at)).unwrap();
        self.memory.write_slice(&[0xff; 64], GuestAddress(at + 0x100)).unwrap();
        let pieces = [reads(at, request.len() as u32), writes(at + 0x100, answer)];
        let head = self.put(CONTROL, &pieces);
        self.kick(CONTROL);
        head
    }

    fn manage(&mut self, subtype: u32, lun: [u8; 8], id: u64) -> u16 {
        let function = TaskManagement { subtype: subtype.into(), lun, id: id.into() };
        self.control(&[&VIRTIO_SCSI_T_TMF.to_le_bytes(), function.as_bytes()].concat(), 1)
    }

    /// The response on the control queue, if there is one.
    fn managed(&mut self) -> Option<u8> {
        let at = REQUESTS - 0x1000 + 0x100;
        match self.completions(CONTROL).as_slice() {
            [] => None,
            [(_, 1)] => Some(self.bytes(at, 1)[0]),
            more => panic!("{more:?}"),
        }
    }

    /// Check that the device works: write sectors, and read them back to another buffer.
    fn check_io(&mut self) {
        let data = self.fill(DATA, 4096, 0x5a);
        assert_good(&self.run(HERE, &transfer10(true, 8, 8), &[reads(DATA, 4096)]), 0);
        let to = DATA + 0x2_0000;
        assert_good(&self.run(HERE, &transfer10(false, 8, 8), &[writes(to, 4096)]), 0);
        assert_eq!(self.bytes(to, 4096), data);
    }
}

fn batch() -> Config {
    Config { coalescing: Coalescing::policy(Policy::Batch), tasks: 64, ..Config::default() }
}

#[track_caller]
fn assert_good(answered: &Answered, residual: u32) {
    assert_eq!((answered.response, answered.status, answered.residual), (0, 0, residual), "{answered:?}");
}

#[track_caller]
fn assert_response(answered: &Answered, response: Response) {
    assert_eq!((answered.response, answered.status), (response as u8, 0), "{answered:?}");
}

#[test]
fn a_guest_does_io() {
    let mut guest = Guest::with(ALL, Config::default());
    guest.check_io();
    let stats = guest.device.stats();
    assert_eq!((stats.requests, stats.completions, stats.errors), (4, 4, 2));
}

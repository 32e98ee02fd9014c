//! A guest that executes what the test requires, valid or not.

mod bringup;
mod management;
mod random;
mod requests;
mod sas;
mod small_tables;

use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::spec::*;
use super::*;
use crate::device::{IoDevice, PciDevice, Sleep};
use crate::moderation::Policy;
use crate::scsi::Address;
use crate::testing::{Counts, Hold, MEMORY, MIB, Owner, Sink, bus, transfer10, unit};
use crate::time::Time;

const FRAMES: u64 = 0x1_0000;
const REPLIES: u64 = 0x3_0000;
const REPLY_SIZE: u64 = 128;
const SENSE: u64 = 0x4_0000;
const CHAINS: u64 = 0x5_0000;
const PAGE: u64 = 0x6_0000;
const DATA: u64 = 0x10_0000;

/// A reply as the guest reads it from the FIFO.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Taken {
    Context(u32),
    Frame(Vec<u8>),
}

impl Taken {
    #[track_caller]
    fn frame<T: FromBytes>(&self) -> T {
        let Self::Frame(bytes) = self else { panic!("a context where a frame was expected: {self:?}") };
        T::read_from_bytes(&bytes[..size_of::<T>()]).unwrap()
    }

    #[track_caller]
    fn status(&self) -> u16 {
        let Self::Frame(bytes) = self else { panic!("a context where a frame was expected: {self:?}") };
        u16::from_le_bytes([bytes[0x0e], bytes[0x0f]])
    }
}

struct Guest {
    device: Lsi<Arc<GuestMemoryMmap>>,
    memory: Arc<GuestMemoryMmap>,
    counts: Arc<Counts>,
    hold: Hold,
    now: Time,
    frames: u32,
}

impl Owner for Guest {
    fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }
}

impl Guest {
    /// A guest after power-on, with a disk at target 0 and one at target 3.
    fn powered(tasks: u32) -> Self {
        Self::with(tasks, Personality::Spi1030)
    }

    fn with(tasks: u32, personality: Personality) -> Self {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&MEMORY).unwrap());
        let counts = Arc::new(Counts::default());
        let hold = Hold::default();
        let bus = bus(tasks, &[0, 3].map(|target| Address { target, lun: 0 }), &hold);
        let config = Config { coalescing: Coalescing::policy(Policy::Batch), tasks, personality };
        let mut device = Lsi::new(memory.clone(), bus, Box::new(Sink(counts.clone())), config).unwrap();
        device.config_write(4, &7u16.to_le_bytes());
        Self { device, memory, counts, hold, now: Time(0), frames: 0 }
    }

    /// An operational adapter with replies enabled. The unit attentions are cleared.
    fn new() -> Self {
        Self::running(64, Personality::Spi1030)
    }

    fn running(tasks: u32, personality: Personality) -> Self {
        Self::with_replies(tasks, personality, 16)
    }

    fn with_replies(tasks: u32, personality: Personality, replies: u64) -> Self {
        let mut guest = Self::with(tasks, personality);
        guest.bring_up(replies);
        guest.write(reg::INT_MASK, int::DOORBELL);
        guest.clear_unit_attention(&[0, 3]);
        guest
    }

    /// After power-on and resets, the first command is answered with a unit attention.
    fn clear_unit_attention(&mut self, targets: &[u8]) {
        for &target in targets {
            let mut request = self.scsi(&[0; 6], 0, 0);
            request.target_id = target;
            self.run(&request, &[]);
        }
    }

    /// After a reset.
    #[track_caller]
    fn works_again(&mut self) {
        self.bring_up(16);
        self.write(reg::INT_MASK, int::DOORBELL);
        self.clear_unit_attention(&[0]);
        self.check_io();
    }

    fn bring_up(&mut self, replies: u64) {
        self.write(reg::INT_MASK, u32::MAX);
        self.write(reg::INT_STATUS, 0);
        for index in 0..replies {
            self.write(reg::REPLY_FIFO, (REPLIES + index * REPLY_SIZE) as u32);
        }
        let mut init = [0u32; 11];
        init[0] = u32::from(function::IOC_INIT) << 24 | 4;
        init[3] = REPLY_SIZE as u32;
        let reply = self.handshake(&init);
        assert_eq!(reply[0x0e..0x10], [0, 0]);
        let reply = self.handshake(&[u32::from(function::PORT_ENABLE) << 24, 0, 0]);
        assert_eq!(reply[0x0e..0x10], [0, 0]);
        assert_eq!(self.state(), IocState::Operational as u32);
    }

    /// Number of SCSI I/Os that were taken from the FIFO and have not ended.
    fn held(&self) -> u64 {
        u64::from(self.device.engine.in_flight.count()) + self.device.engine.backlog.len() as u64
    }

    fn read(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.device.bar_read(1, offset, &mut data, self.now);
        u32::from_le_bytes(data)
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.device.bar_write(1, offset, &value.to_le_bytes(), self.now);
    }

    fn state(&mut self) -> u32 {
        self.read(reg::DOORBELL) >> 28
    }

    /// Send a request by handshake; returns its reply.
    fn handshake(&mut self, request: &[u32]) -> Vec<u8> {
        self.begin(request);
        let mut reply = Vec::new();
        let mut words = 2;
        while reply.len() < words * 2 {
            assert_eq!(self.read(reg::INT_STATUS) & int::DOORBELL, int::DOORBELL);
            reply.extend((self.read(reg::DOORBELL) as u16).to_le_bytes());
            self.write(reg::INT_STATUS, 0);
            if reply.len() == 4 {
                words = usize::from(reply[2]) * 2;
            }
        }
        assert_eq!(self.read(reg::INT_STATUS) & int::DOORBELL, int::DOORBELL, "the closing interrupt");
        self.write(reg::INT_STATUS, 0);
        assert_eq!(self.read(reg::DOORBELL) & doorbell::USED, 0);
        reply
    }

    fn begin(&mut self, request: &[u32]) {
        self.write(reg::INT_STATUS, 0);
        self.write(reg::DOORBELL, u32::from(doorbell_fn::HANDSHAKE) << 24 | (request.len() as u32) << 16);
        assert_eq!(self.read(reg::DOORBELL) & doorbell::USED, doorbell::USED);
        self.write(reg::INT_STATUS, 0);
        for dword in request {
            self.write(reg::DOORBELL, *dword);
        }
    }

    /// Run what the I/O thread runs until it would sleep.
    fn serve(&mut self) {
        for _ in 0..100 {
            if self.device.before_sleep(self.now) != Sleep::No {
                return;
            }
            self.device.on_completions(self.now);
        }
        panic!("never sleeps");
    }

    /// Write a frame and post it; returns the frame's address.
    fn post(&mut self, request: &[u8], list: &[u8]) -> u64 {
        let address = FRAMES + u64::from(self.frames % 64) * 128;
        self.frames += 1;
        self.memory.write_slice(&[0; 128], GuestAddress(address)).unwrap();
        self.memory.write_slice(request, GuestAddress(address)).unwrap();
        self.memory.write_slice(list, GuestAddress(address + request.len() as u64)).unwrap();
        self.write(reg::REQUEST_FIFO, address as u32 | 3);
        address
    }

    /// Read all replies, and return their frames.
    fn replies(&mut self) -> Vec<Taken> {
        let mut taken = Vec::new();
        loop {
            let value = self.read(reg::REPLY_FIFO);
            if value == FIFO_EMPTY {
                return taken;
            }
            if value >> 31 == 0 {
                taken.push(Taken::Context(value));
                continue;
            }
            let address = value << 1;
            let mut bytes = vec![0; REPLY_SIZE as usize];
            // A frame from a random guest may be outside of memory.
            let _ = self.memory.read_slice(&mut bytes, GuestAddress(address.into()));
            taken.push(Taken::Frame(bytes));
            self.write(reg::REPLY_FIFO, address);
        }
    }

    /// A SCSI I/O for target 0.
    fn scsi(&self, cdb: &[u8], direction: u32, len: u32) -> ScsiIoRequest {
        let mut request = ScsiIoRequest::new_zeroed();
        request.cdb[..cdb.len()].copy_from_slice(cdb);
        request.cdb_length = cdb.len() as u8;
        request.sense_buffer_length = 64;
        request.sense_buffer_low_addr = (SENSE as u32).into();
        request.control = (direction << control::DIRECTION_SHIFT).into();
        request.data_length = len.into();
        request.msg_context = (0x0001_0000 | self.frames & 0xffff).into();
        request
    }

    /// READ(10) or WRITE(10).
    fn transfer(&self, write: bool, lba: u32, sectors: u16) -> ScsiIoRequest {
        let direction = if write { control::DIRECTION_WRITE } else { control::DIRECTION_READ };
        self.scsi(&transfer10(write, lba, sectors), direction, u32::from(sectors) * 512)
    }

    /// Run one request alone.
    #[track_caller]
    fn run(&mut self, request: &ScsiIoRequest, list: &[u8]) -> Taken {
        self.post(request.as_bytes(), list);
        self.serve();
        match self.replies().as_slice() {
            [reply] => {
                let context = match reply {
                    Taken::Context(context) => *context,
                    Taken::Frame(bytes) => u32::from_le_bytes(bytes[8..12].try_into().unwrap()),
                };
                assert_eq!(context, request.msg_context.get());
                reply.clone()
            }
            replies => panic!("{} replies for one request", replies.len()),
        }
    }

    /// Write sectors, and read them back to another buffer.
    #[track_caller]
    fn check_io(&mut self) {
        let data = self.fill(DATA, 4096, 0x5a);
        let write = self.transfer(true, 8, 8);
        assert_eq!(self.run(&write, &simple(4096, DATA)), Taken::Context(write.msg_context.get()));
        let read = self.transfer(false, 8, 8);
        let elsewhere = DATA + 0x2_0000;
        assert_eq!(self.run(&read, &simple(4096, elsewhere)), Taken::Context(read.msg_context.get()));
        assert_eq!(self.bytes(elsewhere, 4096), data);
    }

    /// Full reset by the diagnostic register, as drivers do it.
    fn hard_reset(&mut self) {
        self.write(reg::INT_STATUS, 0);
        self.unlock();
        self.write(reg::HOST_DIAGNOSTIC, diag::DRWE | diag::DISABLE_ARM);
        self.write(reg::HOST_DIAGNOSTIC, diag::DRWE | diag::DISABLE_ARM | diag::RESET_ADAPTER);
        assert_eq!(self.state(), IocState::Ready as u32);
        self.unlock();
        let value = self.read(reg::HOST_DIAGNOSTIC);
        assert_ne!(value & diag::RESET_HISTORY, 0);
        self.write(reg::HOST_DIAGNOSTIC, value & !diag::RESET_HISTORY);
        self.write(reg::WRITE_SEQUENCE, u32::MAX);
        assert_eq!(self.read(reg::HOST_DIAGNOSTIC), 0);
    }

    fn unlock(&mut self) {
        self.write(reg::WRITE_SEQUENCE, 0xff);
        for key in WRITE_SEQUENCE_KEYS {
            assert_eq!(self.read(reg::HOST_DIAGNOSTIC) & diag::DRWE, 0);
            self.write(reg::WRITE_SEQUENCE, key);
        }
        assert_ne!(self.read(reg::HOST_DIAGNOSTIC) & diag::DRWE, 0);
    }
}

/// One simple element, the last of its list.
fn simple(len: u32, address: u64) -> Vec<u8> {
    element(sge::LAST_ELEMENT | sge::END_OF_BUFFER | sge::END_OF_LIST | sge::TYPE_SIMPLE, len, address)
}

fn element(flags: u8, low: u32, address: u64) -> Vec<u8> {
    let mut bytes = (u32::from(flags | sge::ADDRESS_64) << 24 | low).to_le_bytes().to_vec();
    bytes.extend(address.to_le_bytes());
    bytes
}

#[test]
fn a_guest_does_io() {
    Guest::new().check_io();
}

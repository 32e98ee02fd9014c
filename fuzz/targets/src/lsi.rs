//! LSI's controllers under any guest.
//!
//! The lowest bit of the first byte says which controller it is; with the highest, it is operational before. What follows is taken for
//! what the guest does: accesses to registers, messages by handshake and by frame, scatter-gather lists, and changes of memory.

use paradisk_devices::lsi::spec::{self, control, diag, doorbell_fn, function, int, reg, sge};
use paradisk_devices::{AccessKind, AdapterKind};
use zerocopy::{FromZeros, IntoBytes};

use crate::common::device::Guest;
use crate::common::input::Input;

const FRAMES: u64 = 0x4000;
const FRAME_COUNT: u8 = 16;
const REPLIES: u64 = 0x6000;
const REPLY_SIZE: u64 = 128;
const SENSE: u32 = 0x7000;
const CHAINS: u64 = 0x8000;

struct Rig {
    guest: Guest,
}

impl Rig {
    /// Write a register; with `serves`, the device's thread calls the device after a submission.
    fn write(&mut self, register: u64, value: u32, serves: bool) {
        let data = value.to_le_bytes();
        let kind = self.guest.device.access_kind(1, register, Some(&data));
        self.guest.write(1, register, &data);
        if serves && kind == AccessKind::Submission {
            self.guest.turn();
        }
    }

    fn read(&mut self, register: u64) -> u32 {
        let mut data = [0; 4];
        self.guest.device.bar_read(1, register, &mut data, self.guest.now);
        u32::from_le_bytes(data)
    }

    /// A request by handshake, whose reply is read for so many words.
    fn handshake(&mut self, request: &[u8], reply: usize) {
        self.write(reg::INT_STATUS, 0, false);
        let words = request.len().div_ceil(4) as u32;
        self.write(reg::DOORBELL, u32::from(doorbell_fn::HANDSHAKE) << 24 | words << 16, false);
        self.write(reg::INT_STATUS, 0, false);
        for piece in request.chunks(4) {
            let mut bytes = [0; 4];
            bytes[..piece.len()].copy_from_slice(piece);
            self.write(reg::DOORBELL, u32::from_le_bytes(bytes), false);
        }
        for _ in 0..reply {
            self.read(reg::DOORBELL);
            self.write(reg::INT_STATUS, 0, false);
        }
    }

    fn up(&mut self) {
        self.write(reg::WRITE_SEQUENCE, 0xff, false);
        for key in spec::WRITE_SEQUENCE_KEYS {
            self.write(reg::WRITE_SEQUENCE, key, false);
        }
        self.write(reg::HOST_DIAGNOSTIC, diag::DRWE | diag::RESET_ADAPTER, false);
        self.write(reg::INT_STATUS, 0, false);
        for index in 0..8 {
            self.write(reg::REPLY_FIFO, (REPLIES + index * REPLY_SIZE) as u32, false);
        }
        let mut init = [0; 44];
        (init[0], init[3], init[12]) = (4, function::IOC_INIT, REPLY_SIZE as u8);
        self.handshake(&init, 11);
        self.handshake(&[0, 0, 0, function::PORT_ENABLE, 0, 0, 0, 0, 0, 0, 0, 0], 11);
        self.write(reg::INT_MASK, int::DOORBELL, false);
    }

    fn post(&mut self, frame: u8, message: &[u8], serves: bool) {
        let address = FRAMES + 256 * u64::from(frame % FRAME_COUNT);
        self.guest.poke(address, message);
        self.write(reg::REQUEST_FIFO, address as u32, serves);
    }

    /// A SCSI I/O: of blocks that are there, or of any command, with a list of two pieces or any.
    fn scsi(&mut self, input: &mut Input<'_>, serves: bool) {
        let (frame, how) = (input.u8(), input.u8());
        let address = u32::from(input.u16()) << 2;
        let mut request = spec::ScsiIoRequest::new_zeroed();
        request.target_id = [0, 0, 3, 5][usize::from(how & 3)];
        request.sense_buffer_length = 64;
        request.sense_buffer_low_addr = SENSE.into();
        request.msg_context = u32::from(frame).into();
        let mut list = Vec::new();
        let mut element = |flags: u8, low: u32, address: u64| {
            list.extend((u32::from(flags | sge::ADDRESS_64) << 24 | low).to_le_bytes());
            list.extend(address.to_le_bytes());
        };
        if how & 0x80 != 0 {
            let (write, blocks) = (how >> 2 & 1, how >> 3 & 7);
            let bytes = 512 * u32::from(blocks);
            request.cdb[..10].copy_from_slice(&[0x28 | write << 1, 0, 0, 0, 0, frame % 64, 0, 0, blocks, 0]);
            request.cdb_length = 10;
            let direction = if write != 0 { control::DIRECTION_WRITE } else { control::DIRECTION_READ };
            request.control = (direction << control::DIRECTION_SHIFT).into();
            request.data_length = bytes.into();
            element(sge::TYPE_SIMPLE, bytes / 2, address.into());
            let last = sge::LAST_ELEMENT | sge::END_OF_BUFFER | sge::END_OF_LIST | sge::TYPE_SIMPLE;
            element(last, bytes - bytes / 2, u64::from(address ^ 0x8000));
        } else {
            request.control = (u32::from(input.u8()) << control::DIRECTION_SHIFT).into();
            request.data_length = u32::from(input.u16()).into();
            request.chain_offset = input.u8() % 32;
            request.lun[1] = how >> 2 & 1;
            let cdb = input.bytes(16);
            request.cdb[..cdb.len()].copy_from_slice(cdb);
            request.cdb_length = cdb.len() as u8;
            for _ in 0..how >> 4 & 3 {
                let (flags, len) = (input.u8(), input.u16());
                element(flags, len.into(), u64::from(input.u16()) << 2);
            }
        }
        let mut message = [request.as_bytes(), &list].concat();
        if how & 0x40 != 0 {
            let at = usize::from(input.u8()) % message.len();
            message[at] = input.u8();
        }
        self.post(frame, &message, serves);
    }

    /// Read the replies, and return their frames.
    fn take(&mut self, serves: bool) {
        for _ in 0..8 {
            let reply = self.read(reg::REPLY_FIFO);
            if reply == spec::FIFO_EMPTY {
                break;
            }
            if reply >> 31 != 0 {
                self.write(reg::REPLY_FIFO, reply << 1, serves);
            }
        }
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let first = input.u8();
    let kind = if first & 1 == 0 { AdapterKind::Lsi } else { AdapterKind::LsiSas };
    let guest = Guest::new(kind, &[0, 3]);
    let mut rig = Rig { guest };
    if first & 0x80 != 0 {
        rig.up();
    }
    while !input.is_empty() {
        let code = input.u8();
        let serves = code & 0x10 != 0;
        rig.guest.now.0 += 10_000;
        match code & 0xf {
            0..=3 => rig.scsi(&mut input, serves),
            4 => {
                // Any message in a frame.
                let (frame, len) = (input.u8(), input.u8());
                let message = input.bytes(len.into());
                rig.post(frame, message, serves);
            }
            5 => {
                let len = input.u8() % 64;
                rig.handshake(input.bytes(len.into()), usize::from(code >> 5) * 4);
            }
            6 => {
                let (place, value) = (input.u8(), input.u16());
                let value = u32::from(value) | u32::from(input.u8()) << 24;
                rig.write(u64::from(place), value, serves);
            }
            7 => {
                let place = input.u8();
                rig.read(u64::from(place));
            }
            8 => {
                let (bar, place, value) = (input.u8() % 4, input.u16(), input.u8());
                rig.guest.write(bar, u64::from(place), &[value, 0, 0, value][..1 << (code >> 6 & 2)]);
            }
            9 => rig.take(serves),
            10 => {
                let at = if code & 0x20 != 0 { CHAINS } else { 0 } + (u64::from(input.u16()) << 2);
                rig.guest.poke_from(at, &mut input);
            }
            11 => rig.guest.turn(),
            12 => rig.guest.own(input.u8()),
            13 => rig.guest.plug(input.u8()),
            14 => rig.guest.behave(code),
            _ => rig.up(),
        }
    }
    rig.guest.end();
}

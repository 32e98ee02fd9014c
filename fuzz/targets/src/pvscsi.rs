//! PVSCSI under any guest.
//!
//! With the highest bit of the first byte set, rings are set up before. What follows is taken for what the guest does: commands with
//! their descriptors, requests with lists of pieces, kicks, changes of the rings' state, accesses to registers, and changes of memory.

use std::mem::offset_of;

use paradisk_devices::AdapterKind;
use paradisk_devices::pvscsi::spec::{self, RequestFlags, RingReqDesc, RingsState, command};
use vm_memory::{Bytes, GuestAddress};
use zerocopy::{FromZeros, IntoBytes};

use crate::common::device::Guest;
use crate::common::input::Input;

const PAGE: u64 = 4096;
/// Page numbers of the rings. Data may be anywhere.
const STATE: u64 = 1;
const REQUESTS: u64 = 2;
const COMPLETIONS: u64 = 3;
const MESSAGES: u64 = 4;
const LISTS: u64 = 5 * PAGE;
const SENSE: u64 = 6 * PAGE;
const ENTRIES: u32 = (PAGE / size_of::<RingReqDesc>() as u64) as u32;

fn word(guest: &mut Guest, register: u64, value: u32) {
    guest.write(0, register, &value.to_le_bytes());
}

fn peek(guest: &Guest, at: u64) -> u32 {
    guest.memory.read_obj(GuestAddress(at)).unwrap_or_default()
}

fn start(guest: &mut Guest, number: u32, descriptor: &[u8]) {
    word(guest, spec::REG_COMMAND, number);
    for piece in descriptor.chunks(4) {
        let mut bytes = [0; 4];
        bytes[..piece.len()].copy_from_slice(piece);
        guest.write(0, spec::REG_COMMAND_DATA, &bytes);
    }
}

/// Rings of one page each, messages among them.
fn up(guest: &mut Guest) {
    let mut rings = spec::CmdDescSetupRings::new_zeroed();
    (rings.req_ring_num_pages, rings.cmp_ring_num_pages) = (1.into(), 1.into());
    rings.rings_state_ppn = STATE.into();
    rings.req_ring_ppns[0] = REQUESTS.into();
    rings.cmp_ring_ppns[0] = COMPLETIONS.into();
    guest.poke(STATE * PAGE, &[0; size_of::<RingsState>()]);
    start(guest, command::SETUP_RINGS, rings.as_bytes());
    let mut messages = spec::CmdDescSetupMsgRing::new_zeroed();
    messages.num_pages = 1.into();
    messages.ring_ppns[0] = MESSAGES.into();
    start(guest, command::SETUP_MSG_RING, messages.as_bytes());
    word(guest, spec::REG_INTR_MASK, 0xf);
}

fn state(field: usize) -> u64 {
    STATE * PAGE + field as u64
}

/// A request in the next entry of the ring.
fn request(guest: &mut Guest, input: &mut Input<'_>) {
    let how = input.u8();
    let index = peek(guest, state(offset_of!(RingsState, req_prod_idx)));
    let slot = u64::from(index % ENTRIES);
    let address = u64::from(input.u16()) << 2;
    let mut request = RingReqDesc::new_zeroed();
    request.context = u64::from(input.u8() % 16).into();
    request.data_addr = address.into();
    request.sense_addr = (SENSE + 64 * slot).into();
    request.sense_len = 64.into();
    request.target = [0, 0, 3, input.u8()][usize::from(how & 3)];
    request.tag = input.u8() % 0x24;
    if how & 0x80 != 0 {
        // READ or WRITE (10) of blocks that are there.
        let (write, blocks) = (how & 2, how >> 2 & 7);
        let bytes = 512 * u32::from(blocks);
        request.cdb[..10].copy_from_slice(&[0x28 | write, 0, 0, 0, 0, slot as u8, 0, 0, blocks, 0]);
        request.cdb_len = 10;
        let direction = match write {
            0 => RequestFlags::CMD_DIR_TOHOST,
            _ => RequestFlags::CMD_DIR_TODEVICE,
        };
        request.data_len = u64::from(bytes).into();
        request.flags = direction.bits().into();
        if how & 0x40 != 0 {
            let list = LISTS + 64 * slot;
            let mut pieces = [spec::SgElement::new_zeroed(); 2];
            (pieces[0].addr, pieces[0].length) = (address.into(), (bytes / 2).into());
            (pieces[1].addr, pieces[1].length) = ((address ^ 0x8000).into(), (bytes - bytes / 2).into());
            guest.poke(list, pieces.as_bytes());
            request.data_addr = list.into();
            request.flags = (direction | RequestFlags::CMD_WITH_SG_LIST).bits().into();
        }
    } else {
        request.data_len = u64::from(input.u16()).into();
        request.flags = u32::from(input.u8()).into();
        request.lun[1] = how >> 2 & 1;
        let cdb = input.bytes(16);
        request.cdb[..cdb.len()].copy_from_slice(cdb);
        request.cdb_len = cdb.len() as u8;
    }
    let mut bytes = request.as_bytes().to_vec();
    if how & 0x20 != 0 {
        // One byte is anything.
        let at = usize::from(input.u8()) % bytes.len();
        bytes[at] = input.u8();
    }
    guest.poke(REQUESTS * PAGE + size_of::<RingReqDesc>() as u64 * slot, &bytes);
    guest.poke(state(offset_of!(RingsState, req_prod_idx)), &index.wrapping_add(1).to_le_bytes());
    if how & 0x10 == 0 {
        word(guest, spec::REG_KICK_RW_IO, 0);
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut guest = Guest::new(AdapterKind::Pvscsi, &[0, 3]);
    if input.u8() & 0x80 != 0 {
        up(&mut guest);
    }
    while !input.is_empty() {
        let code = input.u8();
        guest.now.0 += 10_000;
        match code & 0xf {
            0..=4 => request(&mut guest, &mut input),
            5 => {
                let len = input.u8();
                start(&mut guest, u32::from(code >> 4), input.bytes(len.into()));
            }
            6 => {
                let (place, value) = (input.u16(), input.u8());
                guest.write(
                    (place >> 15) as u8,
                    u64::from(place & 0x7fff),
                    &[value, 0, 0, 0][..1 << (code >> 6 & 2)],
                );
            }
            7 => {
                let (place, mut data) = (input.u16(), [0; 8]);
                let width = 1 << (code >> 4 & 3);
                guest.device.bar_read(
                    (place >> 15) as u8,
                    u64::from(place & 0x7fff),
                    &mut data[..width],
                    guest.now,
                );
            }
            8 => {
                // A word of the rings' state is anything.
                let (field, value) = (u64::from(input.u8() % 35), input.u8());
                let value = if code & 0x10 != 0 { u32::from(value) } else { u32::from(value).wrapping_neg() };
                guest.poke(STATE * PAGE + 4 * field, &value.to_le_bytes());
            }
            9 => {
                // Completions and messages are taken.
                let produced = peek(&guest, state(offset_of!(RingsState, cmp_prod_idx)));
                guest.poke(state(offset_of!(RingsState, cmp_cons_idx)), &produced.to_le_bytes());
                let produced = peek(&guest, state(offset_of!(RingsState, msg_prod_idx)));
                guest.poke(state(offset_of!(RingsState, msg_cons_idx)), &produced.to_le_bytes());
                word(&mut guest, spec::REG_INTR_STATUS, u32::from(code >> 4));
            }
            10 => guest.poke_from(u64::from(input.u16()) << 2, &mut input),
            11 => guest.turn(),
            12 => guest.own(input.u8()),
            13 => guest.plug(input.u8()),
            14 => guest.behave(code),
            _ if code & 0x80 != 0 => up(&mut guest),
            _ => {
                let kick = [spec::REG_KICK_RW_IO, spec::REG_KICK_NON_RW_IO][usize::from(code >> 4 & 1)];
                word(&mut guest, kick, 0);
            }
        }
    }
    guest.end();
}

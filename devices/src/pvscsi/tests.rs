//! A guest that executes what the test requires, valid or not, and a disk that completes requests when the test releases them.

mod commands;
mod interrupts;
mod kicks;
mod random;
mod requests;
mod rings;
mod small_tables;

use std::mem::offset_of;
use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::spec::*;
use super::*;
use crate::device::{IoDevice, PciDevice, Sleep};
use crate::moderation::Policy;
use crate::scsi::Address;
use crate::testing::{Counts, Hold, MEMORY, MEMORY_END, MIB, Owner, Sink, bus, transfer10, unit};
use crate::time::Time;

const STATE: u64 = 0x1000;
const MESSAGES: u64 = 0x2000;
const SENSE: u64 = 0x3000;
const LIST: u64 = 0x4000;
const REQUESTS: u64 = 0x1_0000;
const COMPLETIONS: u64 = 0x8_0000;
const DATA: u64 = 0x10_0000;
const SENSE_LEN: u32 = 96;

struct Guest {
    device: Pvscsi<Arc<GuestMemoryMmap>>,
    memory: Arc<GuestMemoryMmap>,
    counts: Arc<Counts>,
    hold: Hold,
    now: Time,
    pages: u32,
    req_prod: u32,
    cmp_cons: u32,
}

impl Owner for Guest {
    fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }
}

impl Guest {
    /// A guest before any command, with a disk at target 0 and one at target 3.
    fn powered(config: Config) -> Self {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&MEMORY).unwrap());
        let counts = Arc::new(Counts::default());
        let hold = Hold::default();
        let bus = bus(config.tasks, &[0, 3].map(|target| Address { target, lun: 0 }), &hold);
        let mut device = Pvscsi::new(memory.clone(), bus, Box::new(Sink(counts.clone())), config).unwrap();
        device.config_write(4, &6u16.to_le_bytes());
        device.reset_wait = Duration::ZERO;
        Self { device, memory, counts, hold, now: Time(0), pages: 1, req_prod: 0, cmp_cons: 0 }
    }

    /// A guest with rings of so many pages each. Completions and messages are enabled in the interrupt mask, on INTx.
    fn up(pages: u32, config: Config) -> Self {
        let mut guest = Self::powered(config);
        guest.pages = pages;
        assert_eq!(guest.set_up(), COMMAND_SUCCEEDED);
        guest.write(REG_INTR_MASK, 0xf);
        guest.clear_unit_attention(&[0, 3]);
        guest
    }

    fn new() -> Self {
        Self::up(1, Config { coalescing: Coalescing::policy(Policy::Batch), ..Config::default() })
    }

    /// After power-on and resets, the first command is answered with a unit attention.
    fn clear_unit_attention(&mut self, targets: &[u8]) {
        for &target in targets {
            let mut request = self.request(&[0; 6]);
            request.target = target;
            self.run(&request);
        }
    }

    fn set_up(&mut self) -> u32 {
        self.memory.write_slice(&[0; 4096], GuestAddress(STATE)).unwrap();
        (self.req_prod, self.cmp_cons) = (0, 0);
        let setup = setup_rings(self.pages);
        self.command(command::SETUP_RINGS, setup.as_bytes())
    }

    fn read(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.device.bar_read(0, offset, &mut data, self.now);
        u32::from_le_bytes(data)
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.device.bar_write(0, offset, &value.to_le_bytes(), self.now);
    }

    fn command(&mut self, number: u32, descriptor: &[u8]) -> u32 {
        self.write(REG_COMMAND, number);
        for dword in descriptor.chunks_exact(4) {
            self.write(REG_COMMAND_DATA, u32::from_le_bytes(dword.try_into().unwrap()));
        }
        self.read(REG_COMMAND_STATUS)
    }

    fn state(&self, offset: usize) -> u32 {
        self.memory.read_obj(GuestAddress(STATE + offset as u64)).unwrap()
    }

    fn set_state(&self, offset: usize, value: u32) {
        self.memory.write_obj(value, GuestAddress(STATE + offset as u64)).unwrap();
    }

    /// A request for target 0 without data.
    fn request(&self, cdb: &[u8]) -> RingReqDesc {
        let mut request = RingReqDesc::new_zeroed();
        request.cdb[..cdb.len()].copy_from_slice(cdb);
        request.cdb_len = cdb.len() as u8;
        request.sense_addr = SENSE.into();
        request.sense_len = SENSE_LEN.into();
        request.flags = RequestFlags::CMD_DIR_NONE.bits().into();
        request.context = u64::from(self.req_prod.wrapping_add(1)).into();
        request.tag = 0x20;
        request
    }

    /// READ(10) or WRITE(10) of `sectors` at `lba`, with the data in one piece at `DATA`.
    fn transfer(&self, write: bool, lba: u32, sectors: u16) -> RingReqDesc {
        let mut request = self.request(&transfer10(write, lba, sectors));
        let flags = if write { RequestFlags::CMD_DIR_TODEVICE } else { RequestFlags::CMD_DIR_TOHOST };
        request.flags = flags.bits().into();
        request.data_addr = DATA.into();
        request.data_len = (u64::from(sectors) * 512).into();
        request
    }

    /// Put a request into the ring without a kick.
    fn put(&mut self, request: &RingReqDesc) {
        let slot = u64::from(self.req_prod % (self.pages * 32));
        self.memory.write_slice(request.as_bytes(), GuestAddress(REQUESTS + slot * 128)).unwrap();
        self.req_prod = self.req_prod.wrapping_add(1);
        self.set_state(offset_of!(RingsState, req_prod_idx), self.req_prod);
    }

    fn kick(&mut self) {
        self.write(REG_KICK_RW_IO, 0);
    }

    /// Run what the I/O thread runs after an event, until it would sleep.
    fn serve(&mut self) {
        for _ in 0..1000 {
            self.device.on_completions(self.now);
            if self.device.before_sleep(self.now) != Sleep::No {
                return;
            }
        }
        panic!("never sleeps");
    }

    /// Take the posted completions, at most as many as the largest ring holds: a random test may have changed the index.
    fn completions(&mut self) -> Vec<RingCmpDesc> {
        let mut taken = Vec::new();
        while taken.len() < 4096 && self.cmp_cons != self.state(offset_of!(RingsState, cmp_prod_idx)) {
            let slot = u64::from(self.cmp_cons % (self.pages * 128));
            let mut bytes = [0; 32];
            self.memory.read_slice(&mut bytes, GuestAddress(COMPLETIONS + slot * 32)).unwrap();
            taken.push(RingCmpDesc::read_from_bytes(&bytes).unwrap());
            self.cmp_cons = self.cmp_cons.wrapping_add(1);
            self.set_state(offset_of!(RingsState, cmp_cons_idx), self.cmp_cons);
        }
        taken
    }

    /// Run a request while no other is outstanding.
    fn run(&mut self, request: &RingReqDesc) -> RingCmpDesc {
        self.put(request);
        self.kick();
        for _ in 0..1000 {
            match self.completions().as_slice() {
                [] => self.device.on_completions(self.now),
                [completion] => {
                    assert_eq!(completion.context, request.context);
                    return *completion;
                }
                more => panic!("{} completions for one request", more.len()),
            }
        }
        panic!("no completion for {request:?}");
    }

    fn host_status(&mut self, request: &RingReqDesc) -> u16 {
        self.run(request).host_status.get()
    }

    /// Check that the adapter works: write sectors, and read them back to another buffer.
    fn check_io(&mut self) {
        let data = self.fill(DATA, 4096, 0x5a);
        let write = self.transfer(true, 8, 8);
        assert_good(&self.run(&write), 4096);
        let mut read = self.transfer(false, 8, 8);
        read.data_addr = (DATA + 0x2_0000).into();
        assert_good(&self.run(&read), 4096);
        assert_eq!(self.bytes(DATA + 0x2_0000, 4096), data);
    }

    fn messages_sent(&self) -> u32 {
        self.counts.messages()
    }

    fn line(&self) -> bool {
        self.counts.line()
    }

    fn enable_msi(&mut self) {
        let mut at = [0; 1];
        self.device.config_read(0x34, &mut at);
        self.device.config_write(u16::from(at[0]) + 2, &1u16.to_le_bytes());
    }
}

fn setup_rings(pages: u32) -> CmdDescSetupRings {
    let mut setup = CmdDescSetupRings::new_zeroed();
    setup.req_ring_num_pages = pages.into();
    setup.cmp_ring_num_pages = pages.into();
    setup.rings_state_ppn = (STATE >> 12).into();
    for page in 0..u64::from(pages.min(32)) {
        setup.req_ring_ppns[page as usize] = ((REQUESTS >> 12) + page).into();
        setup.cmp_ring_ppns[page as usize] = ((COMPLETIONS >> 12) + page).into();
    }
    setup
}

#[track_caller]
fn assert_good(completion: &RingCmpDesc, len: u64) {
    assert_eq!((completion.host_status.get(), completion.scsi_status.get()), (0, 0), "{completion:?}");
    assert_eq!(completion.data_len.get(), len);
}

#[test]
fn a_guest_does_io() {
    Guest::new().check_io();
}

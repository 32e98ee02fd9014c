//! A guest under the test's control, which may break the rules, and a disk that completes requests on the test's command.

mod bringup;
mod interrupts;
mod management;
mod random;
mod requests;
mod small_tables;

use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::{FromZeros, IntoBytes};

use super::spec::*;
use super::*;
use crate::device::{IoDevice, PciDevice, Sleep};
use crate::moderation::Policy;
use crate::scsi::Address;
use crate::testing::{Counts, Hold, MEMORY, MEMORY_END, MIB, Owner, Sink, bus, transfer10, unit};
use crate::time::Time;

const MAILBOXES: u64 = 0x1000;
const CCBS: u64 = 0x1_0000;
const LISTS: u64 = 0x2_0000;
const SENSE: u64 = 0x4_0000;
const DATA: u64 = 0x10_0000;
/// Mailboxes of each kind, as Linux has them.
const COUNT: u8 = 211;

const SENSE_LEN: u8 = 96;
const INTERRUPT_MASK: u8 = 0x70;

struct Guest {
    device: BusLogic<Arc<GuestMemoryMmap>>,
    memory: Arc<GuestMemoryMmap>,
    counts: Arc<Counts>,
    hold: Hold,
    now: Time,
    count: u8,
    out_next: u8,
    in_next: u8,
    /// CCBs put in so far.
    ccbs: u32,
}

impl Owner for Guest {
    fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }
}

impl Guest {
    /// A guest before any command, with a disk at target 0 and one at target 3. Bus mastering is off.
    fn powered(config: Config) -> Self {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&MEMORY).unwrap());
        let counts = Arc::new(Counts::default());
        let hold = Hold::default();
        let bus = bus(config.tasks, &[0, 3].map(|target| Address { target, lun: 0 }), &hold);
        let mut device = BusLogic::new(memory.clone(), bus, Box::new(Sink(counts.clone())), config).unwrap();
        device.config_write(4, &3u16.to_le_bytes());
        let now = Time(0);
        Self { device, memory, counts, hold, now, count: COUNT, out_next: 0, in_next: 0, ccbs: 0 }
    }

    /// A guest with mailboxes, strict round robin and CCBs of the extended format, whose units have reported their unit attentions.
    fn up(config: Config) -> Self {
        let mut guest = Self::powered(config);
        guest.bring_up();
        guest.clear_unit_attention(&[0, 3]);
        guest
    }

    fn new() -> Self {
        Self::up(Config { coalescing: Coalescing::policy(Policy::Batch), ..Config::default() })
    }

    /// What Linux does in its recovery: soft reset, mailboxes, modes.
    fn bring_up(&mut self) {
        self.reset(Control::SOFT_RESET);
        let size = usize::from(self.count) * 16;
        self.memory.write_slice(&vec![0; size], GuestAddress(MAILBOXES)).unwrap();
        (self.out_next, self.in_next) = (0, 0);
        let [a, b, c, d] = (MAILBOXES as u32).to_le_bytes();
        self.command(opcode::INITIALIZE_EXTENDED_MAILBOX, &[self.count, a, b, c, d], 0);
        self.command(opcode::SET_ROUND_ROBIN, &[1], 0);
        self.command(opcode::SET_CCB_FORMAT, &[1], 0);
        assert_eq!(self.status(), Status::READY.bits());
    }

    /// A reset as Linux waits for it.
    #[track_caller]
    fn reset(&mut self, control: Control) {
        self.write(reg::STATUS_CONTROL, control.bits());
        let mut statuses = (0..3).map(|_| Status::from_bits_truncate(self.status()));
        let active = statuses.next().unwrap();
        assert!(active.contains(Status::DIAGNOSTIC_ACTIVE), "{active:?}");
        for status in statuses {
            assert_eq!(status, Status::READY | Status::MAILBOXES_REQUIRED);
        }
    }

    /// After power-on and resets, the first command reports a unit attention.
    fn clear_unit_attention(&mut self, targets: &[u8]) {
        for &target in targets {
            let ccb = Ccb { target, ..self.ccb(&[0; 6]) };
            self.run(&ccb);
        }
    }

    fn read(&mut self, offset: u64) -> u8 {
        let mut data = [0];
        self.device.bar_read(0, offset, &mut data, self.now);
        data[0]
    }

    fn write(&mut self, offset: u64, value: u8) {
        self.device.bar_write(0, offset, &[value], self.now);
    }

    fn status(&mut self) -> u8 {
        self.read(reg::STATUS_CONTROL)
    }

    fn interrupt(&mut self) -> u8 {
        self.read(reg::INTERRUPT)
    }

    fn acknowledge(&mut self) {
        self.write(reg::STATUS_CONTROL, Control::RESET_INTERRUPT.bits());
    }

    /// A command as Linux runs it: it expects a reply of exactly this length.
    #[track_caller]
    fn command(&mut self, code: u8, parameters: &[u8], len: usize) -> Vec<u8> {
        assert_ne!(self.status() & Status::READY.bits(), 0);
        self.write(reg::DATA, code);
        for parameter in parameters {
            assert_eq!(self.interrupt() & Interrupts::COMMAND_COMPLETE.bits(), 0, "too many parameters");
            let status = self.status();
            assert_eq!(status & (Status::REPLY_READY | Status::PARAMETER_BUSY).bits(), 0);
            assert_eq!(status & Status::READY.bits(), 0);
            self.write(reg::DATA, *parameter);
        }
        let mut reply = Vec::new();
        let quiet = matches!(code, opcode::MODIFY_IO_ADDRESS | opcode::ENABLE_OMBR | opcode::FETCH_LOCAL_RAM);
        for _ in 0..300 {
            let complete = self.interrupt() & Interrupts::COMMAND_COMPLETE.bits() != 0;
            let status = self.status();
            if complete {
                assert!(!quiet, "no interrupt for {code:#x}");
                assert_eq!(status & Status::REPLY_READY.bits(), 0);
                break;
            }
            if status & Status::REPLY_READY.bits() != 0 {
                reply.push(self.read(reg::DATA));
            } else if status & Status::READY.bits() != 0 {
                assert!(quiet, "{code:#x} ended without an interrupt");
                break;
            }
        }
        let status = self.status();
        assert_eq!(
            status & (Status::READY | Status::COMMAND_INVALID).bits(),
            Status::READY.bits(),
            "{code:#x}"
        );
        self.acknowledge();
        assert_eq!(reply.len(), len, "{code:#x}");
        reply
    }

    /// Address of the next CCB.
    fn next_ccb(&self) -> u64 {
        CCBS + u64::from(self.ccbs % 1024) * 64
    }

    /// A CCB for target 0 without data.
    fn ccb(&self, cdb: &[u8]) -> Ccb {
        let mut ccb = Ccb::new_zeroed();
        ccb.cdb[..cdb.len()].copy_from_slice(cdb);
        ccb.cdb_len = cdb.len() as u8;
        ccb.sense_len = SENSE_LEN;
        ccb.sense_address = (SENSE as u32).into();
        // Values that the adapter must overwrite.
        (ccb.adapter_status, ccb.target_status) = (0xaa, 0xaa);
        ccb
    }

    /// READ(10) or WRITE(10), with the data in one piece at `DATA`, without a residual count.
    fn transfer(&self, write: bool, lba: u32, sectors: u16) -> Ccb {
        let mut ccb = self.ccb(&transfer10(write, lba, sectors));
        ccb.data_len = (u32::from(sectors) * 512).into();
        ccb.data_address = (DATA as u32).into();
        ccb
    }

    fn put_mailbox(&mut self, ccb: u64, action: u8) {
        let at = GuestAddress(MAILBOXES + u64::from(self.out_next) * 8);
        let [a, b, c, d] = (ccb as u32).to_le_bytes();
        self.memory.write_slice(&[a, b, c, d, 0, 0, 0, action], at).unwrap();
        self.out_next = (self.out_next + 1) % self.count;
    }

    /// Put a CCB into a mailbox without ringing the doorbell. Returns its address.
    fn put(&mut self, ccb: &Ccb) -> u64 {
        let at = self.next_ccb();
        self.ccbs += 1;
        self.memory.write_slice(ccb.as_bytes(), GuestAddress(at)).unwrap();
        self.put_mailbox(at, action::START);
        at
    }

    fn ring(&mut self) {
        self.write(reg::DATA, opcode::EXECUTE_MAILBOX);
    }

    /// Run the owner's loop until the device sleeps.
    #[track_caller]
    fn serve(&mut self) {
        for _ in 0..1000 {
            if self.device.before_sleep(self.now) != Sleep::No {
                return;
            }
            self.device.on_completions(self.now);
        }
        panic!("never sleeps");
    }

    /// Take the loaded incoming mailboxes, at most as many as there are.
    fn incoming(&mut self) -> Vec<Incoming> {
        let mut taken = Vec::new();
        for _ in 0..self.count {
            let at = GuestAddress(MAILBOXES + (u64::from(self.count) + u64::from(self.in_next)) * 8);
            let mut bytes = [0; 8];
            self.memory.read_slice(&mut bytes, at).unwrap();
            let [a, b, c, d, adapter_status, target_status, _, code] = bytes;
            if code == completion::FREE {
                break;
            }
            let ccb = u32::from_le_bytes([a, b, c, d]);
            taken.push(Incoming { ccb, adapter_status, target_status, code });
            self.memory.write_obj(0u8, GuestAddress(at.0 + 7)).unwrap();
            self.in_next = (self.in_next + 1) % self.count;
        }
        taken
    }

    fn ccb_at(&self, at: u64) -> Ccb {
        let mut ccb = Ccb::new_zeroed();
        self.memory.read_slice(ccb.as_mut_bytes(), GuestAddress(at)).unwrap();
        ccb
    }

    /// Run a CCB while no other is outstanding.
    #[track_caller]
    fn run(&mut self, ccb: &Ccb) -> Incoming {
        let at = self.put(ccb);
        self.ring();
        self.serve();
        let end = match self.incoming()[..] {
            [end] => end,
            ref ends => panic!("{} ends of one CCB", ends.len()),
        };
        assert_eq!(u64::from(end.ccb), at);
        let after = self.ccb_at(at);
        assert_eq!((after.adapter_status, after.target_status), (end.adapter_status, end.target_status));
        assert_eq!(self.interrupt() & !INTERRUPT_MASK, 0x81);
        self.acknowledge();
        assert_eq!(self.interrupt(), 0);
        end
    }

    /// Check that the adapter works: write sectors, and read them back to another buffer.
    #[track_caller]
    fn check_io(&mut self) {
        let data = self.fill(DATA, 4096, 0x5a);
        let write = self.transfer(true, 8, 8);
        assert_good(&self.run(&write));
        let elsewhere = DATA + 0x2_0000;
        let read = Ccb { data_address: (elsewhere as u32).into(), ..self.transfer(false, 8, 8) };
        assert_good(&self.run(&read));
        assert_eq!(self.bytes(elsewhere, 4096), data);
    }

    fn line(&self) -> bool {
        self.counts.line()
    }
}

#[track_caller]
fn assert_good(end: &Incoming) {
    assert_eq!((end.code, end.adapter_status, end.target_status), (completion::GOOD, 0, 0), "{end:?}");
}

/// Completion code, adapter status and target status of a completion.
const fn told(end: &Incoming) -> (u8, u8, u8) {
    (end.code, end.adapter_status, end.target_status)
}

#[test]
fn a_guest_does_io() {
    Guest::new().check_io();
}

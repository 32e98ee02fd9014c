//! The hypervisor of a machine with a VMBus: pages of the SynIC of its only processor, and the input of hypercalls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paradisk_devices::vmbus::{Posted, Synic};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::processor::Processor;

const POST_MESSAGE: u64 = 0x5c;
pub(super) const SIGNAL_EVENT: u64 = 0x1_005d;
/// `HV_STATUS_INVALID_HYPERCALL_INPUT`.
pub(super) const INVALID_INPUT: u64 = 3;

const SIEFP: u32 = 0x4000_0082;
const SIMP: u32 = 0x4000_0083;
const EOM: u32 = 0x4000_0084;
const PAGE_MASK: u64 = !0xfff;
/// Offset of synthetic interrupt source 2, in both pages.
const SOURCE: u64 = 2 * 256;

/// Addresses of the pages; bit 0: enabled.
#[derive(Default)]
pub(super) struct SynicPages {
    messages: AtomicU64,
    flags: AtomicU64,
}

impl SynicPages {
    pub(super) fn synic(
        self: &Arc<Self>,
        memory: Arc<GuestMemoryMmap>,
        processor: Arc<Processor>,
    ) -> HarnessSynic {
        HarnessSynic { memory, pages: Arc::clone(self), processor }
    }
}

/// The address of an enabled page.
fn enabled(register: &AtomicU64) -> Option<GuestAddress> {
    let value = register.load(Ordering::Relaxed);
    (value & 1 != 0).then_some(GuestAddress((value & PAGE_MASK) + SOURCE))
}

/// The SynIC's interface for the bus. The guest runs on the same thread, so no memory ordering is needed.
pub(super) struct HarnessSynic {
    memory: Arc<GuestMemoryMmap>,
    pages: Arc<SynicPages>,
    processor: Arc<Processor>,
}

impl Synic for HarnessSynic {
    fn post_message(&mut self, vp: u32, payload: &[u8]) -> Posted {
        let Some(slot) = enabled(&self.pages.messages).filter(|_| vp == 0) else { return Posted::Off };
        let Ok(kind) = self.memory.read_obj::<u32>(slot) else { return Posted::Off };
        if kind != 0 {
            let flags = GuestAddress(slot.0 + 5);
            return self.memory.write_obj(1u8, flags).map_or(Posted::Off, |()| Posted::Busy);
        }
        let header = u64::from(payload.len() as u32) << 32 | 1;
        let written = self
            .memory
            .write_slice(payload, GuestAddress(slot.0 + 16))
            .and_then(|()| self.memory.write_obj(header, slot));
        if written.is_err() {
            return Posted::Off;
        }
        self.processor.interrupt();
        Posted::Done
    }

    fn signal_event(&mut self, vp: u32, flag: u16) {
        let Some(flags) = enabled(&self.pages.flags).filter(|_| vp == 0) else { return };
        let (at, bit) = (GuestAddress(flags.0 + u64::from(flag / 8)), 1u8 << (flag % 8));
        let Ok(byte) = self.memory.read_obj::<u8>(at) else { return };
        if byte & bit == 0 && self.memory.write_obj(byte | bit, at).is_ok() {
            self.processor.interrupt();
        }
    }
}

/// The hypervisor's interface for the guest.
pub(super) struct HypervisorPages {
    memory: Arc<GuestMemoryMmap>,
    pages: Arc<SynicPages>,
}

/// A message that the guest posts.
pub(super) struct Message {
    pub(super) connection: u32,
    pub(super) kind: u32,
    pub(super) payload: Vec<u8>,
}

impl HypervisorPages {
    pub(super) const fn new(memory: Arc<GuestMemoryMmap>, pages: Arc<SynicPages>) -> Self {
        Self { memory, pages }
    }

    /// Write a register; true: the guest has ended a message while another one waits.
    pub(super) fn msr_write(&self, msr: u32, value: u64) -> bool {
        match msr {
            SIMP => self.pages.messages.store(value, Ordering::Relaxed),
            SIEFP => self.pages.flags.store(value, Ordering::Relaxed),
            _ => {}
        }
        msr == EOM
    }

    /// The message of a hypercall whose input is at this address.
    pub(super) fn message(&self, control: u64, input: u64) -> Option<Message> {
        let word = |at| self.memory.read_obj::<u32>(GuestAddress(input + at)).ok();
        let (connection, kind, len) = (word(0)?, word(8)?, word(12)?);
        if control != POST_MESSAGE || len > 240 {
            return None;
        }
        let mut payload = vec![0; len as usize];
        self.memory.read_slice(&mut payload, GuestAddress(input + 16)).ok()?;
        Some(Message { connection, kind, payload })
    }
}

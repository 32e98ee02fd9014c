//! Synthetic interrupt controllers (Hypervisor Top-Level Functional Specification 6.0, chapter 11): registers that virtual CPUs write, and
//! the messages and event flags that the VMBus puts into guest memory. Only interrupt source 2, the VMBus's, delivers anything.
//!
//! Registers are atomics: a virtual CPU's thread writes its own, the device's thread reads those of all. A message or an event takes no lock.
//!
//! ```text
//! message page (SIMP), at source * 256:   u32 type | u8 size | u8 flags | u16 | u64 sender | 240 bytes of payload
//! event flags page (SIEFP), the same:     2,048 bits
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use paradisk_devices::vmbus::{Posted, Synic};
use paradisk_devices::{InterruptSink, MsiMessage};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, VolatileMemory, VolatileSlice};

use crate::layout;
use crate::memory::GuestMemory;

const PAGE: usize = 4096;
/// Bytes of an interrupt source in each of the two pages.
const AREA: usize = 256;
/// The interrupt source of the VMBus.
const VMBUS: usize = 2;
const SOURCES: usize = 16;

/// In SCONTROL, SIEFP and SIMP.
const ENABLED: u64 = 1;
/// In SIEFP and SIMP.
const PAGE_ADDRESS: u64 = !0xfff;
/// In SINT0 to 15.
const VECTOR: u64 = 0xff;
const MASKED: u64 = 1 << 16;
const AUTO_EOI: u64 = 1 << 17;
const POLLING: u64 = 1 << 18;
/// Lower vectors are those of exceptions.
const FIRST_VECTOR: u64 = 16;

/// Offsets in a message slot.
const TYPE: usize = 0;
const SIZE: usize = 4;
const FLAGS: usize = 5;
const PAYLOAD: usize = 16;
/// Message types: the slot is free, and the hypervisor's first.
const FREE: u32 = 0;
const VMBUS_MESSAGE: u32 = 1;
/// In the flags: another message waits for the slot.
const PENDING: u8 = 1;

/// An access to an MSR fails: a general protection exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// The registers of a virtual processor's controller.
pub(super) struct Processor {
    control: AtomicU64,
    event_flags: AtomicU64,
    messages: AtomicU64,
    sources: [AtomicU64; SOURCES],
    /// A message has found the slot taken.
    waiting: AtomicBool,
}

/// A register of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Register {
    Control,
    Version,
    EventFlags,
    Messages,
    EndOfMessage,
    Source(usize),
}

impl Processor {
    pub(super) fn new() -> Self {
        Self {
            control: AtomicU64::new(0),
            event_flags: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            sources: [const { AtomicU64::new(MASKED) }; SOURCES],
            waiting: AtomicBool::new(false),
        }
    }

    pub(super) fn read(&self, register: Register) -> Option<u64> {
        let register = match register {
            Register::Control => &self.control,
            Register::Version => return Some(1),
            Register::EventFlags => &self.event_flags,
            Register::Messages => &self.messages,
            Register::EndOfMessage => return Some(0),
            Register::Source(index) => self.sources.get(index)?,
        };
        Some(register.load(Ordering::Relaxed))
    }

    /// The guest writes a register.
    pub(super) fn write(&self, register: Register, value: u64, memory: &GuestMemory) -> Result<(), Refused> {
        match register {
            Register::Control => self.control.store(value & ENABLED, Ordering::Release),
            Register::Version => return Err(Refused),
            Register::EventFlags => set_page(&self.event_flags, value, memory)?,
            Register::Messages => set_page(&self.messages, value, memory)?,
            // What it does is up to the bus: see `take_waiting`.
            Register::EndOfMessage => {}
            Register::Source(index) => {
                let source = self.sources.get(index).ok_or(Refused)?;
                let no_vector = value & VECTOR < FIRST_VECTOR || value & AUTO_EOI != 0;
                if no_vector && value & MASKED == 0 {
                    return Err(Refused);
                }
                source.store(value & (VECTOR | MASKED | POLLING), Ordering::Release);
            }
        }
        Ok(())
    }

    /// At the end of a message: whether another one may be waiting for the slot.
    pub(super) fn take_waiting(&self) -> bool {
        self.waiting.swap(false, Ordering::AcqRel)
    }

    /// The VMBus's part of a page that is enabled.
    fn area<'a>(&self, page: &AtomicU64, memory: &'a GuestMemory) -> Option<VolatileSlice<'a>> {
        let page = page.load(Ordering::Acquire);
        if self.control.load(Ordering::Acquire) & page & ENABLED == 0 {
            return None;
        }
        let address = (page & PAGE_ADDRESS) + (VMBUS * AREA) as u64;
        memory.get_slice(GuestAddress(address), AREA).ok()
    }

    /// Put a message into the slot.
    fn post(&self, payload: &[u8], memory: &GuestMemory) -> Posted {
        let Some(slot) = self.area(&self.messages, memory) else { return Posted::Off };
        // Fails only for an address that is not aligned, and this one is.
        let Ok(kind) = slot.get_atomic_ref::<AtomicU32>(TYPE) else { return Posted::Off };
        if kind.load(Ordering::Acquire) != FREE && self.is_taken(&slot, kind) {
            return Posted::Busy;
        }
        let len = payload.len().min(AREA - PAYLOAD);
        debug_assert_eq!(len, payload.len(), "a message of more than 240 bytes");
        let mut bytes = [0; AREA - SIZE];
        let [size, ..] = &mut bytes;
        *size = len as u8;
        for (byte, from) in bytes.iter_mut().skip(PAYLOAD - SIZE).zip(payload) {
            *byte = *from;
        }
        let written = bytes.get(..PAYLOAD - SIZE + len).unwrap_or_default();
        // The slot is in memory, and no shorter.
        let _ = slot.write_slice(written, SIZE);
        kind.store(VMBUS_MESSAGE, Ordering::Release);
        Posted::Done
    }

    /// Have the guest tell when it has taken the message that is in the slot. False: it has just taken it, and may not tell.
    fn is_taken(&self, slot: &VolatileSlice<'_>, kind: &AtomicU32) -> bool {
        // First: the guest may tell as soon as it sees the flag. One time too often does no harm.
        self.waiting.store(true, Ordering::Release);
        if let Ok(flags) = slot.get_atomic_ref::<AtomicU8>(FLAGS) {
            flags.fetch_or(PENDING, Ordering::SeqCst);
        }
        // The guest frees the slot and then reads the flag, this thread does it the other way round: one of them sees the other's write.
        fence(Ordering::SeqCst);
        kind.load(Ordering::SeqCst) != FREE
    }

    /// Set an event flag. True: it was clear.
    fn set_flag(&self, flag: u16, memory: &GuestMemory) -> bool {
        let Some(flags) = self.area(&self.event_flags, memory) else { return false };
        let (word, bit) = (usize::from(flag / 64) * 8, 1_u64 << (flag % 64));
        // None beyond the page's 2,048.
        let Ok(word) = flags.get_atomic_ref::<AtomicU64>(word) else { return false };
        word.fetch_or(bit, Ordering::SeqCst) & bit == 0
    }
}

/// Set a page of the controller. One that was not enabled there before is zeroed, as is the page that a hypervisor puts over the guest's.
fn set_page(register: &AtomicU64, value: u64, memory: &GuestMemory) -> Result<(), Refused> {
    let value = value & (PAGE_ADDRESS | ENABLED);
    if value & ENABLED != 0 && value != register.load(Ordering::Relaxed) {
        memory.write_slice(&[0; PAGE], GuestAddress(value & PAGE_ADDRESS)).map_err(|_| Refused)?;
    }
    register.store(value, Ordering::Release);
    Ok(())
}

/// The controllers of all virtual processors.
pub(super) struct Processors {
    pub(super) memory: GuestMemory,
    all: Vec<Processor>,
}

impl Processors {
    pub(super) fn new(memory: GuestMemory, cpus: u8) -> Self {
        Self { memory, all: (0..cpus).map(|_| Processor::new()).collect() }
    }

    pub(super) fn get(&self, vp: usize) -> Option<&Processor> {
        self.all.get(vp)
    }
}

/// The controllers as the VMBus uses them, on its device's thread.
pub(super) struct VmbusSynic {
    processors: Arc<Processors>,
    interrupts: Box<dyn InterruptSink>,
    /// For each virtual processor, the register of source 2 that its interrupt was routed by.
    routed: Vec<u64>,
}

impl VmbusSynic {
    pub(super) fn new(processors: Arc<Processors>, interrupts: Box<dyn InterruptSink>) -> Self {
        let routed = vec![MASKED; processors.all.len()];
        Self { processors, interrupts, routed }
    }

    /// Interrupt a virtual processor, if it lets source 2.
    fn interrupt(&mut self, vp: usize) {
        let Some((processor, routed)) = self.processors.all.get(vp).zip(self.routed.get_mut(vp)) else {
            return;
        };
        let [_, _, source, ..] = &processor.sources;
        let source = source.load(Ordering::Acquire);
        if source != *routed {
            *routed = source;
            self.interrupts.route(vp as u16, message(vp, source));
        }
        self.interrupts.message(vp as u16);
    }
}

/// What an interrupt source sends to a virtual processor, whose number is that of its local APIC.
fn message(vp: usize, source: u64) -> Option<MsiMessage> {
    let sends = source & (MASKED | POLLING) == 0;
    sends.then_some(MsiMessage {
        address: layout::LOCAL_APIC | (vp as u64) << 12,
        data: (source & VECTOR) as u32,
    })
}

impl Synic for VmbusSynic {
    fn processors(&self) -> Option<u32> {
        Some(self.routed.len() as u32)
    }

    fn post_message(&mut self, vp: u32, payload: &[u8]) -> Posted {
        let vp = vp as usize;
        let Some(processor) = self.processors.get(vp) else { return Posted::Off };
        let posted = processor.post(payload, &self.processors.memory);
        if posted == Posted::Done {
            self.interrupt(vp);
        }
        posted
    }

    fn signal_event(&mut self, vp: u32, flag: u16) {
        let vp = vp as usize;
        let set = |processor: &Processor| processor.set_flag(flag, &self.processors.memory);
        if self.processors.get(vp).is_some_and(set) {
            self.interrupt(vp);
        }
    }
}

#[cfg(test)]
mod tests;

//! Synthetic interrupt controllers (Hypervisor Top-Level Functional Specification 6.0, chapter 11): registers that virtual CPUs write, and
//! the messages and event flags that the VMBus writes to guest memory. Only interrupt source 2, the VMBus's, delivers messages and events.
//!
//! Registers are atomics: a virtual CPU's thread writes its own registers, and the device's thread reads all registers. Messages and events
//! take no lock.
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
/// Bytes for each interrupt source in each of the two pages.
const AREA: usize = 256;
/// The interrupt source of the VMBus.
const VMBUS: usize = 2;
const SOURCES: usize = 16;

/// Bit of SCONTROL, SIEFP and SIMP.
const ENABLED: u64 = 1;
/// Field of SIEFP and SIMP.
const PAGE_ADDRESS: u64 = !0xfff;
/// Fields of SINT0 to SINT15.
const VECTOR: u64 = 0xff;
const MASKED: u64 = 1 << 16;
const AUTO_EOI: u64 = 1 << 17;
const POLLING: u64 = 1 << 18;
/// Lower vectors are reserved for exceptions.
const FIRST_VECTOR: u64 = 16;

/// Offsets in a message slot.
const TYPE: usize = 0;
const SIZE: usize = 4;
const FLAGS: usize = 5;
const PAYLOAD: usize = 16;
/// Message types: free slot, and VMBus message.
const FREE: u32 = 0;
const VMBUS_MESSAGE: u32 = 1;
/// Message flag: another message waits for the slot.
const PENDING: u8 = 1;

/// The access to an MSR raises a general protection exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// The registers of a virtual processor's controller.
pub(super) struct Processor {
    control: AtomicU64,
    event_flags: AtomicU64,
    messages: AtomicU64,
    sources: [AtomicU64; SOURCES],
    /// A message waits, because the slot was occupied.
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
            // The caller checks `take_waiting`, and notifies the bus.
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

    /// At the end of a message: whether another message may wait for the slot. Clears that state.
    pub(super) fn take_waiting(&self) -> bool {
        self.waiting.swap(false, Ordering::AcqRel)
    }

    /// The VMBus's area of a page; `None`: the controller or the page is not enabled.
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
        // Cannot fail: the address is aligned.
        let Ok(kind) = slot.get_atomic_ref::<AtomicU32>(TYPE) else { return Posted::Off };
        if kind.load(Ordering::Acquire) != FREE && self.mark_pending(&slot, kind) {
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
        // Cannot fail: `area` has checked the slot, and `written` is not longer.
        let _ = slot.write_slice(written, SIZE);
        kind.store(VMBUS_MESSAGE, Ordering::Release);
        Posted::Done
    }

    /// Request an end of message from the guest for the message in the slot. False: the slot has become free, so no end of message may
    /// come.
    fn mark_pending(&self, slot: &VolatileSlice<'_>, kind: &AtomicU32) -> bool {
        // Before the flag is set: the end of message may follow at once. A needless one does no harm.
        self.waiting.store(true, Ordering::Release);
        if let Ok(flags) = slot.get_atomic_ref::<AtomicU8>(FLAGS) {
            flags.fetch_or(PENDING, Ordering::SeqCst);
        }
        // The guest frees the slot, then reads the flag; this thread sets the flag, then reads the slot. At least one sees the other's
        // write.
        fence(Ordering::SeqCst);
        kind.load(Ordering::SeqCst) != FREE
    }

    /// Set an event flag. True: it was clear.
    fn set_flag(&self, flag: u16, memory: &GuestMemory) -> bool {
        let Some(flags) = self.area(&self.event_flags, memory) else { return false };
        let (word, bit) = (usize::from(flag / 64) * 8, 1_u64 << (flag % 64));
        // Fails for a flag of 2,048 or more.
        let Ok(word) = flags.get_atomic_ref::<AtomicU64>(word) else { return false };
        word.fetch_or(bit, Ordering::SeqCst) & bit == 0
    }
}

/// Write a page register. A page that was not enabled at this address before is zeroed, as a hypervisor's overlay page is.
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

/// The controllers' interface for the VMBus, on its device's thread.
pub(super) struct VmbusSynic {
    processors: Arc<Processors>,
    interrupts: Box<dyn InterruptSink>,
    /// For each virtual processor, the value of SINT2 at the last change of its interrupt route.
    routed: Vec<u64>,
}

impl VmbusSynic {
    pub(super) fn new(processors: Arc<Processors>, interrupts: Box<dyn InterruptSink>) -> Self {
        let routed = vec![MASKED; processors.all.len()];
        Self { processors, interrupts, routed }
    }

    /// Interrupt a virtual processor, if its source 2 is not masked.
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

/// The interrupt message of a source. A virtual processor's number is its local APIC ID. `None`: masked or polled.
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

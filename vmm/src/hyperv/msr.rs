//! Synthetic MSRs (Hypervisor Top-Level Functional Specification 6.0, appendix F). KVM filters all of them, so each access exits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use vm_memory::{Bytes, GuestAddress};

use super::hypercall;
use super::synic::{Processors, Refused, Register};

/// The first of Hyper-V's MSR numbers.
pub(super) const FIRST: u32 = 0x4000_0000;
/// Number of Hyper-V's MSR numbers.
pub(super) const COUNT: u32 = 0x120;

const GUEST_OS_ID: u32 = FIRST;
const HYPERCALL: u32 = FIRST + 0x01;
const VP_INDEX: u32 = FIRST + 0x02;
const TIME_REF_COUNT: u32 = FIRST + 0x20;
const REFERENCE_TSC: u32 = FIRST + 0x21;
const TSC_FREQUENCY: u32 = FIRST + 0x22;
const APIC_FREQUENCY: u32 = FIRST + 0x23;
const VP_ASSIST_PAGE: u32 = FIRST + 0x73;
const SCONTROL: u32 = FIRST + 0x80;
const SVERSION: u32 = FIRST + 0x81;
const SIEFP: u32 = FIRST + 0x82;
const SIMP: u32 = FIRST + 0x83;
const EOM: u32 = FIRST + 0x84;
const SINT0: u32 = FIRST + 0x90;
const SINT15: u32 = FIRST + 0x9f;
const TSC_INVARIANT_CONTROL: u32 = FIRST + 0x118;

/// Bit of the hypercall register.
const ENABLED: u64 = 1;
const PAGE_ADDRESS: u64 = !0xfff;
/// KVM's local APIC timers count nanoseconds (the default of `KVM_CAP_X86_APIC_BUS_CYCLES_NS`).
const APIC_HZ: u64 = 1_000_000_000;

/// The action that a write requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Nothing.
    Done,
    /// Notify the bus that a message has ended, or that the message slot has moved.
    EndOfMessage,
}

/// The synthetic MSRs of a machine.
pub(super) struct Msrs {
    processors: Arc<Processors>,
    guest_os_id: AtomicU64,
    hypercall: AtomicU64,
    reference_tsc: AtomicU64,
    tsc_invariant: AtomicU64,
    /// One for each virtual processor. The VMM never writes to the page; its zeros mean that the guest has to write its end of interrupt.
    assist_pages: Vec<AtomicU64>,
    tsc_hz: u64,
    origin: Instant,
}

impl Msrs {
    pub(super) fn new(processors: Arc<Processors>, cpus: u8, tsc_hz: u64, origin: Instant) -> Self {
        Self {
            processors,
            guest_os_id: AtomicU64::new(0),
            hypercall: AtomicU64::new(0),
            reference_tsc: AtomicU64::new(0),
            tsc_invariant: AtomicU64::new(0),
            assist_pages: (0..cpus).map(|_| AtomicU64::new(0)).collect(),
            tsc_hz,
            origin,
        }
    }

    /// Whether the guest has a hypercall page.
    pub(super) fn hypercalls_enabled(&self) -> bool {
        self.hypercall.load(Ordering::Relaxed) & ENABLED != 0
    }

    pub(super) fn read(&self, vp: usize, msr: u32) -> Result<u64, Refused> {
        let register = match msr {
            GUEST_OS_ID => &self.guest_os_id,
            HYPERCALL => &self.hypercall,
            VP_INDEX => return Ok(vp as u64),
            TIME_REF_COUNT => return Ok((self.origin.elapsed().as_nanos() / 100) as u64),
            REFERENCE_TSC => &self.reference_tsc,
            TSC_FREQUENCY => return Ok(self.tsc_hz),
            APIC_FREQUENCY => return Ok(APIC_HZ),
            VP_ASSIST_PAGE => self.assist_pages.get(vp).ok_or(Refused)?,
            TSC_INVARIANT_CONTROL => &self.tsc_invariant,
            _ => {
                let register = synic_register(msr).ok_or(Refused)?;
                let processor = self.processors.get(vp).ok_or(Refused)?;
                return processor.read(register).ok_or(Refused);
            }
        };
        Ok(register.load(Ordering::Relaxed))
    }

    pub(super) fn write(&self, vp: usize, msr: u32, value: u64) -> Result<Written, Refused> {
        match msr {
            GUEST_OS_ID => {
                self.guest_os_id.store(value, Ordering::Relaxed);
                if value == 0 {
                    self.hypercall.fetch_and(!ENABLED, Ordering::Relaxed);
                }
            }
            HYPERCALL => self.set_hypercall_page(value)?,
            // The VMM does not write the page. Its sequence number stays 0, so the guest does not use it.
            REFERENCE_TSC => self.reference_tsc.store(value, Ordering::Relaxed),
            VP_ASSIST_PAGE => self.assist_pages.get(vp).ok_or(Refused)?.store(value, Ordering::Relaxed),
            TSC_INVARIANT_CONTROL if value <= 1 => self.tsc_invariant.store(value, Ordering::Relaxed),
            _ => {
                let register = synic_register(msr).ok_or(Refused)?;
                let processor = self.processors.get(vp).ok_or(Refused)?;
                processor.write(register, value, &self.processors.memory)?;
                // If the message page has moved, no end of message comes for the old slot.
                let frees =
                    matches!(register, Register::EndOfMessage | Register::Messages | Register::Control);
                if frees && processor.take_waiting() {
                    return Ok(Written::EndOfMessage);
                }
            }
        }
        Ok(Written::Done)
    }

    /// Write the hypercall page. Ignored until the guest has written GUEST_OS_ID.
    fn set_hypercall_page(&self, value: u64) -> Result<(), Refused> {
        if self.guest_os_id.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        if value & ENABLED != 0 {
            let address = GuestAddress(value & PAGE_ADDRESS);
            self.processors.memory.write_slice(&hypercall::CODE, address).map_err(|_| Refused)?;
        }
        self.hypercall.store(value & (PAGE_ADDRESS | ENABLED), Ordering::Relaxed);
        Ok(())
    }
}

fn synic_register(msr: u32) -> Option<Register> {
    Some(match msr {
        SCONTROL => Register::Control,
        SVERSION => Register::Version,
        SIEFP => Register::EventFlags,
        SIMP => Register::Messages,
        EOM => Register::EndOfMessage,
        SINT0..=SINT15 => Register::Source((msr - SINT0) as usize),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;

    const MEMORY: u64 = 0x10_0000;

    fn msrs() -> Msrs {
        let processors = Arc::new(Processors::new(memory::allocate(MEMORY).unwrap(), 2));
        Msrs::new(processors, 2, 3_000_000_000, Instant::now())
    }

    #[test]
    fn a_guest_that_says_what_it_is_gets_a_hypercall_page() {
        let msrs = msrs();
        let page = || {
            let mut code = [0; hypercall::CODE.len()];
            msrs.processors.memory.read_slice(&mut code, GuestAddress(0x5000)).unwrap();
            code
        };
        assert_eq!(msrs.write(0, HYPERCALL, 0x5001), Ok(Written::Done));
        assert_eq!((msrs.read(0, HYPERCALL), page()), (Ok(0), [0; hypercall::CODE.len()]));
        msrs.write(0, GUEST_OS_ID, 0x8100_0000).unwrap();
        assert_eq!(msrs.write(1, HYPERCALL, MEMORY | 1), Err(Refused), "not in memory");
        assert!(!msrs.hypercalls_enabled());
        msrs.write(1, HYPERCALL, 0x5fff).unwrap();
        assert_eq!((msrs.read(0, HYPERCALL), page()), (Ok(0x5001), hypercall::CODE));
        assert!(msrs.hypercalls_enabled());
        msrs.write(0, GUEST_OS_ID, 0).unwrap();
        assert_eq!(msrs.read(0, HYPERCALL), Ok(0x5000));
        assert!(!msrs.hypercalls_enabled());
    }

    #[test]
    fn each_processor_has_its_own_registers() {
        let msrs = msrs();
        for (vp, page) in [(0, 0x7001), (1, 0x9001)] {
            for msr in [VP_ASSIST_PAGE, SIMP, SIEFP] {
                msrs.write(vp, msr, page).unwrap();
            }
            assert_eq!(msrs.read(vp, VP_INDEX), Ok(vp as u64));
        }
        for msr in [VP_ASSIST_PAGE, SIMP, SIEFP] {
            assert_eq!((msrs.read(0, msr), msrs.read(1, msr)), (Ok(0x7001), Ok(0x9001)));
        }
        assert_eq!(msrs.write(0, SINT15, 0x30), Ok(Written::Done));
        assert_eq!((msrs.read(0, SINT15), msrs.read(1, SINT15)), (Ok(0x30), Ok(0x1_0000)));
        // Nobody waits for the slot.
        assert_eq!(msrs.write(0, EOM, 0), Ok(Written::Done));
    }

    #[test]
    fn time_is_told_in_the_units_of_each_register() {
        let msrs = msrs();
        assert_eq!(
            (msrs.read(0, TSC_FREQUENCY), msrs.read(0, APIC_FREQUENCY)),
            (Ok(3_000_000_000), Ok(1_000_000_000))
        );
        let before = msrs.origin.elapsed().as_nanos() / 100;
        let told = u128::from(msrs.read(0, TIME_REF_COUNT).unwrap());
        assert!((before..=msrs.origin.elapsed().as_nanos() / 100).contains(&told));
        msrs.write(0, TSC_INVARIANT_CONTROL, 1).unwrap();
        assert_eq!(msrs.write(0, TSC_INVARIANT_CONTROL, 2), Err(Refused));
        assert_eq!(msrs.read(1, TSC_INVARIANT_CONTROL), Ok(1));
    }

    #[test]
    fn other_registers_are_refused() {
        let msrs = msrs();
        // The reset register, the APIC's, timers, crash registers, and the last of the range.
        for msr in [0x03, 0x70, 0xb0, 0x100, 0x105, COUNT - 1] {
            assert_eq!(msrs.read(0, FIRST + msr), Err(Refused), "{msr:#x}");
            assert_eq!(msrs.write(0, FIRST + msr, 0), Err(Refused), "{msr:#x}");
        }
        for msr in [VP_INDEX, TSC_FREQUENCY, APIC_FREQUENCY, SVERSION, TIME_REF_COUNT] {
            assert_eq!(msrs.write(0, msr, 0), Err(Refused), "{msr:#x}");
        }
        assert_eq!(msrs.read(2, SCONTROL), Err(Refused), "no such processor");
    }
}

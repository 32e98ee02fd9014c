//! Instructions that KVM's interpreter lacks. Without VT-x and AMD-V, KVM interprets guest kernel mode, and fails at
//! some instructions that every kernel uses. This module emulates those that only use registers (AMD64 Architecture
//! Programmer's Manual, volumes 2, 3 and 5).

use kvm_bindings::{kvm_regs, kvm_sregs};

const RFLAGS_AC: u64 = 1 << 18;
const CR0_MP: u64 = 1 << 1;
const CR0_TS: u64 = 1 << 3;
/// x87 status word: an unmasked exception is pending.
const FSW_ES: u16 = 1 << 7;

/// An exception without an error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exception {
    Breakpoint = 3,
    InvalidOpcode = 6,
    DeviceNotAvailable = 7,
    FloatingPoint = 16,
}

/// State that instructions depend on beside general registers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State {
    /// Privilege level.
    pub(crate) cpl: u8,
    pub(crate) cr0: u64,
    /// x87 status word.
    pub(crate) fsw: u16,
}

impl State {
    pub(crate) const fn new(sregs: &kvm_sregs, fsw: u16) -> Self {
        Self { cpl: sregs.ss.dpl, cr0: sregs.cr0, fsw }
    }
}

/// Emulate the instruction at RIP. `None`: unknown instruction. `Some(Some(_))`: it raises this exception; the
/// registers are those at the entry of the handler.
pub(crate) fn emulate(instruction: &[u8], state: State, regs: &mut kvm_regs) -> Option<Option<Exception>> {
    let (len, exception) = match instruction {
        // FWAIT
        [0x9b, ..] if state.cr0 & (CR0_MP | CR0_TS) == CR0_MP | CR0_TS => {
            (0, Some(Exception::DeviceNotAvailable))
        }
        [0x9b, ..] if state.fsw & FSW_ES != 0 => (0, Some(Exception::FloatingPoint)),
        [0x9b, ..] => (1, None),
        // INT3: a trap, which returns to the next instruction.
        [0xcc, ..] => (1, Some(Exception::Breakpoint)),
        // CLAC, STAC
        [0x0f, 0x01, 0xca | 0xcb, ..] if state.cpl != 0 => (0, Some(Exception::InvalidOpcode)),
        [0x0f, 0x01, 0xca, ..] => {
            regs.rflags &= !RFLAGS_AC;
            (3, None)
        }
        [0x0f, 0x01, 0xcb, ..] => {
            regs.rflags |= RFLAGS_AC;
            (3, None)
        }
        _ => return None,
    };
    regs.rip = regs.rip.wrapping_add(len);
    Some(exception)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIP: u64 = 0x1000;

    fn run(instruction: &[u8], state: State, rflags: u64) -> Option<(u64, u64, Option<Exception>)> {
        let mut regs = kvm_regs { rip: RIP, rflags, ..Default::default() };
        let exception = emulate(instruction, state, &mut regs)?;
        Some((regs.rip - RIP, regs.rflags, exception))
    }

    #[test]
    fn fwait_waits_for_nothing_or_raises_what_is_pending() {
        let kernel = State::default();
        assert_eq!(run(&[0x9b], kernel, 2), Some((1, 2, None)));
        assert_eq!(run(&[0x9b], State { cr0: CR0_TS, ..kernel }, 2), Some((1, 2, None)));
        let lazy = State { cr0: CR0_TS | CR0_MP, fsw: FSW_ES, ..kernel };
        assert_eq!(run(&[0x9b], lazy, 2), Some((0, 2, Some(Exception::DeviceNotAvailable))));
        let pending = State { cr0: CR0_MP, fsw: FSW_ES | 1, ..kernel };
        assert_eq!(run(&[0x9b], pending, 2), Some((0, 2, Some(Exception::FloatingPoint))));
    }

    #[test]
    fn access_flag_is_the_kernels() {
        let kernel = State::default();
        let user = State { cpl: 3, ..kernel };
        assert_eq!(run(&[0x0f, 0x01, 0xcb], kernel, 2), Some((3, 2 | RFLAGS_AC, None)));
        assert_eq!(run(&[0x0f, 0x01, 0xca], kernel, 2 | RFLAGS_AC), Some((3, 2, None)));
        for instruction in [[0x0f, 0x01, 0xca], [0x0f, 0x01, 0xcb]] {
            assert_eq!(run(&instruction, user, 2), Some((0, 2, Some(Exception::InvalidOpcode))));
        }
    }

    #[test]
    fn a_breakpoint_returns_behind_itself() {
        assert_eq!(run(&[0xcc, 0x90], State::default(), 2), Some((1, 2, Some(Exception::Breakpoint))));
    }

    #[test]
    fn other_instructions_are_not_guessed() {
        for other in
            [&[][..], &[0x0f], &[0x0f, 0x01], &[0x0f, 0x01, 0xcc], &[0x0f, 0xc7, 0x0e], &[0x66, 0x9b]]
        {
            assert_eq!(run(other, State::default(), 2), None, "{other:02x?}");
        }
    }
}

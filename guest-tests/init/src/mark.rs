//! Marks for an emulator that counts instructions (`guest-tests/linux/src/kvm_host/count.c`): `nopl disp32(%rax,%rax,1)`, whose
//! displacement has a number. Nothing to a processor.
#![allow(unsafe_code, reason = "there is no other way to execute a given instruction")]

use std::arch::asm;

/// What is counted begins.
pub(crate) fn begin() {
    // SAFETY: the instruction reads no memory and changes no register.
    unsafe { asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 'M', 'R', 'K', '<'") };
}

/// What is counted has ended.
pub(crate) fn end() {
    // SAFETY: as above.
    unsafe { asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 'M', 'R', 'K', '>'") };
}

//! The four functions that compiled code calls by name, here without a C library.

use core::arch::asm;

/// Copy memory.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: as the caller promised.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
    to
}

/// Copy memory that may overlap.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: no byte is written before it is read when copied upwards.
        return unsafe { memcpy(to, from, len) };
    }
    // SAFETY: downwards, for the same reason; the direction flag is cleared again.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") len => _, inout("rdi") to.wrapping_add(len).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(len).wrapping_sub(1) => _, options(nostack));
    }
    to
}

/// Fill memory.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    // SAFETY: as the caller promised.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags));
    }
    to
}

/// Compare memory.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, len: usize) -> i32 {
    for index in 0..len {
        // SAFETY: as the caller promised. Volatile, so that the compiler does not turn this loop into a call of `memcmp` itself.
        let (a, b) = unsafe { (one.add(index).read_volatile(), other.add(index).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

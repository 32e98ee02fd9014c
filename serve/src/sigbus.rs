//! Mapped memory whose file shrinks.
//!
//! A client can truncate the file of shared memory at any time, unless it is sealed. An access beyond the end then raises SIGBUS, which
//! would end the process. The handler here replaces the whole mapping by private memory of this process, which the client no longer
//! sees. The kernel's own accesses (io_uring, preadv) fail with EFAULT.
//!
//! The signal's handler belongs to the whole process. Faults outside of the watched mappings go to the handler before it.
#![allow(unsafe_code, reason = "a signal's handler, and a mapping that it replaces")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Mappings at the most, over all servers of the process.
const MAPPINGS: usize = 4096;

/// A slot that is being filled.
const RESERVED: usize = 1;

/// A mapping: its start (0: none) and its bytes.
struct Slot {
    start: AtomicUsize,
    len: AtomicUsize,
}

static SLOTS: [Slot; MAPPINGS] =
    [const { Slot { start: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; MAPPINGS];

/// The action for the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping that is watched until this is dropped, which must be before it is unmapped or with it.
#[derive(Debug)]
pub(crate) struct Watched(usize);

impl Watched {
    /// Watch the `len` bytes mapped at `start`, whole pages.
    ///
    /// # Errors
    /// There are too many, or the handler cannot be installed.
    pub(crate) fn new(start: *mut u8, len: usize) -> io::Result<Self> {
        install()?;
        let reserve = |slot: &Slot| {
            slot.start.compare_exchange(0, RESERVED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let index = SLOTS.iter().position(reserve).ok_or(io::ErrorKind::OutOfMemory)?;
        if let Some(slot) = SLOTS.get(index) {
            slot.len.store(len, Ordering::Relaxed);
            slot.start.store(start.expose_provenance(), Ordering::Release);
        }
        Ok(Self(index))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(slot) = SLOTS.get(self.0) {
            slot.len.store(0, Ordering::Relaxed);
            slot.start.store(0, Ordering::Release);
        }
    }
}

/// Install the handler, once.
fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is changed; `before` is large enough, and all zeros are a `sigaction`, too.
    let (result, before) =
        unsafe { (libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()), before.assume_init()) };
    // Stored before the handler is installed, which reads it. Only the first caller installs it.
    if result == 0 && BEFORE.set(before).is_err() {
        return Ok(());
    }
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    let action = libc::sigaction {
        sa_sigaction: handler as libc::sighandler_t,
        sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART,
        ..before
    };
    // SAFETY: the handler has the type that `SA_SIGINFO` needs and is async-signal-safe.
    if result != 0 || unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The watched mapping around an address.
fn mapping(address: usize) -> Option<(usize, usize)> {
    SLOTS.iter().find_map(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        let len = slot.len.load(Ordering::Relaxed);
        (start > RESERVED && address.wrapping_sub(start) < len).then_some((start, len))
    })
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`, of a fault with its address, to a handler with `SA_SIGINFO`.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some((start, len)) = mapping(address) {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is a mapping that is watched, so it is of shared memory, to which there are no references and
        // whose bytes may change at any time; it stays mapped. A system call may be made in a signal handler.
        let mapped =
            unsafe { libc::mmap(ptr::with_exposed_provenance_mut(start), len, access, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    pass_on(signal, info, context);
}

/// Pass the signal on to the action before.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(before) = BEFORE.get() else { return };
    let handler = before.sa_sigaction;
    if handler != libc::SIG_DFL && handler != libc::SIG_IGN && before.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: a handler that was installed with `SA_SIGINFO` has this type.
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(handler) };
        return handler(signal, info, context);
    }
    // SAFETY: `before` is from the kernel. On return the access is repeated, and faults again.
    unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
}

//! What happens at a system call that no filter of its thread allows.
//!
//! The kernel does not make the call and sends SIGSYS to the thread. The handler here writes which kind of thread made which call, and the
//! process dies of the signal. The kernel alone could kill it, but then nothing would say why, and a call that a new C library makes would
//! be found only by tracing. The handler costs no safety: the call is not made either way, a thread that blocks the signal is killed by the
//! kernel, and the filters let nobody replace the handler.
//!
//! In the mode that reports (`--sandbox log`), the handler makes the call instead, and its result is that of the thread's call. The filters
//! of this mode allow every call that is made at the one instruction by which the handler makes it.
#![allow(unsafe_code, reason = "a signal's handler, and system calls that it makes in place of a thread's")]

use std::cell::Cell;
use std::fmt::{self, Write};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{mem, ptr};

use crate::mode::Mode;
use crate::tables::{self, Kind};

thread_local! {
    /// Without a destructor, so that a signal's handler may read it.
    static THIS: Cell<Option<Kind>> = const { Cell::new(None) };
}

/// Denied calls are reported and made ([`Mode::Log`]).
static LOGS: AtomicBool = AtomicBool::new(false);

/// Calls that were reported: each once for a kind of thread. Once the table is full, no further call is reported.
static REPORTED: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

/// `SYS_SECCOMP` (include/uapi/asm-generic/siginfo.h): the signal is from a filter.
const FROM_FILTER: i32 = 1;

std::arch::global_asm!(
    // rdi: the number of the call and its six arguments.
    ".globl paradisk_sandbox_call",
    "paradisk_sandbox_call:",
    "mov rax, [rdi]",
    "mov rsi, [rdi + 16]",
    "mov rdx, [rdi + 24]",
    "mov r10, [rdi + 32]",
    "mov r8, [rdi + 40]",
    "mov r9, [rdi + 48]",
    "mov rdi, [rdi + 8]",
    "syscall",
    // A filter sees the address of the next instruction.
    ".globl paradisk_sandbox_called",
    "paradisk_sandbox_called:",
    "ret",
);

unsafe extern "C" {
    fn paradisk_sandbox_call(call: *const [u64; 7]) -> i64;
    fn paradisk_sandbox_called();
}

/// Remember for messages what this thread is.
pub(crate) fn name_this_thread(kind: Kind) {
    THIS.set(Some(kind));
}

/// Install the handler.
pub(crate) fn handle(mode: Mode) -> io::Result<()> {
    LOGS.store(mode == Mode::Log, Ordering::Relaxed);
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_denied;
    // The default action is back when the handler runs: the next SIGSYS ends the process.
    let once = if mode == Mode::Log { 0 } else { libc::SA_RESETHAND };
    // SAFETY: all zeros are a `sigaction` with an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | once;
    // SAFETY: the handler has the type that `SA_SIGINFO` needs. It allocates nothing and takes no lock.
    let done = unsafe { libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_denied(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`. Of a filter's signal it has, after three integers and padding, an address and the
    // number of the call.
    let (from, number) = unsafe { ((*info).si_code, *info.cast::<i32>().add(6)) };
    if from == FROM_FILTER && LOGS.load(Ordering::Relaxed) {
        // SAFETY: the kernel passes the registers of the interrupted thread to a handler with `SA_SIGINFO`.
        make(number, unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs });
        return;
    }
    if from == FROM_FILTER {
        let text = format_args!("it is not allowed, and ends the process; see --sandbox in `--help`");
        report(number, text);
    }
    // SAFETY: no memory is involved. The signal is blocked until the handler returns, and then ends the process.
    unsafe {
        // In the mode that reports, the handler is still installed: here for a signal that is not from a filter.
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Report the call, make it, and set its result.
fn make(number: i32, registers: &mut [i64; 23]) {
    use libc::{REG_R8, REG_R9, REG_R10, REG_RAX, REG_RDI, REG_RDX, REG_RSI};
    let [first, second, third, fourth, fifth, sixth] =
        [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9].map(|index| registers[index as usize] as u64);
    if is_new(number, second) {
        let would = match tables::REFUSED.iter().any(|(refused, _)| *refused == i64::from(number)) {
            true => "it would fail with EACCES",
            false => "it would not be allowed",
        };
        report(number, format_args!("{would} (arguments {first:#x}, {second:#x}, {third:#x})"));
    }
    // A child that is made here would run on with the handler's stack.
    let child =
        [libc::SYS_clone, libc::SYS_clone3, libc::SYS_fork, libc::SYS_vfork].contains(&i64::from(number));
    registers[REG_RAX as usize] = if child {
        -i64::from(libc::EPERM)
    } else {
        let call = [number as u64, first, second, third, fourth, fifth, sixth];
        // SAFETY: the thread made this call with these arguments, and has stopped at it.
        unsafe { paradisk_sandbox_call(&call) }
    };
}

/// Whether no thread of this kind has made the call before. Calls of ioctl and fcntl differ by their request, the second argument.
fn is_new(number: i32, second: u64) -> bool {
    let selects = [libc::SYS_ioctl, libc::SYS_fcntl].contains(&i64::from(number));
    let kind = THIS.get().map_or(0, |kind| label(kind).as_ptr().expose_provenance() as u64);
    let request = if selects { second } else { 0 };
    // Never 0, which is a free entry.
    let key = (kind << 16 ^ request << 10 ^ number as u64) | 1 << 63;
    REPORTED
        .iter()
        .find_map(|entry| match entry.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Some(true),
            Err(other) if other == key => Some(false),
            Err(_) => None,
        })
        .unwrap_or(false)
}

fn report(number: i32, text: fmt::Arguments<'_>) {
    let thread = THIS.get().map_or("unknown", label);
    let name = tables::name(number.into()).unwrap_or("see `ausyscall`");
    say(format_args!("error: sandbox: thread `{thread}`, system call {number} ({name}): {text}"));
}

/// Write one line to standard error, unless it is a pipe that is full: the process may be about to end.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 300], len: 0 };
    // Fails if the line is full: what fits is written.
    let _ = writeln!(line, "{text}");
    let mut takes = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one descriptor is looked at, and `len` bytes are there. A pipe that takes anything takes a page without sleeping.
    unsafe {
        if libc::poll(&mut takes, 1, 0) == 1 {
            libc::write(2, line.bytes.as_ptr().cast(), line.len);
        }
    }
}

/// Text without an allocation.
struct Line {
    bytes: [u8; 300],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let free = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        free.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// A kind, as messages name it.
pub(crate) const fn label(kind: Kind) -> &'static str {
    use crate::mode::Program::{Nbd, Run, RunAttaching, VfioUser, VhostUser};
    use paradisk_disk_formats::ThreadKind::*;
    match kind {
        Kind::Main(Run) => "main of run",
        Kind::Main(RunAttaching) => "main of run, which attaches images",
        Kind::Main(Nbd) => "main of nbd",
        Kind::Main(VhostUser) => "main of vhost-user-blk",
        Kind::Main(VfioUser) => "main of vfio-user",
        Kind::Thread(DiskTransfer) => "disk-io",
        Kind::Thread(DiskHelper) => "disk-helper",
        Kind::Thread(RingMaker) => "ring maker",
        Kind::Thread(Adapter) => "adapter",
        Kind::Thread(AdapterQueue) => "adapter queue",
        Kind::Thread(Vcpu) => "vcpu",
        Kind::Thread(Console) => "console",
        Kind::Thread(Terminal) => "terminal",
        Kind::Thread(Signals) => "signals",
        Kind::Thread(ControlListener) => "control listener",
        Kind::Thread(ControlClient) => "control client",
        Kind::Thread(Metrics) => "metrics",
        Kind::Thread(NbdListener) => "nbd listener",
        Kind::Thread(NbdClient) => "nbd client",
        Kind::Thread(VhostUserSession) => "vhost-user session",
        Kind::Thread(VhostUserQueue) => "vhost-user queue",
        Kind::Thread(VfioUserSession) => "vfio-user session",
        Kind::Thread(Notifier) => "notifier",
        Kind::Thread(Closer) => "closer",
        Kind::Thread(Close) => "close",
        Kind::Thread(Deadline) => "deadline",
        Kind::Thread(Messages) => "messages",
        Kind::Thread(_) => "other",
    }
}

/// The address that a filter sees of every call that the handler makes.
pub(crate) fn address_of_calls() -> u64 {
    paradisk_sandbox_called as *const () as u64
}

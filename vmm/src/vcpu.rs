//! A virtual CPU and its thread: runs the guest, counts exits, forwards accesses to the bus, and reports how it ended.
#![allow(unsafe_code, reason = "kvm_run holds a union of what each exit tells")]

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvm_bindings::{
    KVM_INTERNAL_ERROR_EMULATION, KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES, kvm_regs, kvm_run,
    kvm_sregs,
};
use kvm_ioctls::{VcpuExit, VcpuFd};
use paradisk_disk_formats::{ThreadKind, spawn};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use crate::bus::{Bus, Flow};
use crate::emulate::{State, emulate};
use crate::error::Error;
use crate::halted::HaltCheck;
use crate::hyperv::{Caller, Hyperv, Input};
use crate::kvm_stats::KvmStats;
use crate::layout;
use crate::memory::GuestMemory;
use crate::thread_time::{ThreadClock, ThreadTime};

/// Interval of the signals that make a virtual CPU exit. They are repeated because a signal before `KVM_RUN` is lost.
const KICK_INTERVAL: Duration = Duration::from_micros(500);

/// Number of signals. A virtual CPU that has answered none of them is running, or waits for a device.
const HALT_CHECK_KICKS: usize = 20;

/// The text for a triple fault.
const TRIPLE_FAULT: &str = "triple fault (KVM_EXIT_SHUTDOWN)";

/// CS selector and RIP of a CPU after a reset.
const RESET_VECTOR: (u16, u64) = (0xf000, 0xfff0);

/// Why a virtual CPU ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The machine was stopped.
    Requested,
    /// A bus handler returned [`Flow::Stop`].
    Handler,
    /// The guest turned the machine off.
    PowerOff,
    /// The guest reset the machine, by the keyboard controller or reset control. A triple fault also resets real machines, but here it is a
    /// [`VcpuError`]: most are errors of the guest, and the registers show which.
    Reset,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requested => "it was stopped",
            Self::Handler => "a bus handler stopped it",
            Self::PowerOff => "the guest powered off",
            Self::Reset => "the guest reset the machine",
        })
    }
}

/// A virtual CPU that cannot continue: the exit, and the registers.
#[derive(Clone, Debug)]
pub struct VcpuError {
    /// Which.
    pub id: usize,
    /// Name and details of the exit.
    pub exit: String,
    /// Bytes of the instruction, if known.
    pub instruction: Vec<u8>,
    /// General registers.
    pub regs: Option<Box<kvm_regs>>,
    /// Segment and control registers.
    pub sregs: Option<Box<kvm_sregs>>,
}

impl std::error::Error for VcpuError {}

impl VcpuError {
    /// Whether the guest could handle neither an exception nor the double fault that follows. This is an error of the guest, or its last
    /// way to reset the machine.
    #[must_use]
    pub fn is_triple_fault(&self) -> bool {
        self.exit == TRIPLE_FAULT
    }

    /// Whether the registers are those of a CPU after a reset. `shutdown_interception` in Linux' arch/x86/kvm/svm/svm.c resets a CPU after
    /// a triple fault, because AMD does not define the CPU's state after it.
    fn is_reset(&self) -> bool {
        let rip = self.regs.as_ref().map(|regs| regs.rip);
        let cs = self.sregs.as_ref().map(|sregs| sregs.cs.selector);
        self.is_triple_fault() && (cs, rip) == (Some(RESET_VECTOR.0), Some(RESET_VECTOR.1))
    }
}

impl fmt::Display for VcpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "virtual CPU {}: {}", self.id, self.exit)?;
        if self.is_reset() {
            f.write_str("; KVM on AMD resets a CPU at that, so these registers do not say where it was")?;
        }
        if let Some(regs) = &self.regs {
            write!(f, "; rip {:#x} rsp {:#x} rflags {:#x}", regs.rip, regs.rsp, regs.rflags)?;
        }
        if !self.instruction.is_empty() {
            write!(f, "; instruction")?;
            for byte in &self.instruction {
                write!(f, " {byte:02x}")?;
            }
        }
        if let Some(regs) = &self.regs {
            write!(
                f,
                "; rax {:#x} rbx {:#x} rcx {:#x} rdx {:#x} rsi {:#x} rdi {:#x} rbp {:#x}",
                regs.rax, regs.rbx, regs.rcx, regs.rdx, regs.rsi, regs.rdi, regs.rbp
            )?;
        }
        if let Some(sregs) = &self.sregs {
            write!(
                f,
                "; cs {:#x} (dpl {}) cr0 {:#x} cr2 {:#x} cr3 {:#x} cr4 {:#x} efer {:#x}",
                sregs.cs.selector, sregs.cs.dpl, sregs.cr0, sregs.cr2, sregs.cr3, sregs.cr4, sregs.efer
            )?;
        }
        Ok(())
    }
}

/// Number of exits to this process, by kind. [`kvm`](Self::kvm) includes those that KVM handles itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Accesses to memory-mapped registers.
    pub mmio: u64,
    /// Accesses to I/O ports.
    pub pio: u64,
    /// Signals and everything else.
    pub other: u64,
    /// All exits counted by KVM, including doorbells and interrupts; `None` if KVM does not count.
    pub kvm: Option<u64>,
}

impl Exits {
    /// Exits to this process.
    #[must_use]
    pub const fn to_user(&self) -> u64 {
        self.mmio + self.pio + self.other
    }
}

#[derive(Default)]
struct ExitCounters {
    mmio: AtomicU64,
    pio: AtomicU64,
    other: AtomicU64,
}

fn count(counter: &AtomicU64) {
    // Only one thread writes, so no read-modify-write is needed.
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// How a virtual CPU ended.
pub(crate) type Outcome = Result<StopReason, VcpuError>;

/// A virtual CPU on its thread.
pub(crate) struct Vcpu {
    pub(crate) tid: u32,
    /// `None`: the kernel has no scheduler statistics.
    clock: Option<Arc<ThreadClock>>,
    stop: Arc<AtomicBool>,
    halt_check: Arc<HaltCheck>,
    counters: Arc<ExitCounters>,
    stats: Option<KvmStats>,
    /// CPU time of a thread that has ended.
    spent: Arc<OnceLock<ThreadTime>>,
    thread: Option<JoinHandle<()>>,
}

impl Vcpu {
    /// Run `fd` on its own thread. `ended` is called with the outcome, unless the virtual CPU was stopped.
    pub(crate) fn start(
        id: usize,
        fd: VcpuFd,
        bus: Arc<Bus>,
        hyperv: Option<Arc<Hyperv>>,
        memory: GuestMemory,
        ended: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<Self, Error> {
        extern "C" fn nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
        register_signal_handler(SIGRTMIN(), nothing).map_err(|error| Error::Os {
            what: "signal handler",
            source: io::Error::from_raw_os_error(error.errno()),
        })?;
        let stats = KvmStats::of_vcpu(&fd);
        let stop = Arc::new(AtomicBool::new(false));
        let counters = Arc::new(ExitCounters::default());
        let halt_check = Arc::new(HaltCheck::default());
        let mut runner = Runner {
            id,
            fd,
            bus,
            hyperv,
            memory,
            stop: Arc::clone(&stop),
            halt_check: Arc::clone(&halt_check),
            counters: Arc::clone(&counters),
        };
        let spent = Arc::new(OnceLock::new());
        let told = Arc::clone(&spent);
        let (tid_sender, tid) = mpsc::sync_channel(1);
        let (clock_sender, its_clock) = mpsc::sync_channel::<Option<Arc<ThreadClock>>>(1);
        let run = move || {
            let _ = tid_sender.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let clock = its_clock.recv().ok().flatten();
            let panicked = VcpuError {
                id,
                exit: "its thread panicked".to_owned(),
                instruction: Vec::new(),
                regs: None,
                sregs: None,
            };
            let mut ending = Ending { clock, spent: told, outcome: Err(panicked), ended: Some(ended) };
            ending.outcome = runner.run();
        };
        let thread =
            spawn(ThreadKind::Vcpu, format!("vcpu{id}"), run).map_err(Error::os("virtual CPU's thread"))?;
        let tid = tid
            .recv()
            .map_err(|_| Error::Os { what: "virtual CPU's thread", source: io::ErrorKind::Other.into() })?;
        let clock = ThreadClock::of(tid).ok().map(Arc::new);
        // Taken in any case: the thread waits for it.
        let _ = clock_sender.send(clock.clone());
        Ok(Self { tid, clock, stop, halt_check, counters, stats, spent, thread: Some(thread) })
    }

    pub(crate) fn exits(&self) -> Exits {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Exits {
            mmio: read(&self.counters.mmio),
            pio: read(&self.counters.pio),
            other: read(&self.counters.other),
            kvm: self.stats.as_ref().and_then(KvmStats::exits),
        }
    }

    /// CPU time of the thread, also after it has ended.
    pub(crate) fn time(&self) -> io::Result<ThreadTime> {
        // The thread may end between the two checks.
        let spent = || self.spent.get().copied();
        let now =
            || self.clock.as_ref().map_or_else(|| Err(io::ErrorKind::NotFound.into()), |clock| clock.read());
        spent().map_or_else(|| now().or_else(|error| spent().ok_or(error)), Ok)
    }

    /// Whether it is halted with interrupts off, or was never started.
    pub(crate) fn is_halted(&self) -> bool {
        let question = self.halt_check.ask();
        for _ in 0..HALT_CHECK_KICKS {
            let Some(thread) = self.thread.as_ref().filter(|thread| !thread.is_finished()) else { break };
            // Fails only if the thread has just ended.
            let _ = thread.kill(SIGRTMIN());
            thread::sleep(KICK_INTERVAL);
            if let Some(halted) = self.halt_check.answer(question) {
                return halted;
            }
        }
        false
    }

    /// Make the virtual CPU exit and end; [`join`](Self::join) waits for it.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(crate) fn join(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() {
            // Fails only if the thread has just ended.
            let _ = thread.kill(SIGRTMIN());
            thread::sleep(KICK_INTERVAL);
        }
        // A panic was already printed.
        let _ = thread.join();
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        self.stop();
        self.join();
    }
}

/// Reports how a virtual CPU's thread ended, even if it unwinds. Otherwise the stalled guest would not be noticed.
struct Ending<F: FnOnce(Outcome)> {
    clock: Option<Arc<ThreadClock>>,
    spent: Arc<OnceLock<ThreadTime>>,
    outcome: Outcome,
    ended: Option<F>,
}

impl<F: FnOnce(Outcome)> Drop for Ending<F> {
    fn drop(&mut self) {
        if let Some(Ok(time)) = self.clock.as_ref().map(|clock| clock.read()) {
            let _ = self.spent.set(time);
        }
        let outcome = std::mem::replace(&mut self.outcome, Ok(StopReason::Requested));
        if let (Some(ended), false) = (self.ended.take(), matches!(outcome, Ok(StopReason::Requested))) {
            ended(outcome);
        }
    }
}

struct Runner {
    id: usize,
    fd: VcpuFd,
    bus: Arc<Bus>,
    hyperv: Option<Arc<Hyperv>>,
    memory: GuestMemory,
    stop: Arc<AtomicBool>,
    halt_check: Arc<HaltCheck>,
    counters: Arc<ExitCounters>,
}

impl Runner {
    fn run(&mut self) -> Outcome {
        let run: *const kvm_run = self.fd.get_kvm_run();
        // SAFETY: only called after an exit for I/O, for which KVM fills this member of the union with integers. The structure
        // is mapped as long as the descriptor is open, and no reference to it is held.
        let io_size = || unsafe { usize::from((*run).__bindgen_anon_1.io.size) }.max(1);
        loop {
            if self.stop.load(Ordering::Acquire) {
                return Ok(StopReason::Requested);
            }
            let flow = match self.fd.run() {
                Ok(VcpuExit::MmioRead(address, data)) => {
                    count(&self.counters.mmio);
                    self.bus.memory_read(address, data);
                    Flow::Continue
                }
                Ok(VcpuExit::MmioWrite(address, data)) => {
                    count(&self.counters.mmio);
                    self.bus.memory_write(address, data)
                }
                Ok(VcpuExit::IoIn(port, data)) => {
                    count(&self.counters.pio);
                    self.bus.io_read(port, io_size(), data);
                    Flow::Continue
                }
                Ok(VcpuExit::IoOut(layout::HYPERCALL, _)) if takes_hypercalls(self.hyperv.as_deref()) => {
                    count(&self.counters.pio);
                    if let Err(error) = self.hypercall() {
                        return Err(self.failure(format!("hypercall: {error}")));
                    }
                    Flow::Continue
                }
                Ok(VcpuExit::X86Rdmsr(exit)) => {
                    count(&self.counters.other);
                    match self.hyperv.as_ref().and_then(|hyperv| hyperv.read_msr(self.id, exit.index).ok()) {
                        Some(value) => *exit.data = value,
                        None => *exit.error = 1,
                    }
                    Flow::Continue
                }
                Ok(VcpuExit::X86Wrmsr(exit)) => {
                    count(&self.counters.other);
                    let write =
                        |hyperv: &Arc<Hyperv>| hyperv.write_msr(self.id, exit.index, exit.data).is_ok();
                    *exit.error = u8::from(!self.hyperv.as_ref().is_some_and(write));
                    Flow::Continue
                }
                Ok(VcpuExit::IoOut(port, data)) => {
                    count(&self.counters.pio);
                    self.bus.io_write(port, io_size(), data)
                }
                Ok(VcpuExit::Intr | VcpuExit::IrqWindowOpen | VcpuExit::IoapicEoi(_)) => {
                    count(&self.counters.other);
                    Flow::Continue
                }
                Ok(VcpuExit::InternalError) => {
                    count(&self.counters.other);
                    self.answer_internal_error()?;
                    Flow::Continue
                }
                Ok(VcpuExit::Shutdown) => return Err(self.failure(TRIPLE_FAULT.to_owned())),
                Ok(exit) => {
                    let exit = format!("{exit:?}");
                    return Err(self.failure(exit));
                }
                Err(error) if error.errno() == libc::EINTR || error.errno() == libc::EAGAIN => {
                    count(&self.counters.other);
                    self.halt_check.look(&self.fd);
                    Flow::Continue
                }
                Err(error) => {
                    let exit = format!("KVM_RUN: {}", io::Error::from_raw_os_error(error.errno()));
                    return Err(self.failure(exit));
                }
            };
            match flow {
                Flow::Continue => {}
                Flow::Stop => return Ok(StopReason::Handler),
                Flow::PowerOff => return Ok(StopReason::PowerOff),
                Flow::Reset => return Ok(StopReason::Reset),
            }
        }
    }

    /// The guest has written to the hypercall port: its registers hold a hypercall, and RAX gets the status. The instruction is complete,
    /// except that on some CPUs KVM moves RIP only in the next `KVM_RUN`.
    fn hypercall(&self) -> Result<(), Error> {
        let Some(hyperv) = &self.hyperv else { return Ok(()) };
        let mut regs = self.fd.get_regs().map_err(Error::kvm("KVM_GET_REGS"))?;
        let sregs = self.fd.get_sregs().map_err(Error::kvm("KVM_GET_SREGS"))?;
        let caller = match (State::new(&sregs, 0).cpl, sregs.cs.l) {
            (0, 1) => Caller::Kernel64,
            (0, _) => Caller::KernelOther,
            _ => Caller::User,
        };
        regs.rax = hyperv.hypercall(Input { caller, control: regs.rcx, parameters: regs.rdx });
        self.fd.set_regs(&regs).map_err(Error::kvm("KVM_SET_REGS"))
    }

    /// Emulate an instruction that KVM's interpreter lacks, or report it.
    fn answer_internal_error(&mut self) -> Result<(), VcpuError> {
        // SAFETY: the exit was KVM_EXIT_INTERNAL_ERROR, for which KVM fills this member of the union; all of it is integers.
        let error = unsafe { self.fd.get_kvm_run().__bindgen_anon_1.emulation_failure };
        let suberror = error.suberror;
        if suberror != KVM_INTERNAL_ERROR_EMULATION {
            return Err(self.failure(format!("KVM_EXIT_INTERNAL_ERROR, suberror {suberror}")));
        }
        // Use the bytes that KVM has fetched: memory may have changed since.
        let told = error.ndata >= 4
            && error.flags & u64::from(KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES) != 0;
        // SAFETY: the union has one member, of integers, and KVM reports that it has filled it.
        let bytes = unsafe { error.__bindgen_anon_1.__bindgen_anon_1 };
        let instruction = bytes.insn_bytes.get(..bytes.insn_size.into()).filter(|_| told).map(<[u8]>::to_vec);
        let done = self.emulate(instruction.as_deref());
        if matches!(done, Ok(true)) {
            return Ok(());
        }
        let cause = done.err().map(|error| format!(", and {error}")).unwrap_or_default();
        let mut failure = self.failure(format!(
            "KVM_EXIT_INTERNAL_ERROR, suberror {suberror} (emulation): KVM interprets this guest's code and does not know \
             the instruction{cause}"
        ));
        failure.instruction = instruction.unwrap_or(failure.instruction);
        Err(failure)
    }

    /// Emulate the instruction at RIP. False: not possible.
    fn emulate(&self, instruction: Option<&[u8]>) -> Result<bool, Error> {
        let mut regs = self.fd.get_regs().map_err(Error::kvm("KVM_GET_REGS"))?;
        let sregs = self.fd.get_sregs().map_err(Error::kvm("KVM_GET_SREGS"))?;
        let fpu = self.fd.get_fpu().map_err(Error::kvm("KVM_GET_FPU"))?;
        let instruction =
            instruction.map(<[u8]>::to_vec).or_else(|| self.code_at(regs.rip)).unwrap_or_default();
        let Some(exception) = emulate(&instruction, State::new(&sregs, fpu.fsw), &mut regs) else {
            return Ok(false);
        };
        // This also cancels the invalid opcode exception that KVM would raise otherwise.
        self.fd.set_regs(&regs).map_err(Error::kvm("KVM_SET_REGS"))?;
        if let Some(exception) = exception {
            let mut events = self.fd.get_vcpu_events().map_err(Error::kvm("KVM_GET_VCPU_EVENTS"))?;
            events.exception.injected = 1;
            events.exception.nr = exception as u8;
            events.exception.has_error_code = 0;
            self.fd.set_vcpu_events(&events).map_err(Error::kvm("KVM_SET_VCPU_EVENTS"))?;
        }
        Ok(true)
    }

    fn failure(&mut self, exit: String) -> VcpuError {
        let regs = self.fd.get_regs().ok().map(Box::new);
        let sregs = self.fd.get_sregs().ok().map(Box::new);
        let instruction = regs.as_ref().and_then(|regs| self.code_at(regs.rip)).unwrap_or_default();
        VcpuError { id: self.id, exit, instruction, regs, sregs }
    }

    /// Up to 15 bytes of code at a guest-virtual address, fewer at the end of the page or of memory.
    fn code_at(&self, rip: u64) -> Option<Vec<u8>> {
        const LONGEST: u64 = 15;
        let translation = self.fd.translate_gva(rip).ok()?;
        if translation.valid == 0 {
            return None;
        }
        let address = translation.physical_address;
        let mut bytes = vec![0; LONGEST.min(4096 - address % 4096) as usize];
        let read = self.memory.read(&mut bytes, GuestAddress(address)).ok()?;
        bytes.truncate(read);
        Some(bytes)
    }
}

/// Whether writes to the hypercall port are hypercalls.
fn takes_hypercalls(hyperv: Option<&Hyperv>) -> bool {
    hyperv.is_some_and(Hyperv::takes_hypercalls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_a_reset_are_not_taken_for_those_of_the_triple_fault() {
        let mut error = VcpuError {
            id: 1,
            exit: TRIPLE_FAULT.to_owned(),
            instruction: Vec::new(),
            regs: Some(Box::new(kvm_regs { rip: 0xfff0, ..Default::default() })),
            sregs: Some(Box::default()),
        };
        let says_so = |error: &VcpuError| error.to_string().contains("do not say where it was; rip 0xfff0");
        assert!(!says_so(&error), "code may be there in another segment");
        error.sregs.as_mut().unwrap().cs.selector = 0xf000;
        assert!(says_so(&error), "{error}");
        error.exit = "KVM_EXIT_FAIL_ENTRY".to_owned();
        assert!(!says_so(&error), "only SHUTDOWN resets");
    }
}

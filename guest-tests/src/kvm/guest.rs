//! The rig's side of the bare-metal guest: its image, its control page, and the job in its memory.
#![allow(unsafe_code, reason = "the job is a structure in guest memory")]

#[allow(dead_code, unreachable_pub, reason = "two crates share it")]
#[path = "../../baremetal/abi.rs"]
mod abi;

use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use facts::tsc::{to_ticks, tsc_hz};
use guest_driver::{Report, Shape, Workload, driver};
use paradisk_vmm::boot::{LongMode, LowPage};
use paradisk_vmm::{BusHandler, Flow, GuestMemory, Machine, layout};
use vm_memory::{Bytes, GuestAddress};

use crate::rig::RigError;
use abi::{CONTROL, CONTROL_PHYSICAL, IMAGE, JOB, Job, LOCAL_APIC, control, task};

/// The image of the guest, made by `build.rs`.
static CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/baremetal.bin"));
/// Time for the guest to reach its first instruction at CPL 3.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
const _: () = assert!(JOB >= paradisk_vmm::boot::TABLES.end && JOB + size_of::<Job>() as u64 <= 0xa_0000);

/// A message from the guest's threads to the rig.
pub(super) enum Told {
    /// The job is done.
    Done,
    /// The guest's code panicked: address and length of the message.
    Panic(u64, u64),
    /// An exception in the guest.
    Fault(String),
    /// A thread of the machine ended.
    Ended(String),
}

/// Address range of the control page.
pub(super) fn control_range() -> Range<u64> {
    CONTROL_PHYSICAL..CONTROL_PHYSICAL + control::SIZE
}

/// The control page, on the virtual CPU's thread.
struct Control {
    told: Sender<Told>,
    #[expect(clippy::disallowed_types, reason = "one virtual CPU between jobs")]
    jobs: std::sync::Mutex<Receiver<()>>,
    registers: [AtomicU64; 8],
}

impl Control {
    fn last(&self, register: u64) -> u64 {
        self.registers.get(register as usize / 8).map_or(0, |value| value.load(Ordering::Relaxed))
    }

    fn tell(&self, told: Told) -> bool {
        self.told.send(told).is_ok()
    }
}

impl BusHandler for Control {
    fn read(&self, _: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Flow {
        let mut bytes = [0; 8];
        for (byte, from) in bytes.iter_mut().zip(data) {
            *byte = *from;
        }
        let value = u64::from_le_bytes(bytes);
        if let Some(register) = self.registers.get(offset as usize / 8) {
            register.store(value, Ordering::Relaxed);
        }
        match offset {
            control::DONE => {
                let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
                // If the rig closes its channel, the guest ends.
                if self.tell(Told::Done) && jobs.recv().is_ok() { Flow::Continue } else { Flow::Stop }
            }
            control::PANIC_LEN => {
                self.tell(Told::Panic(self.last(control::PANIC_MESSAGE), value));
                Flow::Stop
            }
            control::FAULT_VECTOR => {
                let [rip, error, address] =
                    [control::FAULT_RIP, control::FAULT_ERROR, control::FAULT_CR2].map(|at| self.last(at));
                self.tell(Told::Fault(format!(
                    "exception {value} at rip {rip:#x}, error code {error:#x}, cr2 {address:#x}"
                )));
                Flow::Stop
            }
            _ => Flow::Continue,
        }
    }
}

/// The guest's task for tests of the machine: see [`Guest::self_test`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SelfTest {
    /// Compare this many dwords of configuration space by mechanism 1 and ECAM. Results: differences, first dword.
    Config = task::CONFIG,
    /// Ring the doorbell at an offset and sleep until an interrupt, this many times. Results: total, minimum and
    /// maximum ticks, interrupts.
    Ping = task::PING,
    /// Write a register this many times. Result: ticks.
    Write = task::WRITE,
    /// Read a register this many times. Results: ticks, last value.
    Read = task::READ,
    /// Sleep until an interrupt and write the time to a register, this many times.
    Wake = task::WAKE,
    /// Never end.
    Spin = task::SPIN,
    /// Read a byte at an address.
    Touch = task::TOUCH,
    /// Panic.
    Panic = task::PANIC,
    /// Execute an undefined instruction.
    Undefined = task::UNDEFINED,
    /// Write the message for vector 0, address and data, to registers at two offsets.
    Route = task::ROUTE,
    /// Move BAR 0. Result: the value of the register afterwards.
    Move = task::MOVE,
}

/// The bare-metal guest of a machine.
pub struct Guest {
    jobs: Option<Sender<()>>,
    told: Receiver<Told>,
    memory: Option<GuestMemory>,
    timeout: Duration,
}

impl Guest {
    /// A guest for a new machine, the control page, and the sender for the machine's events.
    pub(super) fn new(timeout: Duration) -> (Self, Arc<dyn BusHandler>, Sender<Told>) {
        let (jobs, next) = mpsc::channel();
        let (sender, told) = mpsc::channel();
        let handler = Control { told: sender.clone(), jobs: next.into(), registers: Default::default() };
        (Self { jobs: Some(jobs), told, memory: None, timeout }, Arc::new(handler), sender)
    }

    /// Load the guest, start the machine, and wait until the guest requests a job.
    pub(super) fn load(&mut self, machine: &mut Machine, driver_timeout: Duration) -> Result<(), RigError> {
        let memory = Arc::clone(machine.memory());
        let outside =
            |what, address, len: usize| paradisk_vmm::Error::OutsideMemory { what, address, len: len as u64 };
        memory
            .write_slice(CODE, GuestAddress(IMAGE))
            .map_err(|_| outside("the guest's image", IMAGE, CODE.len()))?;
        let boot = LongMode {
            entry: IMAGE,
            stack: 0,
            argument: 0,
            low_pages: vec![
                LowPage { at: LOCAL_APIC, physical: layout::LOCAL_APIC },
                LowPage { at: CONTROL, physical: CONTROL_PHYSICAL },
            ],
        };
        boot.write_tables(&memory)?;
        let end = vm_memory::GuestMemoryBackend::last_addr(&*memory).0 + 1;
        self.memory = Some(memory);
        self.put(offset_of!(Job, memory_end), &end.min(layout::LOW_RAM_END).to_le_bytes())?;
        self.put(offset_of!(Job, timeout), &to_ticks(driver_timeout).to_le_bytes())?;
        machine.start(|_, vcpu| boot.set_registers(vcpu))?;
        self.wait(BOOT_TIMEOUT)
    }

    /// Bring the driver up.
    pub(super) fn bring_up(&mut self, options: &driver::Options) -> Result<Report, RigError> {
        let options = abi::Options::new(options);
        self.put(offset_of!(Job, options), bytes_of(&options))?;
        self.task(task::BRING_UP, self.timeout)?;
        self.report()
    }

    /// Run the load generator.
    pub(super) fn run(&mut self, workload: &Workload) -> Result<Report, RigError> {
        self.put(offset_of!(Job, workload), bytes_of(workload))?;
        let own = Duration::from_secs(workload.ticks / tsc_hz());
        self.task(task::RUN, self.timeout.saturating_add(own))?;
        self.report()
    }

    /// Run a task of the guest that tests the machine, with a test device in slot 1.
    ///
    /// # Errors
    /// [`RigError::Guest`] if the guest has not finished within `timeout`.
    pub fn self_test(
        &mut self,
        test: SelfTest,
        argument: [u64; 2],
        timeout: Duration,
    ) -> Result<[u64; 4], RigError> {
        self.begin(test, argument)?;
        self.wait(timeout)?;
        self.result()
    }

    /// Start such a task without waiting for it.
    ///
    /// # Errors
    /// [`RigError::Guest`] if the guest has ended.
    pub fn begin(&mut self, test: SelfTest, argument: [u64; 2]) -> Result<(), RigError> {
        let words: Vec<u8> = argument.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(offset_of!(Job, argument), &words)?;
        self.go(test as u32)
    }

    /// Wait until the task is done.
    ///
    /// # Errors
    /// [`RigError::Guest`] after `timeout`, or if the guest has ended.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), RigError> {
        let ended = |why| Err(RigError::Guest(why));
        match self.told.recv_timeout(timeout) {
            Ok(Told::Done) => Ok(()),
            Ok(Told::Panic(address, len)) => ended(format!("panic: {}", self.text(address, len))),
            Ok(Told::Fault(why) | Told::Ended(why)) => ended(why),
            Err(RecvTimeoutError::Timeout) => ended(format!("no answer within {timeout:?}")),
            Err(RecvTimeoutError::Disconnected) => ended("its machine is gone".to_owned()),
        }
    }

    /// The results of the last self test.
    ///
    /// # Errors
    /// [`RigError::Machine`] without guest memory.
    pub fn result(&self) -> Result<[u64; 4], RigError> {
        let mut result = [0; 4];
        for (index, word) in result.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            self.get(offset_of!(Job, result) + 8 * index, &mut bytes)?;
            *word = u64::from_le_bytes(bytes);
        }
        Ok(result)
    }

    fn task(&mut self, task: u32, timeout: Duration) -> Result<(), RigError> {
        self.go(task)?;
        self.wait(timeout)
    }

    fn go(&self, task: u32) -> Result<(), RigError> {
        self.put(offset_of!(Job, task), &task.to_le_bytes())?;
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(()));
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(RigError::Guest("it has ended".to_owned())) }
    }

    fn report(&self) -> Result<Report, RigError> {
        let mut report = MaybeUninit::<Report>::zeroed();
        // SAFETY: `Report` is integers without padding or other invalid values, all of it initialised with zeroes.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(report.as_mut_ptr().cast::<u8>(), size_of::<Report>()) };
        self.get(offset_of!(Job, report), bytes)?;
        // SAFETY: any bytes are valid integers.
        Ok(unsafe { report.assume_init() })
    }

    /// A panic's message.
    fn text(&self, address: u64, len: u64) -> String {
        let mut bytes = vec![0; len.min(256) as usize];
        match self.memory().and_then(|memory| {
            memory
                .read_slice(&mut bytes, GuestAddress(address))
                .map_err(|error| RigError::Guest(error.to_string()))
        }) {
            Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => error.to_string(),
        }
    }

    fn memory(&self) -> Result<&GuestMemory, RigError> {
        self.memory.as_ref().ok_or_else(|| RigError::Guest("it is not loaded".to_owned()))
    }

    fn put(&self, offset: usize, bytes: &[u8]) -> Result<(), RigError> {
        let address = JOB + offset as u64;
        let outside =
            |_| paradisk_vmm::Error::OutsideMemory { what: "the job", address, len: bytes.len() as u64 };
        Ok(self.memory()?.write_slice(bytes, GuestAddress(address)).map_err(outside)?)
    }

    fn get(&self, offset: usize, bytes: &mut [u8]) -> Result<(), RigError> {
        let (address, len) = (JOB + offset as u64, bytes.len() as u64);
        let outside = |_| paradisk_vmm::Error::OutsideMemory { what: "the job", address, len };
        Ok(self.memory()?.read_slice(bytes, GuestAddress(address)).map_err(outside)?)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Ends a virtual CPU that waits for a job, before the machine is dropped, which waits for the CPU.
        self.jobs = None;
    }
}

/// Structures that consist of integers without padding.
trait Plain {}
impl Plain for Workload {}
impl Plain for abi::Options {}
const _: () = assert!(
    size_of::<Workload>() == 8 * 4 + 5 * 8 + size_of::<Shape>()
        && size_of::<Shape>() == 34 * 4 + 8
        && size_of::<abi::Options>() == 7 * 4
);

fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` values have no padding, so every byte is initialised.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

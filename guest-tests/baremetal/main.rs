//! The bare-metal guest: drivers and load generator at CPL 3, and the few instructions at CPL 0 that they need
//! ([`entry`]). `build.rs` makes it a flat image, which the host loads at [`abi::IMAGE`] and enters in 64-bit mode.
#![no_std]
#![no_main]

#[allow(dead_code, reason = "two crates share it")]
mod abi;
mod entry;
mod libc;
mod machine;
mod selftest;

use core::fmt::Write;

use abi::{CONTROL, JOB, Job, control, task};
use guest_driver::workload::Fault;
use guest_driver::{Driver, LoadGenerator, Report};
use machine::Machine;

/// Where the entry code goes, at CPL 3.
#[unsafe(no_mangle)]
extern "C" fn user_main() -> ! {
    tell(control::DONE, 0);
    let mut machine = {
        let job = job();
        Machine::new(job.memory_end, job.timeout)
    };
    let mut generator = LoadGenerator::new();
    let mut driver = None;
    loop {
        let job = job();
        match job.task {
            task::BRING_UP => {
                job.report = Report::EMPTY;
                match Driver::start(&mut machine, job.options.get()) {
                    Ok(started) => driver = Some(started),
                    Err(fault) => job.report.note(fault),
                }
            }
            task::RUN => match &mut driver {
                Some(driver) => {
                    mark::<b'<'>();
                    driver.run(&mut generator, &mut machine, &job.workload, &mut job.report);
                    mark::<b'>'>();
                }
                None => {
                    job.report = Report::EMPTY;
                    job.report.note(Fault { kind: Fault::BRING_UP, ..Fault::EMPTY });
                }
            },
            _ => selftest::run(&mut machine, job),
        }
        tell(control::DONE, 0);
    }
}

/// The job, which is this guest's from now until it says that it is done.
fn job() -> &'static mut Job {
    // SAFETY: RAM that nothing else uses, aligned; the host writes it while the processor waits in `tell`, whose
    // volatile write is an exit. No other reference lives: each caller's ends before the next `tell`.
    unsafe { &mut *(JOB as *mut Job) }
}

/// Write a control register: the host acts before the write returns.
fn tell(register: u64, value: u64) {
    // SAFETY: the control page is mapped there. The assembly may change all memory, as the host may.
    unsafe { core::arch::asm!("mov [{}], {}", in(reg) CONTROL + register, in(reg) value) };
}

/// Nothing to a processor; a mark with this number to an emulator that counts instructions (`guest-tests/linux/src/kvm_host/count.c`).
fn mark<const NUMBER: u8>() {
    // SAFETY: `nopl disp32(%rax,%rax,1)`, which reads no memory. What is before it stays before it, for the assembly may use all memory.
    unsafe { core::arch::asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 'M', 'R', 'K', {}", const NUMBER) };
}

/// The start of a panic's message.
struct Message {
    text: [u8; 256],
    len: usize,
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            if let Some(at) = self.text.get_mut(self.len) {
                *at = byte;
                self.len += 1;
            }
        }
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let mut message = Message { text: [0; 256], len: 0 };
    // Writing to the buffer does not fail.
    let _ = write!(message, "{info}");
    tell(control::PANIC_MESSAGE, message.text.as_ptr() as u64);
    tell(control::PANIC_LEN, message.len as u64);
    loop {
        core::hint::spin_loop();
    }
}

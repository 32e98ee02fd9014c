//! A Linux guest in QEMU's TCG, without KVM.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::linux::System;

/// For every guest: the console is the serial port, a panic ends in a reset, which ends QEMU, and the timer is not tested: on a busy
/// machine the guest misses ticks. Interrupts that drivers do not place go to CPU 0, on which the first process loads drivers.
const OPTIONS: &str = "console=ttyS0 panic=-1 no_timer_check irqaffinity=0";
const CPUS: &str = "2";
/// Interval of checks whether QEMU has ended.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes of output in an error.
const LAST_WORDS: usize = 4096;

/// A QEMU process. Dropping it kills the process.
#[derive(Debug)]
pub struct Vm {
    qemu: Child,
    console: PathBuf,
}

impl Vm {
    /// Boot `system` on a machine (`pc`, `q35`) of `program`, QEMU's system emulator. Guest memory is shared. `devices`
    /// are further options of QEMU. Output of guest and QEMU goes to the new file `console`.
    ///
    /// # Errors
    /// QEMU does not start, or the console's file cannot be made.
    pub fn boot(
        mut program: Command,
        machine: &str,
        system: &System,
        devices: &[String],
        console: PathBuf,
    ) -> io::Result<Self> {
        program
            .arg("-kernel")
            .arg(&system.kernel)
            .args(["-append", &format!("{OPTIONS} {}", system.cmdline)]);
        if let Some(initrd) = &system.initrd {
            program.arg("-initrd").arg(initrd);
        }
        Self::power_on(program, machine, system.memory, devices, console)
    }

    /// Start a machine with `memory` bytes of memory. Its firmware finds the system to boot.
    ///
    /// # Errors
    /// As [`boot`](Self::boot).
    pub fn power_on(
        mut program: Command,
        machine: &str,
        memory: u64,
        devices: &[String],
        console: PathBuf,
    ) -> io::Result<Self> {
        program.args(["-machine", &format!("{machine},memory-backend=ram"), "-accel", "tcg", "-cpu", "max"]);
        program.args(["-smp", CPUS, "-m", &format!("{}M", memory >> 20)]);
        program.args(["-object", &format!("memory-backend-memfd,id=ram,size={memory},share=on")]);
        program.args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
        let output = File::create(&console)?;
        program.args(devices).stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        Ok(Self { qemu: program.spawn()?, console })
    }

    /// QEMU's process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.qemu.id()
    }

    /// The output so far.
    ///
    /// # Errors
    /// The console's file cannot be read.
    pub fn printed(&self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&self.console)?).into_owned())
    }

    /// Wait until QEMU ends, and return its output. Calls `meanwhile` repeatedly until then.
    ///
    /// # Errors
    /// The process cannot be waited for, or its output cannot be read; [`io::ErrorKind::TimedOut`] with the last output, if QEMU does not end
    /// within `time`.
    pub fn output_within(mut self, time: Duration, mut meanwhile: impl FnMut(&Self)) -> io::Result<String> {
        let end = Instant::now() + time;
        while self.qemu.try_wait()?.is_none() {
            if Instant::now() > end {
                let printed = std::fs::read(&self.console)?;
                let last = String::from_utf8_lossy(&printed[printed.len().saturating_sub(LAST_WORDS)..]);
                let why = format!("the guest does not end; its last words:\n{last}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            meanwhile(&self);
            thread::sleep(PAUSE);
        }
        self.printed()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

//! A Linux guest on a KVM machine, booted from images. Its console is read and typed to until it ends.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use guest_init::{Disk, Done, Job, Line};
use paradisk_vmm::boot::{self, Linux, LinuxError, Protocol};
use paradisk_vmm::{Config, Console, Event, Host, Machine, StopReason, layout};

/// How long the console may take to write the guest's last output.
const LAST_OUTPUT: Duration = Duration::from_secs(10);
/// Bytes of console in an error.
const LAST_WORDS: usize = 4096;

/// A system to boot.
#[derive(Clone, Debug)]
pub struct System {
    /// bzImage or ELF vmlinux.
    pub kernel: PathBuf,
    /// Initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Command line, after the options of all guests.
    pub cmdline: String,
    /// Bytes of memory.
    pub memory: u64,
}

/// Why a guest failed.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The machine could not be made.
    #[error(transparent)]
    Machine(#[from] paradisk_vmm::Error),
    /// The system cannot be loaded.
    #[error(transparent)]
    Load(#[from] LinuxError),
    /// The guest ended otherwise than expected, or did not end.
    #[error("{why}; the end of its console:\n{console}")]
    Ended {
        /// How.
        why: String,
        /// Its last output.
        console: String,
    },
}

/// The end of the guest's job, with its disks.
#[derive(Clone, Debug)]
pub struct Report {
    /// The disks in the order of the guest's names.
    pub disks: Vec<Disk>,
    /// The last line.
    pub done: Done,
}

impl Report {
    /// Parse the output of `paradisk-guest-init`, which is mixed with the kernel's.
    ///
    /// # Errors
    /// [`GuestError::Ended`]: the job's last line is missing.
    pub fn parse(text: &str) -> Result<Self, GuestError> {
        let (mut disks, mut end) = (Vec::new(), None);
        for line in Line::all(text) {
            match line {
                Line::Disk(disk) => disks.push(*disk),
                Line::Done(done) => end = Some(done),
                Line::Changing(_) | Line::Fio(_) | Line::Growing | Line::Stalling => {}
            }
        }
        match end {
            Some(done) => Ok(Self { disks, done }),
            None => Err(GuestError::Ended { why: "no report".to_owned(), console: last_words(text) }),
        }
    }
}

/// A running guest.
pub struct Guest {
    machine: Machine,
    console: Console,
    told: Receiver<Told>,
    text: String,
    ended: Option<String>,
    off: bool,
    /// The guest has ended, and `text` has all of its output.
    whole: bool,
}

/// A message from the machine's threads.
enum Told {
    Printed(Vec<u8>),
    Ended(Event),
}

/// The console's output, on its thread.
struct Output(Sender<Told>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(Told::Printed(bytes.to_vec())).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Guest {
    /// Boot a system on a machine to which `devices` adds adapters.
    ///
    /// # Errors
    /// [`GuestError::Machine`] and [`GuestError::Load`].
    pub fn boot(
        host: &Host,
        system: &System,
        devices: impl FnOnce(&mut Machine) -> Result<(), paradisk_vmm::Error>,
    ) -> Result<Self, GuestError> {
        let (sender, told) = mpsc::channel();
        let events = sender.clone();
        let config = Config { memory: system.memory, ..Config::default() };
        // The guest may have been dropped.
        let sink = Arc::new(move |event| drop(events.send(Told::Ended(event))));
        let mut machine = Machine::new(host, config, sink)?;
        let console = machine.add_pc(Output(sender))?;
        devices(&mut machine)?;
        let linux = Linux {
            kernel: system.kernel.clone(),
            initrd: system.initrd.clone(),
            cmdline: boot::command_line(host.native_kernel_mode, &system.cmdline),
            protocol: Protocol::default(),
        };
        let loaded = linux.load(&machine)?;
        machine.start(|cpu, vcpu| loaded.set_registers(cpu, vcpu))?;
        Ok(Self { machine, console, told, text: String::new(), ended: None, off: false, whole: false })
    }

    /// Wait until the guest has printed `text` after the text of the previous call.
    ///
    /// # Errors
    /// [`GuestError::Ended`] if it ended before that, or has not printed the text within `timeout`.
    pub fn expect(&mut self, text: &str, timeout: Duration) -> Result<(), GuestError> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(at) = self.text.find(text) {
                self.text.drain(..at + text.len());
                return Ok(());
            }
            if let Some(why) = self.ended.take() {
                return Err(self.failed(format!("{why}, and never printed {text:?}")));
            }
            self.next(end)?;
        }
    }

    /// Type a line on its console.
    ///
    /// # Errors
    /// [`GuestError::Ended`] if the guest reads nothing for `timeout`.
    pub fn type_line(&mut self, line: &str, timeout: Duration) -> Result<(), GuestError> {
        let end = Instant::now() + timeout;
        let typed = format!("{line}\n");
        let mut rest = typed.as_bytes();
        while !rest.is_empty() {
            rest = &rest[self.console.push(rest)..];
            if Instant::now() > end {
                return Err(self.failed(format!("it does not read {line:?}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Wait until the guest has powered off. Returns its output since [`expect`](Self::expect).
    ///
    /// # Errors
    /// [`GuestError::Ended`] if it ended otherwise, or not within `timeout`.
    pub fn power_off(mut self, timeout: Duration) -> Result<String, GuestError> {
        let end = Instant::now() + timeout;
        while self.ended.is_none() {
            self.next(end)?;
        }
        match self.ended.take() {
            _ if self.off && self.whole => Ok(std::mem::take(&mut self.text)),
            why => Err(self.failed(why.unwrap_or_default())),
        }
    }

    /// Let the guest run the job of `paradisk-guest-init` and power off.
    ///
    /// # Errors
    /// As [`power_off`](Self::power_off); [`GuestError::Ended`] without the job's last line, too.
    pub fn report(self, timeout: Duration) -> Result<Report, GuestError> {
        Report::parse(&self.power_off(timeout)?)
    }

    /// Process the next message.
    fn next(&mut self, end: Instant) -> Result<(), GuestError> {
        match self.told.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Told::Printed(bytes)) => self.text += &String::from_utf8_lossy(&bytes),
            Ok(Told::Ended(event)) => {
                self.off = matches!(event, Event::Vcpu { outcome: Ok(StopReason::PowerOff), .. });
                self.ended = Some(event.to_string());
                self.take_rest();
            }
            Err(RecvTimeoutError::Timeout) => return Err(self.failed("it took too long".to_owned())),
            Err(RecvTimeoutError::Disconnected) => return Err(self.failed("it is gone".to_owned())),
        }
        Ok(())
    }

    /// Wait for output that the console's thread has not written yet.
    fn take_rest(&mut self) {
        self.machine.stop();
        self.whole = self.console.flush(LAST_OUTPUT);
        for told in self.told.try_iter() {
            if let Told::Printed(bytes) = told {
                self.text += &String::from_utf8_lossy(&bytes);
            }
        }
    }

    fn failed(&self, why: String) -> GuestError {
        GuestError::Ended { why, console: last_words(&self.text) }
    }
}

/// The words of the job on the command line, for a guest of this machine.
#[must_use]
pub fn command_line(job: Job) -> String {
    Job { power: Some((layout::POWER_CONTROL.start, layout::POWER_OFF)), ..job }.to_string()
}

fn last_words(text: &str) -> String {
    let start = text.len().saturating_sub(LAST_WORDS);
    let start = (start..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(start);
    text[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest's last output is read, even if the guest has ended before it was written.
    #[test]
    fn last_words_are_heard() {
        const AT: u64 = 1 << 20;
        let host = match Host::open() {
            Ok(host) => host,
            Err(error) => return println!("SKIP: last_words_are_heard: {error}"),
        };
        // mov dx, 0x3f8; mov al, 'R'; out dx, al; mov dx, 0x604; mov ax, 0x2000; out dx, ax
        let code = b"\x66\xba\xf8\x03\xb0R\xee\x66\xba\x04\x06\x66\xb8\x00\x20\x66\xef";
        // Executable for x86-64 with one segment.
        let mut kernel = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
        kernel.extend([AT, 64, 0].map(u64::to_le_bytes).concat());
        kernel.extend([0, 0, 64, 56, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
        kernel.extend([1u32, 5].map(u32::to_le_bytes).concat());
        kernel.extend([120, AT, AT, code.len() as u64, 4096, 4096].map(u64::to_le_bytes).concat());
        kernel.extend(code);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernel");
        std::fs::write(&path, kernel).unwrap();
        let system = System { kernel: path, initrd: None, cmdline: String::new(), memory: 16 << 20 };
        for _ in 0..20 {
            let mut guest = Guest::boot(&host, &system, |_| Ok(())).unwrap();
            guest.expect("R", LAST_OUTPUT).unwrap();
            guest.power_off(LAST_OUTPUT).unwrap();
        }
    }
}

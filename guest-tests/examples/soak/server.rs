//! `paradisk` as a process.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time for the kernel to free what a killed process had open.
const RELEASE: Duration = Duration::from_secs(20);

/// The binary, and a folder for a load's files.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) paradisk: PathBuf,
    pub(crate) folder: PathBuf,
    /// Servers cannot make files larger than this.
    pub(crate) file_limit: Option<u64>,
}

/// Processes that were started, so that none outlives a soak that hangs.
static STARTED: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

pub(crate) fn kill_all() {
    for process in &STARTED {
        if let Some(pid) = Pid::from_raw(process.load(Relaxed) as i32) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// A process that is killed when dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn new(child: Child) -> Self {
        let free = STARTED.iter().find(|slot| slot.compare_exchange(0, child.id(), Relaxed, Relaxed).is_ok());
        assert!(free.is_some(), "too many processes");
        Self(child)
    }

    /// End it as an operator does, and wait: it must end well.
    pub(crate) fn end(self) {
        let status = self.ended();
        assert!(status.success(), "a server ended with {status}");
    }

    /// The same for a server that must report an error.
    pub(crate) fn end_with_error(self) {
        let status = self.ended();
        assert_eq!(status.code(), Some(1), "a server ended with {status}");
    }

    fn ended(mut self) -> ExitStatus {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, Signal::TERM).unwrap();
        self.0.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        for slot in &STARTED {
            let _ = slot.compare_exchange(self.0.id(), 0, Relaxed, Relaxed);
        }
    }
}

impl Place {
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A folder in this one.
    pub(crate) fn within(&self, name: &str) -> Self {
        let place = Self { folder: self.folder.join(name), ..self.clone() };
        fs::create_dir_all(&place.folder).unwrap();
        place
    }

    /// The files with their size and the space that they use, in bytes.
    pub(crate) fn used(&self) -> String {
        let files = fs::read_dir(&self.folder).unwrap().flatten();
        let line = |file: fs::DirEntry| {
            let facts = file.metadata().unwrap();
            format!("{}: {} of {}", file.file_name().display(), 512 * facts.blocks(), facts.len())
        };
        files.map(line).collect::<Vec<_>>().join(", ")
    }

    /// Start a server, which listens when this returns. The kernel frees the image of a server that was killed only when it has taken down
    /// its io_uring, some time after the process has gone: until then, a new one finds the image busy.
    pub(crate) fn serve(&self, protocol: &str, socket: &Path, args: &[&str]) -> Process {
        let begin = Instant::now();
        loop {
            match self.try_serve(protocol, socket, args) {
                Some(process) => return process,
                None => assert!(
                    begin.elapsed() < RELEASE,
                    "no server: {}",
                    fs::read_to_string(self.file("errors")).unwrap_or_default()
                ),
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn try_serve(&self, protocol: &str, socket: &Path, args: &[&str]) -> Option<Process> {
        let mut command = Command::new(&self.paradisk);
        if let Some(limit) = self.file_limit {
            command = Command::new("prlimit");
            command.arg(format!("--fsize={limit}")).arg(&self.paradisk);
        }
        command.args(["serve", protocol, "--socket"]).arg(socket).args(args);
        let errors = File::create(self.file("errors")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn().unwrap();
        let mut process = Process::new(child);
        loop {
            // Read before the text, so that nothing that an ended server has said is missed.
            let ended = process.0.try_wait().unwrap().is_some();
            let said = fs::read_to_string(self.file("errors")).unwrap_or_default();
            if said.lines().any(|line| line.starts_with("serving ")) {
                return Some(process);
            }
            if ended {
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// A command that must succeed, and what it prints.
    pub(crate) fn run(&self, args: &[&str]) -> String {
        let output = Command::new(&self.paradisk).args(args).stdin(Stdio::null()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "paradisk {args:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

//! Machines whose kernels are a few instructions.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The folder of the kernels.
const LOAD: u64 = 1 << 20;
/// Longer than anything here takes.
pub(crate) const SOON: Duration = Duration::from_secs(120);

pub(crate) const SAY_R: &[u8] = &[0x66, 0xba, 0xf8, 0x03, 0xb0, b'R', 0xee];
/// A 16-bit write to the power management port.
pub(crate) const POWER_OFF: &[u8] = &[0x66, 0xba, 0x04, 0x06, 0x66, 0xb8, 0x00, 0x20, 0x66, 0xef];
/// The keyboard controller's reset command.
pub(crate) const RESET: &[u8] = &[0xb0, 0xfe, 0xe6, 0x64];
/// Reset control.
pub(crate) const RESET_CONTROL: &[u8] = &[0x66, 0xba, 0xf9, 0x0c, 0xb0, 0x06, 0xee];
/// An undefined instruction, without anything to handle it.
pub(crate) const TRIPLE_FAULT: &[u8] = &[0x0f, 0x0b];
/// sti; hlt; jmp: wait for interrupts, none of which comes.
pub(crate) const IDLE: &[u8] = &[0xfb, 0xf4, 0xeb, 0xfd];
/// cli; hlt; jmp: what Linux does at its end where it knows no power-off.
pub(crate) const HALT: &[u8] = &[0xfa, 0xf4, 0xeb, 0xfd];

/// An ELF kernel of this code.
pub(crate) fn kernel(folder: &Path, code: &[&[u8]]) -> PathBuf {
    let code = code.concat();
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // Executable for x86-64; entry, program headers at 64, no sections.
    file.extend([2u16, 62].map(u16::to_le_bytes).concat());
    file.extend(1u32.to_le_bytes());
    file.extend([LOAD, 64, 0].map(u64::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    // One segment, loaded, readable and executable.
    file.extend([1u32, 5].map(u32::to_le_bytes).concat());
    file.extend([4096, LOAD, LOAD, code.len() as u64, 4096, 4096].map(u64::to_le_bytes).concat());
    file.resize(4096, 0);
    file.extend(code);
    let path = folder.join("kernel");
    fs::write(&path, file).unwrap();
    path
}

pub(crate) fn paradisk(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The same, started by another program.
pub(crate) fn paradisk_by(program: &[&str], args: &[&str]) -> Command {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(env!("CARGO_BIN_EXE_paradisk")).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether machines can be made here.
pub(crate) fn kvm(test: &str) -> bool {
    let open = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if let Err(error) = &open {
        println!("SKIP: {test}: /dev/kvm: {error}");
    }
    open.is_ok()
}

pub(crate) fn run(kernel: &Path, more: &[&str]) -> Output {
    let kernel = kernel.to_str().unwrap();
    paradisk(&[&["run", "--kernel", kernel, "--memory", "64M"], more].concat()).output().unwrap()
}

/// A machine that says R and idles.
pub(crate) struct Idle {
    pub(crate) child: Option<Child>,
    folder: tempfile::TempDir,
}

impl Idle {
    pub(crate) fn start(more: &[&str], stdin: Stdio) -> Self {
        Self::start_by(&["env"], &[SAY_R, IDLE], more, stdin)
    }

    /// By another program, and with more code.
    pub(crate) fn start_by(program: &[&str], code: &[&[u8]], more: &[&str], stdin: Stdio) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kernel = kernel(folder.path(), code);
        let socket = folder.path().join("socket");
        let args = ["run", "--memory", "64M", "--kernel", kernel.to_str().unwrap()];
        let images = folder.path().join("images");
        fs::create_dir(&images).unwrap();
        let control = ["--control", socket.to_str().unwrap(), "--sandbox-path", images.to_str().unwrap()];
        let mut command = paradisk_by(program, &[&args[..], &control, more].concat());
        let mut child = command.stdin(stdin).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let (sender, said) = mpsc::channel();
        std::thread::spawn(move || {
            let mut said = [0];
            let _ = sender.send(output.read_exact(&mut said).map(|()| (said, output)));
        });
        let mut idle = Self { child: Some(child), folder };
        let (said, output) = said.recv_timeout(SOON).expect("it says nothing").unwrap();
        assert_eq!(said, *b"R");
        idle.child.as_mut().unwrap().stdout = Some(output);
        idle
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn ctl(&self, args: &[&str]) -> Output {
        paradisk(&[&["ctl", &self.path("socket")], args].concat()).output().unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let output = self.ctl(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    #[track_caller]
    pub(crate) fn refused(&self, args: &[&str], expected: &str) {
        let output = self.ctl(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
    }

    /// Every thread of the process has a filter of system calls and no privileges, including the thread that KVM creates.
    #[track_caller]
    pub(crate) fn is_confined(&self) {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.as_ref().unwrap().id())).unwrap();
        for task in tasks {
            // The thread of a command may have ended.
            let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
            for line in ["Seccomp:\t2\n", "NoNewPrivs:\t1\n", "CapPrm:\t0000000000000000\n"] {
                assert!(status.contains(line), "{status}");
            }
        }
    }

    pub(crate) fn stdin(&mut self, bytes: &[u8]) {
        let child = self.child.as_mut().unwrap();
        child.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Wait for its end.
    pub(crate) fn end(mut self) -> (Output, tempfile::TempDir) {
        let mut child = self.child.take().unwrap();
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > SOON {
                child.kill().unwrap();
                panic!("it does not end");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        (child.wait_with_output().unwrap(), folder)
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `paradisk image`, which must succeed.
#[track_caller]
pub(crate) fn image_tool(args: &[&str]) {
    let output = paradisk(&[&["image"], args].concat()).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
}

//! Servers as scripts see them.
#![allow(dead_code, reason = "each test uses its part")]

use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A process that is killed when dropped, so that no failed test leaves one behind.
pub(crate) struct Running(pub(crate) Child);

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that is removed when dropped.
pub(crate) struct Folder(pub(crate) tempfile::TempDir);

impl Folder {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// Start it, and wait for its line. What it says later can be read from its standard error.
#[track_caller]
pub(crate) fn ready(command: &mut Command) -> (Running, String) {
    let (child, mut said) = ready_with_notes(command);
    (child, said.pop().unwrap())
}

/// As [`ready`], with the lines before that line.
#[track_caller]
pub(crate) fn ready_with_notes(command: &mut Command) -> (Running, Vec<String>) {
    let mut child = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = Vec::new();
    while !said.last().is_some_and(|line: &String| line.starts_with("serving ")) {
        let line = line(child.stderr.as_mut().unwrap());
        assert!(!line.is_empty(), "it did not start: {said:?}");
        said.push(line);
    }
    (child, said)
}

/// A line, and nothing of what follows it.
fn line(from: &mut impl Read) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\n") && from.read(&mut byte).unwrap() > 0 {
        line.extend(byte);
    }
    String::from_utf8(line).unwrap()
}

/// It does not start: the exit status, and a part of what it says.
#[track_caller]
pub(crate) fn refused(command: &mut Command, status: i32, expected: &str) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("it runs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(text.contains(expected), "`{expected}` is not in: {text}");
}

/// A signal ends it, and it reports success.
#[track_caller]
pub(crate) fn ended(child: &mut Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
    let mut printed = String::new();
    child.stdout.take().map(|mut stdout| stdout.read_to_string(&mut printed).unwrap());
    assert_eq!(printed, "", "standard output is for data");
}

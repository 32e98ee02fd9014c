//! A server ends in time, although its storage does not answer.

mod common;

use std::io::Read;
use std::process::{Command, Stdio};

use common::ready;
use rustix::process::{Pid, Signal, kill_process};

/// The flush at the end takes 10 s.
#[test]
fn the_end_has_a_deadline() {
    for server in ["nbd", "vhost-user-blk", "vfio-user"] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
        command.args(["serve", server, "--disk", "null=1M,delay=10s", "--stop-timeout", "50ms"]);
        command.arg("--socket").arg(folder.path().join("socket"));
        let (mut child, _) = ready(command.stdin(Stdio::null()).stderr(Stdio::piped()));
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{server}: {text}");
        assert!(text.contains("--stop-timeout"), "{server}: {text}");
        assert!(text.contains("has not completed the flush"), "{server}: {text}");
    }
}

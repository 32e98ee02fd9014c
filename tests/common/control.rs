//! Servers as `paradisk ctl` reaches them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{ready, refused};

/// `paradisk ctl`.
fn ctl(socket: &Path, command: &[&str]) -> Command {
    let mut paradisk = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    paradisk.arg("ctl").arg(socket).args(command);
    paradisk
}

/// What a server answers to it.
fn answer(socket: &Path, command: &[&str]) -> Value {
    let output = ctl(socket, command).arg("--json").output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A server of one disk, a raw image: the disk is made larger, and the server ended, by its control socket.
pub(crate) fn a_disk_grows(server: &mut Command, image: &Path, control: &Path) {
    let (mut child, _) = ready(server.arg("--control").arg(control));
    let capacity = || answer(control, &["list"])[0]["capacity"].clone();
    assert_eq!((answer(control, &["list"])[0]["id"].clone(), capacity()), ("disk0".into(), (1 << 20).into()));
    assert_eq!(answer(control, &["resize", "disk0", "2M"]), "disk0");
    assert_eq!((capacity(), image.metadata().unwrap().len()), ((2 << 20).into(), 2 << 20));
    std::fs::File::options().write(true).open(image).unwrap().set_len(3 << 20).unwrap();
    answer(control, &["rescan"]);
    assert_eq!(capacity(), 3 << 20);
    refused(&mut ctl(control, &["resize", "disk0", "1M"]), 1, "cannot be made smaller");
    refused(&mut ctl(control, &["resize", "disk0", "much"]), 2, "size `much`");
    refused(&mut ctl(control, &["resize", "disk1", "4M"]), 1, "no disk `disk1`");
    refused(&mut ctl(control, &["stats"]), 1, "a server takes no such command");
    assert_eq!(answer(control, &["stop"]), "stopped");
    // Closed, and free for others, when the answer comes.
    let mut resize = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    assert!(resize.args(["image", "resize"]).arg(image).arg("4M").status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!control.exists());
}

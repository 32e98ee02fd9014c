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
pub(crate) fn answer(socket: &Path, command: &[&str]) -> Value {
    let output = ctl(socket, command).arg("--json").output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The policy of each interrupt vector of a server's adapter.
fn policies(control: &Path) -> Vec<Value> {
    let stats = answer(control, &["stats"]);
    let vectors = stats["adapters"][0]["moderation"].as_array().unwrap();
    assert!(!vectors.is_empty(), "{stats}");
    vectors.iter().map(|vector| vector["policy"].clone()).collect()
}

/// A server of one disk, a raw image: the disk is made larger, and the server ended, by its control socket. `serve` gets the paths of
/// socket and image.
pub(crate) fn a_disk_grows(serve: impl FnOnce(&Path, &str) -> Command) {
    let folder = tempfile::tempdir().unwrap();
    let [socket, image, control] = &["socket", "disk.raw", "control"].map(|name| folder.path().join(name));
    std::fs::File::create(image).unwrap().set_len(1 << 20).unwrap();
    let (mut child, _) = ready(serve(socket, image.to_str().unwrap()).arg("--control").arg(control));
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
    refused(&mut ctl(control, &["detach", "disk0"]), 1, "a server takes no such command");
    assert!(policies(control).iter().all(|policy| policy == "oio-iops"));
    assert_eq!(answer(control, &["coalescing", "off"]), "off");
    assert!(policies(control).iter().all(|policy| policy == "off"));
    refused(&mut ctl(control, &["coalescing", "never"]), 1, "is not one of: off, batch, oio, oio-iops");
    refused(&mut ctl(control, &["coalescing", "off", "--adapter", "pvscsi0"]), 1, "which has no name");
    assert_eq!(answer(control, &["stop"]), "stopped");
    // Closed, and free for others, when the answer comes.
    let mut resize = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    assert!(resize.args(["image", "resize"]).arg(image).arg("4M").status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!control.exists());
}

/// A dynamic VHDX with something in it.
pub(crate) fn vhdx(path: &Path) {
    let raw = path.with_extension("content");
    std::fs::write(&raw, vec![7; 8 << 20]).unwrap();
    let mut convert = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    convert.args(["image", "convert", "--format", "vhdx"]).arg(&raw).arg(path);
    assert!(convert.status().unwrap().success());
}

/// A server of a dynamic VHDX, and perhaps of a raw image, reports the memory of the disks' maps; then it is ended. `serve` gets the
/// paths of socket and VHDX.
pub(crate) fn map_memory_is_told(serve: impl FnOnce(&Path, &str) -> Command) {
    let folder = tempfile::tempdir().unwrap();
    let [socket, image, control] = &["socket", "disk.vhdx", "control"].map(|name| folder.path().join(name));
    vhdx(image);
    let (mut child, _) = ready(serve(socket, image.to_str().unwrap()).arg("--control").arg(control));
    let listed = answer(control, &["list"]);
    let memory = &listed[0]["map_memory"];
    assert_eq!((&listed[0]["id"], &listed[0]["format"]), (&"disk0".into(), &"vhdx".into()));
    let [bytes, peak, budget, evictions] =
        ["bytes", "peak", "budget", "evictions"].map(|name| memory[name].as_u64().unwrap());
    assert!(0 < bytes && bytes <= peak && peak <= budget && evictions == 0, "{memory}");
    if let Some(raw) = listed.get(1) {
        assert_eq!((&raw["id"], raw.get("map_memory")), (&"disk1".into(), None));
    }
    let stats = answer(control, &["stats"]);
    assert_eq!((&stats["schema"], &stats["disks"]), (&1.into(), &listed));
    assert_eq!(answer(control, &["stop"]), "stopped");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!control.exists());
}

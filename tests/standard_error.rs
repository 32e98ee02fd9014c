//! Servers whose standard error nobody reads.

mod common;
#[path = "common/control.rs"]
#[expect(dead_code, reason = "disks of these servers do not grow")]
mod control;

use std::fs;
use std::io::{self, PipeReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Running, ended};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};

const SERVERS: [&str; 3] = ["nbd", "vhost-user-blk", "vfio-user"];

/// Each client of such a server makes it print lines.
fn server(name: &str, folder: &Path, disk: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    command.args(["--log", "trace", "serve", name, "--disk", disk]);
    command.arg("--socket").arg(folder.join("socket")).arg("--control").arg(folder.join("control"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Wait until both sockets are there.
fn listens(child: &mut Running, folder: &Path) {
    let start = Instant::now();
    while !["socket", "control"].iter().all(|name| UnixStream::connect(folder.join(name)).is_ok()) {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        assert!(start.elapsed() < Duration::from_secs(120), "it does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// More lines than the server keeps.
fn serves(folder: &Path) {
    for _ in 0..200 {
        let mut client = UnixStream::connect(folder.join("socket")).unwrap();
        // No protocol has such a message. The server may have disconnected already.
        let _ = client.write_all(&[0xff; 64]);
        drop(client);
    }
    assert_eq!(control::answer(&folder.join("control"), &["list"])[0]["id"], "disk0");
}

/// A pipe that takes no byte more.
fn full() -> (PipeReader, Stdio) {
    let (reader, mut writer) = io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer.into())
}

#[test]
fn a_server_goes_on_when_the_reader_has_ended() {
    for name in SERVERS {
        let folder = tempfile::tempdir().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let mut child = Running(server(name, folder.path(), "ram=1M").stderr(writer).spawn().unwrap());
        drop(reader);
        listens(&mut child, folder.path());
        serves(folder.path());
        ended(&mut child, Signal::TERM);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the sockets are removed");
    }
}

#[test]
fn a_server_goes_on_and_ends_when_nobody_reads() {
    for name in SERVERS {
        let folder = tempfile::tempdir().unwrap();
        let (mut reader, writer) = full();
        let mut child = Running(server(name, folder.path(), "ram=1M").stderr(writer).spawn().unwrap());
        listens(&mut child, folder.path());
        serves(folder.path());
        ended(&mut child, Signal::TERM);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert!(text.trim_start_matches('x').is_empty(), "no line came: {text}");
    }
}

/// The flush at the end takes 10 s.
#[test]
fn the_end_has_a_deadline_when_nobody_reads() {
    for name in SERVERS {
        let folder = tempfile::tempdir().unwrap();
        let (_reader, writer) = full();
        let mut server = server(name, folder.path(), "null=1M,delay=10s");
        let mut child = Running(server.args(["--stop-timeout", "50ms"]).stderr(writer).spawn().unwrap());
        listens(&mut child, folder.path());
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{name}");
    }
}

/// The lines that were lost are counted where they would have been.
#[test]
fn lost_lines_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (mut reader, writer) = full();
    let mut child = Running(server("nbd", folder.path(), "ram=1M").stderr(writer).spawn().unwrap());
    listens(&mut child, folder.path());
    (0..20).for_each(|_| serves(folder.path()));
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.contains("lines lost here") {
        let got = reader.read(&mut bytes).unwrap();
        assert!(got > 0, "it has ended: {text}");
        text += str::from_utf8(&bytes[..got]).unwrap();
    }
    let text = text.trim_start_matches('x');
    assert!(text.starts_with("serving ") || text.contains("\nserving "), "{text}");
    drop(reader);
    ended(&mut child, Signal::TERM);
}

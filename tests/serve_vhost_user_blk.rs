//! `paradisk serve vhost-user-blk` as scripts see it.

mod common;
#[path = "common/control.rs"]
mod control;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::{ended, ready, refused};
use control::{a_disk_grows, map_memory_is_told};
use rustix::process::Signal;

fn serve(socket: &Path, disk: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    command.args(["serve", "vhost-user-blk", "--queues", "2", "--disk", disk]).arg("--socket").arg(socket);
    command.stdin(Stdio::null());
    command
}

#[test]
fn a_signal_ends_it_cleanly_with_and_without_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, image) = (folder.path().join("socket"), folder.path().join("disk.raw"));
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let image = image.to_str().unwrap();
    for (signal, clients) in [(Signal::TERM, 0), (Signal::INT, 1), (Signal::TERM, 2)] {
        let (mut child, line) = ready(&mut serve(&socket, image));
        assert_eq!(line, format!("serving {image} at {}\n", socket.display()));
        // One is served, and one waits for its turn.
        let _clients: Vec<_> = (0..clients).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        let other = folder.path().join("other");
        refused(&mut serve(&socket, "ram=1M"), 1, "listen: Address already in use");
        refused(&mut serve(&other, image), 1, image);
        ended(&mut child, signal);
        assert!(!socket.exists());
    }
}

/// Clients that violate the protocol, one after the other, do not fill the log.
#[test]
fn disconnected_clients_are_reported_now_and_then() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let (mut child, _) = ready(&mut serve(&socket, "ram=1M"));
    let begin = Instant::now();
    for _ in 0..100 {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.write_all(&[0xFF; 12]).unwrap();
        // Until the server closes the connection.
        let _ = client.read_to_end(&mut Vec::new());
    }
    let intervals = begin.elapsed().as_secs() / 10;
    ended(&mut child, Signal::TERM);
    let mut said = String::new();
    child.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
    let lines = said.matches("disconnected a client: ").count() as u64;
    assert!((1..=2 + intervals).contains(&lines), "{lines} lines, {intervals} intervals: {said}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    refused(&mut serve(&socket, "ram=1M,adapter=lsi"), 2, "always virtio-blk");
    refused(serve(&socket, "ram=1M").args(["--queues", "65"]), 2, "--queues");
    refused(&mut serve(&socket, "/nowhere/disk.raw"), 1, "/nowhere/disk.raw");
    refused(&mut serve(Path::new("/nowhere/socket"), "ram=1M"), 1, "/nowhere/socket: listen");
    assert!(!socket.exists());
}

#[test]
fn its_disk_grows_by_the_control_socket() {
    a_disk_grows(serve);
}

#[test]
fn the_control_socket_tells_the_memory_of_the_map() {
    map_memory_is_told(serve);
}

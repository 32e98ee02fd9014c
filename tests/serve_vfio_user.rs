//! `paradisk serve vfio-user` as scripts see it.

#[path = "../serve/tests/vfio_user/block_guest.rs"]
#[allow(dead_code, reason = "the tests of the server use all of it")]
mod block_guest;
#[path = "../serve/tests/vfio_user/client.rs"]
#[allow(dead_code, reason = "the tests of the server use all of it")]
mod client;
mod common;
#[path = "common/control.rs"]
mod control;
#[path = "../serve/tests/vhost_user_blk/client.rs"]
#[allow(dead_code, reason = "the tests of the server use all of it")]
mod vhost_client;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use block_guest::BlockGuest;
use common::{ended, ready, refused};
use control::{a_disk_grows, map_memory_is_told};
use rustix::process::Signal;
use vhost_client::{IN, Shape};

fn serve(socket: &Path, adapter: &str, disks: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    command.args(["serve", "vfio-user", "--adapter", adapter]).arg("--socket").arg(socket);
    command.args(disks.iter().flat_map(|disk| ["--disk", disk]));
    command.stdin(Stdio::null());
    command
}

/// Vendor and device, as the server says them.
fn identity(socket: &Path) -> (UnixStream, [u8; 4]) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let header = |command: u8, size: u8| [1, 0, command, 0, size, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // VERSION 0.0 without capabilities.
    stream.write_all(&[&header(1, 20)[..], &[0; 4]].concat()).unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    let size = u32::from_le_bytes(reply[4..8].try_into().unwrap());
    stream.read_exact(&mut vec![0; size as usize - 16]).unwrap();
    // Four bytes at offset 0 of region 7, configuration space.
    stream.write_all(&[&header(9, 32)[..], &[0; 8], &[7, 0, 0, 0, 4, 0, 0, 0]].concat()).unwrap();
    let mut reply = [0; 36];
    stream.read_exact(&mut reply).unwrap();
    (stream, reply[32..].try_into().unwrap())
}

#[test]
fn a_signal_ends_it_cleanly_with_and_without_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, image) = (folder.path().join("socket"), folder.path().join("disk.raw"));
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let image = image.to_str().unwrap();
    for (signal, client) in [(Signal::TERM, false), (Signal::INT, true)] {
        for (adapter, id) in [
            ("pvscsi", [0xad, 0x15, 0xc0, 0x07]),
            ("lsi", [0x00, 0x10, 0x30, 0x00]),
            ("virtio-blk", [0xf4, 0x1a, 0x42, 0x10]),
        ] {
            let (mut child, line) = ready(&mut serve(&socket, adapter, &[image]));
            assert_eq!(line, format!("serving {adapter} at {}\n", socket.display()));
            let _client = client.then(|| {
                let (stream, found) = identity(&socket);
                assert_eq!(found, id, "{adapter}");
                stream
            });
            refused(&mut serve(&socket, adapter, &["ram=1M"]), 1, "listen: Address already in use");
            ended(&mut child, signal);
            assert!(!socket.exists());
        }
    }
}

/// Each queue of a device with threads is read from, while all threads of the server have their filters.
#[test]
fn threads_of_the_device_serve_its_queues() {
    const QUEUES: u16 = 2;
    let folder = tempfile::tempdir().unwrap();
    let (socket, image) = (folder.path().join("socket"), folder.path().join("disk.raw"));
    let content: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 512) as u8).collect();
    std::fs::write(&image, &content).unwrap();
    let mut server = serve(&socket, "virtio-blk", &[image.to_str().unwrap()]);
    let (mut child, _) = ready(server.args(["--queues", "2", "--threads", "2"]));
    let mut guest = BlockGuest::connect(&socket, Shape { queues: QUEUES, ..Shape::default() });
    guest.start();
    for (queue, sector) in [(0, 5), (1, 1000)] {
        assert_eq!(guest.run(queue, IN, sector, 4096), 0);
        let at = sector as usize * 512;
        assert_eq!(guest.guest.bytes(queue, 0, 4096), content[at..at + 4096], "queue {queue}");
    }
    // A thread that has served a request has its name.
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("blk-queues-")).collect();
    names.sort();
    assert_eq!(names, ["blk-queues-0\n", "blk-queues-1\n"]);
    drop(guest);
    ended(&mut child, Signal::TERM);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    refused(&mut serve(&socket, "pvscsi", &["ram=1M,adapter=lsi"]), 2, "adapter is not for this command");
    let queues = |adapter, count| {
        let mut command = serve(&socket, adapter, &["ram=1M"]);
        command.args(["--queues", count]);
        command
    };
    refused(&mut queues("pvscsi", "2"), 2, "--queues 2: pvscsi takes 1 to 1");
    refused(&mut queues("virtio-blk", "0"), 2, "--queues 0: virtio-blk takes 1 to 64");
    refused(&mut queues("virtio-scsi", "63"), 2, "--queues 63: virtio-scsi takes 1 to 62");
    let threads = |adapter| {
        let mut command = queues(adapter, "2");
        command.args(["--threads", "3"]);
        command
    };
    refused(&mut threads("virtio-blk"), 2, "--threads 3: at most --queues, 2");
    refused(&mut threads("virtio-scsi"), 2, "--threads: not with virtio-scsi, only with virtio-blk");
    refused(&mut serve(&socket, "virtio-blk", &["ram=1M"; 2]), 2, "virtio-blk takes 1 at the most");
    refused(&mut serve(&socket, "floppy", &["ram=1M"]), 2, "is not one of: pvscsi");
    refused(&mut serve(&socket, "ide", &["ram=1M"]), 2, "use ide-native");
    refused(&mut serve(&socket, "storvsc", &["ram=1M"]), 2, "storvsc is on a VMBus");
    refused(&mut serve(&socket, "pvscsi", &["/nowhere/disk.raw"]), 1, "/nowhere/disk.raw");
    refused(&mut serve(Path::new("/nowhere/socket"), "pvscsi", &["ram=1M"]), 1, "/nowhere/socket: listen");
    assert!(!socket.exists());
}

#[test]
fn its_disk_grows_by_the_control_socket() {
    a_disk_grows(|socket, image| serve(socket, "pvscsi", &[image]));
}

/// A client may have more maps than shells allow descriptors.
#[test]
fn it_takes_all_descriptors_that_it_may_have() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let server = serve(&socket, "pvscsi", &["ram=1M"]);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -Sn 128; exec \"$0\" \"$@\""])
        .arg(server.get_program())
        .args(server.get_args());
    let (mut child, _) = ready(&mut limited);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<_> = line.split_ascii_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "{line}");
    ended(&mut child, Signal::TERM);
}

#[test]
fn the_control_socket_tells_the_memory_of_maps() {
    map_memory_is_told(|socket, image| serve(socket, "pvscsi", &[image, "ram=1M"]));
}

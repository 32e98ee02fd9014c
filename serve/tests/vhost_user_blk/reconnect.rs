//! Clients that disconnect, and servers that are killed or stopped, with requests in flight.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paradisk_disk_formats::{Disk, Layered, OpenOptions};
use paradisk_serve::Socket;
use paradisk_serve::vhost_user_blk::{Options, Server};
use vm_memory::Bytes;

use crate::client::*;
use crate::gate::{Gate, GatedDisk};
use crate::rig::{MIB, Rig, raw};

const DIRECTORY: &str = "PARADISK_TEST_DIRECTORY";
const DELAY: &str = "PARADISK_TEST_DELAY_MS";
const DEPTH: u16 = 48;

/// Not a test: the server that is killed.
#[test]
#[ignore = "started by a_server_that_is_killed_loses_nothing"]
fn server_process() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let delay: u64 = std::env::var(DELAY).unwrap().parse().unwrap();
    let disk = OpenOptions::new(directory.join("disk.raw")).open().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(Layered::new(disk).delayed(Duration::from_millis(delay)));
    let server = Server::new(disk, Options { queues: 2, ..Options::default() }).unwrap();
    let socket = Socket::listen(&directory.join("socket")).unwrap();
    let (_stop, stopped) = UnixStream::pair().unwrap();
    server.run(socket.listener(), stopped.as_fd(), &|_| ()).unwrap();
}

struct Process(Child);

impl Process {
    fn start(directory: &Path, delay: Duration) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["reconnect::server_process", "--exact", "--ignored", "--nocapture"]);
        command.env(DIRECTORY, directory).env(DELAY, delay.as_millis().to_string());
        let process = Self(command.stdout(Stdio::null()).spawn().unwrap());
        let start = Instant::now();
        while UnixStream::connect(directory.join("socket")).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "no server");
            std::thread::sleep(Duration::from_millis(5));
        }
        process
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_that_is_killed_loses_nothing() {
    for event_index in [true, false] {
        let (directory, disk) = raw(64 * MIB);
        drop(disk);
        let socket: PathBuf = directory.path().join("socket");
        let server = Process::start(directory.path(), Duration::from_millis(1));
        let shape = Shape { queues: 2, event_index, ..Shape::default() };
        let mut client = Client::connect(&socket, Guest::new(shape));
        client.track();
        // Some requests complete first, so that the record of requests in flight is not new.
        for slot in 0..DEPTH {
            client.guest.add(1, slot, OUT, u64::from(slot) * 8, 4096);
        }
        client.guest.publish(1);
        assert_eq!(client.guest.wait(1, DEPTH.into()).len(), usize::from(DEPTH));
        let Client { guest, .. } = client;
        drop(server);

        let server = Process::start(directory.path(), Duration::from_secs(60));
        let mut client = Client::connect(&socket, guest);
        for queue in 0..2 {
            for slot in 0..DEPTH {
                client.guest.fill(queue, slot, (slot + 1) as u8, 4096);
                client.guest.add(queue, slot, OUT, (queue as u64 * 64 + u64::from(slot)) * 8, 4096);
            }
            client.guest.publish(queue);
        }
        let start = Instant::now();
        let (described, file) = client.guest.inflight.take().unwrap();
        let notes = |queue: usize| {
            let mut bytes = vec![0; described.mmap_size as usize];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
            recorded(&bytes[queue * bytes.len() / 2..])
        };
        while notes(0) + notes(1) < 2 * usize::from(DEPTH) {
            assert!(start.elapsed() < Duration::from_secs(60), "{} {}", notes(0), notes(1));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(client.guest.take(0).is_empty() && client.guest.take(1).is_empty());
        drop(server);

        let Client { mut guest, .. } = client;
        guest.inflight = Some((described, file));
        // This request is made available while no server runs.
        guest.fill(0, DEPTH, 0xee, 4096);
        guest.add(0, DEPTH, OUT, 1024, 4096);
        guest.publish(0);
        let _server = Process::start(directory.path(), Duration::from_millis(1));
        let mut client = Client::connect(&socket, guest);
        for (queue, count) in [(0, DEPTH + 1), (1, DEPTH)] {
            let mut ended = client.guest.wait(queue, count.into());
            ended.sort_unstable();
            assert_eq!(ended, (0..count).map(|slot| (slot, 0)).collect::<Vec<_>>());
        }
        assert_eq!(client.guest.run(0, IN, 1024, 4096), 0);
        assert_eq!(client.guest.bytes(0, 0, 4096), [0xee; 4096]);
        for queue in 0..2u64 {
            for slot in 0..DEPTH {
                assert_eq!(client.guest.run(0, IN, (queue * 64 + u64::from(slot)) * 8, 4096), 0);
                assert_eq!(client.guest.bytes(0, 0, 4096), vec![(slot + 1) as u8; 4096]);
            }
        }
        assert!(client.guest.take(1).is_empty(), "nothing is completed twice");
    }
}

/// Servers are killed at various times while requests run: each request completes once, and reads return the data written last.
#[test]
fn servers_are_killed_again_and_again() {
    const KILLS: u64 = 10;
    let (directory, disk) = raw(64 * MIB);
    drop(disk);
    let socket = directory.path().join("socket");
    let mut guest = Guest::new(Shape::default());
    // For each slot, the number of its write in flight.
    let mut writes = [0u8; DEPTH as usize];
    let write = |guest: &mut Guest, slot: u16, number: u8| {
        guest.fill(0, slot, number, 4096);
        guest.add(0, slot, OUT, u64::from(slot) * 8, 4096);
    };
    for kill in 0..=KILLS {
        let server = Process::start(directory.path(), Duration::ZERO);
        let mut client = Client::connect(&socket, guest);
        if kill == 0 {
            client.track();
            (0..DEPTH).for_each(|slot| write(&mut client.guest, slot, 0));
            client.guest.publish(0);
        }
        let start = Instant::now();
        while kill < KILLS && start.elapsed() < Duration::from_micros(10_000 + 3_713 * kill) {
            for (slot, status) in client.guest.wait(0, 1) {
                assert_eq!(status, 0);
                let number = &mut writes[usize::from(slot)];
                *number = number.wrapping_add(1);
                write(&mut client.guest, slot, *number);
            }
            client.guest.publish(0);
        }
        if kill == KILLS {
            let mut ended: Vec<_> =
                client.guest.wait(0, DEPTH.into()).into_iter().map(|(slot, _)| slot).collect();
            ended.sort_unstable();
            assert_eq!(ended, (0..DEPTH).collect::<Vec<_>>(), "each once");
            for slot in 0..DEPTH {
                assert_eq!(client.guest.run(0, IN, u64::from(slot) * 8, 4096), 0);
                assert_eq!(client.guest.bytes(0, 0, 4096), vec![writes[usize::from(slot)]; 4096], "{slot}");
            }
        }
        drop(server);
        guest = client.guest;
    }
}

/// A server was killed after it had published the used index, and before it had recorded the completion.
#[test]
fn notes_of_a_server_that_died_while_showing() {
    let rig = Rig::new(1);
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    client.track();
    for slot in 0..3 {
        client.guest.fill(0, slot, 1, 4096);
        client.guest.add(0, slot, OUT, u64::from(slot) * 8, 4096);
    }
    let Client { mut guest, frontend } = client;
    drop(frontend);
    rig.await_end_of_client();
    // The state that this server leaves: requests 0 to 2 taken; the completion of 1 posted, but not recorded.
    let file = &guest.inflight.as_ref().unwrap().1;
    let write = |at: u64, bytes: &[u8]| std::os::unix::fs::FileExt::write_all_at(file, bytes, at).unwrap();
    for (head, counter) in [(0u64, 7u64), (1, 5), (2, 6)] {
        write(16 + 16 * head, &[1]);
        write(16 + 16 * head + 8, &counter.to_le_bytes());
    }
    write(12, &1u16.to_le_bytes());
    guest.memory.write_obj(1u32, guest.at(0, USED + 4)).unwrap();
    guest.memory.write_obj(1u16, guest.at(0, USED + 2)).unwrap();
    guest.memory.write_obj(3u16, guest.at(0, AVAIL + 2)).unwrap();
    assert_eq!(guest.take(0), [(1, 0xff)]);
    let mut client = Client::connect(&rig.socket(), guest);
    let mut ended = client.guest.wait(0, 2);
    ended.sort_unstable();
    assert_eq!(ended, [(0, 0), (2, 0)]);
    assert_eq!(client.guest.run(0, IN, 8, 4096), 0);
    assert_eq!(client.guest.bytes(0, 0, 4096), [0; 4096], "it was shown, so it is not done again");
}

#[test]
fn a_client_that_vanishes_is_forgotten() {
    let (directory, disk) = raw(64 * MIB);
    let mut rig = Rig::with(directory, Arc::new(Layered::new(disk).delayed(Duration::from_millis(50))), 1);
    let mut guest = Guest::new(Shape::default());
    for round in 0..5u8 {
        let mut client = Client::connect(&rig.socket(), guest);
        for slot in 0..DEPTH {
            client.guest.fill(0, slot, round, 4096);
            client.guest.add(0, slot, OUT, u64::from(slot) * 8, 4096);
        }
        client.guest.publish(0);
        // Requests may be in flight, or not taken yet.
        std::thread::sleep(Duration::from_millis(10 * u64::from(round)));
        drop(client);
        rig.await_end_of_client();
        guest = Guest::new(Shape::default());
    }
    rig.stop().unwrap();
    assert!(!rig.socket().exists());
}

/// A queue is stopped with requests in flight, and continues at the same index.
#[test]
fn stopped_queues_have_nothing_in_flight() {
    let (directory, disk) = raw(64 * MIB);
    let rig = Rig::with(directory, Arc::new(Layered::new(disk).delayed(Duration::from_millis(20))), 1);
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    for round in 0..4u16 {
        for slot in 0..DEPTH {
            client.guest.add(0, slot, IN, u64::from(slot), 4096);
        }
        client.guest.publish(0);
        std::thread::sleep(Duration::from_millis(5 * u64::from(round)));
        let next = vhost::VhostBackend::get_vring_base(&client.frontend, 0).unwrap() as u16;
        let ended = client.guest.take(0).len() as u16;
        assert!(ended == 0 || ended == DEPTH, "{ended}");
        assert_eq!(client.guest.rings[0].used, next, "what was taken has ended");
        client.start(0);
        assert_eq!(client.guest.wait(0, usize::from(DEPTH - ended)).len(), usize::from(DEPTH - ended));
    }
}

/// Requests of a queue that are in flight, by the memory of the queue for them. It begins with 16 bytes, and has 16 for each descriptor.
fn recorded(queue: &[u8]) -> usize {
    (0..256).filter(|head| queue[16 + 16 * head] == 1).count()
}

#[test]
fn a_server_that_is_stopped_completes_what_it_has() {
    let (directory, disk) = raw(64 * MIB);
    drop(disk);
    let gate = Gate::default();
    gate.close();
    let mut rig = Rig::with(directory, Arc::new(GatedDisk::new(64 * MIB, gate.clone())), 1);
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    client.track();
    for slot in 0..DEPTH {
        client.guest.add(0, slot, OUT, u64::from(slot) * 8, 4096);
    }
    client.guest.publish(0);
    let (described, file) = client.guest.inflight.as_ref().unwrap();
    let mut bytes = vec![0; described.mmap_size as usize];
    let begin = Instant::now();
    while recorded(&bytes) < usize::from(DEPTH) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{} are taken", recorded(&bytes));
        std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, 0).unwrap();
    }
    // The server is told to stop before the disk completes them, or shortly after.
    let opening = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        gate.open();
    });
    rig.stop().unwrap();
    assert_eq!(client.guest.take(0).len(), usize::from(DEPTH));
    opening.join().unwrap();
}

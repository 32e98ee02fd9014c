//! The sandbox of `paradisk serve` and `paradisk run` as the kernel sees it. The other tests of both commands run in the sandbox, too, and
//! so show that no permission is missing.

mod common;
#[path = "../serve/tests/nbd/client.rs"]
#[allow(dead_code, reason = "the tests of the server use all of it")]
mod nbd_client;
#[path = "../serve/tests/vhost_user_blk/client.rs"]
#[allow(dead_code, reason = "the tests of the server use all of it")]
mod vhost_client;

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::{Running, ended, ready, ready_with_notes, refused};
use rustix::io::Errno;
use rustix::process::Signal;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use vhost_client::{Guest, IN, OUT, Shape};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EventFd};

const PROGRAM: &str = env!("CARGO_BIN_EXE_paradisk");

/// A server of an image of 8 MiB.
fn serve(args: &[&str], format: &str, engine: &str, folder: &Path) -> Command {
    let image = folder.join("image");
    let mut create = Command::new(PROGRAM);
    create.args(["image", "create", "--size", "8M", "--format", format]).arg(&image);
    assert!(image.exists() || create.status().unwrap().success());
    let mut command = Command::new(PROGRAM);
    command.arg("serve").args(args).arg("--socket").arg(folder.join("socket")).arg("--disk");
    command.arg(format!("path={},format={format},engine={engine}", image.display()));
    command
}

/// A thread as the kernel describes it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    name: String,
    seccomp: String,
    filters: u32,
    no_new_privs: String,
}

/// The threads, by name.
fn threads(child: &Child) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    // A thread may end meanwhile.
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
    let of = |status: String| {
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.unwrap_or_else(|| panic!("no {name}: {status}")).trim().to_owned()
        };
        let filters = field("Seccomp_filters").parse().unwrap();
        let [name, seccomp, no_new_privs] = ["Name", "Seccomp", "NoNewPrivs"].map(field);
        Thread { name, seccomp, filters, no_new_privs }
    };
    let mut threads: Vec<_> = tasks.filter_map(|task| status(task.unwrap())).map(of).collect();
    threads.sort();
    threads
}

/// Wait until there are threads of these names, one or more of each, and each is as it should be. A new thread has the name of its creator
/// for a moment, and no filter of its own yet. The kernel's own threads for io_uring count under any name.
#[track_caller]
fn await_threads(child: &Child, expected: &[&str], good: impl Fn(&Thread) -> bool) {
    let start = Instant::now();
    loop {
        let found = threads(child);
        let mut names: Vec<_> = found.iter().map(|thread| thread.name.as_str()).collect();
        names.retain(|name| !name.starts_with("iou-"));
        names.dedup();
        if names == expected && found.iter().all(&good) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "{found:#?}, expected {expected:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Wait until a condition holds.
#[track_caller]
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(120), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A client's connection, after what makes the server start its threads.
type Connect = fn(&Path) -> Box<dyn Any>;

fn silent(socket: &Path) -> Box<dyn Any> {
    Box::new(UnixStream::connect(socket).unwrap())
}

/// Writes to blocks that are not allocated, and flushes.
fn nbd(socket: &Path) -> Box<dyn Any> {
    let mut client = nbd_client::Client::of(socket, "", false);
    client.write(0, 1 << 20, &[7; 4096]).unwrap();
    client.ask(nbd_client::FLUSH, 0, 0, 0).unwrap();
    Box::new(client)
}

/// Writes and reads, and waits for the signal of each completion.
fn vhost_user(socket: &Path) -> Box<dyn Any> {
    Box::new(vhost_user_client(socket))
}

/// The same, then a completion whose signal does not fit into the eventfd: the thread that writes it sleeps.
fn full_eventfd(socket: &Path) -> Box<dyn Any> {
    let mut client = vhost_user_client(socket);
    let guest = &mut client.guest;
    guest.rings[0].call.write(u64::MAX - 1).unwrap();
    guest.ask(0);
    guest.add(0, 0, IN, 8, 4096);
    guest.publish(0);
    soon("the request ends", || !guest.take(0).is_empty());
    Box::new(client)
}

fn vhost_user_client(socket: &Path) -> vhost_client::Client {
    let mut guest = Guest::new(Shape::default());
    // Writes to it may sleep.
    guest.rings[0].call = EventFd::new(EFD_CLOEXEC).unwrap();
    let mut client = vhost_client::Client::connect(socket, guest);
    let guest = &mut client.guest;
    guest.fill(0, 0, 7, 4096);
    assert_eq!(guest.run(0, OUT, 8, 4096), 0);
    guest.fill(0, 0, 0, 4096);
    assert_eq!(guest.run(0, IN, 8, 4096), 0);
    assert_eq!(guest.bytes(0, 0, 4096), [7; 4096]);
    client
}

/// A server, its client, and the names of its threads beside those of control socket and metrics, and the one that makes rings in a sandbox.
struct Case {
    args: &'static [&'static str],
    format: &'static str,
    engine: &'static str,
    connect: Connect,
    threads: &'static [&'static str],
}

const CASES: [Case; 5] = [
    Case {
        args: &["nbd"],
        format: "vhdx",
        engine: "io_uring",
        connect: nbd,
        threads: &["disk-flusher", "disk-helper", "nbd", "nbd-client"],
    },
    Case {
        args: &["vhost-user-blk", "--queues", "2"],
        format: "raw",
        engine: "io_uring",
        connect: silent,
        threads: &["queue-0", "queue-1", "vhost-user"],
    },
    Case {
        args: &["vhost-user-blk", "--queues", "1"],
        format: "raw",
        engine: "threads",
        connect: vhost_user,
        threads: &["disk-io", "queue-0", "vhost-user"],
    },
    Case {
        args: &["vfio-user"],
        format: "raw",
        engine: "io_uring",
        connect: silent,
        threads: &["vfio-user"],
    },
    Case {
        args: &["vfio-user", "--adapter", "virtio-blk", "--queues", "2", "--threads", "2"],
        format: "raw",
        engine: "threads",
        connect: silent,
        threads: &["blk-queues-0", "blk-queues-1", "disk-io", "vfio-user"],
    },
];

impl Case {
    /// Start the server with these options, and connect. Its threads must be `good`.
    #[track_caller]
    fn run(
        &self,
        mode: &[&str],
        start: impl FnOnce(&mut Command) -> (Running, String),
        good: impl Fn(&Thread) -> bool,
        then: impl FnOnce(&Child),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut command = serve(self.args, self.format, self.engine, folder.path());
        for socket in ["control", "metrics"] {
            command.arg(format!("--{socket}")).arg(folder.path().join(socket));
        }
        let (mut child, line) = start(command.args(mode));
        assert!(line.starts_with("serving "), "{line}");
        let client = (self.connect)(&folder.path().join("socket"));
        let maker: &[&str] = if mode.is_empty() { &["ring-maker"] } else { &[] };
        let mut expected =
            [self.threads, maker, &["closer", "control", "deadline", "messages", "metrics", "paradisk"]]
                .concat();
        expected.sort_unstable();
        await_threads(&child, &expected, good);
        then(&child);
        drop(client);
        // When the client has disconnected. A refused system call would end the process.
        soon("the notifier ends", || threads(&child).iter().all(|thread| thread.name != "notifier"));
        ended(&mut child, Signal::TERM);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the sockets are removed");
    }
}

/// Least number of filters of a thread: its own, and those that it inherits from the threads that have started it.
fn fewest_filters(name: &str) -> u32 {
    match name {
        // Started by nbd-client.
        "disk-helper" | "disk-flusher" => 3,
        // nbd-client is started by nbd, vhost-user by the main thread.
        "nbd-client" | "vhost-user" => 2,
        // Started by vhost-user.
        "notifier" => 3,
        _ => 1,
    }
}

#[test]
fn every_thread_of_a_server_is_confined() {
    let confined = |thread: &Thread| {
        (&*thread.seccomp, &*thread.no_new_privs) == ("2", "1")
            && thread.filters >= fewest_filters(&thread.name)
    };
    let free = |thread: &Thread| (&*thread.seccomp, &*thread.no_new_privs) == ("0", "0");
    for case in &CASES {
        case.run(&[], ready, confined, |child| {
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let capabilities = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap();
            assert_eq!(capabilities, "0000000000000000");
            let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
            let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
            assert_eq!(core.split_whitespace().collect::<Vec<_>>(), ["1", "1", "bytes"]);
        });
        case.run(&["--sandbox", "off"], ready, free, |_| ());
    }
}

/// Start it where the kernel refuses io_uring, as in many containers: by a filter, which the server inherits.
fn ready_without_io_uring(command: &mut Command) -> (Running, String) {
    const IO_URING_SETUP: i64 = 425;
    let refused = SeccompAction::Errno(Errno::PERM.raw_os_error() as u32);
    let rules = BTreeMap::from([(IO_URING_SETUP, Vec::new())]);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, TargetArch::x86_64).unwrap();
    let filter = BpfProgram::try_from(filter).unwrap();
    let start = || {
        // The filter applies to this thread and to the processes that it starts.
        seccompiler::apply_filter(&filter).unwrap();
        ready(command)
    };
    std::thread::scope(|scope| scope.spawn(start).join().unwrap())
}

#[test]
fn threads_that_replace_io_uring_are_confined() {
    let case = Case {
        args: &["vhost-user-blk", "--queues", "1"],
        format: "raw",
        engine: "io_uring",
        connect: vhost_user,
        threads: &["disk-io", "notifier", "queue-0", "vhost-user"],
    };
    // One more filter is inherited from `ready_without_io_uring`.
    let confined = |thread: &Thread| thread.filters > fewest_filters(&thread.name);
    for connect in [case.connect, full_eventfd] {
        Case { connect, ..case }.run(&[], ready_without_io_uring, confined, |_| ());
    }
    case.run(&["--sandbox", "off"], ready_without_io_uring, |thread| thread.filters == 1, |_| ());
}

#[test]
fn what_is_reported_is_not_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve(&["nbd", "--sandbox", "log"], "raw", "io_uring", folder.path());
    let (mut child, said) = ready_with_notes(&mut command);
    let client = silent(&folder.path().join("socket"));
    let expected = ["closer", "deadline", "messages", "nbd", "nbd-client", "paradisk", "ring-maker"];
    await_threads(&child, &expected, |_| true);
    drop(client);
    let mut stderr = child.stderr.take().unwrap();
    ended(&mut child, Signal::TERM);
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    assert!(said[0].starts_with("note: sandbox: log: "), "{said:?}");
    assert!(!text.contains("would not be allowed"), "the tables are complete: {text}");
    refused(
        &mut serve(&["nbd", "--sandbox", "much"], "raw", "io_uring", folder.path()),
        2,
        "`much` is not one of: on, log, off",
    );
}

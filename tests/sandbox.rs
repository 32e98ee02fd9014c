//! The sandbox of `paradisk serve` and `paradisk run` as the kernel sees it. That nothing is missing, the other tests of both show, which
//! run in the sandbox, too.

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{ready, refused};
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_paradisk");

fn serve(args: &[&str], folder: &Path) -> Command {
    let image = folder.join("a.raw");
    fs::write(&image, vec![7; 1 << 20]).unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg("serve").args(args).arg("--socket").arg(folder.join("socket")).arg("--disk").arg(&image);
    command
}

/// Name, `Seccomp` and `NoNewPrivs` of each thread, sorted.
fn threads(child: &Child) -> Vec<(String, String, String)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let of = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.unwrap_or_else(|| panic!("no {name}: {status}")).trim().to_owned()
        };
        (field("Name:"), field("Seccomp:"), field("NoNewPrivs:"))
    };
    let mut threads: Vec<_> = tasks.map(|task| of(task.unwrap())).collect();
    threads.sort();
    threads
}

fn end(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A client that has connected, when there are threads of these names. A new thread has the name of its creator for a moment.
#[track_caller]
fn connected(child: &Child, folder: &Path, expected: &[&str]) -> UnixStream {
    let stream = UnixStream::connect(folder.join("socket")).unwrap();
    let start = Instant::now();
    loop {
        let found = threads(child);
        let names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
        if names == expected {
            return stream;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{names:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_thread_of_a_server_is_confined() {
    let servers: [(&[&str], &[&str]); 3] = [
        (&["nbd"], &["control", "nbd", "nbd-client", "paradisk"]),
        (&["vhost-user-blk", "--queues", "2"], &["control", "paradisk", "queue-0", "queue-1", "vhost-user"]),
        (&["vfio-user"], &["control", "paradisk"]),
    ];
    for (args, expected) in servers {
        for (mode, confined) in [(&[][..], ("2", "1")), (&["--sandbox", "off"], ("0", "0"))] {
            let folder = tempfile::tempdir().unwrap();
            let control = folder.path().join("control");
            let mut command = serve(args, folder.path());
            let (child, line) = ready(command.args(mode).arg("--control").arg(&control));
            assert!(line.starts_with("serving "), "{line}");
            let client = connected(&child, folder.path(), expected);
            for (name, seccomp, privileges) in &threads(&child) {
                assert_eq!((seccomp.as_str(), privileges.as_str()), confined, "{args:?}: {name}");
            }
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let capabilities = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap();
            if confined.0 == "2" {
                assert_eq!(capabilities, "0000000000000000");
                let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
                let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
                assert_eq!(core.split_whitespace().collect::<Vec<_>>(), ["1", "1", "bytes"]);
            }
            drop(client);
            end(child);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the sockets are removed");
        }
    }
}

#[test]
fn what_is_reported_is_not_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve(&["nbd", "--sandbox", "log"], folder.path());
    let (mut child, _) = ready(command.stderr(Stdio::piped()));
    drop(connected(&child, folder.path(), &["nbd", "nbd-client", "paradisk"]));
    let mut stderr = child.stderr.take().unwrap();
    end(child);
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("note: sandbox: log: "), "{text}");
    assert!(!text.contains("would not be allowed"), "the tables are complete: {text}");
    refused(
        &mut serve(&["nbd", "--sandbox", "much"], folder.path()),
        2,
        "`much` is not one of: on, log, off",
    );
}

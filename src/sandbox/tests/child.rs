//! A process that confines itself and then does something: this test program, started again for one test that does nothing otherwise.
#![allow(unsafe_code, reason = "system calls that a sandbox does not allow")]

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::process::{Command, Output};

use paradisk_disk_formats::ThreadKind;

use crate::confine::Sandbox;
use crate::files::Grants;
use crate::filters::KINDS;
use crate::mode::{Mode, Program};
use crate::tables::{KVM_RUN, Kind};

/// What the child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Socket,
    Exec,
    MapCode,
    SignalOther,
    ReplaceHandler,
    TypeInto,
    RunGuest,
    SocketLikeRunGuest,
    OpenForWriting,
    Open,
    Panic,
    StartThread,
    Paths,
    Status,
}

const ACTS: [Act; 14] = [
    Act::Socket,
    Act::Exec,
    Act::MapCode,
    Act::SignalOther,
    Act::ReplaceHandler,
    Act::TypeInto,
    Act::RunGuest,
    Act::SocketLikeRunGuest,
    Act::OpenForWriting,
    Act::Open,
    Act::Panic,
    Act::StartThread,
    Act::Paths,
    Act::Status,
];

const VARIABLE: &str = "PARADISK_SANDBOX_TEST";

/// Do it in a child, on a thread with the filter of the kind of this index.
pub(super) fn act(act: Act, mode: Mode, kind: usize) -> Output {
    // Removed by this process: the child may not.
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.current_dir(&folder).args(["--exact", "tests::child::the_child", "--ignored", "--nocapture"]);
    child.env(VARIABLE, format!("{act:?} {mode:?} {kind}")).env("RUST_BACKTRACE", "1").output().unwrap()
}

/// A panic is a failure of the child.
#[test]
#[ignore = "only in a child process"]
fn the_child() {
    let Ok(text) = std::env::var(VARIABLE) else { return };
    let words: Vec<&str> = text.split(' ').collect();
    let act = *ACTS.iter().find(|act| format!("{act:?}") == words[0]).unwrap();
    let mode: Mode = words[1].to_lowercase().parse().unwrap();
    let kind = KINDS[words[2].parse::<usize>().unwrap()];
    let folder = std::env::current_dir().unwrap();
    let [granted, other] = ["granted", "other"].map(|name| folder.join(name));
    for folder in [&granted, &other] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("image"), [7; 512]).unwrap();
    }
    let grants =
        Grants { images: vec![granted.clone()], sockets: vec![granted.join("socket")], ..Grants::default() };
    let program = if let Kind::Main(program) = kind { program } else { Program::Nbd };
    let sandbox = Sandbox::enter(mode, program, &grants, |_| {}).unwrap();
    if let Kind::Thread(thread) = kind {
        drop(sandbox);
        let run = move || perform(act, &granted, &other);
        paradisk_disk_formats::spawn(thread, "child", run).unwrap().join().unwrap();
    } else {
        sandbox.close().unwrap();
        perform(act, &granted, &other);
    }
    // Not the end of a test, which writes its results to files that it may open.
    std::process::exit(0);
}

fn perform(act: Act, granted: &std::path::Path, other: &std::path::Path) {
    let denied = |result: std::io::Result<File>| {
        assert_eq!(result.map(drop).unwrap_err().kind(), ErrorKind::PermissionDenied);
    };
    // SAFETY: each call is made with valid arguments; those that succeed have no effect on memory that is in use.
    unsafe {
        match act {
            Act::Socket => {
                for _ in 0..2 {
                    assert!(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) >= 0);
                }
            }
            Act::Exec => drop(libc::execve(c"/bin/true".as_ptr(), std::ptr::null(), std::ptr::null())),
            Act::MapCode => {
                let (access, flags) =
                    (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0);
            }
            Act::SignalOther => drop(libc::syscall(libc::SYS_tgkill, 1, 1, 0)),
            Act::ReplaceHandler => drop(libc::signal(libc::SIGSYS, libc::SIG_IGN)),
            Act::TypeInto => drop(libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr())),
            Act::RunGuest => assert_eq!(libc::ioctl(0, KVM_RUN.into()), -1, "it is no virtual CPU"),
            Act::SocketLikeRunGuest => drop(libc::syscall(libc::SYS_socket, 0, KVM_RUN, 0)),
            Act::OpenForWriting => denied(OpenOptions::new().write(true).open(granted.join("image"))),
            Act::Open => denied(File::open("/proc/self/maps")),
            Act::Panic => {
                let caught = std::panic::catch_unwind(|| panic!("in the child"));
                assert!(caught.is_err());
            }
            Act::StartThread => {
                let started = paradisk_disk_formats::spawn(ThreadKind::DiskHelper, "helper", || 7);
                assert_eq!(started.unwrap().join().unwrap(), 7);
            }
            Act::Paths => {
                let write = |folder: &std::path::Path| {
                    OpenOptions::new().read(true).write(true).open(folder.join("image"))
                };
                write(granted).unwrap().set_len(1024).unwrap();
                denied(write(other));
                denied(File::open(other.join("image")));
                denied(File::open("/etc/passwd"));
                denied(File::create(granted.join("new")));
                // Descriptors that were open before stay as they were.
                eprintln!("written");
                fs::remove_file(granted.join("image")).unwrap();
                assert!(fs::remove_file(other.join("image")).is_err());
            }
            Act::Status => {
                let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
                let line = |name: &str| {
                    status
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .unwrap_or_default()
                        .trim()
                        .to_owned()
                };
                assert_eq!((line("NoNewPrivs:"), line("Seccomp:")), ("0".to_owned(), "0".to_owned()));
            }
        }
    }
}

//! A process that confines itself and then does something: this test program, started again for one test that does nothing otherwise.
#![allow(unsafe_code, reason = "system calls that a sandbox does not allow")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use paradisk_disk_formats::ThreadKind;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

use super::rings::{DiskOfRings, Ringed, SIZE, open_by_a_ring_of_its_own};
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
    /// Open files for reading.
    Open,
    /// The same, with a kernel that has neither Landlock nor restrictions of rings.
    OpenOnOldKernel,
    Panic,
    StartThread,
    Paths,
    /// Ask for attributes of files by their path.
    Attributes,
    /// Open files by a ring that the thread makes.
    OwnRing,
    SendToPeer,
    SendToAddress,
    /// The lower 32 bits of the address of the address are 0.
    SendToHighAddress,
    SendFastOpen,
    /// Use the ring of a disk's queue that was made at the start.
    DiskRing,
    /// Make a disk's queue and use its ring.
    NewDiskRing,
    Status,
}

const ACTS: [Act; 23] = [
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
    Act::OpenOnOldKernel,
    Act::Panic,
    Act::StartThread,
    Act::Paths,
    Act::Attributes,
    Act::OwnRing,
    Act::SendToPeer,
    Act::SendToAddress,
    Act::SendToHighAddress,
    Act::SendFastOpen,
    Act::DiskRing,
    Act::NewDiskRing,
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

/// What acts use.
struct Scene {
    kind: Kind,
    granted: PathBuf,
    other: PathBuf,
    /// For acts with rings of disks.
    disk: Option<DiskOfRings>,
    /// Made before the thread starts, as an adapter's queues are.
    queue: Option<Ringed>,
    /// Two connected sockets.
    sockets: [UnixStream; 2],
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
        fs::write(folder.join("image"), [7; SIZE]).unwrap();
    }
    let grants =
        Grants { images: vec![granted.clone()], sockets: vec![granted.join("socket")], ..Grants::default() };
    let program = if let Kind::Main(program) = kind { program } else { Program::Nbd };
    let sockets = UnixStream::pair().unwrap().into();
    let has_disk = matches!(act, Act::DiskRing | Act::NewDiskRing);
    let disk = has_disk.then(|| DiskOfRings::open(&granted.join("image")));
    let notes = RefCell::new(Vec::new());
    if act == Act::OpenOnOldKernel {
        pretend_to_be_an_old_kernel();
    }
    let note = |line: &str| notes.borrow_mut().push(line.to_owned());
    let sandbox = Sandbox::enter(mode, program, &grants, note).unwrap();
    if act == Act::OpenOnOldKernel {
        let expected = "sandbox: this kernel cannot restrict the operations of io_uring: Invalid argument (os error 22); this kernel has \
                        no Landlock (Linux 5.13): files, TCP and signals are limited by system call alone";
        assert_eq!(*notes.borrow(), [expected]);
    }
    let queue = disk.as_ref().filter(|_| act == Act::DiskRing).map(DiskOfRings::queue);
    let scene = Scene { kind, granted, other, disk, queue, sockets };
    if let Kind::Thread(thread) = kind {
        drop(sandbox);
        let run = move || perform(act, scene);
        paradisk_disk_formats::spawn(thread, "child", run).unwrap().join().unwrap();
    } else {
        sandbox.close().unwrap();
        perform(act, scene);
    }
    // Not the end of a test, which writes its results to files that it may open.
    std::process::exit(0);
}

/// From now on, this thread's calls for Landlock and of io_uring_register fail as on Linux 5.9.
fn pretend_to_be_an_old_kernel() {
    for (number, error) in
        [(libc::SYS_landlock_create_ruleset, libc::ENOSYS), (libc::SYS_io_uring_register, libc::EINVAL)]
    {
        let (calls, answer) = (BTreeMap::from([(number, Vec::new())]), SeccompAction::Errno(error as u32));
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, answer, TargetArch::x86_64).unwrap();
        apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    }
}

#[track_caller]
fn denied(result: std::io::Result<File>) {
    assert_eq!(result.map(drop).unwrap_err().kind(), ErrorKind::PermissionDenied);
}

/// Open files for reading: only the main thread that attaches images opens any, and of those only what is granted.
fn open_files(scene: &Scene) {
    let Scene { kind, granted, other, .. } = scene;
    let granted = granted.join("image");
    for path in [&other.join("image"), Path::new("/etc/passwd"), Path::new("/proc/self/maps")] {
        denied(File::open(path));
    }
    if *kind == Kind::Main(Program::RunAttaching) {
        drop(File::open(&granted).unwrap());
    } else {
        denied(File::open(&granted));
    }
    // The older call, which nothing here needs.
    let path = std::ffi::CString::new(granted.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a zero and lives until the call returns.
    let opened = unsafe { libc::syscall(libc::SYS_open, path.as_ptr(), libc::O_RDONLY) };
    assert_eq!((opened, std::io::Error::last_os_error().kind()), (-1, ErrorKind::PermissionDenied));
}

fn perform(act: Act, mut scene: Scene) {
    let (granted, other) = (scene.granted.as_path(), scene.other.as_path());
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
            Act::Open | Act::OpenOnOldKernel => open_files(&scene),
            Act::Panic => {
                let caught = std::panic::catch_unwind(|| panic!("in the child"));
                assert!(caught.is_err());
            }
            Act::StartThread => {
                let started = paradisk_disk_formats::spawn(ThreadKind::DiskHelper, "helper", || 7);
                assert_eq!(started.unwrap().join().unwrap(), 7);
            }
            Act::Paths => {
                let write =
                    |folder: &Path| OpenOptions::new().read(true).write(true).open(folder.join("image"));
                write(granted).unwrap().set_len(8192).unwrap();
                // As the relative path of a parent.
                let relative = granted.join("..").join(granted.file_name().unwrap());
                assert_eq!(relative.canonicalize().unwrap(), *granted);
                denied(write(other));
                denied(File::open(other.join("image")));
                denied(File::open("/etc/passwd"));
                denied(File::create(granted.join("new")));
                // Descriptors that were open before stay as they were.
                eprintln!("written");
                let remove = |folder: &Path| {
                    let path = std::ffi::CString::new(folder.join("image").as_os_str().as_bytes()).unwrap();
                    libc::unlinkat(libc::AT_FDCWD, path.as_ptr(), 0)
                };
                assert_eq!((remove(granted), remove(other)), (0, -1));
            }
            Act::Attributes => {
                let path = c"/etc/passwd".as_ptr();
                let mut found: libc::stat = std::mem::zeroed();
                let mut more: libc::statx = std::mem::zeroed();
                let calls = [
                    libc::syscall(libc::SYS_stat, path, &raw mut found),
                    libc::syscall(
                        libc::SYS_newfstatat,
                        libc::AT_FDCWD,
                        path,
                        &raw mut found,
                        libc::AT_EMPTY_PATH,
                    ),
                    libc::syscall(libc::SYS_statx, libc::AT_FDCWD, path, 0, libc::STATX_ALL, &raw mut more),
                    // With this flag, a path that is not empty counts, too.
                    libc::syscall(
                        libc::SYS_statx,
                        libc::AT_FDCWD,
                        path,
                        libc::AT_EMPTY_PATH,
                        libc::STATX_ALL,
                        &raw mut more,
                    ),
                ];
                assert_eq!((calls, found.st_size, more.stx_size), ([-1; 4], 0, 0));
            }
            Act::OwnRing => open_by_a_ring_of_its_own(other),
            Act::SendToPeer | Act::SendToAddress | Act::SendToHighAddress | Act::SendFastOpen => {
                let address = [1u8; 16];
                let (address, flags): (*const u8, _) = match act {
                    Act::SendToAddress => (address.as_ptr(), 0),
                    Act::SendToHighAddress => (std::ptr::without_provenance(1 << 32), 0),
                    Act::SendFastOpen => (std::ptr::null(), libc::MSG_FASTOPEN),
                    _ => (std::ptr::null(), 0),
                };
                let socket = scene.sockets[0].as_raw_fd();
                assert_eq!(libc::sendto(socket, c"x".as_ptr().cast(), 1, flags, address.cast(), 0), 1);
            }
            Act::DiskRing => scene.queue.take().unwrap().only_transfers(),
            Act::NewDiskRing => {
                scene.disk.as_ref().unwrap().queue().only_transfers();
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

#[path = "../../../tests/common/loop_device.rs"]
mod loop_device;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::process::Command;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use self::loop_device::LoopDevice;
use super::*;

#[test]
fn direct_reads_and_writes_of_metadata() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let data: Vec<u8> = (0..8192 + 511).map(|at| (at % 251) as u8).collect();
    std::fs::write(file.path(), &data).unwrap();
    let backing = match BackingFile::open(file.path(), Access { read_only: false, direct: true }) {
        Ok(backing) => backing,
        Err(OpenError::Unsupported { reason, .. }) => {
            return println!("SKIP: direct_reads_and_writes_of_metadata: {reason}");
        }
        Err(error) => panic!("{error}"),
    };
    let alignment = backing.direct().unwrap();
    assert!(alignment.memory.is_power_of_two() && alignment.offset.is_power_of_two());
    // Includes the unaligned end of the file, where a footer of 511 bytes is read.
    for (at, len) in [(0, 512), (8192, 511), (5, 6), (511, 4097), (8702, 1)] {
        let mut seen = vec![0; len];
        backing.read_at(&mut seen, at as u64).unwrap();
        assert!(seen == data[at..at + len], "{len} bytes at {at}");
    }
    let past = backing.read_at(&mut [0; 2], 8702).unwrap_err();
    assert_eq!(past.kind(), io::ErrorKind::UnexpectedEof);
    backing.write_at(&[9; 4096], 4096).unwrap();
    drop(backing);
    assert!(std::fs::read(file.path()).unwrap()[4096..8192].iter().all(|byte| *byte == 9));
}

#[test]
fn a_busy_device_names_its_holder() {
    let folder = tempfile::tempdir().unwrap();
    let medium = folder.path().join("medium");
    std::fs::File::create(&medium).unwrap().set_len(16 << 20).unwrap();
    let device = match LoopDevice::attach(&medium, &[]) {
        Ok(device) => device,
        Err(reason) => return println!("SKIP: a_busy_device_names_its_holder: {reason}"),
    };
    let path = device.path();
    let access = Access { read_only: false, direct: true };
    let first = BackingFile::open(path, access);
    let second = BackingFile::open(path, access);
    let is_device = first.as_ref().is_ok_and(|file| file.device().is_some() && file.size() == 16 << 20);
    drop(first);
    let mounted =
        Command::new("mkfs.ext4").args(["-q", "-F"]).arg(path).status().is_ok_and(|done| done.success())
            && Command::new("mount").arg(path).arg(folder.path()).status().is_ok_and(|done| done.success());
    let third = mounted.then(|| BackingFile::open(path, access));
    if mounted {
        let _ = Command::new("umount").arg(folder.path()).status();
    }
    assert!(is_device);
    let error = second.expect_err("a second exclusive open").to_string();
    let holder = format!("busy: this process, {} (", std::process::id());
    assert!(error.contains(&holder) && error.ends_with("has it open for writing"), "{error}");
    match third {
        Some(third) => {
            let error = third.expect_err("an open of a mounted device").to_string();
            assert!(error.contains(&format!("busy: mounted at {}", folder.path().display())), "{error}");
        }
        None => println!(
            "SKIP: a_busy_device_names_its_holder: no file system can be mounted here from /dev/loop-control"
        ),
    }
}

/// Lock a file for writing by an open file description that no process has, as the io_uring of a process that was killed
/// does for a while. It is in a message that nobody has received; dropping the sockets closes it.
fn locked_by_nobody(path: &Path) -> [UnixStream; 2] {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    lock::lock(&file, true).unwrap();
    let (sender, receiver) = UnixStream::pair().unwrap();
    let descriptors = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    assert!(message.push(SendAncillaryMessage::ScmRights(&descriptors)));
    assert_eq!(sendmsg(&sender, &[IoSlice::new(&[0])], &mut message, SendFlags::empty()), Ok(1));
    [sender, receiver]
}

#[test]
fn an_open_waits_while_no_process_holds_the_lock() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let path = image.path();
    let held = locked_by_nobody(path);
    let begin = Instant::now();
    let busy = BackingFile::open(path, Access::default()).unwrap_err().to_string();
    assert!(begin.elapsed() >= RELEASE_WAIT, "{:?}", begin.elapsed());
    assert!(busy.ends_with("busy: another process has it open"), "{busy}");
    // The lock is released between two tries.
    let (mut held, mut tries) = (Some(held), 0);
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let locked = when_released(|| {
        tries += 1;
        lock::lock(&file, true).inspect_err(|_| drop(held.take()))
    });
    assert!(locked.is_ok() && tries > 1, "{locked:?} after {tries}");
    // This process holds it.
    let mut tries = 0;
    let other = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let refused = when_released(|| {
        tries += 1;
        lock::lock(&other, true)
    });
    assert!(matches!(refused, Err(Refused::Busy(Some(_)))) && tries == 1, "{refused:?} after {tries}");
}

/// NFS without a lock service, and FUSE file systems: the user is told, and work goes on. Any other error refuses the file.
#[test]
fn a_file_system_without_locks_is_noted() {
    let host = crate::host::faults::Host::new();
    let image = host.folder().join("a.img");
    crate::Raw::create(&image, 1 << 20).unwrap();
    let open = |read_only| {
        let options = crate::OpenOptions { read_only, ..crate::OpenOptions::new(&image) };
        options.open_format().map(|disk| disk.remark()).map_err(|error| error.to_string())
    };
    assert_eq!(open(false), Ok(None));
    for error in [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS] {
        host.refuse_locks(error);
        for read_only in [false, true] {
            let remark = open(read_only).unwrap().unwrap();
            assert!(remark.contains("a.img is on a file system without locks"), "{remark}");
        }
    }
    host.refuse_locks(Errno::IO);
    assert!(open(false).unwrap_err().contains("a.img: cannot lock: "));
}

/// A pipe has no writer here: an open that waits for one never ends.
#[test]
fn only_files_and_devices_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), rustix::fs::Mode::RWXU).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    for (path, kind) in [
        (path("pipe"), "a pipe"),
        (path("socket"), "a socket"),
        (folder.path().into(), "a directory"),
        ("/dev/null".into(), "a character device"),
    ] {
        for access in [Access::READ_ONLY, Access::default()] {
            let error = BackingFile::open(&path, access).unwrap_err().to_string();
            assert!(
                error
                    .ends_with(&format!("type of file is {kind}, expected a regular file or a block device")),
                "{error}"
            );
        }
    }
    // Transfers wait for data, whatever the open did.
    std::fs::write(path("file"), [0; 512]).unwrap();
    let file = BackingFile::open(&path("file"), Access::READ_ONLY).unwrap();
    assert!(!fcntl_getfl(file.file()).unwrap().contains(OFlags::NONBLOCK));
}

/// A process that was killed frees its memory before it closes its files. Here that takes as long as some tries.
#[test]
fn an_open_waits_while_the_holder_of_the_lock_is_killed() {
    const HOLDER: &str = "PARADISK_TEST_HOLDER";
    if let Some(path) = std::env::var_os(HOLDER) {
        let _held = BackingFile::open(Path::new(&path), Access::default()).unwrap();
        let memory = vec![1u8; 256 << 20];
        println!("\nheld {}", std::hint::black_box(&memory).len());
        loop {
            thread::park();
        }
    }
    let image = tempfile::NamedTempFile::new().unwrap();
    let name = "host::backing::tests::an_open_waits_while_the_holder_of_the_lock_is_killed";
    let mut holder = std::process::Command::new(std::env::current_exe().unwrap());
    holder.args(["--exact", name, "--nocapture"]).env(HOLDER, image.path());
    let mut holder = holder.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = io::BufRead::lines(io::BufReader::new(holder.stdout.take().unwrap()));
    assert!(lines.any(|line| line.unwrap().starts_with("held")));
    let busy = BackingFile::open(image.path(), Access::default()).unwrap_err().to_string();
    assert!(busy.contains(&format!("process {} (", holder.id())), "{busy}");
    holder.kill().unwrap();
    // On a machine that is very slow, the wait ends before the process does: it is not named then.
    let opened = BackingFile::open(image.path(), Access::default()).map_err(|error| error.to_string());
    holder.wait().unwrap();
    assert!(
        opened.is_ok() || opened.as_ref().is_err_and(|busy| busy.ends_with("another process has it open")),
        "{opened:?}"
    );
}

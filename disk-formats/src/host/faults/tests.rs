//! The emulated host keeps and loses what Linux keeps and loses.

use rustix::io::Errno;

use super::{Call, Fault, Host};
use crate::contract::error::IoError;
use crate::contract::iobuf::IoBuf;
use crate::contract::queue::{EngineKind, Op, QueueConfig, Request};
use crate::formats::flat::raw::Raw;
use crate::formats::open::OpenOptions;
use crate::formats::output::Output;
use crate::host;
use crate::host::backing::{Access, BackingFile};

fn file(host: &Host, size: u64) -> BackingFile {
    let path = host.folder().join("file");
    std::fs::write(&path, vec![0; size as usize]).unwrap();
    host.settle();
    BackingFile::open(&path, Access::default()).unwrap()
}

fn byte(file: &BackingFile, at: u64) -> u8 {
    let mut byte = [0];
    file.read_at(&mut byte, at).unwrap();
    byte[0]
}

#[test]
fn a_failed_flush_is_reported_once_and_loses_what_was_dirty() {
    for (fault, at_once) in [(Fault::Loses(Errno::NOSPC), 0), (Fault::LosesLater(Errno::IO), 1)] {
        let host = Host::new();
        let file = file(&host, 16384);
        file.write_at(&[1; 512], 0).unwrap();
        host::fdatasync(file.file()).unwrap();
        host.arm(Some((1, fault)));
        file.write_at(&[2; 512], 8192).unwrap();
        host::fdatasync(file.file()).unwrap_err();
        assert_eq!(host.fault(), Some(fault));
        assert_eq!((byte(&file, 0), byte(&file, 8192)), (1, 2 * at_once));
        file.write_at(&[3; 512], 4096).unwrap();
        host::fdatasync(file.file()).unwrap();
        assert_eq!(byte(&file, 8192), 2 * at_once);
        host.evict();
        assert_eq!([0, 4096, 8192].map(|at| byte(&file, at)), [1, 3, 0]);
        let calls = host.disarm();
        assert_eq!(calls[..5], [Call::Write, Call::Sync, Call::Read, Call::Read, Call::Write]);
    }
}

#[test]
fn a_power_failure_undoes_what_was_not_flushed() {
    let host = Host::new();
    let file = file(&host, 16384);
    file.write_at(&[1; 16384], 0).unwrap();
    host::fdatasync(file.file()).unwrap();
    host::set_len(file.file(), 6000).unwrap();
    file.write_at(&[2; 512], 0).unwrap();
    host::set_len(file.file(), 20000).unwrap();
    file.discard(4096, 4096).unwrap();
    assert_eq!([0, 4096, 12288].map(|at| byte(&file, at)), [2, 0, 0]);
    host.power_loss();
    assert_eq!([0, 4096, 6000, 12288].map(|at| byte(&file, at)), [1; 4]);
    assert_eq!(file.size_now().unwrap(), 16384);
    // A failed flush does not undo metadata changes.
    host.arm(Some((2, Fault::Loses(Errno::IO))));
    file.write_at(&[2; 512], 0).unwrap();
    file.discard(4096, 8192).unwrap();
    host::fdatasync(file.file()).unwrap_err();
    assert_eq!([0, 4096, 8192].map(|at| byte(&file, at)), [1, 0, 0]);
    host.power_loss();
    assert_eq!([0, 4096, 8192].map(|at| byte(&file, at)), [1; 3]);
}

#[test]
fn names_come_to_stable_storage_with_their_directory() {
    let host = Host::new();
    let path = host.folder().join("made");
    drop(BackingFile::create(&path, 4096).unwrap());
    host.power_loss();
    assert!(!path.exists());
    let output = Output::new(&path).unwrap();
    Raw::create(output.part(), 4096).unwrap();
    host.arm(None);
    output.finish().unwrap();
    assert_eq!(host.disarm(), [Call::Sync, Call::Rename, Call::SyncFolder]);
    host.power_loss();
    assert!(path.exists());
    host::remove_file(&path).unwrap();
    assert!(!path.exists());
    host.power_loss();
    assert!(path.exists());
}

#[test]
fn engines_make_their_calls_here() {
    for engine in [EngineKind::IoUring, EngineKind::Threads] {
        let host = Host::new();
        let path = host.folder().join("disk.raw");
        Raw::create(&path, 65536).unwrap();
        host.settle();
        let disk = OpenOptions::new(&path).open().unwrap();
        let mut queue = disk.queue(&QueueConfig { depth: 4, engine }).unwrap();
        let data = [7u8; 4096];
        // SAFETY: the array outlives the queue's use of it, and nothing writes to it.
        #[allow(unsafe_code, reason = "a test's buffer")]
        let buf = unsafe { IoBuf::new(data.as_ptr().cast_mut(), data.len()) };
        let mut run = |op, offset, bufs: &[IoBuf]| {
            let len = bufs.iter().map(IoBuf::len).sum::<usize>() as u64;
            queue.push(&Request { tag: 1, op, offset, len, bufs }).unwrap();
            queue.wait();
            let mut done = Vec::new();
            queue.reap(&mut done);
            done[0].result
        };
        let write = Op::Write { fua: false };
        host.arm(Some((0, Fault::Fails(Errno::NOSPC))));
        assert_eq!(run(write, 0, &[buf]), Err(IoError::NoSpace));
        host.arm(Some((0, Fault::Fails(Errno::INTR))));
        assert_eq!(run(write, 8192, &[buf]), Ok(()));
        assert_eq!(host.disarm(), [Call::Write; 2]);
        host.arm(Some((0, Fault::Short)));
        assert_eq!(run(write, 16384, &[buf]), Ok(()));
        assert_eq!(host.disarm(), [Call::Write; 2]);
        host.arm(None);
        assert_eq!(run(Op::Flush, 0, &[]), Ok(()));
        assert_eq!(host.disarm(), [Call::Sync]);
        host.arm(Some((1, Fault::Loses(Errno::NOSPC))));
        let lost = run(Op::Write { fua: true }, 24576, &[buf]);
        assert!(matches!(lost, Err(IoError::FlushLost { cause: Errno::NOSPC, .. })), "{lost:?}");
        assert_eq!(host.disarm(), [Call::Write, Call::Sync]);
        host.arm(None);
        assert_eq!(run(Op::Flush, 0, &[]), lost);
        assert_eq!(host.disarm(), []);
        assert_eq!(run(write, 32768, &[buf]), Ok(()));
        host.power_loss();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!([0, 8192, 18432, 24576, 32768].map(|at| bytes[at]), [0, 7, 7, 0, 0], "{engine:?}");
    }
}

#[test]
fn files_share_storage_where_the_test_says_so() {
    let host = Host::new();
    let file = file(&host, 16384);
    file.write_at(&[1; 4096], 0).unwrap();
    let share = || host::clone_range(file.file(), 0, 4096, file.file(), 8192);
    assert_eq!(share(), Err(Errno::OPNOTSUPP));
    host.allow_clones(true);
    share().unwrap();
    assert_eq!(byte(&file, 8192), 1);
    host.power_loss();
    assert_eq!(byte(&file, 8192), 0);
}

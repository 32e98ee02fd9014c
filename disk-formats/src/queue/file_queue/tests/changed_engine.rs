//! An engine that reports changed results of its transfers.
//!
//! Whatever the engine reports, a queue completes every request, retries what may succeed later, and distinguishes a
//! failed write from a failed flush.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::{BOTH, driver, raw};
use crate::contract::error::IoError;
use crate::contract::info::{Kind, SectorSize};
use crate::contract::iobuf::IoBuf;
use crate::contract::queue::{Completion, EngineKind, Op, QueueConfig, Request};
use crate::formats::flat::Flat;
use crate::formats::flat::raw::Raw;
use crate::formats::info::file_info;
use crate::host::backing::{Access, BackingFile};
use crate::map::format::Format;
use crate::queue::conformance::{Driver, Guest};
use crate::queue::engine::{Ended, Engine, Threads, Transfer};
use crate::queue::file_queue::file_queue_with;

/// The thread engine, with its completions changed before the queue gets them.
struct Changed<F> {
    threads: Threads,
    change: F,
    changed: VecDeque<Ended>,
}

/// A queue on such an engine.
fn changed(
    format: &Arc<dyn Format>,
    depth: u32,
    change: impl FnMut(Ended) -> Vec<Ended> + Send + 'static,
) -> Driver {
    let config = QueueConfig { depth, engine: EngineKind::IoUring };
    let threads = Threads::new(format.files(), depth).unwrap();
    let engine = Changed { threads, change, changed: VecDeque::new() };
    Driver { queue: file_queue_with(format, &config, |_| Ok(engine)).unwrap(), done: Vec::new() }
}

impl<F: FnMut(Ended) -> Vec<Ended> + Send> Engine for Changed<F> {
    fn name(&self) -> &'static str {
        "changed"
    }
    fn has_capacity(&self) -> bool {
        self.threads.has_capacity()
    }
    #[allow(unsafe_code, reason = "passes a caller's promise on")]
    unsafe fn stage(&mut self, transfer: &Transfer<'_>) {
        // SAFETY: the same promise.
        unsafe { self.threads.stage(transfer) }
    }
    fn submit(&mut self) {
        self.threads.submit();
    }
    fn next(&mut self) -> Option<Ended> {
        if self.changed.is_empty()
            && let Some(ended) = self.threads.next()
        {
            self.changed.extend((self.change)(ended));
        }
        self.changed.pop_front()
    }
    fn lost(&mut self) -> Option<Errno> {
        None
    }
    fn wait(&mut self) {
        self.threads.wait();
    }
    fn in_flight(&self) -> usize {
        self.threads.in_flight()
    }
    fn event(&self) -> BorrowedFd<'_> {
        self.threads.event()
    }
    fn eventfd(&mut self) -> Result<OwnedFd, Errno> {
        self.threads.eventfd()
    }
    fn signal(&self) -> &Arc<crate::queue::engine::Signal> {
        self.threads.signal()
    }
    fn watch(&mut self) {}
    fn stats(&self) -> crate::queue::engine::EngineStats {
        self.threads.stats()
    }
}

/// Index of the change that reports a completion twice: no request lacks its completion.
const TWICE: usize = 2;

/// The first `times` transfers fail with this error.
fn failing(mut times: u32, errno: Errno) -> impl FnMut(Ended) -> Vec<Ended> + Send {
    move |(token, result)| {
        let fails = times > 0;
        times = times.saturating_sub(1);
        vec![(token, if fails { Err(errno) } else { result })]
    }
}

/// The file with direct I/O, if the file system supports it.
fn direct(path: &Path) -> Option<Arc<dyn Format>> {
    let disk = Raw::open(path, Access { direct: true, ..Access::default() });
    if disk.is_err() {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        println!("SKIP: {test}: no direct I/O in the temporary directory");
    }
    Some(Arc::new(disk.ok()?))
}

/// Replaces a completion.
type Lie = fn(Ended) -> Vec<Ended>;

/// The engine reports impossible completions: every request still completes, and none with data of another request.
#[test]
fn a_broken_invariant_fails_all_requests_and_hangs_none() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let lies: [Lie; 4] = [
        |(_, result)| vec![(77, result)],
        |(token, result)| vec![(token | 5 << 32, result)],
        |ended| vec![ended, ended],
        |_| vec![(u64::from(u32::MAX), Err(Errno::IO))],
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let mut driver = changed(&raw(file.path()), 8, lie);
        let guest = Guest::new(8 * 4096);
        let bufs: [[IoBuf; 1]; 8] = std::array::from_fn(|at| [guest.buf(at * 4096, 4096)]);
        for (tag, bufs) in bufs.iter().enumerate() {
            let op = if tag == 7 { Op::Flush } else { Op::Read };
            let (len, bufs) = if tag == 7 { (0, &[][..]) } else { (4096, &bufs[..]) };
            let request = Request { tag: tag as u64, op, offset: 4096 * tag as u64, len, bufs };
            driver.queue.push(&request).unwrap();
        }
        while driver.queue.in_flight() > 0 {
            driver.queue.wait();
            driver.queue.reap(&mut driver.done);
        }
        let mut tags: Vec<u64> = driver.done.iter().map(|done| done.tag).collect();
        tags.sort_unstable();
        assert!(tags.iter().copied().eq(0..8), "lie {number}: {tags:?}");
        let failed = |done: &Completion| matches!(done.result, Err(IoError::Damaged(_)));
        // All requests may have completed before the queue sees the additional completion.
        assert!(number == TWICE || driver.done.iter().any(failed), "lie {number}: {:?}", driver.done);
        // All later requests fail, too.
        let again = driver.run(Op::Read, 0, 4096, &bufs[0]);
        assert!(matches!(again, Err(IoError::Damaged(_))), "lie {number}: {again:?}");
        assert!(matches!(driver.run(Op::Flush, 0, 0, &[]), Err(IoError::Damaged(_))));
    }
}

#[test]
fn transfers_are_repeated_after_eagain_but_not_for_ever() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    for (times, expected) in [(3, Ok(())), (50, Ok(())), (u32::MAX, Err(IoError::Os(Errno::AGAIN)))] {
        let mut driver = changed(&raw(file.path()), 4, failing(times, Errno::AGAIN));
        let guest = Guest::new(4096);
        guest.put(0, &[times as u8; 4096]);
        let result = driver.run(Op::Write { fua: false }, 0, 4096, &[guest.buf(0, 4096)]);
        assert_eq!(result, expected, "{times} times");
        // Other requests do not wait for it.
        let others: Vec<_> = (0..4).map(|at| guest.buf(at * 1024, 1024)).collect();
        if result.is_ok() {
            driver.run(Op::Read, 4096, 4096, &others).unwrap();
        }
    }
    // The same errors from the host, with both engines.
    let host = crate::host::faults::Host::new();
    let path = host.folder().join("disk.raw");
    Raw::create(&path, 1 << 20).unwrap();
    for (engine, _) in BOTH {
        for (op, errno) in [Op::Read, Op::Write { fua: false }]
            .into_iter()
            .flat_map(|op| [Errno::AGAIN, Errno::INTR].map(|errno| (op, errno)))
        {
            let mut driver = driver(&raw(&path), engine);
            let guest = Guest::new(4096);
            host.arm(Some((0, crate::host::faults::Fault::Fails(errno))));
            let done = driver.run(op, 0, 4096, &[guest.buf(0, 4096)]);
            assert_eq!(done, Ok(()), "{engine:?} {op:?} {errno}");
            assert!(host.hit() && host.disarm().len() == 2);
        }
    }
}

/// A write that waits, on the helper thread, for another one of its unit of direct I/O, which is repeated after pauses.
#[test]
fn a_write_that_is_repeated_is_not_kept_from_it_by_one_that_waits_for_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let backing = BackingFile::open(file.path(), Access::default()).unwrap().in_units(4096);
    let kind = Kind { format: "raw", subformat: None };
    let info = file_info(&backing, kind, 1 << 20, SectorSize::B512);
    let disk: Arc<dyn Format> = Arc::new(Flat::new(info, Arc::new(backing)));
    let mut driver = changed(&disk, 4, failing(50, Errno::AGAIN));
    let guest = Guest::new(8192);
    guest.put(0, &[1; 4096]);
    guest.put(4096, &[2; 512]);
    for (tag, len, at) in [(0, 4096, 0), (1, 512, 4096)] {
        let (op, bufs) = (Op::Write { fua: false }, [guest.buf(at, len)]);
        driver.queue.push(&Request { tag, op, offset: 0, len: len as u64, bufs: &bufs }).unwrap();
    }
    while driver.queue.in_flight() > 0 {
        driver.queue.wait();
        driver.queue.reap(&mut driver.done);
    }
    assert!(driver.done.iter().all(|done| done.result.is_ok()), "{:?}", driver.done);
    let data = std::fs::read(file.path()).unwrap();
    assert_eq!((data[511], data[512], data[4095]), (2, 1, 1));
}

/// The host had no memory for a write with RWF_DSYNC. No flush has failed, so the queue writes and then flushes.
#[test]
fn a_host_without_memory_loses_no_flush() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    for failures in [1, 2] {
        let Some(disk) = direct(file.path()) else { return };
        let mut driver = changed(&disk, 4, failing(failures, Errno::NOMEM));
        let guest = Guest::new(4096);
        let mut write = || driver.run(Op::Write { fua: true }, 0, 4096, &[guest.buf(0, 4096)]);
        // The second failure is that of the plain write, which fails only this request.
        let expected = if failures == 1 { Ok(()) } else { Err(Errno::NOMEM.into()) };
        assert_eq!((write(), write()), (expected, Ok(())));
        assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
    }
}

/// Either half of a write with RWF_DSYNC may have failed: a plain write tells which.
#[test]
fn direct_writes_fail_alone_and_flushes_behind_them_for_all() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    for failures in [1, 2] {
        let Some(disk) = direct(file.path()) else { return };
        let mut driver = changed(&disk, 4, failing(failures, Errno::IO));
        let guest = Guest::new(4096);
        let mut write = |fua| driver.run(Op::Write { fua }, 0, 4096, &[guest.buf(0, 4096)]);
        let first = write(true);
        match failures {
            1 => {
                assert!(matches!(first, Err(IoError::FlushLost { cause: Errno::IO, .. })), "{first:?}");
                assert_eq!((write(true), write(false)), (first, Ok(())));
                assert_eq!(driver.run(Op::Flush, 0, 0, &[]), first);
            }
            _ => {
                assert_eq!(first, Err(IoError::Os(Errno::IO)));
                assert_eq!((write(true), write(false)), (Ok(()), Ok(())));
                assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
            }
        }
    }
}

//! Checks that need no content.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::driver::{Driver, Fresh, Guest, Suite};
use crate::contract::error::{IoError, OpenError, PushError};
use crate::contract::iobuf::IoBuf;
use crate::contract::queue::{EngineKind, Op, QueueConfig, Request};

const WRITE: Op = Op::Write { fua: false };

pub(super) fn info(suite: &Suite<'_>, _engine: EngineKind) {
    let fresh = (suite.make)();
    let info = fresh.disk.info();
    let sector = u64::from(info.logical_sector.bytes());
    assert!(info.capacity >= 8 << 20 && info.capacity.is_multiple_of(sector), "capacity {}", info.capacity);
    assert!(info.physical_sector.is_power_of_two() && u64::from(info.physical_sector) >= sector);
    assert!(info.buffer_alignment.is_power_of_two());
    assert!(
        info.discard
            .is_none_or(|limits| limits.granularity.is_power_of_two() && limits.granularity >= sector)
    );
    assert!(!info.read_only);
    let mut at = 0;
    while at < info.capacity {
        let run = fresh.disk.status(at, u64::MAX).expect("a status");
        assert!(
            run.len >= sector && run.len.is_multiple_of(sector) && at + run.len <= info.capacity,
            "{run:?} at {at}"
        );
        at += run.len;
    }
    assert_eq!(fresh.disk.status(info.capacity, sector), Err(IoError::OutOfRange));
}

/// The last valid sector at each edge is accepted. The next one is refused, as are ranges that overflow.
pub(super) fn bounds(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    let mut driver = Driver::new(&*fresh.disk, engine, 4);
    let info = fresh.disk.info().clone();
    let sector = u64::from(info.logical_sector.bytes());
    let guest = Guest::new(3 * sector as usize);
    let bufs = |sectors: u64| [guest.buf(0, (sectors * sector) as usize)];
    let end = info.capacity;
    let huge = u64::MAX - (sector - 1);
    for op in [Op::Read, WRITE, Op::Write { fua: true }] {
        assert_eq!(driver.run(op, 0, sector, &bufs(1)), Ok(()));
        assert_eq!(driver.run(op, end - sector, sector, &bufs(1)), Ok(()));
        assert_eq!(driver.run(op, end - 2 * sector, 2 * sector, &bufs(2)), Ok(()));
        assert_eq!(driver.run(op, end, 0, &[]), Ok(()), "nothing at the end");
        assert_eq!(driver.run(op, end - sector, 2 * sector, &bufs(2)), Err(IoError::OutOfRange));
        assert_eq!(driver.run(op, end, sector, &bufs(1)), Err(IoError::OutOfRange));
        assert_eq!(driver.run(op, end + sector, 0, &[]), Err(IoError::OutOfRange));
        assert_eq!(driver.run(op, huge, sector, &bufs(1)), Err(IoError::OutOfRange));
        assert_eq!(driver.run(op, huge - sector, 3 * sector, &bufs(3)), Err(IoError::OutOfRange));
    }
    let mut ranged = vec![Op::WriteZeroes { may_unmap: false }, Op::WriteZeroes { may_unmap: true }];
    if info.discard.is_some() {
        ranged.push(Op::Discard);
    } else {
        assert_eq!(driver.run(Op::Discard, 0, sector, &[]), Err(IoError::Unsupported));
    }
    for op in ranged {
        assert_eq!(driver.run(op, end - sector, sector, &[]), Ok(()), "{op:?}");
        assert_eq!(driver.run(op, end - sector, 2 * sector, &[]), Err(IoError::OutOfRange));
        assert_eq!(driver.run(op, end, sector, &[]), Err(IoError::OutOfRange));
        assert_eq!(driver.run(op, huge, huge, &[]), Err(IoError::OutOfRange));
    }
    assert_eq!(driver.run(Op::Flush, u64::MAX, u64::MAX, &[]), Ok(()), "a flush has no range");
}

pub(super) fn alignment(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    let mut driver = Driver::new(&*fresh.disk, engine, 4);
    let sector = u64::from(fresh.disk.info().logical_sector.bytes());
    let guest = Guest::new(4 * sector as usize);
    let buf = |len: u64| guest.buf(0, len as usize);
    let bad = Err(IoError::Misaligned);
    for op in [Op::Read, WRITE] {
        assert_eq!(driver.run(op, 1, sector, &[buf(sector)]), bad);
        assert_eq!(driver.run(op, sector / 2, sector, &[buf(sector)]), bad);
        assert_eq!(driver.run(op, 0, sector - 1, &[buf(sector - 1)]), bad);
        assert_eq!(driver.run(op, 0, sector + 1, &[buf(sector + 1)]), bad);
        assert_eq!(driver.run(op, 0, sector, &[buf(sector - 1)]), bad, "buffers too short");
        assert_eq!(driver.run(op, 0, sector, &[buf(sector), buf(1)]), bad, "buffers too long");
        assert_eq!(driver.run(op, 0, sector, &[]), bad, "no buffers");
    }
    assert_eq!(driver.run(Op::WriteZeroes { may_unmap: false }, 1, sector, &[]), bad);
}

pub(super) fn full_queue(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    for depth in [0, 4097, u32::MAX] {
        let refused = fresh.disk.queue(&QueueConfig { depth, engine });
        assert!(matches!(refused, Err(OpenError::Unsupported { .. })), "depth {depth}");
    }
    let sector = u64::from(fresh.disk.info().logical_sector.bytes());
    let guest = Guest::new(sector as usize);
    for depth in [1, 3, 4096] {
        let mut driver = Driver::new(&*fresh.disk, engine, depth);
        let bufs = [guest.buf(0, sector as usize)];
        for round in 0..2 {
            for tag in 0..u64::from(depth) {
                // Every third request is invalid. It occupies the queue as well.
                let offset = if tag % 3 == 2 { u64::MAX } else { 0 };
                let request = Request { tag, op: Op::Read, offset, len: sector, bufs: &bufs };
                assert_eq!(driver.queue.push(&request), Ok(()), "round {round}, request {tag} of {depth}");
            }
            let more = Request { tag: 99, op: Op::Flush, offset: 0, len: 0, bufs: &[] };
            assert_eq!(driver.queue.push(&more), Err(PushError::Full));
            assert_eq!(driver.queue.in_flight(), depth as usize);
            driver.drain();
            let mut tags: Vec<u64> = driver.done.drain(..).map(|completion| completion.tag).collect();
            tags.sort_unstable();
            assert!(tags.into_iter().eq(0..u64::from(depth)), "each tag comes back once");
        }
    }
}

/// Sleep on the descriptor only, as a device does; then on an eventfd that is read, if the queue has one.
pub(super) fn event(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    sleep_on(&fresh, Driver::new(&*fresh.disk, engine, 16), None);
    let mut driver = Driver::new(&*fresh.disk, engine, 16);
    match driver.queue.eventfd() {
        Ok(eventfd) => sleep_on(&fresh, driver, Some(eventfd)),
        Err(error) => assert_eq!(error, IoError::Unsupported),
    }
}

fn sleep_on(fresh: &Fresh, mut driver: Driver, eventfd: Option<OwnedFd>) {
    let sector = u64::from(fresh.disk.info().logical_sector.bytes());
    let guest = Guest::new(sector as usize);
    let bufs = [guest.buf(0, sector as usize)];
    let ops = [Op::Read, WRITE, Op::Flush, Op::WriteZeroes { may_unmap: false }, Op::Write { fua: true }];
    for round in 0..40u64 {
        for (tag, op) in
            ops.into_iter().cycle().skip(round as usize).take(1 + round as usize % 16).enumerate()
        {
            let bufs: &[IoBuf] = if matches!(op, Op::Read | Op::Write { .. }) { &bufs } else { &[] };
            let request = Request { tag: tag as u64, op, offset: round * sector, len: sector, bufs };
            driver.queue.push(&request).expect("a free slot");
        }
        driver.queue.submit();
        driver.queue.reap(&mut driver.done);
        while driver.queue.in_flight() > 0 {
            let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
            let event = eventfd.as_ref().map_or_else(|| driver.queue.event(), |eventfd| eventfd.as_fd());
            match poll(&mut [PollFd::from_borrowed_fd(event, PollFlags::IN)], Some(&timeout)) {
                // Completions may interrupt the sleep.
                Err(Errno::INTR) => {}
                woken => assert_eq!(woken, Ok(1), "asleep with requests in flight in round {round}"),
            }
            if let Some(eventfd) = &eventfd {
                let _ = rustix::io::read(eventfd, &mut [0; 8]);
            }
            driver.queue.reap(&mut driver.done);
        }
        assert!(driver.done.drain(..).all(|completion| completion.result.is_ok()));
    }
}

/// After a queue was dropped, the buffers of its requests are not accessed.
pub(super) fn drop_in_flight(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    let block = 64 << 10;
    let guest = Guest::new(32 * block);
    for submitted in [true, false] {
        let mut driver = Driver::new(&*fresh.disk, engine, 32);
        for tag in 0..32 {
            // Every second buffer has an odd address, so it is bounced if the disk requires it.
            let bufs =
                [guest.buf(tag * block + tag % 2, block - 512), guest.buf(tag * block + block - 511, 512)];
            let bufs = if tag % 2 == 0 { vec![guest.buf(tag * block, block)] } else { bufs.to_vec() };
            let op = [Op::Read, WRITE, Op::Read, Op::WriteZeroes { may_unmap: true }][tag % 4];
            let bufs: &[IoBuf] = if matches!(op, Op::WriteZeroes { .. }) { &[] } else { &bufs };
            let (offset, len) = ((tag * block) as u64, block as u64);
            driver.queue.push(&Request { tag: tag as u64, op, offset, len, bufs }).expect("a free slot");
        }
        if submitted {
            driver.queue.submit();
        }
        drop(driver);
        let mark = vec![0xC3; 32 * block];
        guest.put(0, &mark);
        std::thread::sleep(Duration::from_millis(20));
        assert!(guest.get(0, 32 * block) == mark, "a buffer changed after its queue was dropped");
    }
    let mut driver = Driver::new(&*fresh.disk, engine, 1);
    assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
}

pub(super) fn moved_before_use(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    let sector = fresh.disk.info().logical_sector.bytes() as usize;
    let mut queue = Driver::new(&*fresh.disk, engine, 4).queue;
    let back = std::thread::spawn(move || {
        let guest = Guest::new(sector);
        let bufs = [guest.buf(0, sector)];
        let request = Request { tag: 5, op: Op::Read, offset: 0, len: sector as u64, bufs: &bufs };
        queue.push(&request).expect("a free slot");
        queue.wait();
        let mut done = Vec::new();
        queue.reap(&mut done);
        assert!(done.len() == 1 && done[0].result.is_ok(), "{done:?}");
        queue
    });
    // Dropped on the thread that created it, after the other thread has ended.
    drop(back.join().expect("the other thread"));
}

pub(super) fn read_only(suite: &Suite<'_>, engine: EngineKind) {
    let Some(make) = suite.make_read_only else { return };
    let fresh = make();
    let info = fresh.disk.info();
    assert!(info.read_only);
    let sector = u64::from(info.logical_sector.bytes());
    let guest = Guest::new(sector as usize);
    let bufs = [guest.buf(0, sector as usize)];
    let mut driver = Driver::new(&*fresh.disk, engine, 4);
    let before = driver.read(0, sector as usize);
    for op in [WRITE, Op::Write { fua: true }] {
        assert_eq!(driver.run(op, 0, sector, &bufs), Err(IoError::ReadOnly));
    }
    assert_eq!(driver.run(Op::WriteZeroes { may_unmap: true }, 0, sector, &[]), Err(IoError::ReadOnly));
    let discard = driver.run(Op::Discard, 0, sector, &[]);
    assert!(matches!(discard, Err(IoError::ReadOnly | IoError::Unsupported)), "{discard:?}");
    assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
    assert_eq!(driver.read(0, sector as usize), before);
}

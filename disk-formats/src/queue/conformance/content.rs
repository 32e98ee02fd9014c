//! Checks that data are read back as written.

use std::sync::Barrier;

use super::driver::{Driver, Guest, Random, Suite};
use crate::contract::error::IoError;
use crate::contract::iobuf::IoBuf;
use crate::contract::queue::{EngineKind, Op, Request};

const WRITE: Op = Op::Write { fua: false };

/// Any buffer addresses, and any lengths with the right sum.
pub(super) fn buffers(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    let mut driver = Driver::new(&*fresh.disk, engine, 4);
    let sector = u64::from(fresh.disk.info().logical_sector.bytes());
    let mut random = Random(11);
    // Lengths of the buffers, and the gap before each.
    let mut shapes: Vec<Vec<(usize, usize)>> = vec![
        vec![(0, 4096)],
        vec![(1, 4096)],
        vec![(511, 4096)],
        vec![(4, 1), (0, 4095)],
        vec![(7, 1000), (3, 3000), (1, 96)],
        vec![(0, 0), (0, 4096), (9, 0), (0, 4096)],
        vec![(0, 2048), (0, 2048)],
        vec![(3, 3 << 20)],
        vec![(0, 1 << 20), (4096, 1 << 20)],
    ];
    // More buffers than one transfer may have, aligned and unaligned.
    shapes.push(vec![(0, 512); 2048]);
    shapes.push(vec![(1, 512); 2048]);
    let mut many: Vec<(usize, usize)> = (0..3000).map(|_| (0, 1 + random.below(300) as usize)).collect();
    let total: usize = many.iter().map(|(_, len)| len).sum();
    many.push((0, total.next_multiple_of(4096) - total));
    shapes.push(many);
    for (number, shape) in shapes.iter().enumerate() {
        let len: usize = shape.iter().map(|(_, len)| len).sum();
        let guest = Guest::new(shape.iter().map(|(gap, len)| gap + len).sum());
        let mut at = 0;
        let bufs: Vec<IoBuf> = shape
            .iter()
            .map(|(gap, len)| {
                at += gap + len;
                guest.buf(at - len, *len)
            })
            .collect();
        let data = random.bytes(len);
        fill(&bufs, &data);
        let offset = sector * (1 + number as u64);
        assert_eq!(driver.run(WRITE, offset, len as u64, &bufs), Ok(()), "write of shape {number}");
        assert!(driver.read(offset, len) == data, "shape {number} arrived wrong");
        bufs.iter().for_each(IoBuf::zero);
        assert_eq!(driver.run(Op::Read, offset, len as u64, &bufs), Ok(()), "read of shape {number}");
        assert!(gather(&bufs) == data, "shape {number} came back wrong");
    }
}

fn fill(bufs: &[IoBuf], data: &[u8]) {
    let mut rest = data;
    for buf in bufs {
        rest = &rest[buf.write(rest)..];
    }
}

fn gather(bufs: &[IoBuf]) -> Vec<u8> {
    let mut data = Vec::new();
    for buf in bufs {
        let mut part = vec![0; buf.len()];
        buf.read(&mut part);
        data.extend(part);
    }
    data
}

/// A thousand requests through a queue of depth 7.
pub(super) fn more_than_the_queue_holds(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    let mut driver = Driver::new(&*fresh.disk, engine, 7);
    let guest = Guest::new(1000 * 4096 + 1);
    for op in [WRITE, Op::Read] {
        // Written from aligned memory, read to odd addresses.
        let skew = usize::from(op == Op::Read);
        if op == WRITE {
            (0..1000).for_each(|block| guest.put(block * 4096, &vec![block as u8 ^ 0x35; 4096]));
        } else {
            guest.buf(0, 1000 * 4096 + 1).zero();
        }
        let (mut pushed, mut ended) = (0, 0);
        while ended < 1000 {
            while pushed < 1000 {
                let bufs = [guest.buf(pushed * 4096 + skew, 4096)];
                let request =
                    Request { tag: pushed as u64, op, offset: pushed as u64 * 4096, len: 4096, bufs: &bufs };
                if driver.queue.push(&request).is_err() {
                    break;
                }
                pushed += 1;
            }
            driver.queue.wait();
            driver.queue.reap(&mut driver.done);
            ended += driver.done.len();
            assert!(driver.done.drain(..).all(|completion| completion.result.is_ok()));
        }
    }
    for block in 0..1000 {
        assert!(
            guest.get(block * 4096 + 1, 4096).iter().all(|byte| *byte == block as u8 ^ 0x35),
            "block {block}"
        );
    }
}

/// Overlapping writes are not ordered, but each sector has the data of one of them.
pub(super) fn overlap(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    let mut driver = Driver::new(&*fresh.disk, engine, 32);
    let sector = fresh.disk.info().logical_sector.bytes() as usize;
    let len = 8 * sector;
    let guest = Guest::new(32 * len);
    for round in 0..20u64 {
        for tag in 0..32 {
            guest.put(tag * len, &vec![1 + tag as u8; len]);
            let bufs = [guest.buf(tag * len, len)];
            let offset = (tag % 8 * sector) as u64 + round * len as u64;
            let request = Request { tag: tag as u64, op: WRITE, offset, len: len as u64, bufs: &bufs };
            driver.queue.push(&request).expect("a free slot");
        }
        driver.drain();
        assert!(driver.done.drain(..).all(|completion| completion.result.is_ok()));
        let seen = driver.read(round * len as u64, 15 * sector);
        for (at, bytes) in seen.chunks(sector).enumerate() {
            let writer = bytes[0];
            assert!(bytes.iter().all(|byte| *byte == writer), "sector {at} is torn");
            let begins = usize::from(writer.wrapping_sub(1)) % 8;
            assert!(
                (1..=32).contains(&writer) && (begins..begins + 8).contains(&at),
                "sector {at}: {writer}"
            );
        }
    }
}

/// Data that were flushed, or written with force unit access, are visible on the medium.
pub(super) fn durability(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    let Some(peek) = &fresh.peek else { return };
    let mut driver = Driver::new(&*fresh.disk, engine, 4);
    let mut random = Random(23);
    let mut seen = vec![0; 8192];
    let data = random.bytes(8192);
    driver.write(4096, &data);
    assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
    peek(4096, &mut seen);
    assert!(seen == data, "flushed data is not there");
    let data = random.bytes(8192);
    let guest = Guest::new(8192);
    guest.put(0, &data);
    assert_eq!(driver.run(Op::Write { fua: true }, 1 << 20, 8192, &[guest.buf(0, 8192)]), Ok(()));
    peek(1 << 20, &mut seen);
    assert!(seen == data, "data written with force unit access are not there");
}

pub(super) fn discard_and_zeroes(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    let mut driver = Driver::new(&*fresh.disk, engine, 4);
    let info = fresh.disk.info();
    let sector = u64::from(info.logical_sector.bytes());
    let len = 1 << 20;
    let mark = vec![0x6B; len];
    let unit = info.discard.map_or(sector, |limits| limits.granularity.min(len as u64 / 4));
    let ops = [Op::WriteZeroes { may_unmap: false }, Op::WriteZeroes { may_unmap: true }, Op::Discard];
    for op in ops {
        for (start, size) in [(sector, sector), (0, len as u64), (unit, 2 * unit), (3 * sector, 100 * sector)]
        {
            driver.write(0, &mark);
            let result = driver.run(op, start, size, &[]);
            if op == Op::Discard && info.discard.is_none() {
                assert_eq!(result, Err(IoError::Unsupported));
                continue;
            }
            assert_eq!(result, Ok(()), "{op:?} of {size} at {start}");
            let zeros = op != Op::Discard || info.discard.is_some_and(|limits| limits.reads_zero);
            for (at, byte) in driver.read(0, len).into_iter().enumerate() {
                let inside = (start..start + size).contains(&(at as u64));
                let good = if inside { byte == 0 || !zeros && byte == 0x6B } else { byte == 0x6B };
                assert!(good, "{op:?} of {size} at {start}: byte {at} is {byte:#x}");
            }
        }
    }
}

/// Two threads, each with its own queue of the same disk.
pub(super) fn two_queues(suite: &Suite<'_>, engine: EngineKind) {
    let fresh = (suite.make)();
    let disk = &fresh.disk;
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        for half in 0..2u64 {
            let barrier = &barrier;
            scope.spawn(move || {
                let mut driver = Driver::new(&**disk, engine, 8);
                barrier.wait();
                for block in 0..64 {
                    let data = vec![(2 * block + half) as u8; 16384];
                    driver.write((2 * block + half) * 16384, &data);
                }
                barrier.wait();
                for block in 0..128 {
                    assert!(driver.read(block * 16384, 16384).iter().all(|byte| *byte == block as u8));
                }
            });
        }
    });
}

/// Random batches of requests that do not overlap, compared with a byte array.
pub(super) fn model(suite: &Suite<'_>, engine: EngineKind) {
    const LEN: u64 = 2 << 20;
    const LANES: u64 = 16;
    let fresh = (suite.make)();
    let mut driver = Driver::new(&*fresh.disk, engine, LANES as u32);
    let info = fresh.disk.info().clone();
    let sector = u64::from(info.logical_sector.bytes());
    let lane = LEN / LANES;
    let mut random = Random(0xD15C ^ sector);
    let mut model = vec![0u8; LEN as usize];
    let guest = Guest::new(2 * LEN as usize);
    // Not at the start of the disk, where offset errors might go unnoticed.
    let base = (info.capacity - LEN) / sector * sector;
    for step in 0..60 {
        let mut reads = Vec::new();
        for number in 0..LANES {
            let start = number * lane + random.below(lane / sector / 2) * sector;
            let len = (1 + random.below((number + 1) * lane / sector - start / sector)) * sector;
            let range = start as usize..(start + len) as usize;
            let space = (2 * number * lane) as usize;
            let skew = [0, 0, 512, 1, 13][random.below(5) as usize];
            let cut = random.below(len) as usize;
            let whole = guest.buf(space + skew, len as usize);
            let parts = [whole.slice(0, cut), whole.slice(cut, len as usize)];
            let op = match random.below(8) {
                0..=3 => WRITE,
                4 => Op::Write { fua: true },
                5 => Op::WriteZeroes { may_unmap: random.below(2) == 0 },
                _ => Op::Read,
            };
            let bufs: &[IoBuf] = match op {
                Op::WriteZeroes { .. } => {
                    model[range.clone()].fill(0);
                    &[]
                }
                _ if random.below(2) == 0 => std::slice::from_ref(&whole),
                _ => &parts,
            };
            match op {
                Op::Write { .. } => {
                    let data = random.bytes(len as usize);
                    whole.write(&data);
                    model[range].copy_from_slice(&data);
                }
                Op::Read => reads.push((whole, range)),
                _ => {}
            }
            driver
                .queue
                .push(&Request { tag: number, op, offset: base + start, len, bufs })
                .expect("a free slot");
        }
        driver.drain();
        for completion in driver.done.drain(..) {
            assert_eq!(completion.result, Ok(()), "step {step}, request {}", completion.tag);
        }
        for (buf, range) in reads {
            assert!(gather(&[buf]) == model[range.clone()], "step {step}: read of {range:?}");
        }
    }
    assert!(driver.read(base, LEN as usize) == model, "the disk is not as the model");
}

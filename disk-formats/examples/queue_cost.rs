//! Measures the cost of queues: time-stamp-counter ticks per I/O, for random reads of 4 KiB at depth 32.
//!
//! `cargo run --release -p paradisk-disk-formats --example queue_cost [FILE]`: `FILE` is a raw image or block device
//! to read; the default is a temporary file of 256 MiB that is in the page cache.
#![allow(unsafe_code, reason = "gives the queue memory to read into, and reads the time-stamp counter")]

use std::sync::Arc;
use std::time::Instant;

use paradisk_disk_formats::{
    Completion, Disk, EngineKind, IoBuf, Layered, NullDisk, Op, OpenOptions, QueueConfig, RamDisk, Request,
    SectorSize,
};

const BLOCK: usize = 4096;
const DEPTH: u32 = 32;
const CAPACITY: u64 = 256 << 20;

fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC reads a counter.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

fn measure(name: &str, disk: &dyn Disk, engine: EngineKind, count: u64) {
    let mut memory = vec![0u8; BLOCK * DEPTH as usize];
    let base = memory.as_mut_ptr();
    let bufs: Vec<IoBuf> = (0..DEPTH as usize)
        // SAFETY: `memory` lives until the queue has been drained, and is not accessed before.
        .map(|slot| unsafe { IoBuf::new(base.add(slot * BLOCK), BLOCK) })
        .collect();
    let blocks = disk.info().capacity / BLOCK as u64;
    let mut queue = disk.queue(&QueueConfig { depth: DEPTH, engine }).expect("a queue");
    let mut done: Vec<Completion> = Vec::with_capacity(DEPTH as usize);
    let mut free: Vec<u64> = (0..u64::from(DEPTH)).collect();
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let (mut ended, mut began, mut started) = (0u64, 0, Instant::now());
    let mut before = queue.stats();
    let warm = count / 10;
    while ended < count + warm {
        if ended >= warm && began == 0 {
            (began, started, before) = (ticks(), Instant::now(), queue.stats());
        }
        for tag in free.drain(..) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let offset = random % blocks * BLOCK as u64;
            let buf = &bufs[tag as usize..=tag as usize];
            queue
                .push(&Request { tag, op: Op::Read, offset, len: BLOCK as u64, bufs: buf })
                .expect("a free slot");
        }
        queue.submit();
        queue.reap(&mut done);
        if done.is_empty() {
            queue.wait();
            queue.reap(&mut done);
        }
        ended += done.len() as u64;
        free.extend(done.drain(..).map(|completion| {
            completion.result.expect("a good read");
            completion.tag
        }));
    }
    let total = ticks().wrapping_sub(began) as f64 / count as f64;
    let after = queue.stats();
    let kernel = (after.submit_ticks - before.submit_ticks) as f64 / count as f64;
    let calls = (after.submits - before.submits) as f64 / count as f64;
    println!(
        "{name:<24} {:<9} {total:>8.0} {kernel:>8.0} {:>8.0} {calls:>9.4} {:>8.0}",
        queue.engine(),
        total - kernel,
        count as f64 / started.elapsed().as_secs_f64() / 1000.0
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("ticks for each 4 KiB read, depth {DEPTH}, with the random numbers of this loop");
    println!("disk                     engine       total   kernel    queue  calls/IO    kIOPS");
    let null = NullDisk::new(CAPACITY, SectorSize::B512)?;
    measure("null", &null, EngineKind::IoUring, 20_000_000);
    let metered = Layered::new(Arc::new(null)).metered(2_000_000_000);
    measure("null, metered", &metered, EngineKind::IoUring, 20_000_000);
    metered.metrics().into_iter().for_each(|metrics| metrics.time_requests(true));
    measure("null, latencies", &metered, EngineKind::IoUring, 20_000_000);
    let ram = RamDisk::new(CAPACITY, SectorSize::B512)?;
    measure("ram, untouched", &ram, EngineKind::IoUring, 1_000_000);
    let image = tempfile::NamedTempFile::new()?;
    let path = std::env::args().nth(1);
    if path.is_none() {
        std::fs::write(image.path(), vec![1u8; CAPACITY as usize])?;
    }
    let path = path.unwrap_or_else(|| image.path().display().to_string());
    for direct in [false, true] {
        for engine in [EngineKind::IoUring, EngineKind::Threads] {
            let mut options = OpenOptions::new(&path);
            (options.direct, options.read_only) = (Some(direct), true);
            let disk = options.open()?;
            let name =
                format!("{}{}", disk.info().kind.format, if direct { ", direct" } else { ", page cache" });
            let slow = direct || engine == EngineKind::Threads;
            measure(&name, &*disk, engine, if slow { 100_000 } else { 2_000_000 });
        }
    }
    Ok(())
}

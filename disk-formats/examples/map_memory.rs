//! Measures the map of a differencing disk. Creates a VHDX of 1 TiB and a child of it in the new directory FOLDER. Writes
//! 4 KiB to each of GRANULES ranges of 2 MiB that are spread over the disk, and flushes. Then reads 4 KiB at random in the
//! first half of these ranges for SECONDS, one read at a time. The child's file takes 2 MiB for each range.
//!
//! `cargo run --release -p paradisk-disk-formats --example map_memory --features conformance -- FOLDER GRANULES SECONDS
//! [BYTES]` (BYTES: memory for the map)

use std::path::Path;
use std::time::{Duration, Instant};

use paradisk_disk_formats::conformance::Guest;
use paradisk_disk_formats::vhdx::{CreateOptions, create_differencing, create_dynamic};
use paradisk_disk_formats::{Disk, DiskQueue, Op, OpenOptions, QueueConfig, Request};

const GRANULE: u64 = 2 << 20;
const SIZE: u64 = 1 << 40;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, granules, seconds, memory @ ..] = args.as_slice() else {
        eprintln!("expected: FOLDER GRANULES SECONDS [BYTES]");
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (granules, seconds) = (number(granules), number(seconds));
    let path = |name: &str| Path::new(folder).join(name);
    let options = CreateOptions { block_size: Some(GRANULE as u32), ..CreateOptions::default() };
    std::fs::create_dir(folder).expect("a new folder");
    create_dynamic(&path("parent.vhdx"), SIZE, options).expect("a parent");
    create_differencing(&path("child.vhdx"), &path("parent.vhdx"), options.block_size).expect("a child");
    let disk = OpenOptions { map_memory: memory.first().map(number), ..OpenOptions::new(path("child.vhdx")) };
    let disk = disk.open().expect("a disk");
    let mut queue = disk.queue(&QueueConfig::default()).expect("a queue");
    let guest = Guest::new(4096);
    guest.put(0, &[0x5A; 4096]);
    let place = |number: u64| number % granules * (SIZE / GRANULE / granules) * GRANULE;
    let one = |queue: &mut dyn DiskQueue, op, offset| {
        let bufs = [guest.buf(0, 4096)];
        let (len, bufs) = if op == Op::Flush { (0, &bufs[..0]) } else { (4096, &bufs[..]) };
        queue.push(&Request { tag: 0, op, offset, len, bufs }).expect("space");
        queue.wait();
        let mut ended = Vec::new();
        queue.reap(&mut ended);
        ended.iter().for_each(|completion| completion.result.expect("it is done"));
    };
    println!("opened: {}", told(&*disk));
    let start = Instant::now();
    (0..granules).for_each(|number| one(&mut *queue, Op::Write { fua: false }, place(number)));
    println!("written in {:.2?}: {}", start.elapsed(), told(&*disk));
    let start = Instant::now();
    one(&mut *queue, Op::Flush, 0);
    println!("flushed in {:.2?}: {}", start.elapsed(), told(&*disk));
    let (start, cpu, mut count, mut random) = (Instant::now(), cpu(), 0u64, 0x9E37_79B9_7F4A_7C15u64);
    while start.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let within = (random >> 40) % (GRANULE / 4096) * 4096;
            one(&mut *queue, Op::Read, place((random >> 8) % granules.div_ceil(2)) + within);
        }
        count += 64;
    }
    let ns = (self::cpu() - cpu) / count as f64 * 1e9;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    println!("{rate:.0} reads a second, {ns:.0} ns of this thread's CPU each: {}", told(&*disk));
}

/// CPU time of this thread so far, in seconds.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or_default() / 1e9
}

fn told(disk: &dyn Disk) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line =
        |name| status.lines().find(|line| line.starts_with(name)).unwrap_or_default().replace('\t', " ");
    let map = disk.map_memory().map(|memory| format!("{memory:?}")).unwrap_or_default();
    format!("{}, {}, {map}", line("VmRSS"), line("VmHWM"))
}

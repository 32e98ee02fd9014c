//! Measures first writes to the blocks of an image: COUNT writes of SIZE bytes, STEP bytes apart, DEPTH in flight, then a
//! flush. If FLUSH is above 0, there is also a flush after every FLUSH writes, with nothing else in flight. `qemu-img bench -w -c COUNT
//! -s SIZE -S STEP -d DEPTH --flush-interval=FLUSH` does the same with QEMU's formats. Then it evicts the image from the page cache and reads
//! the range from byte 0 to COUNT * SIZE in pieces of 1 MiB.
//!
//! `cargo run --release -p paradisk-disk-formats --example first_writes --features conformance -- IMAGE COUNT SIZE STEP DEPTH
//! on|off FLUSH` (on or off: direct I/O)

use std::time::Instant;

use paradisk_disk_formats::conformance::Guest;
use paradisk_disk_formats::{DiskQueue, Op, OpenOptions, QueueConfig, Request};

/// Size of the reads.
const PIECE: u64 = 1 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, count, size, step, depth, direct, flush] = args.as_slice() else {
        eprintln!("expected: IMAGE COUNT SIZE STEP DEPTH on|off FLUSH");
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (count, size, step, depth) = (number(count), number(size), number(step), number(depth));
    let interval = match number(flush) {
        0 => u64::MAX,
        interval => interval,
    };
    let disk =
        OpenOptions { direct: Some(direct == "on"), ..OpenOptions::new(image) }.open().expect("a disk");
    let mut queue =
        disk.queue(&QueueConfig { depth: depth as u32, ..QueueConfig::default() }).expect("a queue");
    let capacity = disk.info().capacity;
    let writes = Load { op: Op::Write { fua: false }, count, size, step, depth, interval };
    let seconds = writes.run(&mut *queue, capacity);
    println!("{count} writes of {size} bytes in {seconds:.3} s: {:.0} a second", count as f64 / seconds);

    disk.uncache().expect("the page cache");
    let count = (count * size).min(capacity) / PIECE;
    let reads = Load { op: Op::Read, count, size: PIECE, step: PIECE, depth, interval: u64::MAX };
    let seconds = reads.run(&mut *queue, capacity);
    println!("{count} reads of 1 MiB in {seconds:.3} s: {:.0} a second", count as f64 / seconds);
}

struct Load {
    op: Op,
    count: u64,
    size: u64,
    step: u64,
    depth: u64,
    /// Requests between two flushes.
    interval: u64,
}

impl Load {
    /// Make the requests, and flush. Returns the seconds that it took.
    fn run(&self, queue: &mut dyn DiskQueue, capacity: u64) -> f64 {
        let Self { op, count, size, step, depth, interval } = *self;
        let guest = Guest::new((size * depth) as usize);
        guest.put(0, &vec![0x5A; (size * depth) as usize]);
        let start = Instant::now();
        let (mut next, mut offset, mut free) = (0, 0, (0..depth).collect::<Vec<_>>());
        let (mut ended, mut pause) = (Vec::new(), interval);
        while next < count || queue.in_flight() > 0 {
            if next == pause && queue.in_flight() == 0 {
                flush_all(queue);
                pause = pause.saturating_add(interval);
            }
            while next < count.min(pause)
                && let Some(slot) = free.pop()
            {
                let bufs = [guest.buf((slot * size) as usize, size as usize)];
                queue.push(&Request { tag: slot, op, offset, len: size, bufs: &bufs }).expect("a free slot");
                offset = (offset + step) % capacity;
                if offset + size > capacity {
                    offset = 0;
                }
                next += 1;
            }
            queue.wait();
            queue.reap(&mut ended);
            for completion in ended.drain(..) {
                completion.result.expect("a successful request");
                free.push(completion.tag);
            }
        }
        flush_all(queue);
        start.elapsed().as_secs_f64()
    }
}

fn flush_all(queue: &mut dyn DiskQueue) {
    queue.push(&Request { tag: 0, op: Op::Flush, offset: 0, len: 0, bufs: &[] }).expect("a free slot");
    queue.wait();
    let mut ended = Vec::new();
    queue.reap(&mut ended);
    assert!(ended.iter().all(|completion| completion.result.is_ok()), "{ended:?}");
}

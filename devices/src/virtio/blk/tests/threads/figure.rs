//! What `threads=N` is for: I/O operations per second and CPU time, by the number of threads.

use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
use std::{env, thread};

use paradisk_disk_formats::OpenOptions;
use rustix::time::{ClockId, clock_gettime};
use vm_memory::{Bytes, GuestAddress};
use zerocopy::IntoBytes;

use crate::device::IoDevice;
use crate::testing::Hold;
use crate::virtio::blk::spec::*;
use crate::virtio::blk::{Config, VirtioBlk};
use crate::virtio::testing::*;

const QUEUES: u16 = 4;
/// Requests in flight in each queue, and descriptors of a request.
const DEPTH: u16 = 32;
const PIECES: u16 = 3;
const RING: u16 = 128;
const BLOCK: u64 = 4096;
const REQUESTS: u64 = 0x8_0000;
const DATA: u64 = 0x10_0000;
const TIME: Duration = Duration::from_secs(2);

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Random reads of 4 KiB with 32 in flight in each of 4 queues. One thread drives all queues, and sleeps while none has completions.
/// `PARADISK_FILE=FILE PARADISK_DIRECT=on|off cargo test --release -p paradisk-devices --lib figure -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn iops_by_the_number_of_threads() {
    let path = env::var_os("PARADISK_FILE").expect("PARADISK_FILE");
    let direct = env::var("PARADISK_DIRECT").is_ok_and(|value| value == "on");
    for _ in 0..5 {
        for threads in [1, 2, 4] {
            let (iops, cpu, kicks) = measure(Path::new(&path), direct, threads);
            eprintln!(
                "{threads} threads: {:.1}k IOPS, {:.2} us of CPU an I/O, {kicks:.3} kicks",
                iops / 1e3,
                cpu * 1e6
            );
        }
    }
}

/// I/O operations per second, and of each the seconds of CPU time of the other threads, and the kicks.
fn measure(path: &Path, direct: bool, threads: u16) -> (f64, f64, f64) {
    let disk = OpenOptions { direct: Some(direct), ..OpenOptions::new(path) }.open().unwrap();
    let blocks = disk.info().capacity / BLOCK;
    let config = Config { queues: QUEUES, queue_size: RING, threads, tasks: 1024, ..Config::default() };
    let mut guest = Driver::over(QUEUES.into(), 1024, Hold::default(), |memory, sink| {
        VirtioBlk::new(memory, disk, sink, config).unwrap()
    });
    guest.enable_msix();
    guest.bring_up(ALL, RING);
    let mut random = fastrand::Rng::with_seed(7);
    let mut put = |guest: &mut Driver<VirtioBlk<_>>, queue: u16, slot: u16, new: bool| {
        let number = u64::from(queue * DEPTH + slot);
        let (at, data) = (REQUESTS + 64 * number, DATA + BLOCK * number);
        let sector = random.u64(..blocks) * (BLOCK / 512);
        let header =
            RequestHeader { request_type: VIRTIO_BLK_T_IN.into(), reserved: 0.into(), sector: sector.into() };
        guest.memory.write_slice(header.as_bytes(), GuestAddress(at)).unwrap();
        if new {
            let pieces = [reads(at, 16), writes(data, BLOCK as u32), writes(at + 32, 1)];
            for (n, piece) in (0..PIECES).zip(pieces) {
                let index = PIECES * slot + n;
                let place = guest.rings_at(queue) + 16 * u64::from(index);
                let flags = if n + 1 == PIECES { 0 } else { NEXT };
                guest.put_descriptor(place, piece, flags, index + 1);
            }
        }
        guest.put_head(queue, PIECES * slot);
    };
    for queue in 0..QUEUES {
        guest.set_used_event(queue, u16::MAX);
        (0..DEPTH).for_each(|slot| put(&mut guest, queue, slot, true));
        guest.kick(queue);
    }
    let (begin, mut done, mut kicks) = (Instant::now(), 0u64, 0u64);
    let cpu = || clock(ClockId::ProcessCPUTime) - clock(ClockId::ThreadCPUTime);
    let before = cpu();
    while begin.elapsed() < TIME {
        let mut found = false;
        for queue in 0..QUEUES {
            let ends = guest.completions(queue);
            if ends.is_empty() {
                continue;
            }
            found = true;
            done += ends.len() as u64;
            let old = guest.rings[usize::from(queue)].avail;
            for (head, _) in &ends {
                put(&mut guest, queue, *head as u16 / PIECES, false);
            }
            let new = guest.rings[usize::from(queue)].avail;
            // No signal: the event is the completion before the last.
            let used = guest.rings[usize::from(queue)].used;
            guest.set_used_event(queue, used.wrapping_sub(1));
            let at = guest.rings_at(queue) + DEVICE + 4 + 8 * u64::from(RING);
            fence(Ordering::SeqCst);
            let event: u16 = guest.memory.read_obj(GuestAddress(at)).unwrap();
            if new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old) {
                guest.kick(queue);
                kicks += 1;
            }
        }
        if !found {
            thread::sleep(Duration::from_micros(20));
        }
    }
    let (cpu, time) = (cpu() - before, begin.elapsed());
    guest.device.reset(guest.now);
    let done = done as f64;
    (done / time.as_secs_f64(), cpu.as_secs_f64() / done, kicks as f64 / done)
}

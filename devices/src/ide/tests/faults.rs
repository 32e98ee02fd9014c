//! Disks that fail requests, and queues that break their contract.

use std::os::fd::BorrowedFd;

use paradisk_disk_formats::{
    Allocation, Completion, DiskInfo, DiskQueue, IoError, Op, OpenError, PushError, QueueStats, Request,
};

use super::*;
use crate::fault::{NOTHING_IN_FLIGHT, UNKNOWN_COMPLETION, expected};
use crate::testing::Breach;

/// A disk that fails requests beyond its first 64 KiB, and flushes, with this error; at most this many times.
struct Failing(TestDisk, IoError, usize);

struct FailingQueue {
    queue: Box<dyn DiskQueue>,
    error: IoError,
    left: usize,
    failed: Vec<u64>,
}

impl Disk for Failing {
    fn info(&self) -> &DiskInfo {
        self.0.info()
    }
    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        let queue = self.0.queue(config)?;
        Ok(Box::new(FailingQueue { queue, error: self.1, left: self.2, failed: Vec::new() }))
    }
    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        self.0.status(offset, limit)
    }
}

impl DiskQueue for FailingQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        if request.offset + request.len <= 65_536 && request.op != Op::Flush || self.left == 0 {
            return self.queue.push(request);
        }
        self.left -= 1;
        self.failed.push(request.tag);
        Ok(())
    }
    fn submit(&mut self) {
        self.queue.submit();
    }
    fn reap(&mut self, out: &mut Vec<Completion>) {
        self.queue.reap(out);
        out.extend(self.failed.drain(..).map(|tag| Completion { tag, result: Err(self.error) }));
    }
    fn in_flight(&self) -> usize {
        self.queue.in_flight() + self.failed.len()
    }
    fn event(&self) -> BorrowedFd<'_> {
        self.queue.event()
    }
    fn wait(&mut self) {
        self.queue.wait();
    }
    fn engine(&self) -> &'static str {
        "failing"
    }
    fn stats(&self) -> QueueStats {
        QueueStats::default()
    }
}

/// A guest whose first disk fails.
fn failing(error: IoError) -> Guest {
    failing_at_most(usize::MAX, error)
}

fn failing_at_most(times: usize, error: IoError) -> Guest {
    let mut guest = Guest::new();
    let mut disk = TestDisk::new(MIB, guest.hold.clone());
    disk.info.volatile_cache = true;
    let disk = Arc::new(Failing(disk, error, times));
    let queue = disk.queue(&QueueConfig::default()).unwrap();
    let disks = [Some(IdeDisk { disk, queue, serial: String::new() }), None, None, None];
    let sink = Box::new(IsaSink(guest.lines.clone()));
    guest.device = Ide::new(guest.memory.clone(), disks, sink, Config::default()).unwrap();
    guest.device.config_write(4, &5u16.to_le_bytes());
    guest
}

#[test]
fn errors_of_the_disk_have_their_bits_and_an_address() {
    let damaged = IoError::Damaged("test");
    for (error, read, write) in [
        (damaged, Error::UNC, Error::ABRT),
        (IoError::NoSpace, Error::UNC, Error::ABRT),
        (IoError::OutOfRange, Error::IDNF, Error::IDNF),
        (IoError::Unsupported, Error::ABRT, Error::ABRT),
    ] {
        let mut guest = failing(error);
        assert_eq!(guest.run_dma(false, 200, 8, &[(DATA, 4096)]), (4, FAILED));
        assert_eq!((guest.error(), guest.shown48()), (read.bits(), (200, 8)), "{error}");
        guest.control(8);
        let (bus, status) = guest.run_dma(true, 200, 8, &[(DATA, 4096)]);
        let fault = if matches!(error, IoError::Damaged(_) | IoError::NoSpace) { 0x20 } else { 0 };
        assert_eq!((bus, status, guest.error()), (4, FAILED | fault, write.bits()), "{error}");
        // By programmed I/O, the first block is good.
        guest.command48(command::READ_MULTIPLE_EXT, 0, 112, 32);
        guest.read_block(16 * 512);
        assert_eq!((guest.in_byte(reg::STATUS), guest.error()), (FAILED, read.bits()));
        assert_eq!(guest.shown48(), (128, 16));
        guest.control(8);
        assert_eq!(guest.read_block(2), [0; 2]);
        assert_eq!(guest.simple(command::FLUSH_CACHE, 0, 0) & 0x71, FAILED | fault);
        // The cache stays enabled if the flush fails: a driver that sees it disabled sends no flushes.
        let disabled = guest.simple(command::SET_FEATURES, feature::DISABLE_WRITE_CACHE, 0);
        assert_eq!((disabled & 0x71, guest.identify()[85] & 0x20), (FAILED | fault, 0x20));
        guest.command48(command::READ_VERIFY_EXT, 0, 100, 100);
        assert_eq!((guest.in_byte(reg::STATUS), guest.error()), (FAILED, read.bits()));
        // The first unreadable sector, or the first sector of the block that was rejected.
        assert_eq!(guest.shown48(), if read == Error::UNC { (128, 72) } else { (116, 84) }, "{error}");
        guest.control(8);
        guest.check_io();
    }
}

const UNREADABLE: IoError = IoError::Damaged("test");

/// Drivers assume that the sectors before the reported address were read.
#[test]
fn the_address_is_that_of_the_first_bad_sector_and_all_before_it_are_in_memory() {
    let mut guest = failing(UNREADABLE);
    let data = guest.fill(DATA, 0x1_0000, 0x3c);
    assert_eq!(guest.run_dma(true, 0, 128, &[(DATA, 0)]), (4, GOOD));
    for (lba, count) in [(0, 2048), (1, 300), (64, 128), (100, 100), (127, 2), (127, 3), (128, 1), (128, 9)] {
        let len = u64::from(count) * 512;
        let (to, half) = (DATA - 0x8000, len / 1024 * 512 + 2);
        guest.fill(to, 0x4_0000, 0);
        let regions: &[(u64, u64)] = match len {
            0..=0xffff => &[(to, half), (to + half, len - half)],
            _ => &[(to, 0), (to + 0x1_0000, 0), (to + 0x2_0000, 0), (to + 0x3_0000, 0)].repeat(4),
        };
        let (bus, status) = guest.run_dma(false, lba, count, regions);
        assert_eq!((bus & 6, status, guest.error()), (4, FAILED, Error::UNC.bits()), "{lba} {count}");
        let left = count - (128 - lba as u16);
        assert_eq!(guest.shown48(), (128, left), "{lba} {count}");
        guest.control(8);
        // The regions of long transfers overlap, but their first 64 KiB are not overwritten.
        let read = (128 - lba as usize) * 512;
        assert!(guest.bytes(to, read) == data[lba as usize * 512..], "{lba} {count}");
    }
    // With a 28-bit address and programmed I/O: a block of one sector identifies the sector.
    guest.command28(command::READ_SECTORS, 0, 127, 3);
    guest.read_block(512);
    assert_eq!((guest.in_byte(reg::STATUS), guest.error()), (FAILED, Error::UNC.bits()));
    assert_eq!((guest.in_byte(reg::LBA_LOW), guest.in_byte(reg::COUNT)), (128, 2));
    guest.check_io();
}

#[test]
fn what_can_be_read_the_second_time_is_read() {
    let mut guest = failing_at_most(1, UNREADABLE);
    let data = guest.fill(DATA, 0x1_0000, 0x3c);
    assert_eq!(guest.run_dma(true, 0, 128, &[(DATA, 0)]), (4, GOOD));
    let to = DATA + 0x2_0000;
    assert_eq!(guest.run_dma(false, 64, 100, &[(to, 51_200)]), (4, GOOD));
    assert!(guest.bytes(to, 32_768) == data[32_768..]);
    assert_eq!(guest.device.stats().errors, 0);
    let mut guest = failing_at_most(1, UNREADABLE);
    guest.command28(command::READ_VERIFY, 0, 100, 100);
    assert_eq!(guest.in_byte(reg::STATUS), GOOD);
}

#[test]
fn a_stop_and_a_reset_end_a_search() {
    for reset in [false, true] {
        let mut guest = failing(UNREADABLE);
        guest.hold.set(true);
        guest.start_dma(false, 100, 100, &[(DATA, 51_200)]);
        guest.serve();
        assert_eq!((guest.alternate_status() & 0x80, guest.hold.waits()), (0x80, 0));
        if reset {
            guest.software_reset();
        }
        guest.bm_write(bm::COMMAND, &[0]);
        assert_eq!(guest.hold.waits(), 1, "no further piece");
        let data = guest.fill(DATA, 51_200, 0x55);
        guest.hold.set(false);
        guest.serve();
        assert!(guest.bytes(DATA, 51_200) == data, "memory is the driver's");
        if reset {
            assert_eq!((guest.alternate_status(), guest.line()), (GOOD, false));
        } else {
            assert_eq!((guest.in_byte(reg::STATUS), guest.error()), (FAILED, Error::UNC.bits()));
            assert_eq!(guest.shown48(), (100, 100), "not known");
            guest.control(8);
        }
        guest.check_io();
    }
}

#[test]
fn a_queue_that_breaks_its_contract_faults_its_drive() {
    for (breach, what) in [
        (Breach::Tag(1 << 32), UNKNOWN_COMPLETION),
        (Breach::Twice, UNKNOWN_COMPLETION),
        (Breach::Lose, NOTHING_IN_FLIGHT),
    ] {
        expected::begin();
        let mut guest = Guest::new();
        guest.hold.set(true);
        guest.start_dma(false, 0, 8, &[(DATA, 4096)]);
        guest.hold.breach(breach);
        guest.hold.set(false);
        guest.serve();
        assert!(guest.line(), "{breach:?}");
        let first = if breach == Breach::Twice { GOOD } else { FAILED };
        assert_eq!(guest.end_dma(), (4, first), "{breach:?}");
        for _ in 0..2 {
            assert_eq!(guest.run_dma(true, 0, 8, &[(DATA, 4096)]), (4, FAILED | 0x20));
            guest.software_reset();
            assert_eq!(guest.alternate_status(), GOOD, "no reset repairs it, but it ends");
        }
        guest.select(1);
        guest.check_io();
        assert_eq!(expected::take(), [what], "{breach:?}: reported once");
    }
}

/// A reset does not wait for a completion that never comes.
#[test]
fn a_request_that_is_lost_before_a_reset() {
    expected::begin();
    let mut guest = Guest::new();
    guest.hold.set(true);
    guest.start_dma(false, 0, 8, &[(DATA, 4096)]);
    guest.hold.breach(Breach::Lose);
    guest.software_reset();
    guest.hold.set(false);
    guest.serve();
    assert_eq!((guest.alternate_status(), guest.line()), (GOOD, false));
    assert_eq!(expected::take(), [NOTHING_IN_FLIGHT]);
}

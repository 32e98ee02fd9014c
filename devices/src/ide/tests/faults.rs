//! Disks that fail requests, and queues that break their contract.

use std::os::fd::BorrowedFd;

use paradisk_disk_formats::{
    Allocation, Completion, DiskInfo, DiskQueue, IoError, Op, OpenError, PushError, QueueStats, Request,
};

use super::*;
use crate::fault::{NOTHING_IN_FLIGHT, UNKNOWN_COMPLETION, expected};
use crate::testing::Breach;

/// A disk that fails each request beyond its first 64 KiB, and flushes, with this error.
struct Failing(TestDisk, IoError);

struct FailingQueue(Box<dyn DiskQueue>, IoError, Vec<u64>);

impl Disk for Failing {
    fn info(&self) -> &DiskInfo {
        self.0.info()
    }
    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        Ok(Box::new(FailingQueue(self.0.queue(config)?, self.1, Vec::new())))
    }
    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        self.0.status(offset, limit)
    }
}

impl DiskQueue for FailingQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        if request.offset + request.len <= 65_536 && request.op != Op::Flush {
            return self.0.push(request);
        }
        self.2.push(request.tag);
        Ok(())
    }
    fn submit(&mut self) {
        self.0.submit();
    }
    fn reap(&mut self, out: &mut Vec<Completion>) {
        self.0.reap(out);
        out.extend(self.2.drain(..).map(|tag| Completion { tag, result: Err(self.1) }));
    }
    fn in_flight(&self) -> usize {
        self.0.in_flight() + self.2.len()
    }
    fn event(&self) -> BorrowedFd<'_> {
        self.0.event()
    }
    fn wait(&mut self) {
        self.0.wait();
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
    let mut guest = Guest::new();
    let mut disk = TestDisk::new(MIB, guest.hold.clone());
    disk.info.volatile_cache = true;
    let disk = Arc::new(Failing(disk, error));
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
        // By the data port, the first block is good.
        guest.command48(command::READ_MULTIPLE_EXT, 0, 112, 32);
        guest.read_block(16 * 512);
        assert_eq!((guest.in_byte(reg::STATUS), guest.error()), (FAILED, read.bits()));
        assert_eq!(guest.shown48(), (128, 16));
        guest.control(8);
        assert_eq!(guest.read_block(2), [0; 2]);
        assert_eq!(guest.simple(command::FLUSH_CACHE, 0, 0) & 0x71, FAILED | fault);
        // The cache stays on where it could not be flushed: a driver that sees it off asks for no flush any more.
        let disabled = guest.simple(command::SET_FEATURES, feature::DISABLE_WRITE_CACHE, 0);
        assert_eq!((disabled & 0x71, guest.identify()[85] & 0x20), (FAILED | fault, 0x20));
        guest.command28(command::READ_VERIFY, 0, 100, 100);
        assert_eq!((guest.in_byte(reg::STATUS), guest.error()), (FAILED, read.bits()));
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

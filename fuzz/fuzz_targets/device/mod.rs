//! A PCI function that is called directly: its memory, its interrupts, and disks that hold requests back or fail them when the input says so.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use paradisk_devices::{
    AdapterConfig, AdapterKind, Attachment, Coalescing, InterruptSink, MsiMessage, PciDevice, Policy, Time,
};
use paradisk_disk_formats::{
    Allocation, Completion, DiscardLimits, Disk, DiskInfo, DiskQueue, IoBuf, IoError, Op, OpenError,
    PushError, QueueConfig, QueueStats, RamDisk, Request, SectorSize, Status,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

pub const MEMORY: u64 = 256 << 10;
const CAPACITY: u64 = 64 << 10;

/// How the disks behave.
#[derive(Default)]
pub struct Behaviour {
    /// Requests are held back until their queue is waited for.
    pub hold: AtomicBool,
    /// One in so many requests fails; 0: none.
    pub failing: AtomicU8,
    /// Requests so far, modulo 256.
    count: AtomicU8,
}

struct FuzzDisk {
    info: DiskInfo,
    behaviour: Arc<Behaviour>,
}

impl FuzzDisk {
    fn new(behaviour: Arc<Behaviour>) -> Self {
        let ram = RamDisk::new(CAPACITY, SectorSize::B512).expect("a disk");
        let discard = Some(DiscardLimits { granularity: 512, reads_zero: true });
        let info = DiskInfo { volatile_cache: true, fua: false, discard, ..ram.info().clone() };
        Self { info, behaviour }
    }
}

impl Disk for FuzzDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }
    fn queue(&self, _config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        Ok(Box::new(FuzzQueue {
            data: vec![0; CAPACITY as usize],
            behaviour: Arc::clone(&self.behaviour),
            waited: false,
            requests: Vec::new(),
            event: File::open("/dev/null").expect("a file"),
        }))
    }
    fn status(&self, _offset: u64, limit: u64) -> Result<Allocation, IoError> {
        Ok(Allocation { len: limit, status: Status::Mapped })
    }
}

struct FuzzQueue {
    data: Vec<u8>,
    behaviour: Arc<Behaviour>,
    waited: bool,
    requests: Vec<(u64, Op, u64, u64, Vec<IoBuf>)>,
    event: File,
}

impl FuzzQueue {
    fn execute(&mut self, op: Op, offset: u64, len: u64, bufs: &[IoBuf]) -> Result<(), IoError> {
        let failing = self.behaviour.failing.load(Relaxed);
        if failing > 0 && self.behaviour.count.fetch_add(1, Relaxed).is_multiple_of(failing) {
            return Err(IoError::NoSpace);
        }
        if matches!(op, Op::Flush) {
            return Ok(());
        }
        let end = offset.checked_add(len).expect("an end");
        // The device checks ranges and lengths before the disk sees them.
        let mut data = self.data.get_mut(offset as usize..end as usize).expect("a range of the disk");
        for buf in bufs {
            let (piece, rest) = data.split_at_mut_checked(buf.len()).expect("buffers of that length");
            match op {
                Op::Read => buf.write(piece),
                _ => buf.read(piece),
            };
            data = rest;
        }
        Ok(())
    }
}

impl DiskQueue for FuzzQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        self.requests.push((request.tag, request.op, request.offset, request.len, request.bufs.to_vec()));
        Ok(())
    }
    fn submit(&mut self) {}
    fn reap(&mut self, out: &mut Vec<Completion>) {
        if self.behaviour.hold.load(Relaxed) && !std::mem::take(&mut self.waited) {
            return;
        }
        for (tag, op, offset, len, bufs) in std::mem::take(&mut self.requests) {
            out.push(Completion { tag, result: self.execute(op, offset, len, &bufs) });
        }
    }
    fn in_flight(&self) -> usize {
        self.requests.len()
    }
    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
    fn wait(&mut self) {
        self.waited = true;
    }
    fn engine(&self) -> &'static str {
        "fuzz"
    }
    fn stats(&self) -> QueueStats {
        QueueStats::default()
    }
}

/// A guest that is interrupted does nothing: what it does next is the input's.
struct NoInterrupts;

impl InterruptSink for NoInterrupts {
    fn route(&mut self, _vector: u16, _message: Option<MsiMessage>) {}
    fn message(&mut self, _vector: u16) {}
    fn line(&mut self, _asserted: bool) {}
    fn isa_line(&mut self, _irq: u8, _asserted: bool) {}
}

pub struct Guest {
    pub device: Box<dyn PciDevice>,
    pub memory: Arc<GuestMemoryMmap>,
    pub behaviour: Arc<Behaviour>,
    pub now: Time,
}

impl Guest {
    /// With disks at these targets, enabled in configuration space.
    pub fn new(kind: AdapterKind, targets: &[u8]) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).expect("memory");
        let (memory, behaviour) = (Arc::new(memory), Arc::<Behaviour>::default());
        let disk = |target: &u8| (*target, Attachment::new(Arc::new(FuzzDisk::new(Arc::clone(&behaviour)))));
        let disks: Vec<_> = targets.iter().map(disk).collect();
        let config = AdapterConfig { kind, coalescing: Coalescing::policy(Policy::Batch), tasks: 4 };
        let mut device = paradisk_devices::build(memory.clone(), Box::new(NoInterrupts), config, &disks)
            .expect("an adapter");
        device.config_write(4, &[7, 0]);
        Self { device, memory, behaviour, now: Time(0) }
    }

    pub fn write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        self.device.bar_write(bar, offset, data, self.now);
    }

    pub fn poke(&self, at: u64, bytes: &[u8]) {
        let len = (bytes.len() as u64).min(MEMORY.saturating_sub(at));
        let _ = self.memory.write_slice(&bytes[..len as usize], GuestAddress(at));
    }

    /// What the device's thread does.
    pub fn turn(&mut self) {
        self.device.on_completions(self.now);
        let _ = self.device.before_sleep(self.now);
    }

    /// What a device's owner does, whatever the device is.
    pub fn own(&mut self, choice: u8) {
        let range = u64::from(choice) << 10..(u64::from(choice) + 4) << 10;
        let ranges = std::slice::from_ref(&range);
        match choice % 8 {
            0 => self.device.reset(self.now),
            1 => self.device.quiesce(self.now),
            2 => self.device.refresh(self.now),
            3 => {
                self.device.refuse_memory(ranges);
                if !self.device.uses_memory(ranges, self.now) {
                    self.device.memory_replaced(self.now);
                }
            }
            4 => self.device.set_coalescing(Coalescing::policy(Policy::OioIops)),
            5 => self.device.on_doorbell(usize::from(choice >> 4), self.now),
            _ => self.device.config_write(4, &[choice & 7, 0]),
        }
    }

    /// What was taken is completed, and a reset ends everything.
    pub fn end(mut self) {
        self.behaviour.hold.store(false, Relaxed);
        self.device.quiesce(self.now);
        self.device.reset(self.now);
        let stats = self.device.stats();
        assert!(stats.completions <= stats.requests, "{stats:?}");
    }
}

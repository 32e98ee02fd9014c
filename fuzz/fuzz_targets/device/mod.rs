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
pub struct Mood {
    /// Requests are held back until their queue is waited for.
    pub hold: AtomicBool,
    /// So many requests are done before one fails; 0: all of them.
    pub good: AtomicU8,
    /// Requests of the guest that the disks have seen beyond their end.
    count: AtomicU8,
}

struct MoodyDisk {
    info: DiskInfo,
    mood: Arc<Mood>,
}

impl MoodyDisk {
    fn new(mood: Arc<Mood>) -> Self {
        let ram = RamDisk::new(CAPACITY, SectorSize::B512).expect("a disk");
        let discard = Some(DiscardLimits { granularity: 512, reads_zero: true });
        let info = DiskInfo { volatile_cache: true, fua: false, discard, ..ram.info().clone() };
        Self { info, mood }
    }
}

impl Disk for MoodyDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }
    fn queue(&self, _config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        Ok(Box::new(MoodyQueue {
            data: vec![0; CAPACITY as usize],
            mood: Arc::clone(&self.mood),
            waited: false,
            requests: Vec::new(),
            event: File::open("/dev/null").expect("a file"),
        }))
    }
    fn status(&self, _offset: u64, limit: u64) -> Result<Allocation, IoError> {
        Ok(Allocation { len: limit, status: Status::Mapped })
    }
}

struct MoodyQueue {
    data: Vec<u8>,
    mood: Arc<Mood>,
    waited: bool,
    requests: Vec<(u64, Op, u64, u64, Vec<IoBuf>)>,
    event: File,
}

impl MoodyQueue {
    fn execute(&mut self, op: Op, offset: u64, len: u64, bufs: &[IoBuf]) -> Result<(), IoError> {
        let good = self.mood.good.load(Relaxed);
        if good > 0 && self.mood.count.fetch_add(1, Relaxed).is_multiple_of(good) {
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

impl DiskQueue for MoodyQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        self.requests.push((request.tag, request.op, request.offset, request.len, request.bufs.to_vec()));
        Ok(())
    }
    fn submit(&mut self) {}
    fn reap(&mut self, out: &mut Vec<Completion>) {
        if self.mood.hold.load(Relaxed) && !std::mem::take(&mut self.waited) {
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

/// Checks that what is raised was lowered before.
struct Lines(u32);

impl InterruptSink for Lines {
    fn route(&mut self, _vector: u16, _message: Option<MsiMessage>) {}
    fn message(&mut self, _vector: u16) {}
    fn line(&mut self, asserted: bool) {
        self.isa_line(0, asserted);
    }
    fn isa_line(&mut self, irq: u8, asserted: bool) {
        let bit = 1 << irq;
        // A level may be told twice, and a line be lowered by another thread.
        self.0 = if asserted { self.0 | bit } else { self.0 & !bit };
    }
}

pub struct Guest {
    pub device: Box<dyn PciDevice>,
    pub memory: Arc<GuestMemoryMmap>,
    pub mood: Arc<Mood>,
    pub now: Time,
}

impl Guest {
    /// With disks at these targets, enabled in configuration space.
    pub fn new(kind: AdapterKind, targets: &[u8]) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).expect("memory");
        let (memory, mood) = (Arc::new(memory), Arc::<Mood>::default());
        let disk = |target: &u8| (*target, Attachment::new(Arc::new(MoodyDisk::new(Arc::clone(&mood)))));
        let disks: Vec<_> = targets.iter().map(disk).collect();
        let config = AdapterConfig { kind, coalescing: Coalescing::policy(Policy::Batch), tasks: 4 };
        let mut device =
            paradisk_devices::build(memory.clone(), Box::new(Lines(0)), config, &disks).expect("an adapter");
        device.config_write(4, &[7, 0]);
        Self { device, memory, mood, now: Time(0) }
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
        self.mood.hold.store(false, Relaxed);
        self.device.quiesce(self.now);
        self.device.reset(self.now);
        let stats = self.device.stats();
        assert!(stats.completions <= stats.requests, "{stats:?}");
    }
}

/// The fuzzer's bytes, taken one after the other; zeros behind their end.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn u8(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub fn u16(&mut self) -> u16 {
        u16::from(self.u8()) | u16::from(self.u8()) << 8
    }

    /// So many, or all that there are.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

//! What the adapters' tests share: guest memory, a sink that counts, a disk that ends requests when it is told to, random
//! numbers of the kind that breaks things.

pub(crate) mod broken_queues;
mod disk;
pub(crate) mod small_tables;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_queue::SegQueue;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

pub(crate) use self::disk::{Breach, Hold, TestDisk};
use crate::adapter::Attachment;
use crate::device::IoDevice;
use crate::interrupt::{InterruptLine, InterruptSink, MsiMessage};
use crate::scsi::{Address, Identity, LogicalUnit};

pub(crate) const MIB: u64 = 1 << 20;
/// Two regions that touch, so that a buffer can cross them.
pub(crate) const MEMORY: [(GuestAddress, usize); 2] =
    [(GuestAddress(0), 1 << 20), (GuestAddress(1 << 20), 1 << 20)];
pub(crate) const MEMORY_END: u64 = 2 * MIB;

/// Interrupts as they left the device.
#[derive(Default)]
pub(crate) struct Counts {
    messages: AtomicU32,
    vectors: SegQueue<u32>,
    line: AtomicU32,
}

impl Counts {
    /// Messages sent since the last call.
    pub(crate) fn messages(&self) -> u32 {
        self.messages.swap(0, Ordering::Relaxed)
    }

    /// Their vectors, since the last call of this.
    pub(crate) fn vectors(&self) -> Vec<u32> {
        std::iter::from_fn(|| self.vectors.pop()).collect()
    }

    /// Whether the line is asserted.
    pub(crate) fn line(&self) -> bool {
        self.line.load(Ordering::Relaxed) == 1
    }
}

/// Counts.
pub(crate) struct Sink(pub(crate) Arc<Counts>);

impl InterruptSink for Sink {
    fn route(&mut self, _vector: u16, _message: Option<MsiMessage>) {}
    fn message(&mut self, vector: u16) {
        self.0.vectors.push(vector.into());
        self.0.messages.fetch_add(1, Ordering::Relaxed);
    }
    fn line(&mut self, asserted: bool) {
        self.0.line.store(asserted.into(), Ordering::Relaxed);
    }
    fn shared_line(&self) -> Option<Arc<dyn InterruptLine>> {
        Some(self.0.clone())
    }
}

impl InterruptLine for Counts {
    fn lower(&self) {
        self.line.store(0, Ordering::Relaxed);
    }
}

/// A VMBus whose synthetic interrupt controller is off.
#[cfg(feature = "vmbus")]
pub(crate) struct NoSynic;

#[cfg(feature = "vmbus")]
impl crate::vmbus::Synic for NoSynic {
    fn post_message(&mut self, _vp: u32, _payload: &[u8]) -> crate::vmbus::Posted {
        crate::vmbus::Posted::Off
    }
    fn signal_event(&mut self, _vp: u32, _flag: u16) {}
}

/// Who has guest memory to look at.
pub(crate) trait Owner {
    fn memory(&self) -> &GuestMemoryMmap;

    /// Fill it with a pattern, which is returned.
    fn fill(&self, address: u64, len: usize, seed: u8) -> Vec<u8> {
        let data: Vec<u8> = (0..len).map(|at| (at / 7) as u8 ^ seed).collect();
        self.memory().write_slice(&data, GuestAddress(address)).unwrap();
        data
    }

    fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory().read_slice(&mut data, GuestAddress(address)).unwrap();
        data
    }
}

/// A unit of 1 MiB whose requests end as `hold` says.
pub(crate) fn unit(hold: &Hold) -> LogicalUnit {
    let disk = Arc::new(TestDisk::new(MIB, hold.clone()));
    let queue =
        paradisk_disk_formats::Disk::queue(&*disk, &paradisk_disk_formats::QueueConfig::default()).unwrap();
    LogicalUnit::new(disk, queue, Identity::default())
}

/// Attach two disks of which neither image nor file tell, one with a serial number that it was given.
pub(crate) fn attach_nameless(device: &mut dyn IoDevice, addresses: [Address; 2]) {
    for (address, serial) in addresses.into_iter().zip([None, Some("MINE".to_owned())]) {
        let disk = Arc::new(
            paradisk_disk_formats::NullDisk::new(MIB, paradisk_disk_formats::SectorSize::B512).unwrap(),
        );
        let unit = Attachment { serial, ..Attachment::new(disk) }.unit(4).unwrap();
        device.hot_plug().unwrap().attach(address, unit).unwrap();
    }
}

/// xorshift64*: the same steps on every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    /// A number of the kind that breaks things.
    pub(crate) fn value(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(40),
            1 => u64::MAX - self.below(5),
            2 => MEMORY_END.wrapping_add(self.below(64)).wrapping_sub(32),
            3 => self.below(MEMORY_END),
            4 => 1 << self.below(64),
            _ => self.next(),
        }
    }
}

//! What the adapters' tests share: guest memory, a sink that counts, a disk that ends requests when it is told to, random
//! numbers that include edge cases, and tests of all adapters.

pub(crate) mod backstop;
pub(crate) mod broken_queues;
mod disk;
pub(crate) mod initiator;
mod random;
pub(crate) mod small_tables;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_queue::SegQueue;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

pub(crate) use self::disk::{Breach, Hold, TestDisk};
pub(crate) use self::random::{Random, effort, seeds};
use crate::adapter::Attachment;
use crate::device::IoDevice;
use crate::interrupt::{InterruptSink, MsiMessage};
use crate::scsi::{Address, Bus, Identity, LogicalUnit};

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
    signals: AtomicU32,
}

impl Counts {
    /// Messages sent since the last call.
    pub(crate) fn messages(&self) -> u32 {
        self.messages.swap(0, Ordering::Relaxed)
    }

    /// Vectors of the messages sent since the last call of this function.
    pub(crate) fn vectors(&self) -> Vec<u32> {
        std::iter::from_fn(|| self.vectors.pop()).collect()
    }

    /// Messages sent, and how often the line was asserted anew, since the last call.
    pub(crate) fn signals(&self) -> u32 {
        self.signals.swap(0, Ordering::Relaxed)
    }

    /// Whether the line is asserted.
    pub(crate) fn line(&self) -> bool {
        self.line.load(Ordering::Relaxed) == 1
    }
}

/// An interrupt sink that counts.
pub(crate) struct Sink(pub(crate) Arc<Counts>);

impl InterruptSink for Sink {
    fn route(&mut self, _vector: u16, _message: Option<MsiMessage>) {}
    fn message(&mut self, vector: u16) {
        self.0.vectors.push(vector.into());
        self.0.messages.fetch_add(1, Ordering::Relaxed);
        self.0.signals.fetch_add(1, Ordering::Relaxed);
    }
    fn line(&mut self, asserted: bool) {
        let before = self.0.line.swap(asserted.into(), Ordering::Relaxed);
        self.0.signals.fetch_add(u32::from(asserted && before == 0), Ordering::Relaxed);
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

/// A guest whose memory a test can read and write.
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

    /// Check that this writes nothing to guest memory.
    #[track_caller]
    fn writes_nothing(&mut self, work: impl FnOnce(&mut Self))
    where
        Self: Sized,
    {
        let before = self.bytes(0, MEMORY_END as usize);
        work(self);
        assert!(self.bytes(0, MEMORY_END as usize) == before, "guest memory was written");
    }
}

/// A unit of 1 MiB whose requests end as `hold` says.
pub(crate) fn unit(hold: &Hold) -> LogicalUnit {
    let disk = Arc::new(TestDisk::new(MIB, hold.clone()));
    let queue =
        paradisk_disk_formats::Disk::queue(&*disk, &paradisk_disk_formats::QueueConfig::default()).unwrap();
    LogicalUnit::new(disk, queue, Identity::default())
}

/// A bus with a unit of 1 MiB at each of these addresses, whose requests end as `hold` says.
pub(crate) fn bus(tasks: u32, addresses: &[Address], hold: &Hold) -> Bus {
    let mut bus = Bus::new(tasks);
    for address in addresses {
        bus.attach(*address, unit(hold)).unwrap();
    }
    bus
}

/// The CDB of READ(10), or of WRITE(10).
pub(crate) fn transfer10(write: bool, lba: u32, sectors: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = if write { 0x2a } else { 0x28 };
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&sectors.to_be_bytes());
    cdb
}

/// Attach disks that have no serial number of their own. A unit that is given none must be named by its place in the adapter `name`.
/// `lun`: a logical unit number to attach to, 0 for an adapter whose targets have only that one. `serial`: the serial number of the unit
/// at an address.
pub(crate) fn attach_nameless<D: IoDevice>(
    device: &mut D,
    name: &str,
    lun: u16,
    serial: impl Fn(&D, Address) -> Option<&str>,
) {
    let (alone, first, second) =
        (Address { target: 1, lun: 0 }, Address { target: 2, lun }, Address { target: 2, lun: lun + 1 });
    let disks = [
        (alone, None, format!("{name}:1")),
        (first, Some("MINE"), "MINE".to_owned()),
        (second, None, format!("{name}:2:{}", lun + 1)),
    ];
    for (address, given, wanted) in &disks[..if lun == 0 { 2 } else { 3 }] {
        let disk =
            paradisk_disk_formats::NullDisk::new(MIB, paradisk_disk_formats::SectorSize::B512).unwrap();
        let attachment =
            Attachment { serial: given.map(ToOwned::to_owned), ..Attachment::new(Arc::new(disk)) };
        device.hot_plug().unwrap().attach(*address, attachment.unit(4).unwrap()).unwrap();
        assert_eq!(serial(&*device, *address), Some(&**wanted));
    }
}

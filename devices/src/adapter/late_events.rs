//! A disk's event may become readable after the disk's last completion was reaped. Each adapter must then clear the event: otherwise the
//! adapter's thread could not sleep.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use paradisk_disk_formats::{
    Allocation, Completion, Disk, DiskInfo, DiskQueue, IoError, OpenError, PushError, QueueConfig,
    QueueStats, RamDisk, Request, SectorSize,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use vm_memory::GuestMemoryMmap;

use super::*;
use crate::Time;
use crate::device::IoDevice;
#[cfg(feature = "vmbus")]
use crate::testing::NoSynic;
use crate::testing::{Counts, MEMORY, MIB, Sink};

/// A disk whose queues share one event. The test makes it readable; it stays readable until a queue is reaped.
struct LateDisk {
    disk: RamDisk,
    event: Arc<OwnedFd>,
}

impl LateDisk {
    fn new() -> Self {
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        Self { disk: RamDisk::new(MIB, SectorSize::B512).unwrap(), event: Arc::new(event) }
    }
}

impl Disk for LateDisk {
    fn info(&self) -> &DiskInfo {
        self.disk.info()
    }

    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        Ok(Box::new(LateQueue { queue: self.disk.queue(config)?, event: Arc::clone(&self.event) }))
    }

    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        self.disk.status(offset, limit)
    }
}

struct LateQueue {
    queue: Box<dyn DiskQueue>,
    event: Arc<OwnedFd>,
}

impl DiskQueue for LateQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        self.queue.push(request)
    }

    fn submit(&mut self) {
        self.queue.submit();
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.queue.reap(out);
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn wait(&mut self) {
        self.queue.wait();
    }

    fn engine(&self) -> &'static str {
        "late"
    }

    fn stats(&self) -> QueueStats {
        self.queue.stats()
    }
}

/// Whether a completion event of the device is readable, so that its thread would not sleep.
fn awake(device: &dyn IoDevice) -> bool {
    let events = device.completion_events();
    let mut polled: Vec<_> = events.iter().map(|event| PollFd::new(event, PollFlags::IN)).collect();
    poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
}

/// Make the event of `disk` readable while no disk of the device has requests, and check that the device clears it.
fn check(device: &mut dyn IoDevice, disk: &LateDisk, state: &str) {
    for _ in 0..2 {
        rustix::io::write(&disk.event, &1u64.to_ne_bytes()).unwrap();
        assert!(awake(device), "{state}: it has the event");
        device.on_completions(Time(0));
        device.before_sleep(Time(0));
        assert!(!awake(device), "{state}: its thread would not sleep");
    }
}

#[test]
fn pci_functions_clear_them() {
    use AdapterKind::{BusLogic, Ide, IdeNative, Lsi, LsiSas, Pvscsi, VirtioBlk, VirtioScsi};
    for kind in [Pvscsi, Lsi, LsiSas, BusLogic, Ide, IdeNative, VirtioBlk, VirtioScsi] {
        let memory = Arc::new(GuestMemoryMmap::<()>::from_ranges(&MEMORY).unwrap());
        let late = Arc::new(LateDisk::new());
        let other = Attachment::new(Arc::new(RamDisk::new(MIB, SectorSize::B512).unwrap()));
        let mut disks = vec![(0, Attachment::new(Arc::clone(&late) as Arc<dyn Disk>)), (1, other)];
        disks.truncate(kind.targets().count());
        let config = AdapterConfig { tasks: 32, ..AdapterConfig::new(kind) };
        let sink = Box::new(Sink(Arc::new(Counts::default())));
        let mut device = build(memory, sink, config, &disks).unwrap();
        for (command, state) in [(0u16, "without bus mastering"), (7, "with bus mastering")] {
            device.config_write(4, &command.to_le_bytes());
            check(&mut *device, &late, &format!("{kind} {state}"));
        }
    }
}

/// The thread of the device clears it.
#[test]
#[cfg(feature = "event-loop")]
fn threads_of_a_device_clear_them() {
    let memory = Arc::new(GuestMemoryMmap::<()>::from_ranges(&MEMORY).unwrap());
    let late = Arc::new(LateDisk::new());
    let disks = [(0, Attachment::new(Arc::clone(&late) as Arc<dyn Disk>))];
    let config = AdapterConfig { tasks: 32, threads: 1, ..AdapterConfig::new(AdapterKind::VirtioBlk) };
    let sink = Box::new(Sink(Arc::new(Counts::default())));
    let _device = build(memory, sink, config, &disks).unwrap();
    for _ in 0..2 {
        rustix::io::write(&late.event, &1u64.to_ne_bytes()).unwrap();
        let begin = std::time::Instant::now();
        while poll(&mut [PollFd::new(&late.event, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0 {
            assert!(begin.elapsed() < std::time::Duration::from_secs(60), "the thread would not sleep");
            std::thread::yield_now();
        }
    }
}

#[test]
#[cfg(feature = "vmbus")]
fn vmbus_devices_clear_them() {
    let memory = Arc::new(GuestMemoryMmap::<()>::from_ranges(&MEMORY).unwrap());
    let late = Arc::new(LateDisk::new());
    let disks = [(0, Attachment::new(Arc::clone(&late) as Arc<dyn Disk>))];
    let config = AdapterConfig::new(AdapterKind::Storvsc);
    let mut device = build_vmbus(memory, Box::new(NoSynic), config, &disks).unwrap();
    check(&mut *device, &late, "storvsc");
}

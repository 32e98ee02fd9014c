//! Any adapter, made in front of disks.

use std::sync::Arc;

use paradisk_disk_formats::{Disk, EngineKind, OpenError, QueueConfig};
use vm_memory::GuestAddressSpace;

#[cfg(feature = "buslogic")]
use crate::buslogic::{self, BusLogic};
use crate::device::PciDevice;
#[cfg(feature = "ide")]
use crate::ide::{self, Ide, IdeDisk};
use crate::identity::{self, Nameless, serial_numbers};
use crate::interrupt::InterruptSink;
use crate::kind::AdapterKind;
#[cfg(feature = "lsi")]
use crate::lsi::{self, Lsi, Personality};
use crate::moderation::Coalescing;
use crate::pci::LayoutError;
#[cfg(feature = "pvscsi")]
use crate::pvscsi::{self, Pvscsi};
use crate::scsi::{Address, AttachError, Bus, Identity, LogicalUnit};
#[cfg(feature = "virtio")]
use crate::virtio::{self, blk, blk::VirtioBlk, scsi::VirtioScsi};
#[cfg(feature = "vmbus")]
use crate::vmbus::{self, Synic, Vmbus, VmbusDevice};

impl AdapterKind {
    /// Targets that disks can be attached to, in the order in which callers should assign them. An adapter without targets has only target
    /// 0. For [`Storvsc`](Self::Storvsc), a target here is a logical unit number of the only target that its guests see.
    pub fn targets(self) -> impl Iterator<Item = u8> {
        (0..u8::MAX).filter(move |target| match self {
            #[cfg(feature = "pvscsi")]
            Self::Pvscsi => *target < pvscsi::MAX_TARGETS,
            #[cfg(feature = "lsi")]
            Self::Lsi => Personality::Spi1030.has_target(*target),
            #[cfg(feature = "lsi")]
            Self::LsiSas => Personality::Sas1068.has_target(*target),
            #[cfg(feature = "ide")]
            Self::Ide | Self::IdeNative => usize::from(*target) < ide::MAX_DRIVES,
            #[cfg(feature = "buslogic")]
            Self::BusLogic => buslogic::has_target(*target),
            #[cfg(feature = "virtio")]
            Self::VirtioBlk => *target == 0,
            #[cfg(feature = "virtio")]
            Self::VirtioScsi => u16::from(*target) < virtio::scsi::Config::default().targets,
            #[cfg(feature = "vmbus")]
            Self::Storvsc => *target < vmbus::storvsc::MAX_LUNS,
        })
    }

    /// Maximum of [`AdapterConfig::queues`]. 1: the adapter or its guest determines the number of queues.
    #[must_use]
    pub const fn max_queues(self) -> u16 {
        #[cfg(feature = "virtio")]
        if let Self::VirtioBlk = self {
            return blk::MAX_QUEUES;
        }
        #[cfg(feature = "virtio")]
        if let Self::VirtioScsi = self {
            return virtio::scsi::MAX_REQUEST_QUEUES;
        }
        1
    }

    /// Maximum of [`AdapterConfig::threads`]. 0: the thread that calls the adapter serves its queues.
    #[must_use]
    pub const fn max_threads(self) -> u16 {
        #[cfg(feature = "virtio")]
        if let Self::VirtioBlk = self {
            return blk::MAX_QUEUES;
        }
        0
    }
}

/// A disk to be attached to an adapter.
#[derive(Clone)]
pub struct Attachment {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// The engine that does its I/O.
    pub engine: EngineKind,
    /// Serial number shown to the guest; `None`: the one that [`serial_numbers`](crate::serial_numbers) chooses for it among the adapter's
    /// disks.
    pub serial: Option<String>,
}

impl Attachment {
    /// A disk with the usual engine and serial number.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, engine: EngineKind::default(), serial: None }
    }

    /// As a SCSI logical unit, for an adapter with `tasks` requests in flight. Without a serial number of its own, the unit has that of its
    /// image or file; if there is none, the adapter that it is attached to names it by its place, such as `pvscsi:3`.
    ///
    /// # Errors
    /// The host refuses a queue.
    pub fn unit(&self, tasks: u32) -> Result<LogicalUnit, OpenError> {
        let serial = self.serial.clone().unwrap_or_else(|| identity::serial_number(&*self.disk));
        self.unit_with(serial, tasks)
    }

    fn unit_with(&self, serial: String, tasks: u32) -> Result<LogicalUnit, OpenError> {
        let queue = self.disk.queue(&QueueConfig { depth: tasks, engine: self.engine })?;
        let uuid = identity::uuid_of(&*self.disk, &serial);
        let identity = Identity { serial, uuid, ..Identity::default() };
        Ok(LogicalUnit::new(Arc::clone(&self.disk), queue, identity))
    }
}

/// How an adapter is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterConfig {
    /// Which.
    pub kind: AdapterKind,
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// Requests in flight at the most; with [`threads`](Self::threads), of each of them.
    pub tasks: u32,
    /// Number of request queues, limited to the range from 1 to [`max_queues`](AdapterKind::max_queues). A virtio device offers this number
    /// to its guest.
    pub queues: u16,
    /// Number of threads that serve the queues, limited to [`max_threads`](AdapterKind::max_threads) and to one for each queue. 0: the
    /// thread that calls the adapter serves them.
    pub threads: u16,
}

impl AdapterConfig {
    /// The usual moderation, 256 requests in flight, one queue, no threads.
    #[must_use]
    pub fn new(kind: AdapterKind) -> Self {
        Self { kind, coalescing: Coalescing::default(), tasks: 256, queues: 1, threads: 0 }
    }
}

/// Why an adapter could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The host refuses a disk's queue.
    #[error(transparent)]
    Queue(#[from] OpenError),
    /// A target is taken or does not exist.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The function cannot be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A virtio device could not be made.
    #[cfg(feature = "virtio")]
    #[error(transparent)]
    Virtio(#[from] blk::Error),
    /// A virtio block device has another number of disks.
    #[error("a virtio block device has exactly one disk")]
    OneDisk,
    /// [`build`] makes PCI functions.
    #[error("{0} is no PCI function: it is on a VMBus")]
    NoPciFunction(AdapterKind),
    /// `build_vmbus` makes devices of a VMBus.
    #[error("{0} is a PCI function: it is on no VMBus")]
    NoVmbusDevice(AdapterKind),
}

/// Make an adapter with these disks, each at its target (LUN 0).
///
/// # Errors
/// [`BuildError`]: nothing was made.
pub fn build<A>(
    memory: A,
    interrupts: Box<dyn InterruptSink>,
    config: AdapterConfig,
    disks: &[(u8, Attachment)],
) -> Result<Box<dyn PciDevice>, BuildError>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    let AdapterConfig { kind, coalescing, tasks, queues, threads } = config;
    check_targets(kind, disks)?;
    let serials = serials(kind, disks);
    let bus = || -> Result<Bus, BuildError> {
        let mut bus = Bus::new(tasks);
        for ((target, disk), serial) in disks.iter().zip(&serials) {
            let unit = disk.unit_with(serial.clone(), tasks)?;
            bus.attach(Address { target: *target, lun: 0 }, unit)?;
        }
        Ok(bus)
    };
    #[cfg(feature = "lsi")]
    let lsi = |personality| lsi::Config { personality, coalescing, tasks };
    Ok(match kind {
        #[cfg(feature = "pvscsi")]
        AdapterKind::Pvscsi => {
            let config = pvscsi::Config { coalescing, targets: pvscsi::MAX_TARGETS, tasks };
            Box::new(Pvscsi::new(memory, bus()?, interrupts, config)?)
        }
        #[cfg(feature = "lsi")]
        AdapterKind::Lsi => Box::new(Lsi::new(memory, bus()?, interrupts, lsi(Personality::Spi1030))?),
        #[cfg(feature = "lsi")]
        AdapterKind::LsiSas => Box::new(Lsi::new(memory, bus()?, interrupts, lsi(Personality::Sas1068))?),
        #[cfg(feature = "ide")]
        AdapterKind::Ide | AdapterKind::IdeNative => {
            let mode = match kind {
                AdapterKind::Ide => ide::Mode::Compatibility,
                _ => ide::Mode::Native,
            };
            let drives = ide_disks(disks, &serials)?;
            Box::new(Ide::new(memory, drives, interrupts, ide::Config { mode, coalescing })?)
        }
        #[cfg(feature = "buslogic")]
        AdapterKind::BusLogic => {
            let config = buslogic::Config { coalescing, tasks };
            Box::new(BusLogic::new(memory, bus()?, interrupts, config)?)
        }
        #[cfg(feature = "virtio")]
        AdapterKind::VirtioBlk => {
            let ([(_, Attachment { disk, engine, .. })], [serial]) = (disks, &*serials) else {
                return Err(BuildError::OneDisk);
            };
            let serial = blk::serial(serial);
            let queue_size = u16::try_from(tasks).unwrap_or(blk::MAX_QUEUE_SIZE);
            let config =
                blk::Config { coalescing, queues, queue_size, threads, tasks, engine: *engine, serial };
            Box::new(VirtioBlk::new(memory, Arc::clone(disk), interrupts, config)?)
        }
        #[cfg(feature = "virtio")]
        AdapterKind::VirtioScsi => {
            let queue_size = u16::try_from(tasks).unwrap_or(virtio::scsi::MAX_QUEUE_SIZE);
            let defaults = virtio::scsi::Config::default();
            let config = virtio::scsi::Config { coalescing, queues, queue_size, tasks, ..defaults };
            Box::new(VirtioScsi::new(memory, bus()?, interrupts, config)?)
        }
        #[cfg(feature = "vmbus")]
        AdapterKind::Storvsc => return Err(BuildError::NoPciFunction(kind)),
    })
}

/// The drives of an IDE function: target 0 is the primary master, 1 the primary slave, 2 and 3 are those of the secondary channel.
#[cfg(feature = "ide")]
fn ide_disks(
    disks: &[(u8, Attachment)],
    serials: &[String],
) -> Result<[Option<IdeDisk>; ide::MAX_DRIVES], BuildError> {
    let mut drives = [const { None }; ide::MAX_DRIVES];
    for ((target, Attachment { disk, engine, .. }), serial) in disks.iter().zip(serials) {
        let address = Address { target: *target, lun: 0 };
        let place = drives.get_mut(usize::from(*target)).ok_or(AttachError::Target(address))?;
        if place.is_some() {
            return Err(AttachError::Taken(address).into());
        }
        let queue = disk.queue(&QueueConfig { depth: 1, engine: *engine })?;
        *place = Some(IdeDisk { disk: Arc::clone(disk), queue, serial: serial.clone() });
    }
    Ok(drives)
}

/// Make a VMBus whose synthetic SCSI controller has these disks, each at the logical unit number that is equal to its target.
///
/// # Errors
/// [`BuildError`]: nothing was made.
#[cfg(feature = "vmbus")]
pub fn build_vmbus<A>(
    memory: A,
    synic: Box<dyn Synic>,
    config: AdapterConfig,
    disks: &[(u8, Attachment)],
) -> Result<Box<dyn VmbusDevice>, BuildError>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    let AdapterConfig { kind, coalescing, tasks, .. } = config;
    if kind != AdapterKind::Storvsc {
        return Err(BuildError::NoVmbusDevice(kind));
    }
    check_targets(kind, disks)?;
    let mut bus = Bus::new(tasks);
    for ((target, disk), serial) in disks.iter().zip(serials(kind, disks)) {
        let unit = disk.unit_with(serial, tasks)?;
        bus.attach(Address { target: 0, lun: u16::from(*target) }, unit).map_err(|error| match error {
            AttachError::Taken(_) => AttachError::Taken(Address { target: *target, lun: 0 }),
            other => other,
        })?;
    }
    // If the guest's processors are not known, the guest may name any.
    let of_guest = synic.processors().map_or(vmbus::Config::of_any_guest(), vmbus::Config::new);
    let config = vmbus::Config { coalescing, tasks, ..of_guest };
    Ok(Box::new(Vmbus::new(memory, bus, synic, config)))
}

/// Whether an adapter has the targets of these disks.
fn check_targets(kind: AdapterKind, disks: &[(u8, Attachment)]) -> Result<(), AttachError> {
    let addresses = disks.iter().map(|(target, _)| Address { target: *target, lun: 0 });
    for address in addresses {
        if !kind.targets().any(|target| target == address.target) {
            return Err(AttachError::Target(address));
        }
    }
    Ok(())
}

/// Serial numbers of an adapter's disks.
fn serials(kind: AdapterKind, disks: &[(u8, Attachment)]) -> Vec<String> {
    let places: Vec<_> =
        disks.iter().map(|(target, _)| kind.serial_of_place(Address { target: *target, lun: 0 })).collect();
    let nameless = disks.iter().zip(&places).map(|((_, attachment), place)| {
        let Attachment { disk, serial, .. } = attachment;
        Nameless { disk: &**disk, serial: serial.as_deref(), place }
    });
    serial_numbers(&nameless.collect::<Vec<_>>())
}

#[cfg(test)]
mod late_events;

#[cfg(test)]
mod tests {
    use paradisk_disk_formats::{RamDisk, SectorSize};
    use vm_memory::GuestMemoryMmap;

    use super::*;
    use crate::Time;
    #[cfg(feature = "vmbus")]
    use crate::testing::NoSynic;
    use crate::testing::{Counts, MEMORY, MIB, Sink};

    #[test]
    fn the_hosts_own_target_takes_no_disk() {
        let of = |kind: AdapterKind| kind.targets().collect::<Vec<_>>();
        assert_eq!(of(AdapterKind::Lsi).len(), 15);
        assert!(!of(AdapterKind::Lsi).contains(&7));
        assert_eq!(of(AdapterKind::BusLogic), of(AdapterKind::Lsi));
        assert_eq!(of(AdapterKind::LsiSas), (0..8).collect::<Vec<_>>());
        assert_eq!(of(AdapterKind::VirtioBlk), [0]);
        assert_eq!(of(AdapterKind::Pvscsi).len(), 64);
        assert_eq!(of(AdapterKind::Ide), [0, 1, 2, 3]);
    }

    #[test]
    fn an_adapter_says_which_disk_it_cannot_take() {
        let memory = Arc::new(GuestMemoryMmap::<()>::from_ranges(&MEMORY).unwrap());
        let disk = Attachment {
            disk: Arc::new(RamDisk::new(MIB, SectorSize::B512).unwrap()),
            engine: EngineKind::default(),
            serial: None,
        };
        let error = |kind, disks: &[(u8, Attachment)]| {
            let config = AdapterConfig { tasks: 32, ..AdapterConfig::new(kind) };
            let sink = Box::new(Sink(Arc::new(Counts::default())));
            build(memory.clone(), sink, config, disks).err().map(|error| error.to_string())
        };
        use AdapterKind::{BusLogic, Ide, IdeNative, Lsi, Pvscsi, VirtioBlk, VirtioScsi};
        for kind in [VirtioBlk, VirtioScsi, Pvscsi, Lsi, BusLogic, Ide, IdeNative] {
            assert_eq!(error(kind, &[(0, disk.clone())]), None);
            let text = "target 200: the adapter has no such target";
            assert_eq!(error(kind, &[(200, disk.clone())]).as_deref(), Some(text), "{kind}");
        }
        let one = Some("a virtio block device has exactly one disk".to_owned());
        assert_eq!(error(AdapterKind::VirtioBlk, &[]), one);
        assert_eq!(error(AdapterKind::VirtioBlk, &[(0, disk.clone()), (0, disk.clone())]), one);
        for kind in [Lsi, Ide] {
            let twice = error(kind, &[(1, disk.clone()), (1, disk.clone())]);
            assert!(twice.is_some_and(|text| text.contains("taken")), "{kind}");
        }
    }

    #[test]
    fn a_virtio_device_offers_as_many_queues_as_are_asked_for() {
        let memory = Arc::new(GuestMemoryMmap::<()>::from_ranges(&MEMORY).unwrap());
        let disk = Attachment::new(Arc::new(RamDisk::new(MIB, SectorSize::B512).unwrap()));
        // Of the common configuration, which is first in the BAR (VIRTIO 1.2, 4.1.4.3). virtio-scsi has two more queues.
        const NUM_QUEUES: u64 = 18;
        let offered = |kind, queues| {
            let config = AdapterConfig { queues, ..AdapterConfig::new(kind) };
            let sink = Box::new(Sink(Arc::new(Counts::default())));
            let mut device = build(memory.clone(), sink, config, &[(0, disk.clone())]).unwrap();
            let mut count = [0; 2];
            device.bar_read(0, NUM_QUEUES, &mut count, Time(0));
            u16::from_le_bytes(count)
        };
        assert_eq!([1, 4, 64, 65].map(|queues| offered(AdapterKind::VirtioBlk, queues)), [1, 4, 64, 64]);
        assert_eq!([1, 4, 62, 64].map(|queues| offered(AdapterKind::VirtioScsi, queues)), [3, 6, 64, 64]);
        assert_eq!(AdapterKind::Pvscsi.max_queues(), 1);
    }

    #[test]
    #[cfg(feature = "vmbus")]
    fn each_bus_has_its_own_adapters() {
        let memory = Arc::new(GuestMemoryMmap::<()>::from_ranges(&MEMORY).unwrap());
        let disk = Attachment::new(Arc::new(RamDisk::new(MIB, SectorSize::B512).unwrap()));
        let error = |kind, targets: &[u8]| {
            let disks: Vec<_> = targets.iter().map(|target| (*target, disk.clone())).collect();
            let built = build_vmbus(memory.clone(), Box::new(NoSynic), AdapterConfig::new(kind), &disks);
            built.err().map(|error| error.to_string())
        };
        assert_eq!(error(AdapterKind::Storvsc, &[0, 63]), None);
        assert_eq!(error(AdapterKind::Storvsc, &[]), None);
        let text = "target 64: the adapter has no such target";
        assert_eq!(error(AdapterKind::Storvsc, &[64]).as_deref(), Some(text));
        let twice = error(AdapterKind::Storvsc, &[5, 5]);
        assert!(twice.is_some_and(|text| text.starts_with("target 5 LUN 0: address taken")));
        let text = "pvscsi is a PCI function: it is on no VMBus";
        assert_eq!(error(AdapterKind::Pvscsi, &[0]).as_deref(), Some(text));
        let sink = Box::new(Sink(Arc::new(Counts::default())));
        let built = build(memory.clone(), sink, AdapterConfig::new(AdapterKind::Storvsc), &[]);
        let text = "storvsc is no PCI function: it is on a VMBus";
        assert_eq!(built.err().map(|error| error.to_string()).as_deref(), Some(text));
        assert_eq!(AdapterKind::Storvsc.bus(), crate::kind::BusKind::Vmbus);
        assert_eq!(AdapterKind::Lsi.bus(), crate::kind::BusKind::Pci);
        assert_eq!(AdapterKind::Storvsc.targets().count(), 64);
    }
}

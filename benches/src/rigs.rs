//! Engines: start a guest with an adapter and a disk.

use facts::disk::OpenDisk;
use facts::names::{Adapter, Coalescing};
use guest_driver::driver::Options;
use guest_driver::{
    BusLogic, Ide, Lsi, Pvscsi, VirtioBlk, VirtioScsi, buslogic, ide, lsi, pvscsi, virtio, vmbus,
};
use guest_tests::rig::{Rig, RigError};
use guest_tests::{Harness, HarnessConfig, KvmConfig, KvmRig};
use paradisk_devices::vmbus::{Synic, VmbusDevice};
use paradisk_devices::{AdapterConfig, AdapterKind, InterruptSink, PciDevice};
use paradisk_vmm::{Built, Host};
use vm_memory::GuestAddressSpace;

use crate::axes::Engine;
use crate::meter::Rigs;

/// Maximum number of requests in flight of an adapter.
const TASKS: u32 = 1024;

/// The configuration of all rigs of an engine.
#[derive(Clone, Copy, Debug)]
pub struct RigConfig {
    /// Bytes of guest memory.
    pub memory: u64,
    /// Thresholds of interrupt moderation. Each candidate has its own policy.
    pub thresholds: paradisk_devices::Coalescing,
}

/// The in-process harness.
#[derive(Clone, Copy, Debug)]
pub struct HarnessRigs(pub RigConfig);

impl Rigs for HarnessRigs {
    fn engine(&self) -> Engine {
        Engine::Harness
    }

    fn rig(
        &mut self,
        adapter: Adapter,
        coalescing: Coalescing,
        subject: &OpenDisk,
    ) -> Result<Box<dyn Rig>, RigError> {
        let config = HarnessConfig { memory: self.0.memory as usize, ..HarnessConfig::default() };
        let coalescing = paradisk_devices::Coalescing { policy: coalescing.into(), ..self.0.thresholds };
        let build = |memory, interrupts| device(adapter, memory, interrupts, coalescing, subject);
        Ok(match driver(adapter) {
            Options::Pvscsi(options) => Box::new(Harness::<Pvscsi>::start(&config, options, build)?),
            Options::Lsi(options) => Box::new(Harness::<Lsi>::start(&config, options, build)?),
            Options::Ide(options) => Box::new(Harness::<Ide>::start(&config, options, build)?),
            Options::BusLogic(options) => Box::new(Harness::<BusLogic>::start(&config, options, build)?),
            Options::VirtioBlk(options) => Box::new(Harness::<VirtioBlk>::start(&config, options, build)?),
            Options::VirtioScsi(options) => Box::new(Harness::<VirtioScsi>::start(&config, options, build)?),
            Options::Storvsc(options) => Box::new(Harness::storvsc(&config, options, |memory, synic| {
                vmbus_device(memory, synic, coalescing, subject)
            })?),
        })
    }
}

/// Virtual machines with the bare-metal guest.
#[derive(Debug)]
pub struct KvmRigs {
    host: Host,
    config: RigConfig,
}

impl KvmRigs {
    /// Machines of this configuration.
    ///
    /// # Errors
    /// [`paradisk_vmm::Error`] if `/dev/kvm` does not open or lacks a required feature.
    pub fn new(config: RigConfig) -> Result<Self, paradisk_vmm::Error> {
        Ok(Self { host: Host::open()?, config })
    }
}

impl Rigs for KvmRigs {
    fn engine(&self) -> Engine {
        Engine::Kvm
    }

    fn rig(
        &mut self,
        adapter: Adapter,
        coalescing: Coalescing,
        subject: &OpenDisk,
    ) -> Result<Box<dyn Rig>, RigError> {
        let config =
            KvmConfig { memory: self.config.memory, driver: driver(adapter), ..KvmConfig::default() };
        let coalescing = paradisk_devices::Coalescing { policy: coalescing.into(), ..self.config.thresholds };
        let rig = if adapter == Adapter::Storvsc {
            let build = |memory, synic| vmbus_device(memory, synic, coalescing, subject);
            KvmRig::start_vmbus(&self.host, &config, build)?
        } else {
            KvmRig::start(&self.host, &config, |memory, interrupts| {
                device(adapter, memory, interrupts, coalescing, subject)
            })?
        };
        Ok(Box::new(rig))
    }
}

/// The driver for an adapter.
fn driver(adapter: Adapter) -> Options {
    match adapter {
        Adapter::Pvscsi => Options::Pvscsi(pvscsi::Options::default()),
        Adapter::Lsi => Options::Lsi(lsi::Options::default()),
        Adapter::LsiSas => {
            Options::Lsi(lsi::Options { model: lsi::Model::Sas1068, ..lsi::Options::default() })
        }
        Adapter::Ide | Adapter::IdeNative => Options::Ide(ide::Options::default()),
        Adapter::BusLogic => Options::BusLogic(buslogic::Options::default()),
        Adapter::VirtioBlk => Options::VirtioBlk(virtio::Options::default()),
        Adapter::VirtioScsi => Options::VirtioScsi(virtio::Options::default()),
        Adapter::Storvsc => Options::Storvsc(vmbus::Options::default()),
    }
}

/// An adapter with the disk as target 0, or the disk itself.
fn device<A>(
    adapter: Adapter,
    memory: A,
    interrupts: Box<dyn InterruptSink>,
    coalescing: paradisk_devices::Coalescing,
    subject: &OpenDisk,
) -> Built<dyn PciDevice>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    let config = AdapterConfig { coalescing, tasks: TASKS, ..AdapterConfig::new(adapter.kind()) };
    Ok(paradisk_devices::build(memory, interrupts, config, &[(0, subject.attachment())])?)
}

/// A VMBus whose SCSI controller has the disk as logical unit 0.
fn vmbus_device<A>(
    memory: A,
    synic: Box<dyn Synic>,
    coalescing: paradisk_devices::Coalescing,
    subject: &OpenDisk,
) -> Built<dyn VmbusDevice>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    let config = AdapterConfig { coalescing, tasks: TASKS, ..AdapterConfig::new(AdapterKind::Storvsc) };
    Ok(paradisk_devices::build_vmbus(memory, synic, config, &[(0, subject.attachment())])?)
}

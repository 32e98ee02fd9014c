//! The adapters and disks of a machine: from the command line, and changed while the guest runs.

use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use facts::disk::OpenDisk;
use facts::names::Adapter;
use paradisk_devices::scsi::Address;
use paradisk_devices::{AdapterConfig, AdapterKind, BusKind, Coalescing};
use paradisk_vmm::{DeviceId, Machine, Mailbox};
use rustix::io::Errno;
use serde::Serialize;

use crate::disk::{self, flush};
use crate::disk_spec::DiskSpec;
use crate::failure::Failure;
use crate::metrics::{AdapterSnapshot, DiskSnapshot, Metering, Snapshot, time_requests};

/// How long a command to detach a disk waits for its I/O, and at which interval it polls.
const DETACH_WAIT: Duration = Duration::from_secs(10);
const DETACH_POLL: Duration = Duration::from_millis(1);

/// Maximum number of requests that an adapter keeps in flight.
const TASKS: u32 = 256;

/// An adapter of the machine with its disks.
pub(super) struct Controller {
    /// Its kind and number, as `pvscsi0`.
    pub(super) name: String,
    pub(super) device: DeviceId,
    pub(super) disks: BTreeMap<u8, OpenDisk>,
    kind: AdapterKind,
    mailbox: Mailbox,
}

impl Controller {
    /// The id of the disk at a target.
    pub(super) fn disk_id(&self, target: u8) -> String {
        match self.kind {
            AdapterKind::VirtioBlk => self.name.clone(),
            _ => format!("{}:{target}", self.name),
        }
    }

    /// What it has done; nothing where its thread has ended.
    pub(super) fn snapshot(&self) -> AdapterSnapshot {
        let report = self.mailbox.call(|device, _| (device.stats(), device.moderation()));
        let (stats, moderation) = report.unwrap_or_default();
        AdapterSnapshot { name: self.name.clone(), stats, moderation }
    }

    /// Report new capacities of its disks to the guest.
    fn refresh(&self) -> Result<(), String> {
        self.mailbox.call(|device, now| device.refresh(now)).map_err(|_| self.ended())
    }

    /// Whether the disk that was at a target still has requests.
    fn is_detaching(&self, target: u8) -> Result<bool, String> {
        let address = Address { target, lun: 0 };
        let detaching =
            self.mailbox.call(move |device, _| device.hot_plug().is_some_and(|bus| bus.detaching(address)));
        detaching.map_err(|_| self.ended())
    }

    fn free_target(&self) -> Option<u8> {
        self.kind.targets().find(|target| !self.disks.contains_key(target))
    }

    fn ended(&self) -> String {
        format!("{}: its thread has ended", self.name)
    }
}

/// A disk as lists show it.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    /// Its id in commands.
    pub(super) id: String,
    pub(super) adapter: &'static str,
    /// The adapter's slot on PCI bus 0; `None`: it is on the VMBus.
    pub(super) slot: Option<u8>,
    pub(super) target: u8,
    pub(super) serial: Option<String>,
    #[serde(flatten)]
    pub(super) facts: facts::disk::DiskFacts,
    /// Of disks that have a map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) map_memory: Option<facts::disk::MapMemory>,
}

/// All adapters of a machine.
pub(super) struct Storage {
    controllers: Vec<Controller>,
    coalescing: Coalescing,
    /// The sandbox is on: only granted paths can be opened.
    confined: bool,
    /// What is counted for each disk.
    metering: Metering,
}

/// The disks of the command line, open, and the adapters to be created.
pub(super) struct Disks(Vec<NewController>);

/// An adapter to be created.
struct NewController {
    kind: AdapterKind,
    /// Request queues of a virtio adapter: the maximum of `queues=` of its disks.
    queues: u16,
    /// Threads of a virtio block device: `threads=` of its disk.
    threads: u16,
    disks: BTreeMap<u8, OpenDisk>,
}

/// The adapter of a disk; PVSCSI where none is named.
fn kind_of(adapter: Option<Adapter>) -> AdapterKind {
    adapter.unwrap_or(Adapter::Pvscsi).kind()
}

/// An adapter to be created, with its disks by target.
type Planned<T> = (AdapterKind, BTreeMap<u8, T>);

/// Place each disk on the last adapter of its kind with a free target, or on a new one.
fn plan<T>(kinds: &[AdapterKind], disks: Vec<(AdapterKind, T)>) -> Vec<Planned<T>> {
    let mut planned: Vec<Planned<T>> = kinds.iter().map(|kind| (*kind, BTreeMap::new())).collect();
    for (kind, opened) in disks {
        let place = planned.iter_mut().rev().find_map(|(other, disks)| {
            let free = kind.targets().find(|target| !disks.contains_key(target));
            free.filter(|_| *other == kind).map(|target| (disks, target))
        });
        match place {
            Some((disks, target)) => drop(disks.insert(target, opened)),
            None => {
                let target = kind.targets().next().unwrap_or_default();
                planned.push((kind, BTreeMap::from([(target, opened)])));
            }
        }
    }
    planned
}

/// The error of an open, with a hint if the sandbox may be its cause.
fn denied(confined: bool, error: String) -> String {
    let denied = io::Error::from_raw_os_error(Errno::ACCESS.raw_os_error()).to_string();
    if confined && error.contains(&denied) {
        return format!("{error}; the sandbox opens files of `paradisk run --sandbox-path` alone");
    }
    error
}

/// Give all disks serial numbers, in the order of the command line: `planned` has each disk with its position there.
fn number(planned: &mut [Planned<(usize, OpenDisk)>]) -> Result<(), Failure> {
    let kinds: Vec<_> = planned.iter().map(|(kind, _)| *kind).collect();
    let mut disks = Vec::new();
    for (adapter, (kind, targets)) in planned.iter_mut().enumerate() {
        // The number of the adapter in its name, as in `pvscsi0`.
        let adapter = kinds.iter().take(adapter).filter(|other| *other == kind).count();
        let placed = targets
            .iter_mut()
            .map(|(target, (order, opened))| (*order, (format!("{kind}{adapter}:{target}"), opened)));
        disks.extend(placed);
    }
    disks.sort_by_key(|(order, _)| *order);
    disk::number(&mut disks.into_iter().map(|(_, disk)| disk).collect::<Vec<_>>())
}

impl Disks {
    /// Open the disks, and place them on adapters; adapters without disks are to be created, too.
    pub(super) fn open(
        adapters: &[Adapter],
        specs: &[DiskSpec],
        metering: Metering,
    ) -> Result<Self, Failure> {
        let kinds: Vec<_> = adapters.iter().map(|adapter| adapter.kind()).collect();
        if kinds.contains(&AdapterKind::VirtioBlk) {
            let text =
                "--adapter virtio-blk: a virtio block device is one disk; use --disk ...,adapter=virtio-blk";
            return Err(Failure::Usage(text.to_owned()));
        }
        let disks = specs
            .iter()
            .enumerate()
            .map(|(order, spec)| Ok((kind_of(spec.adapter), (order, disk::open_metered(spec, metering)?))))
            .collect::<Result<Vec<_>, Failure>>()?;
        let mut planned = plan(&kinds, disks);
        number(&mut planned)?;
        let controller = |(kind, disks): Planned<(usize, OpenDisk)>| {
            let most = |asked: fn(&DiskSpec) -> Option<u16>| {
                disks.values().filter_map(|(order, _)| asked(specs.get(*order)?)).max()
            };
            let (queues, threads) = (most(|spec| spec.queues), most(|spec| spec.threads));
            let (queues, threads) = (queues.unwrap_or(1), threads.unwrap_or(0));
            let opened = |(target, (_, opened))| (target, opened);
            NewController { kind, queues, threads, disks: disks.into_iter().map(opened).collect() }
        };
        Ok(Self(planned.into_iter().map(controller).collect()))
    }
}

impl Storage {
    /// Add the adapters and their disks to the machine.
    pub(super) fn new(
        machine: &mut Machine,
        Disks(planned): Disks,
        coalescing: Coalescing,
        metering: Metering,
        confined: bool,
    ) -> Result<Self, Failure> {
        let mut storage = Self { controllers: Vec::new(), coalescing, confined, metering };
        for controller in planned {
            storage.add(machine, controller)?;
        }
        Ok(storage)
    }

    fn add(
        &mut self,
        machine: &mut Machine,
        NewController { kind, queues, threads, disks }: NewController,
    ) -> Result<(), Failure> {
        let number = self.controllers.iter().filter(|other| other.kind == kind).count();
        let name = format!("{kind}{number}");
        let failed = |error: String| Failure::Failed(format!("{name}: {error}"));
        let config = AdapterConfig { kind, coalescing: self.coalescing, tasks: TASKS, queues, threads };
        let attached: Vec<_> = disks.iter().map(|(target, opened)| (*target, opened.attachment())).collect();
        let added = match kind.bus() {
            BusKind::Vmbus => machine.add_vmbus(|memory, synic| {
                Ok(paradisk_devices::build_vmbus(memory, synic, config, &attached)?)
            }),
            _ => machine.add_device(|memory, interrupts| {
                Ok(paradisk_devices::build(memory, interrupts, config, &attached)?)
            }),
        };
        let device = added.map_err(|error| failed(error.to_string()))?;
        let mailbox =
            machine.device(device).ok_or_else(|| failed("its thread has ended".to_owned()))?.clone();
        self.controllers.push(Controller { name, device, disks, kind, mailbox });
        Ok(())
    }

    pub(super) fn controllers(&self) -> &[Controller] {
        &self.controllers
    }

    /// All disks.
    pub(super) fn list(&self) -> Vec<Listed> {
        let of = |controller: &Controller| {
            let listed = |(target, opened): (&u8, &OpenDisk)| Listed {
                id: controller.disk_id(*target),
                adapter: controller.kind.as_str(),
                slot: controller.device.slot(),
                target: *target,
                serial: opened.serial.clone(),
                facts: opened.facts(),
                map_memory: opened.map_memory(),
            };
            controller.disks.iter().map(listed).collect::<Vec<_>>()
        };
        self.controllers.iter().flat_map(of).collect()
    }

    /// Statistics of all adapters and disks.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            disks: self.disks(),
            adapters: self.controllers.iter().map(Controller::snapshot).collect(),
        }
    }

    /// Statistics of all disks.
    pub(super) fn disks(&self) -> Vec<DiskSnapshot> {
        let of = |controller: &Controller| {
            let disk = |(target, opened): (&u8, &OpenDisk)| {
                DiskSnapshot::new(&controller.disk_id(*target), &controller.name, opened)
            };
            controller.disks.iter().map(disk).collect::<Vec<_>>()
        };
        self.controllers.iter().flat_map(of).collect()
    }

    /// Measure the latencies of requests of all disks, and of those that are attached later, or stop measuring.
    pub(super) fn time_requests(&mut self, on: bool) {
        if self.metering != Metering::Off {
            self.metering = if on { Metering::Latencies } else { Metering::Counts };
        }
        let disks = self.controllers.iter().flat_map(|controller| controller.disks.values());
        disks.for_each(|opened| time_requests(opened, on));
    }

    /// Attach a disk while the guest runs. Returns its id.
    pub(super) fn attach(&mut self, spec: &DiskSpec) -> Result<String, String> {
        let text = |failure| match failure {
            Failure::Usage(text) | Failure::Failed(text) => text,
            Failure::Reported => String::new(),
            Failure::Ended { text, .. } => text,
        };
        let kind = kind_of(spec.adapter);
        if kind == AdapterKind::VirtioBlk {
            return Err("virtio-blk: a disk of its own PCI function cannot come while the guest runs; \
                        use an adapter with targets"
                .to_owned());
        }
        if spec.queues.is_some() {
            return Err("queues: an adapter has the queues that it was made with".to_owned());
        }
        let confined = self.confined;
        let others = self.controllers.iter().flat_map(|controller| controller.disks.values());
        let mut others: Vec<_> = others.cloned().collect();
        let of_kind = |controller: &&mut Controller| controller.kind == kind;
        let controller =
            self.controllers.iter_mut().filter(of_kind).find(|controller| controller.free_target().is_some());
        let controller = controller.ok_or_else(|| {
            format!("no {kind} adapter with a free target; `paradisk run --adapter {kind}` makes one")
        })?;
        let target = controller.free_target().unwrap_or_default();
        let opened = disk::open_metered(spec, self.metering);
        let mut opened = opened.map_err(|failure| denied(confined, text(failure)))?;
        let place = format!("{}:{target}", controller.name);
        let mut disks: Vec<_> = others.iter_mut().map(|other| (String::new(), other)).collect();
        disks.push((place, &mut opened));
        disk::number(&mut disks).map_err(text)?;
        let unit = opened.attachment().unit(TASKS).map_err(|error| error.to_string())?;
        let done = controller.mailbox.call(move |device, _| {
            let bus = device.hot_plug().ok_or_else(|| "it takes no disks while the guest runs".to_owned())?;
            bus.attach(Address { target, lun: 0 }, unit).map_err(|error| error.to_string())
        });
        done.map_err(|_| controller.ended())?.map_err(|error| format!("{}: {error}", controller.name))?;
        controller.disks.insert(target, opened);
        Ok(controller.disk_id(target))
    }

    /// The controller and target of the disk with this id.
    fn find(&mut self, id: &str) -> Result<(&mut Controller, u8), String> {
        let found = self.controllers.iter_mut().find_map(|controller| {
            let target = controller.disks.keys().copied().find(|target| controller.disk_id(*target) == id)?;
            Some((controller, target))
        });
        found.ok_or_else(|| format!("there is no disk `{id}`"))
    }

    /// Make a disk larger, and report it to the guest.
    pub(super) fn resize(&mut self, id: &str, size: u64) -> Result<(), String> {
        let (controller, target) = self.find(id)?;
        if let Some(opened) = controller.disks.get(&target) {
            opened.disk.grow(size).map_err(|error| error.to_string())?;
        }
        controller.refresh()
    }

    /// Read the capacities of disks from the host again, and report new ones to the guest.
    pub(super) fn rescan(&self) -> Result<(), String> {
        let disks = self.controllers.iter().flat_map(|controller| controller.disks.values());
        let scanned = disk::rescan_all(disks);
        let failed: Vec<_> = self.controllers.iter().filter_map(|one| one.refresh().err()).collect();
        if failed.is_empty() { scanned } else { Err(failed.join("\n")) }
    }

    /// Detach a disk while the guest runs, and close it.
    pub(super) fn detach(&mut self, id: &str) -> Result<(), String> {
        let (controller, target) = self.find(id)?;
        let done = controller.mailbox.call(move |device, now| {
            let bus = device.hot_plug()?;
            Some(bus.detach(Address { target, lun: 0 }, now))
        });
        match done.map_err(|_| controller.ended())? {
            None => return Err(format!("{id}: its adapter lets no disk go while the guest runs")),
            Some(false) => return Err(format!("{id}: the adapter does not know it")),
            Some(true) => {}
        }
        let opened = controller.disks.remove(&target);
        let begin = Instant::now();
        // The guest continues to run meanwhile.
        while controller.is_detaching(target)? {
            if begin.elapsed() > DETACH_WAIT {
                return Err(format!(
                    "{id}: detached, but its disk has not completed its I/O: it is not flushed, and its file is in use until then"
                ));
            }
            thread::sleep(DETACH_POLL);
        }
        opened.map_or(Ok(()), |opened| flush(&opened))
    }

    /// Switch interrupt moderation, of one adapter or all.
    pub(super) fn set_coalescing(&self, adapter: Option<&str>, coalescing: Coalescing) -> Result<(), String> {
        let chosen = |controller: &&Controller| adapter.is_none_or(|name| name == controller.name);
        let mut any = false;
        for controller in self.controllers.iter().filter(chosen) {
            any = true;
            let done = controller.mailbox.call(move |device, _| device.set_coalescing(coalescing));
            done.map_err(|_| controller.ended())?;
        }
        if let (false, Some(name)) = (any, adapter) {
            return Err(format!("there is no adapter `{name}`"));
        }
        Ok(())
    }

    /// Flush all disks, after the machine has been dropped. Returns the errors.
    pub(super) fn close(self) -> Result<(), String> {
        let opened = self.controllers.into_iter().flat_map(|controller| controller.disks.into_values());
        disk::flush_all(opened)
    }
}

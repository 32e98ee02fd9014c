//! `paradisk serve vhost-user-blk`: a disk as another VMM's virtio block device.

use std::os::fd::AsFd;
use std::sync::Arc;

use paradisk_devices::virtio::blk::MAX_QUEUES;
use paradisk_devices::{Coalescing, Stats};
use paradisk_disk_formats::{KindMetrics, QueueMetrics};
use paradisk_serve::vhost_user_blk::{Event, Options, QueueReport, Server};
use sandbox::{Grants, Program};

use super::client_memory::ClientMemory;
use super::control::{Control, SetPolicy};
use super::conventions::{CAPABILITIES, Conventions};
use super::lifecycle::{Lifetime, announce, close, ends, say_disconnected};
use super::listen::{self, Clients, Listen};
use crate::coalescing::Moderation;
use crate::confinement::Confinement;
use crate::disk_spec::{DiskSpec, disk_help};
use crate::failure::Failure;
use crate::metrics::{AdapterSnapshot, DiskSnapshot};
use crate::monitoring::Monitoring;
use crate::polling::Polling;
use crate::service_manager::Manager;
use crate::{disk, output};

/// Serve a disk over vhost-user: the virtio block device of QEMU, Cloud Hypervisor, crosvm and others
///
/// One line is printed when clients can connect. They come one after the other, and share guest memory with the server.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
    paradisk serve vhost-user-blk --socket /run/paradisk/disk.socket --disk disk.vhdx\n  \
    qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=ram,size=1G,share=on -machine memory-backend=ram \\\n    \
    -chardev socket,id=disk,path=/run/paradisk/disk.socket,reconnect-ms=1000 -device vhost-user-blk-pci,chardev=disk")]
pub(crate) struct Args {
    #[command(flatten)]
    listen: Listen,
    /// The disk, as a path or KEY=VALUE,...
    #[arg(long, value_name = "SPEC", long_help = disk_help!("The disk, as a path or KEY=VALUE,..."))]
    disk: Option<DiskSpec>,
    /// Maximum number of queues that a client may use; each has a thread of its own. QEMU asks for one for each virtual CPU
    /// [default: the processors of this machine, at least 8 and at most 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: Option<u16>,
    #[command(flatten)]
    client_memory: ClientMemory,
    #[command(flatten)]
    moderation: Moderation,
    #[command(flatten)]
    polling: Polling,
    #[command(flatten)]
    lifetime: Lifetime,
    #[command(flatten)]
    monitoring: Monitoring,
    #[command(flatten)]
    confinement: Confinement,
    #[command(flatten)]
    conventions: Conventions,
}

/// Name of the device in statistics.
const ADAPTER: &str = "virtio-blk0";

/// Queues that are offered at the least: QEMU ends if there are fewer than it asks for.
const LEAST_QUEUES: usize = 8;

impl Args {
    fn queues(&self) -> u16 {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        // At most `MAX_QUEUES`, so the cast does not truncate.
        self.queues.unwrap_or_else(|| processors().clamp(LEAST_QUEUES, MAX_QUEUES.into()) as u16)
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.conventions.print_capabilities {
        return output::print(CAPABILITIES);
    }
    let spec = args.conventions.disk().or_else(|| args.disk.clone());
    let spec = spec.ok_or_else(|| Failure::Usage("one of --disk and --blk-file is needed".to_owned()))?;
    if spec.adapter.is_some() {
        return Err(Failure::Usage(
            "--disk: adapter is not for this command: it is always virtio-blk".to_owned(),
        ));
    }
    let (stop, end) = ends()?;
    let mut opened = disk::open_metered(&spec, args.monitoring.metering())?;
    disk::number(&mut [("virtio-blk0:0".to_owned(), &mut opened)])?;
    let options = Options {
        queues: args.queues(),
        serial: opened.serial.clone().unwrap_or_default(),
        engine: opened.engine,
        coalescing: args.moderation.get(),
        poll: args.polling.get(),
        memory: args.client_memory.sources()?,
    };
    let failed = |error| Failure::Failed(format!("{}: {error}", spec.source));
    let (from, place) = match args.conventions.fd {
        Some(number) => listen::descriptor(number)?,
        None => args.listen.open().map(|(socket, place)| (Clients::Listening(socket), place))?,
    };
    let listeners = args.monitoring.listen()?;
    let manager = Manager::connect();
    let sockets = args.listen.path().into_iter().chain(args.monitoring.paths()).collect();
    let sandbox = args.confinement.enter(Program::VhostUser, &Grants { sockets, ..Grants::default() })?;
    let server = Arc::new(Server::new(Arc::clone(&opened.disk), options).map_err(failed)?);
    let refresh: Box<dyn Fn() + Send + Sync> = {
        let server = Arc::clone(&server);
        Box::new(move || server.refresh())
    };
    let coalescing: SetPolicy = {
        let (server, options) = (Arc::clone(&server), args.moderation.get());
        Box::new(move |policy| server.set_coalescing(Coalescing { policy, ..options }))
    };
    let clients = args.lifetime.watch(&stop, &end)?;
    let disks = vec![("disk0".to_owned(), opened.clone())];
    let queues = Arc::clone(&server);
    let report = Box::new(move |disks: &[DiskSnapshot]| Some(report(disks, &queues.reports())));
    let (adapter, refresh, coalescing) = (ADAPTER.to_owned(), Some(refresh), Some(coalescing));
    let control = Control { disks, adapter, report, refresh, coalescing, end }.serve(listeners)?;
    sandbox.close()?;
    announce(&manager, &format!("serving {} at {place}", spec.source));
    let report = |event| {
        if let Event::Gone(_) = event {
            clients.disconnected();
        }
        say_event(event);
    };
    let served = match from {
        Clients::Listening(socket) => server.run(socket.listener(), stop.as_fd(), &report),
        Clients::Connected(client) => server.run_connected(client, stop.as_fd(), &report),
    };
    let served = served.map_err(failed);
    let pending = control.end();
    drop(server);
    close(&manager, vec![opened], served, pending)
}

/// What the queues have done. Requests are those of the disk: the queues do not count.
fn report(disks: &[DiskSnapshot], reports: &[QueueReport]) -> AdapterSnapshot {
    let queues = || disks.iter().flat_map(|disk| &disk.queues);
    let sum = |value: fn(&KindMetrics) -> u64| -> u64 {
        let kinds = |queue: &QueueMetrics| {
            let QueueMetrics { read, write, flush, discard, write_zeroes, .. } = queue;
            [read, write, flush, discard, write_zeroes].into_iter().map(value).sum::<u64>()
        };
        queues().map(kinds).sum()
    };
    let completions = sum(|kind| kind.completed);
    let stats = Stats {
        requests: completions + queues().map(|queue| queue.in_flight).sum::<u64>(),
        completions,
        errors: sum(|kind| kind.errors),
        interrupts: reports.iter().map(|report| report.signals).sum(),
        submits: queues().map(|queue| queue.submits).sum(),
        ..Stats::default()
    };
    let moderation = reports.iter().map(|report| report.moderation).collect();
    AdapterSnapshot { name: ADAPTER.to_owned(), stats, moderation }
}

fn say_event(event: Event) {
    if let Event::Gone(Some(reason)) = event {
        say_disconnected(&reason);
    }
}

#[cfg(test)]
mod tests {
    use paradisk_devices::Policy;
    use paradisk_disk_formats::{RamDisk, SectorSize};

    use super::*;

    /// A queue that has `unit` requests in flight. The kinds have `unit` times 1, 2, 4, 8 and 16 errors, and three times as many
    /// completions: no sum of some of these counts is the sum of others.
    fn queue(unit: u64) -> QueueMetrics {
        let mut queue = QueueMetrics::default();
        let QueueMetrics { read, write, flush, discard, write_zeroes, in_flight, submits, .. } = &mut queue;
        for (kind, power) in [read, write, flush, discard, write_zeroes].into_iter().zip(0..) {
            kind.errors = unit << power;
            kind.completed = 3 * kind.errors;
        }
        (*in_flight, *submits) = (unit, 5 * unit);
        queue
    }

    #[test]
    fn the_report_adds_up_what_all_queues_have_done() {
        let ram = Arc::new(RamDisk::new(1 << 20, SectorSize::B512).unwrap());
        let coalescing = Coalescing::policy(Policy::Batch);
        let server = Server::new(ram, Options { queues: 2, coalescing, ..Options::default() }).unwrap();
        let mut reports = server.reports();
        (reports[0].signals, reports[1].signals) = (5, 70);
        let disk = DiskSnapshot {
            id: "disk0".to_owned(),
            adapter: ADAPTER.to_owned(),
            format: "raw".to_owned(),
            capacity: 1 << 20,
            map_memory: None,
            queues: vec![queue(1), queue(32)],
        };
        let AdapterSnapshot { name, stats, moderation } = report(&[disk], &reports);
        let Stats { requests, completions, errors, interrupts, submits, .. } = stats;
        // Each count of the second queue is 32 times that of the first.
        assert_eq!((completions, errors, requests), (3 * 31 * 33, 31 * 33, 3 * 31 * 33 + 33));
        assert_eq!((name.as_str(), interrupts, submits), ("virtio-blk0", 75, 5 * 33));
        assert_eq!(moderation.iter().map(|vector| vector.policy).collect::<Vec<_>>(), [Policy::Batch; 2]);
    }
}

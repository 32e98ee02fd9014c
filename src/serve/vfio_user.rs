//! `paradisk serve vfio-user`: an adapter with its disks as another VMM's PCI function.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use facts::disk::OpenDisk;
use facts::names::Adapter;
use paradisk_devices::{AdapterConfig, AdapterKind, Coalescing};
use paradisk_disk_formats::{ThreadKind, spawn};
use paradisk_serve::vfio_user::{Ended, Note, Server};
use paradisk_serve::{ReportLimit, Socket, client_refused};
use sandbox::{Grants, Program};

use super::client_memory::ClientMemory;
use super::control::{Control, SetPolicy};
use super::lifecycle::{Lifetime, announce, close, ends, say, say_disconnected};
use super::listen::Listen;
use crate::coalescing::Moderation;
use crate::confinement::Confinement;
use crate::control::server::PendingCommand;
use crate::disk;
use crate::disk_spec::{DiskSpec, disk_help};
use crate::failure::Failure;
use crate::metrics::{AdapterSnapshot, DiskSnapshot};
use crate::monitoring::Monitoring;
use crate::polling::Polling;
use crate::service_manager::Manager;

/// How long the adapter may take to report what it has done.
const REPORT_TIME: Duration = Duration::from_secs(1);

/// Maximum number of requests that the adapter keeps in flight.
const TASKS: u32 = 256;

/// Serve an adapter with its disks over vfio-user: a PCI function for QEMU, Cloud Hypervisor and others
///
/// One line is printed when clients can connect. They come one after the other, and share guest memory with the server.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
    paradisk serve vfio-user --socket /run/paradisk/pvscsi.socket --adapter pvscsi --disk a.vhdx --disk b.vhd\n  \
    qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=ram,size=1G,share=on -machine memory-backend=ram \\\n    \
    -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"/run/paradisk/pvscsi.socket\"}}'")]
pub(crate) struct Args {
    #[command(flatten)]
    listen: Listen,
    /// The adapter: pvscsi, lsi, lsi-sas, buslogic, ide-native, virtio-blk, virtio-scsi
    #[arg(long, value_name = "NAME", default_value = "pvscsi")]
    adapter: Adapter,
    /// A disk, as a path or KEY=VALUE,...; may be repeated, in the order of targets
    #[arg(long, value_name = "SPEC", required = true, long_help = disk_help!(
        "A disk, as a path or KEY=VALUE,...; may be repeated, in the order of targets"
    ))]
    disk: Vec<DiskSpec>,
    /// Request queues, for virtio-blk and virtio-scsi
    #[arg(long, value_name = "N", default_value_t = 1)]
    queues: u16,
    /// Threads that serve the queues, for virtio-blk; at most the number of queues. 0: the thread that serves the client
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: u16,
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
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let kind = args.adapter.kind();
    check(args, kind)?;
    // Signals are handled before disks are opened that would have to be closed.
    let (stop, end) = ends()?;
    let metering = args.monitoring.metering();
    let open = |spec| disk::open_metered(spec, metering);
    let mut opened = args.disk.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let places = kind.targets().map(|target| format!("{kind}0:{target}"));
    disk::number(&mut places.zip(&mut opened).collect::<Vec<_>>())?;
    let socket = args.listen.open()?;
    let manager = Manager::connect();
    match serve(args, kind, &opened, (&socket, &manager), (stop, end)) {
        Ok(pending) => close(&manager, opened, Ok(()), pending),
        Err(failure) => close(&manager, opened, Err(failure), None),
    }
}

fn check(args: &Args, kind: AdapterKind) -> Result<(), Failure> {
    if args.disk.iter().any(|disk| disk.adapter.is_some()) {
        let text = "--disk: adapter is not for this command: all disks are on that of --adapter";
        return Err(Failure::Usage(text.to_owned()));
    }
    // vfio-user offers base address registers, message-signalled interrupts and INTx only.
    let elsewhere = match kind {
        AdapterKind::Ide => {
            Some("ide has the ports and interrupts of a PC/AT, which vfio-user cannot offer; use ide-native")
        }
        AdapterKind::Storvsc => Some("storvsc is on a VMBus, which vfio-user cannot offer"),
        _ => None,
    };
    if let Some(text) = elsewhere {
        return Err(Failure::Usage(format!("--adapter: {text}")));
    }
    let most = kind.max_queues();
    if !(1..=most).contains(&args.queues) {
        let text = format!("--queues {}: {kind} takes 1 to {most}", args.queues);
        return Err(Failure::Usage(text));
    }
    let most = kind.max_threads().min(args.queues);
    if args.threads > most {
        let text = match most {
            0 => format!("--threads: not with {kind}, only with virtio-blk"),
            _ => format!("--threads {}: at most --queues, {most}", args.threads),
        };
        return Err(Failure::Usage(text));
    }
    let most = kind.targets().count();
    if args.disk.len() > most {
        return Err(Failure::Usage(format!("{} disks: {kind} takes {most} at the most", args.disk.len())));
    }
    Ok(())
}

fn serve(
    args: &Args,
    kind: AdapterKind,
    opened: &[OpenDisk],
    ((socket, place), manager): (&(Socket, String), &Manager),
    (stop, end): (UnixStream, UnixStream),
) -> Result<Option<PendingCommand>, Failure> {
    let config = AdapterConfig {
        kind,
        coalescing: args.moderation.get(),
        tasks: TASKS,
        queues: args.queues,
        threads: args.threads,
    };
    let disks: Vec<_> = kind.targets().zip(opened.iter().map(OpenDisk::attachment)).collect();
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(format!("{kind}: {error}"));
    let listener = socket.listener().try_clone().map_err(|error| failed(&error))?;
    let sources = args.client_memory.sources()?;
    let listeners = args.monitoring.listen()?;
    let sockets = args.listen.path().into_iter().chain(args.monitoring.paths()).collect();
    let sandbox = args.confinement.enter(Program::VfioUser, &Grants { sockets, ..Grants::default() })?;
    let server = Server::new(listener, |memory, interrupts| {
        Ok(paradisk_devices::build(memory, interrupts, config, &disks)?)
    });
    let mut server = server.map_err(|error| failed(&error))?;
    server.set_memory_sources(sources);
    server.set_poll(args.polling.get());
    let (refresher, moderated, asked) = (server.handle(), server.handle(), server.handle());
    let refresh: Box<dyn Fn() + Send + Sync> = Box::new(move || refresher.refresh());
    let coalescing: SetPolicy =
        Box::new(move |policy| moderated.set_coalescing(Coalescing { policy, ..config.coalescing }));
    let clients = args.lifetime.watch(&stop, &end)?;
    let names = (0..).map(|index| format!("disk{index}"));
    let disks = names.zip(opened.iter().cloned()).collect();
    let adapter = format!("{kind}0");
    let name = adapter.clone();
    let report = Box::new(move |_: &[DiskSnapshot]| {
        let report = asked.report(REPORT_TIME)?;
        Some(AdapterSnapshot { name: name.clone(), stats: report.stats, moderation: report.moderation })
    });
    let (refresh, coalescing) = (Some(refresh), Some(coalescing));
    let control = Control { disks, adapter, report, refresh, coalescing, end }.serve(listeners)?;
    let report = move |note| {
        if let Note::Left(_) = note {
            clients.disconnected();
        }
        say_note(note);
    };
    // Not on this thread, which removes the sockets at the end: a client's input is for threads that open and remove nothing.
    let served = spawn(ThreadKind::VfioUserSession, "vfio-user", move || server.run(stop.as_fd(), report));
    let served = served.map_err(|error| failed(&error))?;
    sandbox.close()?;
    announce(manager, &format!("serving {kind} at {place}"));
    let served =
        served.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread of the clients has failed")));
    served.map_err(|error| failed(&error))?;
    Ok(control.end())
}

fn say_note(note: Note) {
    match note {
        Note::Connected | Note::Left(Ended::Closed) => {}
        Note::Left(ended) => say_disconnected(&ended),
        Note::MemoryRefused => {
            static LIMIT: ReportLimit = ReportLimit::new();
            say(
                &LIMIT,
                "a client's memory is refused: it is neither a memfd nor a file on tmpfs or hugetlbfs; --client-memory names other file systems",
            );
        }
        Note::NotAccepted(error) => client_refused(&error),
    }
}

//! `paradisk run`: boot Linux on KVM, with the console on the terminal.

mod events;
mod stats;
mod storage;
mod terminal;

use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use facts::names::{Adapter, Coalescing};
use paradisk_vmm::boot::{self, Linux, Loaded, NESTED_OPTIONS, Protocol};
use paradisk_vmm::{Config, Console, Host, IoThreadOptions, Machine};
use sandbox::{Grants, Program};
use serde_json::{Value, json};

use self::events::{End, Event};
use self::stats::Meter;
use self::storage::{Disks, Storage};
use crate::coalescing::Moderation;
use crate::confinement::Confinement;
use crate::control::server::{Listener, PendingCommand, Server};
use crate::control::{Command, Reply};
use crate::deadline::StopTimeout;
use crate::disk_spec::{DiskSpec, disk_help};
use crate::failure::Failure;
use crate::ignored::Ignored;
use crate::monitoring::Monitoring;
use crate::polling::Polling;
use crate::service_manager::Manager;
use crate::tell;
use crate::{metrics, output, units};

/// Interval of checks whether the guest has halted for good.
const HALT_CHECK: Duration = Duration::from_secs(1);
/// How long to wait for the console's last output.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// How long a client of the metrics waits for the main thread, which may wait for a disk.
const METRICS_TIME: Duration = Duration::from_secs(2);
/// Typed input is dropped when the guest has taken none for so long.
const INPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Boot Linux on KVM with its disks on any adapters; the serial console is the terminal, Ctrl-A x ends the machine.
///
/// Exit status: 0 when the guest powers off or the user ends the machine, 3 when the guest resets it, 4 when it halts for good, 1 when it
/// fails.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk run --kernel vmlinuz --initrd initrd.img --cmdline 'root=/dev/sda1 ro' --memory 2G --cpus 2 --disk debian.vhdx
  paradisk run --kernel vmlinux --disk path=a.vhd,adapter=lsi --disk path=b.raw,adapter=virtio-blk --stats stats.json
  paradisk run --kernel vmlinux --control vm.socket --adapter pvscsi --sandbox-path images/ &
  paradisk ctl vm.socket attach path=images/data.vhdx,adapter=pvscsi")]
pub(crate) struct Args {
    /// Kernel: bzImage, or ELF vmlinux
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// Initial RAM disk
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// The kernel's command line. Before it come options that end the machine after a panic and that make the serial port the
    /// console where TEXT names none, and what a kernel needs on a nested KVM
    #[arg(long, value_name = "TEXT", default_value = "")]
    cmdline: String,
    /// Hand over the command line alone
    #[arg(long)]
    exact_cmdline: bool,
    /// How the kernel is entered: linux64, or pvh (ELF kernels with the note)
    #[arg(long, value_name = "NAME", value_parser = protocol, default_value = "linux64")]
    protocol: Protocol,
    /// Virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=254))]
    cpus: u8,
    /// Guest memory
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::size)]
    memory: u64,
    /// A disk, as a path or KEY=VALUE,...; may be repeated. adapter= says where it is attached [default: pvscsi]
    #[arg(long, value_name = "SPEC", long_help = disk_help!(
        "A disk, as a path or KEY=VALUE,...; may be repeated. adapter= says where it is attached [default: pvscsi]"
    ))]
    disk: Vec<DiskSpec>,
    /// An adapter without disks, for those that come later (`paradisk ctl`); may be repeated
    #[arg(long, value_name = "NAME")]
    adapter: Vec<Adapter>,
    #[command(flatten)]
    moderation: Moderation,
    #[command(flatten)]
    polling: Polling,
    #[command(flatten)]
    monitoring: Monitoring,
    /// Write what the machine did and what it cost, as JSON, when it ends
    #[arg(long, value_name = "FILE", value_parser = output::json_target())]
    stats: Option<PathBuf>,
    #[command(flatten)]
    stop_timeout: StopTimeout,
    #[command(flatten)]
    confinement: Confinement,
    /// An image, a block device, or a folder with all below, that `paradisk ctl attach` may open later, with parents; may be repeated
    #[arg(long, value_name = "PATH")]
    sandbox_path: Vec<PathBuf>,
}

impl Args {
    /// Paths that are opened in the sandbox: the kernel is loaded when all adapters exist, and `/proc` has the CPU time of each thread.
    fn grants(&self) -> Grants {
        let clocks = PathBuf::from("/proc/self/task");
        Grants {
            images: self.sandbox_path.clone(),
            read: self.initrd.iter().cloned().chain([self.kernel.clone(), clocks]).collect(),
            sockets: self.monitoring.paths().collect(),
        }
    }
}

fn protocol(name: &str) -> Result<Protocol, String> {
    match name {
        "linux64" => Ok(Protocol::Linux64),
        "pvh" => Ok(Protocol::Pvh),
        _ => Err(format!("protocol `{name}` is not one of: linux64, pvh")),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let failed = |error: paradisk_vmm::Error| Failure::Failed(error.to_string());
    let host = Host::open().map_err(failed)?;
    let (sender, events) = mpsc::channel();
    let io_thread = IoThreadOptions { poll: args.polling.get() };
    let config = Config { memory: args.memory, cpus: args.cpus, io_thread, ..Config::default() };
    let machine = Machine::new(&host, config, events::of_machine(sender.clone())).map_err(failed)?;
    let disks = Disks::open(&args.adapter, &args.disk, args.monitoring.metering())?;
    // For statistics: the description of the host is read from files that cannot be opened in the sandbox.
    let _ = facts::host::host();
    let stats = args.stats.as_deref().map(output::Document::create).transpose()?;
    let listeners = args.monitoring.listen()?;
    let ignored = Ignored::read();
    let manager = Manager::connect();
    let program = if args.sandbox_path.is_empty() { Program::Run } else { Program::RunAttaching };
    let confined = args.confinement.enter(program, &args.grants())?;
    let mut running = Running::new(machine, args, disks, stats)?;
    let loaded = load(args, &host, &running.machine)?;
    let _server = listeners.control.map(|listener| serve(listener, sender.clone())).transpose()?;
    let _metrics = serve_metrics(listeners.metrics, sender.clone())?;
    // Before the terminal is in raw mode: a signal must not kill the process without restoring it.
    let deadline = args.stop_timeout.start()?;
    events::take_signals(ignored, &sender, &deadline)?;
    let _raw = terminal::Raw::enter().map_err(|error| Failure::Failed(format!("terminal: {error}")))?;
    running.read_terminal(sender)?;
    running.start(&loaded)?;
    confined.close()?;
    manager.ready("the guest runs");
    let end = running.handle(&events);
    deadline.announce();
    manager.stopping();
    running.finish(end)
}

/// Load the system into guest memory.
fn load(args: &Args, host: &Host, machine: &Machine) -> Result<Loaded, Failure> {
    let cmdline = if args.exact_cmdline {
        args.cmdline.clone()
    } else {
        if !host.native_kernel_mode {
            tell!("note: KVM interprets kernel mode here; kernel options added: {NESTED_OPTIONS}");
        }
        boot::command_line(host.native_kernel_mode, &args.cmdline)
    };
    let system =
        Linux { kernel: args.kernel.clone(), initrd: args.initrd.clone(), cmdline, protocol: args.protocol };
    system.load(machine).map_err(|error| Failure::Failed(error.to_string()))
}

fn serve(listener: Listener, sender: mpsc::Sender<Event>) -> Result<Server, Failure> {
    let execute = move |pending| sender.send(Event::Command(pending)).is_ok();
    listener.serve(execute).map_err(|error| Failure::Failed(format!("control socket: {error}")))
}

/// Serve metrics, if they are wanted. The main thread makes them, as it knows the disks.
fn serve_metrics(
    listener: Option<metrics::Listener>,
    sender: mpsc::Sender<Event>,
) -> Result<Option<metrics::Server>, Failure> {
    metrics::Server::start(listener, move || {
        let (answer, answered) = mpsc::sync_channel(1);
        sender.send(Event::Metrics(answer)).ok()?;
        answered.recv_timeout(METRICS_TIME).ok()
    })
}

/// A machine with its disks and its console.
struct Running {
    storage: Storage,
    machine: Machine,
    console: Console,
    meter: Meter,
    coalescing: paradisk_devices::Coalescing,
    /// Where the statistics go.
    stats: Option<output::Document>,
    /// The command by which a client of the control socket stopped the machine: answered when the disks are closed.
    stopped_by: Option<PendingCommand>,
}

impl Running {
    fn new(
        mut machine: Machine,
        args: &Args,
        disks: Disks,
        stats: Option<output::Document>,
    ) -> Result<Self, Failure> {
        let failed = |error: paradisk_vmm::Error| Failure::Failed(error.to_string());
        let console = machine.add_pc(io::stdout()).map_err(failed)?;
        let coalescing = args.moderation.get();
        let storage = Storage::new(
            &mut machine,
            disks,
            coalescing,
            args.monitoring.metering(),
            args.confinement.is_on(),
        )?;
        let meter = Meter::start(&machine, &storage);
        Ok(Self { storage, machine, console, meter, coalescing, stats, stopped_by: None })
    }

    fn read_terminal(&self, sender: mpsc::Sender<Event>) -> Result<(), Failure> {
        let console = self.console.clone();
        // Input from a file or a pipe is never dropped.
        let typed = terminal::is_typed_at();
        let mut taken_last = Instant::now();
        let type_in = move |mut bytes: &[u8]| {
            while !bytes.is_empty() {
                let taken = console.push(bytes);
                bytes = bytes.get(taken..).unwrap_or_default();
                if taken > 0 {
                    taken_last = Instant::now();
                } else if typed && taken_last.elapsed() > INPUT_TIMEOUT {
                    // Dropped, as on a line without flow control; else Ctrl-A x would wait behind it.
                    return;
                } else {
                    // The guest reads slower than the user pastes.
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        };
        let end = move || drop(sender.send(Event::End(End::Stopped)));
        terminal::read_input(type_in, end).map_err(|error| Failure::Failed(format!("terminal: {error}")))
    }

    fn start(&mut self, loaded: &Loaded) -> Result<(), Failure> {
        self.meter = Meter::start(&self.machine, &self.storage);
        let started = self.machine.start(|cpu, vcpu| loaded.set_registers(cpu, vcpu));
        started.map_err(|error| Failure::Failed(error.to_string()))
    }

    /// Handle events until the machine ends.
    fn handle(&mut self, events: &mpsc::Receiver<Event>) -> End {
        let mut halt_check = Instant::now() + HALT_CHECK;
        loop {
            let wait = halt_check.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                if self.machine.is_halted() {
                    return End::Halted;
                }
                halt_check = Instant::now() + HALT_CHECK;
            }
            match events.recv_timeout(wait) {
                Ok(Event::Command(pending)) if pending.command == Command::Stop => {
                    self.stopped_by = Some(pending);
                    return End::Stopped;
                }
                Ok(Event::Command(PendingCommand { command, answer, .. })) => {
                    // Fails where the client has disconnected.
                    let _ = answer.send(Reply::from(self.command(command)));
                }
                Ok(Event::Metrics(answer)) => {
                    // Fails if the requester no longer waits.
                    let _ = answer.try_send(self.storage.snapshot());
                }
                Ok(Event::End(end)) => return end,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return End::Failed("nothing can end the machine any more".to_owned());
                }
            }
        }
    }

    fn command(&mut self, command: Command) -> Result<Value, String> {
        let text = |error: serde_json::Error| error.to_string();
        match command {
            Command::List => serde_json::to_value(self.storage.list()).map_err(text),
            Command::Attach { disk } => self.storage.attach(&disk.parse()?).map(|id| json!(id)),
            Command::Detach { id } => self.storage.detach(&id).map(|()| json!(id)),
            Command::Resize { id, size } => self.storage.resize(&id, units::size(&size)?).map(|()| json!(id)),
            Command::Rescan => self.storage.rescan().map(|()| Value::Null),
            Command::Coalescing { policy, adapter } => {
                let policy = policy.parse::<Coalescing>().map_err(|error| error.to_string())?;
                let coalescing = paradisk_devices::Coalescing { policy: policy.into(), ..self.coalescing };
                self.storage.set_coalescing(adapter.as_deref(), coalescing)?;
                Ok(json!(policy.as_str()))
            }
            Command::Stats { latency } => {
                latency.into_iter().for_each(|on| self.storage.time_requests(on));
                serde_json::to_value(self.meter.read(&self.machine, &self.storage)).map_err(text)
            }
            // Answered in `finish`.
            Command::Stop => Ok(json!("stopped")),
        }
    }

    /// Stop the machine, close the disks, report how it ended.
    fn finish(mut self, end: End) -> Result<(), Failure> {
        self.machine.stop();
        if !self.console.flush(LAST_OUTPUT) {
            tell!("note: standard output does not take the console's last output");
        }
        if let lost @ 1.. = self.console.lost() {
            tell!("note: {lost} bytes of the console's output were lost");
        }
        let stats = self.stats.map(|document| (document, self.meter.read(&self.machine, &self.storage)));
        drop(self.machine);
        let closed = self.storage.close();
        if let Some(pending) = self.stopped_by {
            pending.stopped(&closed);
        }
        let written = stats.map_or(Ok(()), |(document, stats)| document.write(&stats));
        // Every failure is reported, not only the last.
        let mut ended = end.into_result();
        for failure in [written, closed.map_err(Failure::Failed)].into_iter().filter_map(Result::err) {
            if let Err(before) = std::mem::replace(&mut ended, Err(failure)) {
                tell::failure(&before);
            }
        }
        ended
    }
}

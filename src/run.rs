//! `paradisk run`.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use vmm::boot::{Linux, NESTED_OPTIONS, Protocol};
use vmm::{Config, Console, Event, Host, Machine, StopReason};

use crate::failure::Failure;
use crate::units;

/// Exit status when the guest reset the machine.
const RESET: u8 = 3;
/// What every guest is told, before the user's own: the console is the serial port, and a panic ends in a reset.
const OPTIONS: &str = "console=ttyS0 panic=-1";
/// How long the console's last output may take.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// Boot Linux on KVM, with its serial console on standard output.
///
/// Ends when the guest powers off (exit status 0) or resets (3).
#[derive(clap::Args)]
#[command(after_help = "Example:
  paradisk run --kernel vmlinux --initrd initramfs.cpio --memory 512M --cmdline 'quiet'")]
pub(crate) struct Args {
    /// Kernel: bzImage, or ELF vmlinux.
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// Initial RAM disk.
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// Kernel command line, after options for the console and, on a nested KVM, what a kernel needs there.
    #[arg(long, value_name = "TEXT", default_value = "")]
    cmdline: String,
    /// Pass --cmdline alone.
    #[arg(long)]
    no_default_cmdline: bool,
    /// Enter an ELF kernel by its PVH entry point instead of the 64-bit boot protocol.
    #[arg(long)]
    pvh: bool,
    /// Virtual CPUs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=254))]
    cpus: u8,
    /// Memory, as 512M or 4G.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = units::size)]
    memory: u64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    let host = Host::open().map_err(|error| failed(&error))?;
    let (sender, events) = mpsc::channel();
    let config = Config { memory: args.memory, cpus: args.cpus, ..Config::default() };
    let sink = Arc::new(move |event| drop(sender.send(event)));
    let mut machine = Machine::new(&host, config, sink).map_err(|error| failed(&error))?;
    let console = machine.add_pc(io::stdout()).map_err(|error| failed(&error))?;
    let system = Linux {
        kernel: args.kernel.clone(),
        initrd: args.initrd.clone(),
        cmdline: cmdline(args, &host),
        protocol: if args.pvh { Protocol::Pvh } else { Protocol::Linux64 },
    };
    let loaded = system.load(&machine).map_err(|error| failed(&error))?;
    machine.start(|cpu, vcpu| loaded.set_registers(cpu, vcpu)).map_err(|error| failed(&error))?;
    let event = events.recv().map_err(|error| failed(&error))?;
    machine.stop();
    finish(&console);
    conclude(event)
}

/// The options that go with the host, then the user's, which may end in arguments of init.
fn cmdline(args: &Args, host: &Host) -> String {
    let nested = !host.native_kernel_mode;
    let options = match (args.no_default_cmdline, nested) {
        (true, _) => vec![],
        (false, false) => vec![OPTIONS],
        (false, true) => vec![OPTIONS, NESTED_OPTIONS],
    };
    if !args.no_default_cmdline && nested {
        eprintln!("note: KVM interprets kernel mode here; the kernel is told: {NESTED_OPTIONS}");
    }
    let options = options.into_iter().chain([args.cmdline.as_str()]);
    options.filter(|option| !option.is_empty()).collect::<Vec<_>>().join(" ")
}

fn finish(console: &Console) {
    if !console.flush(LAST_OUTPUT) {
        eprintln!("note: standard output does not take the console's last output");
    }
    match console.lost() {
        0 => {}
        lost => eprintln!("note: {lost} bytes of the console's output were lost"),
    }
}

/// The exit status of what the guest did.
fn conclude(event: Event) -> Result<ExitCode, Failure> {
    match event {
        Event::Vcpu { outcome: Ok(StopReason::PowerOff), .. } => Ok(ExitCode::SUCCESS),
        Event::Vcpu { outcome: Ok(_), .. } => {
            eprintln!("note: the guest reset the machine");
            Ok(ExitCode::from(RESET))
        }
        Event::Vcpu { outcome: Err(error), .. } if error.is_triple_fault() => {
            eprintln!("note: the guest reset the machine: {error}");
            Ok(ExitCode::from(RESET))
        }
        Event::Vcpu { outcome: Err(error), .. } => Err(Failure::Failed(error.to_string())),
        Event::Device { id, cause } => Err(Failure::Failed(format!("device in slot {}: {cause}", id.slot()))),
    }
}

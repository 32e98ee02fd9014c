//! The command line: virtual storage adapters and virtual disks, and the instrument that measures them.

// `tell!` neither fails nor waits.
#![deny(clippy::print_stderr)]

#[macro_use]
mod tell;
#[cfg(feature = "bench")]
mod bench;
mod coalescing;
mod confinement;
mod control;
mod ctl;
mod deadline;
mod disk;
mod disk_spec;
#[cfg(feature = "bench")]
mod documents;
mod failure;
mod flush;
mod generate;
mod http;
mod ignored;
mod image;
mod inherited;
#[cfg(feature = "bench")]
mod load;
mod metrics;
mod monitoring;
mod output;
mod parents;
mod polling;
mod progress;
#[cfg(feature = "bench")]
mod report;
mod run;
mod serve;
mod service_manager;
mod units;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::{Resource, getrlimit, setrlimit};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::time::uptime;

/// Virtual storage adapters and virtual disks for KVM, and the instrument that measures them.
#[derive(Parser)]
#[command(name = "paradisk", version, arg_required_else_help = true)]
struct Cli {
    /// Diagnostics on standard error: off, error, warn, info, debug, trace
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "PARADISK_LOG",
        default_value = "off",
        hide_env = true
    )]
    log: LevelFilter,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[cfg(feature = "bench")]
    Bench(Box<bench::Args>),
    Image(image::Args),
    #[cfg(feature = "bench")]
    Report(report::Args),
    Run(Box<run::Args>),
    Ctl(ctl::Args),
    Serve(Box<serve::Args>),
    Completions(generate::CompletionsArgs),
    // For packages of this program.
    #[command(hide = true)]
    Man(generate::ManArgs),
}

/// Raise the limit on open descriptors to the hard limit: a chain needs one for each image, a server one for each map of a vfio-user
/// client.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails, later opens may fail, with an error.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// A write past the limit on the size of files (RLIMIT_FSIZE) fails with EFBIG, and so does the request of the guest or client. The signal that
/// comes with it would end the process, which may serve others.
fn survive_file_size_limit() {
    // If the handler cannot be installed, the signal still ends the process.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Print errors of disks that a guest or a client uses, which itself sees only an I/O error, and those of the host that keep clients from being
/// served. Tools return theirs.
fn report_disk_errors() {
    paradisk_devices::on_disk_fault(|fault| tell!("error: {fault}"));
    paradisk_serve::on_client_refused(|text| {
        tell!("warning: {text} (limits: `ulimit -n` and `-u`, LimitNOFILE= and TasksMax= of a unit)");
    });
    paradisk_disk_formats::on_flush_lost(|error| {
        tell!("error: {error}. Stop, make space or replace the storage, then run `paradisk image check`");
    });
}

/// Print events of the crates up to this level.
fn log(level: LevelFilter) {
    if level != LevelFilter::OFF {
        let log = tracing_subscriber::fmt().with_max_level(level).with_writer(|| tell::Events);
        log.with_ansi(false).with_timer(uptime()).init();
    }
}

#[expect(unsafe_code, reason = "the first statement of the process")]
fn main() -> ExitCode {
    // SAFETY: no descriptor has been opened before.
    unsafe { inherited::claim() };
    raise_descriptor_limit();
    survive_file_size_limit();
    let Cli { log: level, command } = Cli::parse();
    if let Command::Run(_) | Command::Serve(_) = command {
        tell::queue();
        report_disk_errors();
    }
    log(level);
    let done = match command {
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::run(&args),
        Command::Image(args) => image::run(&args),
        #[cfg(feature = "bench")]
        Command::Report(args) => report::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Ctl(args) => ctl::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Completions(args) => generate::completions(&args, Cli::command()),
        Command::Man(args) => generate::man(&args, Cli::command()),
    };
    let status = match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => tell::failure(&failure),
    };
    tell::finish();
    status
}

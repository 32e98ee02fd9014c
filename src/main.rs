//! The command line: virtual storage adapters and virtual disks, and the instrument that measures them.

mod bench;
mod coalescing;
mod disk;
mod disk_spec;
mod failure;
mod image;
mod output;
mod report;
mod units;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Virtual storage adapters and virtual disks for KVM, and the instrument that measures them.
#[derive(Parser)]
#[command(name = "paradisk", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(Box<bench::Args>),
    Image(image::Args),
    Report(report::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Image(args) => image::run(&args),
        Command::Report(args) => report::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

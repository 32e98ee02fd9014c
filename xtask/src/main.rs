//! Project tasks, among them: `cargo xtask test` runs all checks and tests, the same here and on the machine of CI;
//! `cargo xtask test-kernel` makes a kernel to boot; `cargo xtask crates` checks the crates that are published.

mod api;
mod command;
mod deb;
mod deny;
mod embedding;
mod exact;
mod fuzz;
mod images;
mod imports;
mod mutants;
mod nextest;
mod product;
mod requirements;
mod soak;
mod stress;
mod summary;
mod svm;
mod test;
mod times;
mod tools;

use std::process::ExitCode;
use std::{env, io};

use guest_linux::Clock;
use test::Tier;

const USAGE: &str = "usage: cargo xtask test [--quick|--all|--times [BEFORE AFTER]]|stress [OPTIONS]|mutants FOLDER|test-kernel|exact [OPTIONS]|svm [--exact] SCRIPT RESULTS [NAME=PATH]...|fuzz [OPTIONS]|soak [--minutes N] [--load NAME]|imports|crates [NAME]|api|deb [--check]\n\n  \
    test         decides whether a change lands: formatting, lints, documentation, tests; installs what it lacks where it may\n               \
                 --quick: formatting, imports and most of the tests beside the code, in minutes\n               \
                 --all: everything, in hours; goes on where it was interrupted\n               \
                 --times: compares where the time went in two runs: two records, or the last two\n  \
    stress       tests beside artificial load; lists those that failed (--help)\n  \
    mutants      changes the code in a folder and looks whether a test notices (--help)\n  \
    test-kernel  Linux for test guests and an initramfs that verifies disks: builds what is not cached, prints the paths\n  \
    exact        instructions per I/O of each adapter, counted on emulated hardware virtualization, QEMU's devices beside it (--help)\n  \
    fuzz         fuzz targets, all or one, guided by coverage; replays findings (--help)\n  \
    soak         servers and adapters under load with faults: data verified, growth is an error (10 minutes)\n  \
    svm          runs a shell script on a Linux host with KVM inside QEMU, beside paradisk, vmlinuz, initramfs and the files\n               \
                 named; what it leaves in /out is unpacked into the folder RESULTS; --exact: its time is instructions, which are counted\n  \
    imports      what `test` checks of the import graph of each crate: no cycles, and no import of an item through the root of its crate\n  \
    crates       what `test` checks of the crates that are published: features, packages, cargo install, public API;\n               \
                 with a part of their names, those alone\n  \
    api          writes the lists of public APIs in docs/api anew\n  \
    deb          builds a Debian package of paradisk, prints its path\n               \
                 --check: packages the program of the tests, installs it in a minimal Debian and runs it, as `test` does\n";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let failed = |error: &dyn std::error::Error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    };
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => test(Tier::Default).unwrap_or_else(|error| failed(&error)),
        ["test", "--quick"] => test(Tier::Quick).unwrap_or_else(|error| failed(&error)),
        ["test", "--all"] => test(Tier::All).unwrap_or_else(|error| failed(&error)),
        ["test", "--times", ref files @ ..] if [0, 2].contains(&files.len()) => match times::compare(files) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        },
        ["stress", ref options @ ..] => crates(|| stress::run(options)),
        // Started by `stress`.
        ["load", kind] => crates(|| stress::load(kind)),
        ["mutants", ref options @ ..] => crates(|| mutants::run(options)),
        ["test-kernel"] => images::test_kernel().map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS),
        ["exact", ref options @ ..] => exact(options).unwrap_or_else(|error| failed(&*error)),
        ["svm", "--exact", script, results, ref files @ ..] => {
            svm(Clock::Instructions, script, results, files)
        }
        ["svm", script, results, ref files @ ..] => svm(Clock::Host, script, results, files),
        ["fuzz", ref options @ ..] => {
            let from = env::current_dir().unwrap_or_default();
            crates(|| found(fuzz::run(options, &from)))
        }
        ["soak", ref options @ ..] => crates(|| soak::run(options)),
        ["imports"] => crates(|| imports::check().map(drop)),
        ["crates"] => crates(|| embedding::check("")),
        ["crates", part] => crates(|| embedding::check(part)),
        ["api"] => crates(api::write),
        ["deb"] => crates(deb::write),
        ["deb", "--check"] => crates(|| {
            nextest::build(&[])?;
            deb::check().map(|skipped| skipped.into_iter().for_each(|reason| println!("skipped: {reason}")))
        }),
        ["--help" | "-h" | "help"] => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn exact(options: &[&str]) -> Result<ExitCode, Box<dyn std::error::Error>> {
    Ok(if exact::run(options)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn svm(clock: Clock, script: &str, results: &str, files: &[&str]) -> ExitCode {
    svm::run(clock, script, results, files).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

/// An error if there were findings, which have been printed.
fn found(nothing: Result<bool, String>) -> Result<(), String> {
    nothing?.then_some(()).ok_or_else(|| "there are findings".to_owned())
}

/// Run a task in the root of the workspace.
fn crates(what: impl FnOnce() -> Result<(), String>) -> ExitCode {
    let done = env::set_current_dir(workspace()).map_err(|error| error.to_string()).and_then(|()| what());
    if let Err(error) = &done {
        eprintln!("error: {error}");
    }
    if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn test(tier: Tier) -> io::Result<ExitCode> {
    env::set_current_dir(workspace())?;
    test::run(tier)
}

/// The root of the workspace: the folder above this package.
fn workspace() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/..")
}

//! Project tasks, among them: `cargo xtask test` runs all checks and tests, the same here and on the machine of CI;
//! `cargo xtask test-kernel` makes a kernel to boot; `cargo xtask crates` checks the crates that are published.

mod api;
mod checks;
mod command;
mod deb;
mod embedding;
mod exact;
mod failures;
mod fuzz;
mod imports;
mod product;
mod requirements;
mod soak;
mod summary;
mod svm;

use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, io};

use checks::Scope;
use guest_linux::{Clock, DebianSystem, KvmHost, Qemu, StockKernel};
use summary::Report;

/// In a run of all tests that has taken this long, fuzzing is short. CI ends a run after an hour and a half.
const LATE: Duration = Duration::from_secs(3900);

const USAGE: &str = "usage: cargo xtask test [--quick]|test-kernel|exact [OPTIONS]|svm [--exact] SCRIPT RESULTS [NAME=PATH]...|fuzz [OPTIONS]|soak [--minutes N] [--load NAME]|imports|crates [NAME]|api|deb [--check]\n\n  \
    test         formatting, lints, documentation and all tests of the workspace; installs what it lacks where it may\n               \
                 --quick: formatting, lints and the tests beside the code, in minutes\n  \
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
        ["test"] => test(Scope::All).unwrap_or_else(|error| failed(&error)),
        ["test", "--quick"] => test(Scope::Quick).unwrap_or_else(|error| failed(&error)),
        ["test-kernel"] => test_kernel().map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS),
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

fn test(scope: Scope) -> io::Result<ExitCode> {
    env::set_current_dir(workspace())?;
    let mut report = match scope {
        Scope::Quick => checks::run(scope),
        Scope::All => everything(),
    };
    report.check("imports", imports::check);
    let forbidden = summary::print(&report, in_ci());
    let good = report.failed.is_empty() && forbidden == 0;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether this is a run of continuous integration.
fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true")
}

fn everything() -> Report {
    let begin = Instant::now();
    requirements::install();
    // Before the tests, which would build all this without output. A step that fails here makes tests fail or skip, too.
    if let Err(error) = test_kernel() {
        println!("test kernel: {error}");
    }
    if let Err(error) = qemu() {
        println!("QEMU and fio: {error}");
    }
    let mut report = checks::run(Scope::All);
    report.check("product without the meter", product::check);
    embedding::run(&mut report);
    report.check("Debian package", deb::check);
    report.check("fuzz targets", || {
        fuzz::check(Duration::from_secs(if in_ci() && begin.elapsed() < LATE { 60 } else { 12 }))
    });
    report.check("soak", soak::check);
    report.check("instructions per I/O", exact::check);
    report
}

/// Make a kernel and an initramfs for test guests unless they are in the cache, and print their paths.
fn test_kernel() -> Result<(), guest_linux::Error> {
    println!("kernel: {}", guest_linux::test_kernel()?.display());
    println!("initramfs: {}", guest_linux::initramfs(None)?.display());
    Ok(())
}

/// As [`test_kernel`]: QEMU with vfio-user, an initramfs with fio, and a host with KVM inside QEMU.
fn qemu() -> Result<(), guest_linux::Error> {
    println!("QEMU: {}", Qemu::any()?.version()?);
    println!("initramfs with fio: {}", guest_linux::initramfs_with_fio(&StockKernel::newest()?)?.display());
    KvmHost::prepare()?;
    for (name, path) in KvmHost::stock_guest()? {
        println!("{name} for a host in QEMU: {}", path.display());
    }
    println!("a newer kernel: {}", StockKernel::newer()?.image()?.display());
    println!("Debian with systemd: {}", DebianSystem::prepare()?.disk.display());
    Ok(())
}

/// The root of the workspace: the folder above this package.
fn workspace() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/..")
}

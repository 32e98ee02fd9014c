//! Project tasks: `cargo xtask test` runs all checks and tests, the same here and on the machine of CI.

mod checks;
mod requirements;
mod summary;

use std::process::ExitCode;
use std::{env, io};

const USAGE: &str = "usage: cargo xtask test\n\n  \
    test   formatting, lints, documentation and all tests of the workspace; installs what it lacks where it may\n";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => test().unwrap_or_else(|error| {
            eprintln!("error: {error}");
            ExitCode::FAILURE
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

fn test() -> io::Result<ExitCode> {
    env::set_current_dir(workspace())?;
    requirements::install();
    let report = checks::run();
    let ci = env::var("CI").is_ok_and(|value| value == "true");
    let forbidden = summary::print(&report, ci);
    let good = report.failed.is_empty() && forbidden == 0;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The root of the workspace: the folder above this package.
fn workspace() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/..")
}

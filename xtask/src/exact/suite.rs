//! A suite of `paradisk bench` on the emulated host. Its tables have instructions in place of cycles, because the host's clock counts
//! instructions.

use std::error::Error;
use std::fs;

use super::measured::run_script;
use super::options::Options;

/// Bytes of the host's memory. Its file system may use half of it, and the largest suite has 1.3 GiB of disks.
const MEMORY: u64 = 4 << 30;
/// Length of a run by the host's clock, at 1 ns for each instruction: at least 500 accesses of the longest path.
const DURATION: &str = "50ms";

/// Runs of each combination: there is no ratio from a single run.
const RUNS: u32 = 3;

/// Print the tables of the suite `name`, and write its JSON document if requested.
///
/// # Errors
/// An unavailable package, or a failed suite.
pub(super) fn run(name: &str, options: &Options) -> Result<(), Box<dyn Error>> {
    let script = format!(
        "./paradisk bench --suite {name} --engine kvm --runs {RUNS} --duration {DURATION} --plots /tmp/plots --json /out/document > /out/text\n"
    );
    let results = tempfile::tempdir()?;
    run_script(script, options, MEMORY, results.path())?;
    print!("{}", fs::read_to_string(results.path().join("text"))?);
    if let Some(path) = &options.json {
        fs::copy(results.path().join("document"), path)?;
    }
    Ok(())
}

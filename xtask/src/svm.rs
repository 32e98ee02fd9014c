//! A script on a Linux host with KVM inside QEMU, by hand.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use guest_linux::{Clock, HostJob, KvmHost};

/// Bytes of the host's memory.
const MEMORY: u64 = 3 << 30;
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Run the script in the file `script` on a host with this clock, beside files given as `NAME=PATH`. Prints the console and the counts,
/// and returns the script's exit status.
///
/// # Errors
/// The host could not be started or left no result, or a file is not there.
pub(crate) fn run(
    clock: Clock,
    script: &str,
    results: &str,
    files: &[&str],
) -> Result<ExitCode, Box<dyn Error>> {
    let mut all = KvmHost::measured_guest()?;
    for file in files {
        let (name, path) = file.split_once('=').ok_or_else(|| format!("{file}: not NAME=PATH"))?;
        all.push((name.to_owned(), PathBuf::from(path)));
    }
    let script = fs::read_to_string(script).map_err(|error| format!("{script}: {error}"))?;
    let job =
        HostJob { script, files: all, disks: Vec::new(), cpus: 1, clock, memory: MEMORY, timeout: TIMEOUT };
    let ended = KvmHost::prepare()?.run(&job, Path::new(results))?;
    print!("{}{}", ended.console, ended.counts);
    Ok(ExitCode::from(u8::try_from(ended.status).unwrap_or(u8::MAX)))
}

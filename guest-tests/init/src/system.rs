//! What a first process owes the system: file systems, modules, the end.

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount as mount_at};
use rustix::system::{RebootCommand, finit_module, reboot};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Modules in the order in which they are loaded: a line for each, its name and those of the modules that it depends on.
const MODULES: &str = "/modules/order";

/// Mount `/proc`, `/sys` and `/dev`.
pub(crate) fn mount() -> Result<(), String> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        match mount_at(kind, target, kind, MountFlags::empty(), None::<&CStr>) {
            // The kernel may have mounted it.
            Ok(()) | Err(Errno::BUSY) => {}
            Err(error) => return Err(format!("{target}: {error}")),
        }
    }
    Ok(())
}

/// Load the modules that the initramfs brings, if it brings any.
///
/// On CPU 0 alone: Linux' `blogic_cmd` takes no lock. Where it polls beside the handler of its interrupt on another CPU, that handler may
/// report the completion when the next command has begun ("Excess Parameters Supplied").
pub(crate) fn load_modules() -> Result<(), String> {
    let Ok(order) = fs::read_to_string(MODULES) else { return Ok(()) };
    let failed = |error: Errno| format!("processor affinity: {error}");
    let all = sched_getaffinity(None).map_err(failed)?;
    let mut first = CpuSet::new();
    first.set(0);
    sched_setaffinity(None, &first).map_err(failed)?;
    let loaded = load_in(&order);
    sched_setaffinity(None, &all).map_err(failed)?;
    loaded
}

fn load_in(order: &str) -> Result<(), String> {
    // Those whose hardware is not there: a bus (hv_vmbus), and with it its drivers.
    let mut absent = Vec::new();
    for line in order.lines() {
        let mut names = line.split_whitespace();
        let Some(name) = names.next() else { continue };
        if names.any(|needed| absent.contains(&needed)) {
            absent.push(name);
            continue;
        }
        let path = format!("/modules/{name}.ko");
        let file = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
        match finit_module(file, c"", 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(Errno::NODEV) => absent.push(name),
            Err(error) => return Err(format!("{path}: {error}")),
        }
    }
    Ok(())
}

/// Power off by ACPI, or by `power`: an I/O port and a word; else restart, which ends a machine that is not to boot again.
pub(crate) fn power_off(power: Option<(u16, u16)>) -> ! {
    rustix::fs::sync();
    if Path::new("/sys/firmware/acpi").exists() {
        let _ = reboot(RebootCommand::PowerOff);
    }
    if let Some((port, word)) = power {
        let _ = write_port(port, word);
    }
    let _ = reboot(RebootCommand::Restart);
    // A first process that returns panics the kernel.
    loop {
        sleep(Duration::from_secs(1));
    }
}

/// `/dev/port` writes byte by byte, the low one first.
fn write_port(port: u16, word: u16) -> io::Result<()> {
    OpenOptions::new().write(true).open("/dev/port")?.write_all_at(&word.to_le_bytes(), port.into())
}

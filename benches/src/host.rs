//! Facts about the machine.

use std::fs;

use guest_tests::tsc::tsc_hz;

use crate::result::{CyclesSource, Host, Kvm};

/// This machine, now.
#[must_use]
pub fn host() -> Host {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Host {
        cpu: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        tsc_hz: tsc_hz(),
        kernel: release.trim().to_owned(),
        kvm: kvm(&cpuinfo),
        cycles_source: CyclesSource::CpuTimeXTsc,
    }
}

/// What `/dev/kvm` is: whether it opens, and whether this machine is itself a guest (the processor says so).
fn kvm(cpuinfo: &str) -> Kvm {
    if let Err(_refused) = kvm_opens() {
        return Kvm::None;
    }
    let flags = field(cpuinfo, "flags").unwrap_or_default();
    if flags.split(' ').any(|flag| flag == "hypervisor") { Kvm::Nested } else { Kvm::Hardware }
}

/// Whether `/dev/kvm` opens.
///
/// # Errors
/// Why it does not.
pub fn kvm_opens() -> std::io::Result<()> {
    fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").map(drop)
}

fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim_end() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_cpuinfo() {
        let text = "processor\t: 0\nmodel name\t: A: B CPU\nflags\t\t: fpu hypervisor lm\n";
        assert_eq!(field(text, "model name"), Some("A: B CPU"));
        assert_eq!(field(text, "flags"), Some("fpu hypervisor lm"));
        assert_eq!(field(text, "flag"), None);
    }

    #[test]
    fn this_machine_is_described() {
        let host = host();
        assert!(host.cores >= 1 && !host.kernel.is_empty() && host.tsc_hz > 0);
        assert_eq!(host.kvm == Kvm::None, kvm_opens().is_err());
    }
}

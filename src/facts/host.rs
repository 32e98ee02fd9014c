//! Facts about the machine.

use std::fs;

use guest_tests::tsc::{counts_instructions, tsc_hz};

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
        kvm: kvm(),
        cycles_source: match counts_instructions() {
            true => CyclesSource::Instructions,
            false => CyclesSource::CpuTimeXTsc,
        },
    }
}

/// What `/dev/kvm` is.
fn kvm() -> Kvm {
    match vmm::Host::open() {
        Ok(host) if host.virtualization == vmm::Virtualization::Hardware => Kvm::Hardware,
        Ok(_) => Kvm::Nested,
        Err(_) => Kvm::None,
    }
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
        assert_eq!(host.kvm == Kvm::None, vmm::Host::open().is_err());
    }
}

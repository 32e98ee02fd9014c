//! Facts of the host, for documents.

use std::fs;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::tsc::{counts_instructions, tsc_hz};

/// A host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Model name of the processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Frequency of the time-stamp counter in Hz.
    pub tsc_hz: u64,
    /// Kernel release.
    pub kernel: String,
    /// How `/dev/kvm` virtualizes.
    pub kvm: Kvm,
    /// What a cycle is in the document.
    pub cycles_source: CyclesSource,
}

/// How `/dev/kvm` virtualizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kvm {
    /// By the processor's VT-x or AMD-V.
    Hardware,
    /// The host is itself a guest.
    Nested,
    /// `/dev/kvm` cannot be opened.
    None,
}

/// Where cycles come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CyclesSource {
    /// Hardware performance counters.
    Pmu,
    /// CPU time times the frequency of the time-stamp counter.
    CpuTimeXTsc,
    /// Instructions in place of cycles: the time-stamp counter of an emulated processor counts the executed instructions.
    Instructions,
}

impl CyclesSource {
    /// The name of what is counted.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Pmu | Self::CpuTimeXTsc => "cycles",
            Self::Instructions => "instructions",
        }
    }
}

/// The host that this process runs on. The first call opens files, so a process makes it before it enters a sandbox.
#[must_use]
pub fn host() -> Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(read).clone()
}

fn read() -> Host {
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

/// How `/dev/kvm` virtualizes.
fn kvm() -> Kvm {
    match paradisk_vmm::Host::open() {
        Ok(host) if host.virtualization == paradisk_vmm::Virtualization::Hardware => Kvm::Hardware,
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
        assert_eq!(host.kvm == Kvm::None, paradisk_vmm::Host::open().is_err());
    }
}

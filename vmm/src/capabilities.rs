//! Capabilities of the host: whether `/dev/kvm` opens, which features it lacks, and whether it has hardware
//! virtualization.

use std::fs;
use std::io;
use std::path::Path;

use kvm_ioctls::{Cap, Kvm};

use crate::error::Error;

/// The KVM device.
pub const KVM_PATH: &str = "/dev/kvm";
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// The processor below KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Virtualization {
    /// VT-x or AMD-V of a bare-metal host.
    Hardware,
    /// This host is itself a virtual machine: exits cost more, and its timings are not those of hardware.
    Nested,
}

impl Virtualization {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Nested => "nested",
        }
    }
}

/// An open KVM device with all required features.
#[derive(Debug)]
pub struct Host {
    pub(crate) kvm: Kvm,
    /// The processor below it.
    pub virtualization: Virtualization,
    /// Whether guest kernel mode (CPL 0) runs on the CPU. Without VT-x and AMD-V, shadow-paging KVMs interpret it.
    pub native_kernel_mode: bool,
    /// Whether this host's kernel uses the time-stamp counter as its clock: then the kernel has verified that the
    /// counter has a constant rate.
    pub(crate) tsc_is_clock: bool,
}

impl Host {
    /// Open [`KVM_PATH`].
    ///
    /// # Errors
    /// The device does not exist, is not permitted, is no KVM of API version 12, or lacks a required feature.
    pub fn open() -> Result<Self, Error> {
        Self::open_at(Path::new(KVM_PATH))
    }

    /// Open a KVM device with another path.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_at(path: &Path) -> Result<Self, Error> {
        let open = |source| Error::KvmOpen { path: path.to_owned(), source };
        // Opened here first for an error with the path, which the KVM wrapper does not report.
        fs::OpenOptions::new().read(true).write(true).open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::KvmAbsent(path.to_owned()),
            io::ErrorKind::PermissionDenied => Error::KvmDenied(path.to_owned()),
            _ => open(source),
        })?;
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|error| open(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        let kvm =
            Kvm::new_with_path(&name).map_err(|error| open(io::Error::from_raw_os_error(error.errno())))?;
        match kvm.get_api_version() {
            12 => {}
            -1 => return Err(open(io::Error::other("not a KVM device"))),
            other => {
                return Err(open(io::Error::other(format!("KVM API version {other}, expected 12"))));
            }
        }
        for (cap, name) in [
            (Cap::UserMemory, "user memory slots"),
            (Cap::Irqchip, "in-kernel interrupt controllers"),
            (Cap::Pit2, "in-kernel timer (PIT2)"),
            (Cap::Ioeventfd, "ioeventfd"),
            (Cap::IoeventfdNoLength, "ioeventfd of any length"),
            (Cap::Irqfd, "irqfd"),
            (Cap::IrqRouting, "interrupt routing"),
            (Cap::SignalMsi, "KVM_SIGNAL_MSI"),
            (Cap::ImmediateExit, "immediate exit"),
        ] {
            if !kvm.check_extension(cap) {
                return Err(Error::KvmLacks(name));
            }
        }
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").map_err(Error::os("/proc/cpuinfo"))?;
        let (virtualization, native_kernel_mode) = classify(&cpuinfo);
        // If the file does not exist, nothing is known.
        let tsc_is_clock = fs::read_to_string(CLOCK_SOURCE).is_ok_and(|clock| clock.trim() == "tsc");
        Ok(Self { kvm, virtualization, native_kernel_mode, tsc_is_clock })
    }
}

/// Derived from the CPU flags.
fn classify(cpuinfo: &str) -> (Virtualization, bool) {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    let has = |wanted: &str| flags.split_ascii_whitespace().any(|flag| flag == wanted);
    let extension = has("vmx") || has("svm");
    let virtualization =
        if extension && !has("hypervisor") { Virtualization::Hardware } else { Virtualization::Nested };
    (virtualization, extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_tell_hardware_from_nested() {
        let cpu = |flags: &str| format!("processor\t: 0\nflags\t\t: {flags}\nbugs\t: svm vmx\n");
        assert_eq!(classify(&cpu("fpu vmx sse")), (Virtualization::Hardware, true));
        assert_eq!(classify(&cpu("fpu svm")), (Virtualization::Hardware, true));
        assert_eq!(classify(&cpu("fpu svm hypervisor")), (Virtualization::Nested, true));
        assert_eq!(classify(&cpu("fpu hypervisor svm_lock")), (Virtualization::Nested, false));
        assert_eq!(classify(""), (Virtualization::Nested, false));
    }

    #[test]
    fn a_missing_or_wrong_device_is_named() {
        let error = |path: &Path| Host::open_at(path).map(|_| ()).unwrap_err().to_string();
        assert!(error(Path::new("/dev/no-kvm-here")).starts_with("/dev/no-kvm-here: not there"));
        assert_eq!(error(Path::new("/dev/null")), "/dev/null: not a KVM device");
    }
}

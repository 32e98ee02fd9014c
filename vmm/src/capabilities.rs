//! Capabilities of the host: whether `/dev/kvm` opens, which features it lacks, and whether it has hardware
//! virtualization.

use std::fs;
use std::io;
use std::path::Path;

use kvm_ioctls::{Cap, Kvm, VmFd};

use crate::error::Error;

/// The KVM device.
pub const KVM_PATH: &str = "/dev/kvm";
/// Attempts to make a machine while signals interrupt the system call.
const ATTEMPTS: u32 = 1000;
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

    /// KVM_CREATE_VM. It fails with EINTR if the thread has a signal or a completion of io_uring to handle (Linux, `mm_take_all_locks`).
    /// Each return to user space handles these, so the next attempt can succeed.
    pub(crate) fn create_vm(&self) -> Result<VmFd, Error> {
        let interrupted = |created: &Result<VmFd, kvm_ioctls::Error>| matches!(created, Err(error) if error.errno() == libc::EINTR);
        let mut created = self.kvm.create_vm();
        for _ in 1..ATTEMPTS {
            if !interrupted(&created) {
                break;
            }
            created = self.kvm.create_vm();
        }
        created.map_err(Error::kvm("KVM_CREATE_VM"))
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
    use std::thread;
    use std::time::Duration;

    use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

    use super::*;

    #[test]
    fn signals_do_not_fail_the_creation_of_a_machine() {
        extern "C" fn nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
        let host = match Host::open() {
            Ok(host) => host,
            Err(error) => {
                return println!("SKIP: signals_do_not_fail_the_creation_of_a_machine: {error}");
            }
        };
        register_signal_handler(SIGRTMIN(), nothing).unwrap();
        let maker = thread::spawn(move || (0..50).try_for_each(|_| host.create_vm().map(drop)));
        while !maker.is_finished() {
            // Fails only if the thread has ended.
            let _ = maker.kill(SIGRTMIN());
            thread::sleep(Duration::from_micros(20));
        }
        maker.join().unwrap().unwrap();
    }

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

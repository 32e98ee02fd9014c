//! Linux: a kernel, an initial RAM disk and a command line, entered by the 64-bit boot protocol (Linux
//! `Documentation/x86/boot.rst`) or by PVH.
//!
//! | guest-physical address | what |
//! | --- | --- |
//! | 0x500 | descriptor table |
//! | 0x7000 | zero page, or PVH's start information |
//! | [`TABLES`](super::TABLES) | page tables of the first 4 GiB |
//! | 0x2_0000 | command line |
//! | [`layout::ACPI`], [`layout::MP_TABLE`] | firmware's tables |
//! | where the kernel says | the kernel |
//! | as high as the kernel allows, below the hole | initrd |

mod error;
mod handover;
mod input;
mod kernel;

pub use self::error::LinuxError;

use std::io;
use std::path::{Path, PathBuf};

use kvm_bindings::{Msrs, kvm_dtable, kvm_msr_entry, kvm_regs};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use self::handover::{CMDLINE, CODE_SELECTOR, DESCRIPTORS, GDT, Parts, START_INFO};
use self::input::{Input, LowRam};
use self::kernel::Kernel;
use super::page_tables::{self, RFLAGS};
use crate::error::Error;
use crate::machine::Machine;
use crate::memory::{GuestMemory, put};
use crate::{acpi, mp_table};

/// Options that Linux needs where kernel mode is interpreted and some instructions are missing: no self-patching that traps; no features
/// that CPUID reports and the interpreter lacks (SMAP, SMEP, POPCNT, CX16, INVPCID, RDSEED, RDRAND, FSGSBASE, UMIP, RDTSCP, RDPID, PCID by
/// number); no copies byte by byte, each an instruction (ERMS, FSRM); and no calibration of clocks.
pub const NESTED_OPTIONS: &str = "lpj=4000000 tsc=reliable random.trust_cpu=1 noxsave rodata=off \
     clearcpuid=308,295,151,141,298,306,158,288,514,59,534,145,297,580";

/// A command line for a [host](crate::Host::native_kernel_mode) that ends with `own`. So `own` can override the other options, and may end
/// with arguments of init. A panic ends in a reset. The console is the serial port, unless `own` names another.
#[must_use]
pub fn command_line(native_kernel_mode: bool, own: &str) -> String {
    let mut options = vec!["panic=-1"];
    if !own.split_ascii_whitespace().any(|option| option.starts_with("console=")) {
        options.push("console=ttyS0");
    }
    if !native_kernel_mode {
        options.push(NESTED_OPTIONS);
    }
    if !own.is_empty() {
        options.push(own);
    }
    options.join(" ")
}

/// Maximum length of the command line, in bytes.
const MOST_CMDLINE: u64 = 0xffff;
const PAGE: u64 = 4096;

/// How the kernel is entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// In 64-bit mode: all bzImage and ELF kernels of Linux for x86-64.
    #[default]
    Linux64,
    /// In 32-bit mode, at the entry point in an ELF kernel's PVH note.
    Pvh,
}

/// A Linux system to boot.
#[derive(Clone, Debug)]
pub struct Linux {
    /// Kernel: bzImage, or ELF vmlinux.
    pub kernel: PathBuf,
    /// Initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Command line.
    pub cmdline: String,
    /// How the kernel is entered.
    pub protocol: Protocol,
}

/// A system in guest memory, ready to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    protocol: Protocol,
    entry: u64,
}

impl Linux {
    /// Load the system and firmware's tables into guest memory.
    ///
    /// # Errors
    /// A file cannot be read or is no kernel; a part does not fit into guest memory; the command line is too long for the kernel.
    pub fn load(&self, machine: &Machine) -> Result<Loaded, LinuxError> {
        self.load_into(machine.memory(), machine.cpus(), machine.has_vmbus())
    }

    /// [`load`](Self::load) into memory without a machine, for a machine of `cpus` virtual CPUs.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_into(&self, memory: &GuestMemory, cpus: u8, vmbus: bool) -> Result<Loaded, LinuxError> {
        let ram = LowRam::of(memory);
        ram.has_space_for_tables()?;
        let mut file = Input::open(&self.kernel)?;
        let kernel = kernel::load(&mut file, memory, ram)?;
        let entry = match self.protocol {
            Protocol::Linux64 => kernel.entry,
            Protocol::Pvh => kernel.pvh.ok_or_else(|| LinuxError::NoPvh(self.kernel.clone()))?,
        };
        let parts = Parts {
            initrd: self.initrd.as_deref().map(|path| load_initrd(path, &kernel, memory)).transpose()?,
            rsdp: acpi::write(memory, acpi::Hardware { cpus, vmbus })?,
        };
        mp_table::write(memory, cpus)?;
        self.write_cmdline(&kernel, memory)?;
        match self.protocol {
            Protocol::Linux64 => {
                put(memory, "descriptor table", DESCRIPTORS, &GDT.map(u64::to_le_bytes).concat())?;
                page_tables::write(memory, 1 << 32, 0, None)?;
                handover::write_zero_page(memory, &kernel, &parts)?;
            }
            Protocol::Pvh => handover::write_pvh(memory, &parts)?,
        }
        Ok(Loaded { protocol: self.protocol, entry })
    }

    fn write_cmdline(&self, kernel: &Kernel, memory: &GuestMemory) -> Result<(), LinuxError> {
        let len = self.cmdline.len();
        let most = kernel.cmdline_size.min(MOST_CMDLINE);
        if len as u64 > most {
            return Err(LinuxError::CmdlineTooLong { len, most });
        }
        if self.cmdline.contains('\0') {
            return Err(LinuxError::CmdlineZero);
        }
        let mut bytes = self.cmdline.clone().into_bytes();
        bytes.push(0);
        Ok(put(memory, "command line", CMDLINE, &bytes)?)
    }
}

impl Loaded {
    /// Set the registers of a virtual CPU. The first one starts the others.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn set_registers(&self, cpu: usize, vcpu: &VcpuFd) -> Result<(), Error> {
        set_msrs(vcpu)?;
        if cpu != 0 {
            return Ok(());
        }
        let mut sregs = vcpu.get_sregs().map_err(Error::kvm("KVM_GET_SREGS"))?;
        let mut regs = kvm_regs { rip: self.entry, rflags: RFLAGS, ..Default::default() };
        match self.protocol {
            Protocol::Linux64 => {
                page_tables::set_long_mode(&mut sregs, CODE_SELECTOR);
                sregs.gdt =
                    kvm_dtable { base: DESCRIPTORS, limit: size_of_val(&GDT) as u16 - 1, ..sregs.gdt };
                regs.rsi = START_INFO;
            }
            Protocol::Pvh => {
                handover::set_pvh_sregs(&mut sregs);
                regs.rbx = START_INFO;
            }
        }
        vcpu.set_sregs(&sregs).map_err(Error::kvm("KVM_SET_SREGS"))?;
        vcpu.set_regs(&regs).map_err(Error::kvm("KVM_SET_REGS"))
    }
}

/// Set the MSRs that firmware sets in each CPU: all memory is write-back, fast string operations (Intel), and the time-stamp counter runs
/// at the highest frequency (AMD).
fn set_msrs(vcpu: &VcpuFd) -> Result<(), Error> {
    const MTRR_DEF_TYPE: u32 = 0x2ff;
    const ENABLED_WRITE_BACK: u64 = 1 << 11 | 6;
    const MISC_ENABLE: u32 = 0x1a0;
    const FAST_STRINGS: u64 = 1;
    const HWCR: u32 = 0xc001_0015;
    const TSC_FREQ_SEL: u64 = 1 << 24;
    for (index, data) in
        [(MTRR_DEF_TYPE, ENABLED_WRITE_BACK), (MISC_ENABLE, FAST_STRINGS), (HWCR, TSC_FREQ_SEL)]
    {
        let entry = kvm_msr_entry { index, data, ..Default::default() };
        let msrs = Msrs::from_entries(&[entry]).map_err(|_| Error::Os {
            what: "model-specific registers",
            source: io::ErrorKind::OutOfMemory.into(),
        })?;
        // A CPU without the register does not need it. KVM then sets none, which is no error.
        vcpu.set_msrs(&msrs).map_err(Error::kvm("KVM_SET_MSRS"))?;
    }
    Ok(())
}

/// Read the initrd into guest memory. Returns its address and size.
fn load_initrd(path: &Path, kernel: &Kernel, memory: &GuestMemory) -> Result<(u64, u64), LinuxError> {
    let Input { mut file, len: size, .. } = Input::open(path)?;
    let lowest = kernel.end.next_multiple_of(PAGE);
    let start = kernel.initrd_end.checked_sub(size).map(|start| start & !(PAGE - 1));
    let Some(start) = start.filter(|start| *start >= lowest) else {
        let space = kernel.initrd_end.saturating_sub(lowest);
        return Err(LinuxError::InitrdTooLarge { path: path.to_owned(), size, space });
    };
    memory
        .read_exact_volatile_from(GuestAddress(start), &mut file, size as usize)
        .map_err(|error| LinuxError::Read { path: path.to_owned(), source: io::Error::other(error) })?;
    Ok((start, size))
}

#[cfg(test)]
mod tests;

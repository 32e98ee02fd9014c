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

mod kernel;
mod memory_map;
mod pvh;
mod zero_page;

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use kvm_bindings::{Msrs, kvm_dtable, kvm_msr_entry, kvm_regs};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use self::kernel::Kernel;
use super::page_tables::{self, RFLAGS};
use crate::{Error, GuestMemory, Machine, acpi, mp_table};

/// What Linux needs on its command line where kernel mode is interpreted and not all instructions are: no self-patching that
/// traps, no use of what CPUID shows but the interpreter lacks (SMAP, SMEP, POPCNT, CX16, INVPCID, RDSEED, RDRAND, FSGSBASE,
/// UMIP, RDTSCP, RDPID, PCID by number), no copies byte by byte, each an instruction (ERMS, FSRM), and no calibration of clocks.
pub const NESTED_OPTIONS: &str = "lpj=4000000 tsc=reliable random.trust_cpu=1 noxsave rodata=off \
     clearcpuid=308,295,151,141,298,306,158,288,514,59,534,145,297,580";

/// A command line that suits a [host](crate::Host::native_kernel_mode) and ends in `own`: what is put before it can be contradicted, and it may end in arguments
/// of init. A panic ends in a reset; the console is the serial port, unless `own` names another.
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

const DESCRIPTORS: u64 = 0x500;
const START_INFO: u64 = 0x7000;
const CMDLINE: u64 = 0x2_0000;
/// Capacity for the command line, in bytes.
const MOST_CMDLINE: u64 = 0xffff;
const PAGE: u64 = 4096;

/// Null, null, flat 64-bit code, flat data: the selectors that the boot protocol wants.
const GDT: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
const CODE_SELECTOR: u16 = 0x10;

/// How the kernel is entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// In 64-bit mode: all bzImage and ELF kernels of Linux for x86-64.
    #[default]
    Linux64,
    /// In 32-bit mode, by the entry point that an ELF kernel's PVH note tells.
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

/// Why a system could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LinuxError {
    /// A file that cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A kernel that is none, or is broken.
    #[error("{}: no Linux kernel for x86-64: {why}", path.display())]
    NoKernel {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The kernel does not fit into guest memory.
    #[error("{what}: needs {needed:#x} bytes of guest memory, there are {have:#x} below the PCI hole")]
    MemoryTooSmall {
        /// What does not fit.
        what: String,
        /// Bytes from address 0.
        needed: u64,
        /// Bytes there are.
        have: u64,
    },
    /// The initrd does not fit.
    #[error(
        "{}: initrd of {size} bytes, expected at most the {space} that guest memory and the kernel leave for it",
        path.display()
    )]
    InitrdTooLarge {
        /// Which.
        path: PathBuf,
        /// Its bytes.
        size: u64,
        /// Bytes there are for it.
        space: u64,
    },
    /// A command line that the kernel would cut.
    #[error("command line of {len} bytes, expected at most {most}")]
    CmdlineTooLong {
        /// Its bytes.
        len: usize,
        /// What the kernel takes.
        most: u64,
    },
    /// A command line with a zero byte, where the kernel would end it.
    #[error("command line with a zero byte")]
    CmdlineZero,
    /// PVH wanted of a kernel without it.
    #[error("{}: no PVH entry point", .0.display())]
    NoPvh(PathBuf),
    /// Not about the files.
    #[error(transparent)]
    Machine(#[from] Error),
}

/// A system in guest memory, ready to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    protocol: Protocol,
    entry: u64,
}

impl Linux {
    /// Put the system and firmware's tables into guest memory.
    ///
    /// # Errors
    /// A file that cannot be read or is no kernel; something that does not fit into guest memory; a command line that the kernel would cut.
    pub fn load(&self, machine: &Machine) -> Result<Loaded, LinuxError> {
        self.load_into(machine.memory(), machine.cpus())
    }

    fn load_into(&self, memory: &GuestMemory, cpus: u8) -> Result<Loaded, LinuxError> {
        let ram = LowRam::of(memory);
        ram.has_room_for_tables()?;
        let mut file = Input::open(&self.kernel)?;
        let kernel = kernel::load(&mut file, memory, ram)?;
        let entry = match self.protocol {
            Protocol::Linux64 => kernel.entry,
            Protocol::Pvh => kernel.pvh.ok_or_else(|| LinuxError::NoPvh(self.kernel.clone()))?,
        };
        let parts = Parts {
            initrd: self.initrd.as_deref().map(|path| load_initrd(path, &kernel, memory)).transpose()?,
            rsdp: acpi::write(memory, cpus)?,
        };
        mp_table::write(memory, cpus)?;
        self.write_cmdline(&kernel, memory)?;
        match self.protocol {
            Protocol::Linux64 => {
                put(memory, "descriptor table", DESCRIPTORS, &GDT.map(u64::to_le_bytes).concat())?;
                page_tables::write(memory, 1 << 32, 0, None)?;
                zero_page::write(memory, &kernel, &parts)?;
            }
            Protocol::Pvh => pvh::write(memory, &parts)?,
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
    /// Set the registers of a virtual CPU. Others than the first wait for the first to start them.
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
                pvh::set_sregs(&mut sregs);
                regs.rbx = START_INFO;
            }
        }
        vcpu.set_sregs(&sregs).map_err(Error::kvm("KVM_SET_SREGS"))?;
        vcpu.set_regs(&regs).map_err(Error::kvm("KVM_SET_REGS"))
    }
}

/// What firmware sets in each CPU: all memory is write-back, strings move fast (Intel's), and the time-stamp counter counts
/// with the highest frequency (AMD's).
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
        // A CPU without the register does not need it; then none is set, which is no error.
        vcpu.set_msrs(&msrs).map_err(Error::kvm("KVM_SET_MSRS"))?;
    }
    Ok(())
}

/// What the start information tells.
struct Parts {
    /// Address and bytes.
    initrd: Option<(u64, u64)>,
    /// Address of ACPI's root pointer.
    rsdp: u64,
}

/// RAM from address 0 up to the hole.
#[derive(Clone, Copy)]
struct LowRam {
    end: u64,
}

impl LowRam {
    fn of(memory: &GuestMemory) -> Self {
        Self { end: memory.find_region(GuestAddress(0)).map_or(0, |region| region.len()) }
    }

    fn has_room_for_tables(self) -> Result<(), LinuxError> {
        let needed = crate::layout::LOW_RAM_RESERVED.end;
        if self.end < needed {
            let what = "firmware's tables".to_owned();
            return Err(LinuxError::MemoryTooSmall { what, needed, have: self.end });
        }
        Ok(())
    }
}

/// A file to load.
struct Input {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Input {
    fn open(path: &Path) -> Result<Self, LinuxError> {
        let error = |source| LinuxError::Read { path: path.to_owned(), source };
        // Asked before it is opened: a pipe would wait for its other end.
        let metadata = fs::metadata(path).map_err(error)?;
        if !metadata.is_file() {
            return Err(error(io::Error::new(io::ErrorKind::InvalidInput, "no regular file")));
        }
        let file = File::open(path).map_err(error)?;
        Ok(Self { path: path.to_owned(), file, len: metadata.len() })
    }

    fn no_kernel(&self, why: impl Into<String>) -> LinuxError {
        LinuxError::NoKernel { path: self.path.clone(), why: why.into() }
    }

    fn unreadable(&self, error: impl fmt::Display) -> LinuxError {
        LinuxError::Read { path: self.path.clone(), source: io::Error::other(error.to_string()) }
    }
}

/// Read the initrd into guest memory: its address and bytes.
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

/// Write to guest memory.
fn put(memory: &GuestMemory, what: &'static str, address: u64, bytes: &[u8]) -> Result<(), Error> {
    memory.write_slice(bytes, GuestAddress(address)).map_err(|_| Error::OutsideMemory {
        what,
        address,
        len: bytes.len() as u64,
    })
}

#[cfg(test)]
mod tests;

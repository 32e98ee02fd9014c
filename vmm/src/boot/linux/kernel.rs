//! Kernel files: bzImage (Linux `Documentation/x86/boot.rst`), and ELF vmlinux, with the PVH entry point of its note if
//! there is one (Xen `docs/misc/pvh.pandoc`). The files are untrusted: this module checks all fields that it uses, then
//! `linux-loader` loads the kernel.

use std::fs::File;
use std::os::unix::fs::FileExt;

use linux_loader::bootparam::setup_header;
use linux_loader::elf::{
    EI_CLASS, EI_DATA, ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_X86_64, ET_DYN, ET_EXEC, Elf64_Ehdr, Elf64_Phdr,
    PT_LOAD, PT_NOTE,
};
use linux_loader::loader::elf::PvhBootCapability;
use linux_loader::loader::{BzImage, Elf, KernelLoader};
use vm_memory::{ByteValued, GuestAddress};

use super::error::LinuxError;
use super::input::{Input, LowRam};
use crate::memory::GuestMemory;

/// Maximum number of program headers; kernels have about six.
const MOST_SEGMENTS: u16 = 64;
/// Maximum size of notes in bytes; kernels have some hundred.
const MOST_NOTES: u64 = 1 << 20;

/// Offset of the setup header in a bzImage.
const SETUP_HEADER: u64 = 0x1f1;
const SECTOR: u64 = 512;
const HDRS: u32 = u32::from_le_bytes(*b"HdrS");
/// The first version with `xloadflags`.
const FIRST_64_BIT_PROTOCOL: u16 = 0x020c;
const XLF_KERNEL_64: u16 = 1 << 0;
const XLF_CAN_BE_LOADED_ABOVE_4G: u16 = 1 << 1;
/// Offset of the 64-bit entry point from the load address.
const ENTRY_64: u64 = 0x200;

/// A kernel in guest memory.
#[derive(Debug)]
pub(super) struct Kernel {
    /// 64-bit entry point.
    pub(super) entry: u64,
    /// 32-bit entry point of PVH.
    pub(super) pvh: Option<u64>,
    /// First byte after the kernel, including the memory that it uses beyond its file.
    pub(super) end: u64,
    /// First byte that no initrd may use.
    pub(super) initrd_end: u64,
    /// Longest command line without the zero byte, in bytes.
    pub(super) cmdline_size: u64,
    /// Of a bzImage.
    pub(super) header: Option<setup_header>,
}

/// Read `file` into guest memory.
pub(super) fn load(file: &mut Input, memory: &GuestMemory, ram: LowRam) -> Result<Kernel, LinuxError> {
    let mut magic = [0; 4];
    // A file that is too short for this is no kernel either.
    let _ = file.file.read_exact_at(&mut magic, 0);
    if magic == *ELFMAG { load_elf(file, memory, ram) } else { load_bzimage(file, memory, ram) }
}

fn load_elf(file: &mut Input, memory: &GuestMemory, ram: LowRam) -> Result<Kernel, LinuxError> {
    let header: Elf64_Ehdr =
        read(&file.file, 0).ok_or_else(|| file.no_kernel("ELF header: file too short"))?;
    let ident = |index: usize| header.e_ident.get(index).copied().unwrap_or_default();
    if (ident(EI_CLASS), ident(EI_DATA), header.e_machine) != (ELFCLASS64, ELFDATA2LSB, EM_X86_64) {
        return Err(file.no_kernel(format!(
            "ELF class {}, data encoding {}, machine {}: expected {ELFCLASS64}, {ELFDATA2LSB}, {EM_X86_64}, 64-bit x86",
            ident(EI_CLASS),
            ident(EI_DATA),
            header.e_machine
        )));
    }
    if ![ET_EXEC, ET_DYN].contains(&header.e_type) {
        return Err(file.no_kernel(format!("ELF type {}: expected an executable", header.e_type)));
    }
    if header.e_phnum == 0 || header.e_phnum > MOST_SEGMENTS {
        return Err(file.no_kernel(format!("{} ELF segments: expected 1 to {MOST_SEGMENTS}", header.e_phnum)));
    }
    let mut loaded = Vec::new();
    for index in 0..u64::from(header.e_phnum) {
        let at = header.e_phoff.checked_add(index * size_of::<Elf64_Phdr>() as u64);
        let segment: Elf64_Phdr = at
            .and_then(|at| read(&file.file, at))
            .ok_or_else(|| file.no_kernel(format!("ELF segment {index}: file too short")))?;
        if let Some(range) = check_segment(file, index, &segment, ram)? {
            loaded.push(range);
        }
    }
    let runs = |entry: u64| loaded.iter().any(|segment| segment.contains(&entry));
    if !runs(header.e_entry) {
        return Err(file.no_kernel(format!("entry point {:#x}: in no segment", header.e_entry)));
    }
    let result = Elf::load(&**memory, None, &mut file.file, None).map_err(|error| file.unreadable(error))?;
    let pvh = match result.pvh_boot_cap {
        PvhBootCapability::PvhEntryPresent(entry) => Some(entry.0),
        _ => None,
    };
    if let Some(entry) = pvh.filter(|entry| !runs(*entry)) {
        return Err(file.no_kernel(format!("PVH entry point {entry:#x}: in no segment")));
    }
    Ok(Kernel {
        entry: header.e_entry,
        pvh,
        end: loaded.iter().map(|segment| segment.end).max().unwrap_or_default(),
        initrd_end: ram.end,
        // COMMAND_LINE_SIZE of x86, with its zero byte.
        cmdline_size: 2047,
        header: None,
    })
}

/// Check a segment. Returns its address range, if it is loaded.
fn check_segment(
    file: &Input,
    index: u64,
    segment: &Elf64_Phdr,
    ram: LowRam,
) -> Result<Option<std::ops::Range<u64>>, LinuxError> {
    let Elf64_Phdr { p_type, p_offset, p_filesz, p_memsz, p_paddr, .. } = *segment;
    let wrong = |what: String| file.no_kernel(format!("ELF segment {index}: {what}"));
    if p_type != PT_LOAD && p_type != PT_NOTE {
        return Ok(None);
    }
    if p_offset.checked_add(p_filesz).is_none_or(|end| end > file.len) {
        return Err(wrong(format!("{p_filesz} bytes at {p_offset}, in a file of {} bytes", file.len)));
    }
    if p_type == PT_NOTE {
        return if p_filesz > MOST_NOTES {
            Err(wrong(format!("{p_filesz} bytes of notes, expected at most {MOST_NOTES}")))
        } else {
            Ok(None)
        };
    }
    if p_filesz > p_memsz {
        return Err(wrong(format!("{p_filesz} bytes in the file, {p_memsz} in memory")));
    }
    ram.check(file, p_paddr, p_memsz)?;
    Ok((p_memsz > 0).then(|| p_paddr..p_paddr + p_memsz))
}

fn load_bzimage(file: &mut Input, memory: &GuestMemory, ram: LowRam) -> Result<Kernel, LinuxError> {
    let header: Option<setup_header> = read(&file.file, SETUP_HEADER);
    let Some(header) = header.filter(|header| header.header == HDRS) else {
        return Err(file.no_kernel("neither ELF nor bzImage"));
    };
    let (version, loadflags, xloadflags) = (header.version, header.loadflags, header.xloadflags);
    if version < FIRST_64_BIT_PROTOCOL || xloadflags & XLF_KERNEL_64 == 0 || loadflags & 1 == 0 {
        return Err(file.no_kernel(format!(
            "bzImage of boot protocol {}.{:02} without a 64-bit entry point",
            version >> 8,
            version & 0xff
        )));
    }
    let sectors = if header.setup_sects == 0 { 4 } else { u64::from(header.setup_sects) };
    let setup = (sectors + 1) * SECTOR;
    let size = file.len.saturating_sub(setup);
    if size <= ENTRY_64 {
        return Err(file.no_kernel(format!("bzImage of {} bytes, of which {setup} are setup code", file.len)));
    }
    let start = header.pref_address;
    let needed = size.max(header.init_size.into());
    ram.check(file, start, needed)?;
    let result = BzImage::load(&**memory, Some(GuestAddress(start)), &mut file.file, None)
        .map_err(|error| file.unreadable(error))?;
    let above = xloadflags & XLF_CAN_BE_LOADED_ABOVE_4G != 0;
    let initrd_end = if above { ram.end } else { ram.end.min(u64::from(header.initrd_addr_max) + 1) };
    Ok(Kernel {
        entry: start + ENTRY_64,
        pvh: None,
        end: start + needed,
        initrd_end,
        cmdline_size: header.cmdline_size.into(),
        header: result.setup_header,
    })
}

/// Read a structure of the file.
fn read<T: ByteValued + Default>(file: &File, at: u64) -> Option<T> {
    let mut value = T::default();
    file.read_exact_at(value.as_mut_slice(), at).ok()?;
    Some(value)
}

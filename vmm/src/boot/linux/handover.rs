//! What a kernel finds in memory and registers at its entry: the zero page of the 64-bit boot protocol, or PVH's start information.

use kvm_bindings::{kvm_segment, kvm_sregs};
use linux_loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::start_info::{hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info};
use vm_memory::{Address, ByteValued, GuestMemoryBackend, GuestMemoryRegion};

use super::super::page_tables::{self, CR0_ET, CR0_PE};
use super::kernel::Kernel;
use crate::error::Error;
use crate::layout::{ECAM, LOW_RAM_RESERVED};
use crate::memory::{GuestMemory, put};

/// Address of the descriptor table.
pub(super) const DESCRIPTORS: u64 = 0x500;
/// Address of the zero page, or of PVH's start information.
pub(super) const START_INFO: u64 = 0x7000;
/// Address of the command line.
pub(super) const CMDLINE: u64 = 0x2_0000;

/// Null, null, flat 64-bit code, flat data: with the selectors that the boot protocol requires.
pub(super) const GDT: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
/// The code segment in [`GDT`].
pub(super) const CODE_SELECTOR: u16 = 0x10;

/// Content of the start information.
pub(super) struct Parts {
    /// Address and size.
    pub(super) initrd: Option<(u64, u64)>,
    /// Address of ACPI's root pointer.
    pub(super) rsdp: u64,
}

/// Kind of a memory range. PVH has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ram = 1,
    Reserved = 2,
}

/// The memory map that firmware would report (E820, ACPI 6.5, section 15): first address, size and kind, in order of address.
fn memory_map(memory: &GuestMemory) -> Vec<(u64, u64, Kind)> {
    let mut entries = Vec::new();
    for region in memory.iter() {
        let (start, end) = (region.start_addr().raw_value(), region.start_addr().raw_value() + region.len());
        if start == 0 {
            entries.push((0, LOW_RAM_RESERVED.start, Kind::Ram));
            entries.push((
                LOW_RAM_RESERVED.start,
                LOW_RAM_RESERVED.end - LOW_RAM_RESERVED.start,
                Kind::Reserved,
            ));
            entries.push((LOW_RAM_RESERVED.end, end.saturating_sub(LOW_RAM_RESERVED.end), Kind::Ram));
            // Linux uses the window only if it is reserved.
            entries.push((ECAM.start, ECAM.end - ECAM.start, Kind::Reserved));
        } else {
            entries.push((start, end - start, Kind::Ram));
        }
    }
    entries
}

/// A boot loader without an assigned number.
const OTHER_LOADER: u8 = 0xff;

/// The setup header in an ELF kernel's zero page.
fn elf_header() -> setup_header {
    setup_header {
        boot_flag: 0xaa55,
        header: u32::from_le_bytes(*b"HdrS"),
        version: 0x020f,
        kernel_alignment: 0x100_0000,
        ..Default::default()
    }
}

/// Write the zero page (Linux `Documentation/x86/zero-page.rst`).
pub(super) fn write_zero_page(memory: &GuestMemory, kernel: &Kernel, parts: &Parts) -> Result<(), Error> {
    let (initrd, initrd_size) = parts.initrd.unwrap_or_default();
    let mut page = boot_params { acpi_rsdp_addr: parts.rsdp, ..Default::default() };
    page.hdr = setup_header {
        type_of_loader: OTHER_LOADER,
        // Both are below 4 GiB.
        cmd_line_ptr: CMDLINE as u32,
        ramdisk_image: initrd as u32,
        ramdisk_size: initrd_size as u32,
        ..kernel.header.unwrap_or_else(elf_header)
    };
    let mut table = page.e820_table;
    for (place, (addr, size, kind)) in table.iter_mut().zip(memory_map(memory)) {
        *place = boot_e820_entry { addr, size, r#type: kind as u32 };
        page.e820_entries += 1;
    }
    page.e820_table = table;
    put(memory, "zero page", START_INFO, page.as_slice())
}

/// `XEN_HVM_START_MAGIC_VALUE`.
const PVH_MAGIC: u32 = 0x336e_c578;
/// The version of PVH's start information with a memory map.
const PVH_VERSION: u32 = 1;
const MODULES: u64 = START_INFO + 0x100;
const MEMORY_MAP: u64 = START_INFO + 0x200;

/// Write PVH's start information (Xen `docs/misc/pvh.pandoc`, `xen/include/public/arch-x86/hvm/start_info.h`).
pub(super) fn write_pvh(memory: &GuestMemory, parts: &Parts) -> Result<(), Error> {
    let map: Vec<u8> = memory_map(memory)
        .into_iter()
        .flat_map(|(addr, size, kind)| {
            hvm_memmap_table_entry { addr, size, type_: kind as u32, reserved: 0 }.as_slice().to_vec()
        })
        .collect();
    put(memory, "PVH memory map", MEMORY_MAP, &map)?;
    if let Some((paddr, size)) = parts.initrd {
        let module = hvm_modlist_entry { paddr, size, ..Default::default() };
        put(memory, "PVH modules", MODULES, module.as_slice())?;
    }
    let info = hvm_start_info {
        magic: PVH_MAGIC,
        version: PVH_VERSION,
        nr_modules: parts.initrd.is_some().into(),
        modlist_paddr: MODULES,
        cmdline_paddr: CMDLINE,
        rsdp_paddr: parts.rsdp,
        memmap_paddr: MEMORY_MAP,
        memmap_entries: (map.len() / size_of::<hvm_memmap_table_entry>()) as u32,
        ..Default::default()
    };
    put(memory, "PVH start information", START_INFO, info.as_slice())
}

/// PVH's 32-bit protected mode without paging.
pub(super) fn set_pvh_sregs(sregs: &mut kvm_sregs) {
    page_tables::set_segments(sregs, page_tables::code_segment(CODE_SELECTOR, false));
    sregs.tr = kvm_segment { limit: 0x67, type_: 0b1011, present: 1, ..Default::default() };
    sregs.cr0 = CR0_PE | CR0_ET;
    sregs.cr4 = 0;
    sregs.efer = 0;
}

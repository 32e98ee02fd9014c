//! PVH's start information and registers (Xen `docs/misc/pvh.pandoc`, `xen/include/public/arch-x86/hvm/start_info.h`).

use kvm_bindings::{kvm_segment, kvm_sregs};
use linux_loader::start_info::{hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info};
use vm_memory::ByteValued;

use super::super::page_tables::{self, CR0_ET, CR0_PE};
use super::memory_map;
use super::start::{CMDLINE, CODE_SELECTOR, Parts, START_INFO};
use crate::error::Error;
use crate::memory::{GuestMemory, put};

/// `XEN_HVM_START_MAGIC_VALUE`.
const MAGIC: u32 = 0x336e_c578;
/// The version with a memory map.
const VERSION: u32 = 1;
const MODULES: u64 = START_INFO + 0x100;
const MEMORY_MAP: u64 = START_INFO + 0x200;

pub(super) fn write(memory: &GuestMemory, parts: &Parts) -> Result<(), Error> {
    let map: Vec<u8> = memory_map::entries(memory)
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
        magic: MAGIC,
        version: VERSION,
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

/// 32-bit protected mode without paging.
pub(super) fn set_sregs(sregs: &mut kvm_sregs) {
    page_tables::set_segments(sregs, page_tables::code_segment(CODE_SELECTOR, false));
    sregs.tr = kvm_segment { limit: 0x67, type_: 0b1011, present: 1, ..Default::default() };
    sregs.cr0 = CR0_PE | CR0_ET;
    sregs.cr4 = 0;
    sregs.efer = 0;
}

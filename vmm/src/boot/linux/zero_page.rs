//! The zero page (Linux `Documentation/x86/zero-page.rst`).

use linux_loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use vm_memory::ByteValued;

use super::kernel::Kernel;
use super::memory_map;
use super::start::{CMDLINE, Parts, START_INFO};
use crate::error::Error;
use crate::memory::{GuestMemory, put};

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

pub(super) fn write(memory: &GuestMemory, kernel: &Kernel, parts: &Parts) -> Result<(), Error> {
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
    for (place, (addr, size, kind)) in table.iter_mut().zip(memory_map::entries(memory)) {
        *place = boot_e820_entry { addr, size, r#type: kind as u32 };
        page.e820_entries += 1;
    }
    page.e820_table = table;
    put(memory, "zero page", START_INFO, page.as_slice())
}

//! Identity-mapping page tables (AMD64 Architecture Programmer's Manual volume 2, section 5.3), and the registers of
//! 64-bit mode (section 14.8).

use kvm_bindings::{kvm_segment, kvm_sregs};
use vm_memory::{Bytes, GuestAddress};

use super::LowPage;
use crate::error::Error;
use crate::memory::GuestMemory;

/// Address range of the page tables: 448 KiB of low memory that the guest's image must not use.
pub const TABLES: std::ops::Range<u64> = 0x1_0000..0x8_0000;

const PAGE: u64 = 0x1000;
const LARGE_PAGE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
const ENTRIES: u64 = 512;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
pub(super) const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;

pub(super) const CR0_PE: u64 = 1 << 0;
const CR0_MP: u64 = 1 << 1;
pub(super) const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_OSFXSR: u64 = 1 << 9;
const CR4_OSXMMEXCPT: u64 = 1 << 10;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
/// RFLAGS: the bit that is always set; interrupts are off.
pub(super) const RFLAGS: u64 = 1 << 1;

/// Identity-map everything below `end`, in whole GiB, with `rights` in addition to those of the kernel. With
/// `low_pages`, the first 2 MiB are in 4 KiB pages: page 0 is not mapped, and `low_pages` map other addresses.
pub(super) fn write(
    memory: &GuestMemory,
    end: u64,
    rights: u64,
    low_pages: Option<&[LowPage]>,
) -> Result<(), Error> {
    let directories = end.div_ceil(GIB);
    let [pml4, pdpt, first] = [0, 1, 2].map(|page| TABLES.start + page * PAGE);
    let directory = |index: u64| TABLES.start + (3 + index) * PAGE;
    if directory(directories) > TABLES.end {
        return Err(Error::OutsideMemory { what: "page tables", address: TABLES.start, len: end / ENTRIES });
    }
    let table = PRESENT | WRITABLE | rights;
    write_table(memory, pml4, [(0, pdpt | table)])?;
    write_table(memory, pdpt, (0..directories).map(|index| (index, directory(index) | table)))?;
    for index in 0..directories {
        let entries = (0..ENTRIES).map(|entry| match (index, entry, low_pages) {
            (0, 0, Some(_)) => (entry, first | table),
            _ => (entry, (index * GIB + entry * LARGE_PAGE) | table | LARGE),
        });
        write_table(memory, directory(index), entries)?;
    }
    let Some(low_pages) = low_pages else { return Ok(()) };
    let small = (1..ENTRIES).map(|entry| {
        let low = low_pages.iter().find(|low| low.at == entry * PAGE);
        (entry, low.map_or(entry * PAGE, |low| low.physical) | table)
    });
    write_table(memory, first, small)
}

/// A flat code segment, of 64-bit or 32-bit code.
pub(super) fn code_segment(selector: u16, long: bool) -> kvm_segment {
    kvm_segment {
        selector,
        limit: u32::MAX,
        type_: 0b1011,
        present: 1,
        s: 1,
        l: long.into(),
        db: (!long).into(),
        g: 1,
        ..Default::default()
    }
}

/// Flat segments; the data segment follows `code` in the descriptor table.
pub(super) fn set_segments(sregs: &mut kvm_sregs, code: kvm_segment) {
    let data = kvm_segment { selector: code.selector + 8, type_: 0b0011, l: 0, db: 1, ..code };
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
}

/// 64-bit mode at CPL 0 on the tables that [`write`] wrote.
pub(super) fn set_long_mode(sregs: &mut kvm_sregs, code_selector: u16) {
    set_segments(sregs, code_segment(code_selector, true));
    sregs.cr0 = CR0_PE | CR0_MP | CR0_ET | CR0_NE | CR0_WP | CR0_PG;
    sregs.cr3 = TABLES.start;
    sregs.cr4 = CR4_PAE | CR4_OSFXSR | CR4_OSXMMEXCPT;
    sregs.efer = EFER_LME | EFER_LMA;
}

/// Write one page table; entries that are not given are zero.
fn write_table(
    memory: &GuestMemory,
    address: u64,
    entries: impl IntoIterator<Item = (u64, u64)>,
) -> Result<(), Error> {
    let mut page = [0; PAGE as usize];
    for (index, entry) in entries {
        if let Some(bytes) = page.get_mut(index as usize * 8..index as usize * 8 + 8) {
            bytes.copy_from_slice(&entry.to_le_bytes());
        }
    }
    memory.write_slice(&page, GuestAddress(address)).map_err(|_| Error::OutsideMemory {
        what: "page table",
        address,
        len: PAGE,
    })
}

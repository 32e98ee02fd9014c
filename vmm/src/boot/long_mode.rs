//! Entry into 64-bit mode at CPL 0, with an identity map that user mode may use (AMD64 Architecture Programmer's Manual
//! volume 2, sections 5.3 and 14.8).

use kvm_bindings::{kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use crate::{Error, GuestMemory};

/// Where the page tables are: 448 KiB of low memory that the guest's image must leave alone.
pub const TABLES: std::ops::Range<u64> = 0x1_0000..0x8_0000;

const PAGE: u64 = 0x1000;
const LARGE_PAGE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
const ENTRIES: u64 = 512;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;

const CR0_PE: u64 = 1 << 0;
const CR0_MP: u64 = 1 << 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_OSFXSR: u64 = 1 << 9;
const CR4_OSXMMEXCPT: u64 = 1 << 10;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
/// The bit that is always set; interrupts are off.
const RFLAGS: u64 = 1 << 1;

/// A page of the first 2 MiB that is not where its address says. One-instruction accesses without a register reach 2 GiB
/// only; so device pages get names down there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowPage {
    /// Virtual address, in the first 2 MiB, a page's first.
    pub at: u64,
    /// Physical address, a page's first.
    pub physical: u64,
}

/// A flat 64-bit guest.
#[derive(Clone, Debug)]
pub struct LongMode {
    /// First instruction.
    pub entry: u64,
    /// Stack pointer.
    pub stack: u64,
    /// Argument, in RDI.
    pub argument: u64,
    /// Pages of the first 2 MiB that lie elsewhere. Page 0 is never mapped.
    pub low_pages: Vec<LowPage>,
}

impl LongMode {
    /// Write the page tables: everything below 4 GiB and all RAM at its own address, for user mode too.
    ///
    /// # Errors
    /// RAM beyond what [`TABLES`] can map, or none there.
    pub fn write_tables(&self, memory: &GuestMemory) -> Result<(), Error> {
        let end = (memory.last_addr().0 + 1).max(4 * GIB);
        let directories = end.div_ceil(GIB);
        let [pml4, pdpt, first] = [0, 1, 2].map(|page| TABLES.start + page * PAGE);
        let directory = |index: u64| TABLES.start + (3 + index) * PAGE;
        if directory(directories) > TABLES.end {
            return Err(Error::OutsideMemory {
                what: "page tables",
                address: TABLES.start,
                len: end / ENTRIES,
            });
        }
        let table = PRESENT | WRITABLE | USER;
        write_table(memory, pml4, [(0, pdpt | table)])?;
        write_table(memory, pdpt, (0..directories).map(|index| (index, directory(index) | table)))?;
        for index in 0..directories {
            let entries = (0..ENTRIES).map(|entry| match (index, entry) {
                (0, 0) => (entry, first | table),
                _ => (entry, (index * GIB + entry * LARGE_PAGE) | table | LARGE),
            });
            write_table(memory, directory(index), entries)?;
        }
        let small = (1..ENTRIES).map(|entry| {
            let low = self.low_pages.iter().find(|low| low.at == entry * PAGE);
            (entry, low.map_or(entry * PAGE, |low| low.physical) | table)
        });
        write_table(memory, first, small)
    }

    /// Set the registers of a virtual CPU.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn set_registers(&self, vcpu: &VcpuFd) -> Result<(), Error> {
        let mut sregs = vcpu.get_sregs().map_err(Error::kvm("KVM_GET_SREGS"))?;
        let code = kvm_segment {
            selector: 0x08,
            limit: u32::MAX,
            type_: 0b1011,
            present: 1,
            s: 1,
            l: 1,
            g: 1,
            ..Default::default()
        };
        let data = kvm_segment { selector: 0x10, type_: 0b0011, l: 0, db: 1, ..code };
        sregs.cs = code;
        (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
        sregs.cr0 = CR0_PE | CR0_MP | CR0_ET | CR0_NE | CR0_WP | CR0_PG;
        sregs.cr3 = TABLES.start;
        sregs.cr4 = CR4_PAE | CR4_OSFXSR | CR4_OSXMMEXCPT;
        sregs.efer = EFER_LME | EFER_LMA;
        vcpu.set_sregs(&sregs).map_err(Error::kvm("KVM_SET_SREGS"))?;
        let regs = kvm_regs {
            rip: self.entry,
            rsp: self.stack,
            rdi: self.argument,
            rflags: RFLAGS,
            ..Default::default()
        };
        vcpu.set_regs(&regs).map_err(Error::kvm("KVM_SET_REGS"))
    }
}

/// Write one page table, zeroes where no entry is given.
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

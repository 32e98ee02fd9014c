//! Entry into 64-bit mode at CPL 0, with an identity map that user mode may use.

use kvm_bindings::kvm_regs;
use kvm_ioctls::VcpuFd;
use vm_memory::GuestMemoryBackend;

use super::page_tables::{self, RFLAGS, USER};
use crate::error::Error;
use crate::memory::GuestMemory;

/// A page of the first 2 MiB that maps another physical address. Accesses with an absolute address in the instruction
/// only reach 2 GiB, so device pages are mapped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowPage {
    /// Virtual address of the page, in the first 2 MiB.
    pub at: u64,
    /// Physical address that the page maps, a multiple of the page size.
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
    /// Pages of the first 2 MiB that map other addresses. Page 0 is never mapped.
    pub low_pages: Vec<LowPage>,
}

impl LongMode {
    /// Write the page tables: an identity map of everything below 4 GiB and of all RAM, also for user mode.
    ///
    /// # Errors
    /// RAM beyond what [`TABLES`](super::TABLES) can map, or no RAM at the tables.
    pub fn write_tables(&self, memory: &GuestMemory) -> Result<(), Error> {
        let end = (memory.last_addr().0 + 1).max(1 << 32);
        page_tables::write(memory, end, USER, Some(&self.low_pages))
    }

    /// Set the registers of a virtual CPU.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn set_registers(&self, vcpu: &VcpuFd) -> Result<(), Error> {
        let mut sregs = vcpu.get_sregs().map_err(Error::kvm("KVM_GET_SREGS"))?;
        page_tables::set_long_mode(&mut sregs, 0x08);
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

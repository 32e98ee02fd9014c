//! Posted writes: registers whose writes need not leave the guest (`KVM_CAP_COALESCED_MMIO`).
//!
//! KVM puts a write to a zone into a ring that it shares with this process, and the guest runs on. The next virtual CPU that exits
//! processes the ring first, so the order is kept. The device's I/O thread processes it, too, for a guest that does not exit. So an adapter
//! whose driver reads a register for each I/O saves the exit of its writes. [`worth`] decides when posting saves time.
#![allow(unsafe_code, reason = "the ring is memory shared with KVM")]
#![expect(clippy::disallowed_types, reason = "one taker at a time; without writes in the ring nobody locks")]

mod watch;
mod worth;

pub(crate) use watch::Watch;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvm_bindings::{KVM_CAP_COALESCED_MMIO, kvm_coalesced_mmio, kvm_coalesced_mmio_ring};
use kvm_ioctls::{IoEventAddress, VcpuFd};
use paradisk_devices::{Bar, FastRegisters, FastWrite, PostedRegisters};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::mailbox::Mailbox;
use crate::memory::Vm;

const PAGE: usize = 4096;
/// Entries in the ring's page (`KVM_COALESCED_MMIO_MAX`).
const ENTRIES: u32 = ((PAGE - size_of::<kvm_coalesced_mmio_ring>()) / size_of::<kvm_coalesced_mmio>()) as u32;

/// The ring page of a virtual machine, shared by all its virtual CPUs.
struct Ring(NonNull<u8>);

// SAFETY: memory that stays mapped until drop; it is accessed by atomics and volatile reads only.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn map(vm: &Vm, vcpu: &VcpuFd) -> Option<Self> {
        let page = vm.fd.check_extension_raw(KVM_CAP_COALESCED_MMIO.into());
        let offset = u64::try_from(page).ok().filter(|page| *page > 0)? * PAGE as u64;
        // SAFETY: open as long as `vcpu` is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(vcpu.as_raw_fd()) };
        // SAFETY: a new mapping, which replaces none.
        let mapped = unsafe {
            mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, offset)
        };
        NonNull::new(mapped.ok()?.cast()).map(Self)
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: one of the two indices at the start of the page, aligned; KVM accesses them as one word, too.
        unsafe { &*self.0.as_ptr().add(offset).cast() }
    }

    fn first(&self) -> &AtomicU32 {
        self.word(std::mem::offset_of!(kvm_coalesced_mmio_ring, first))
    }

    fn is_empty(&self) -> bool {
        let last = self.word(std::mem::offset_of!(kvm_coalesced_mmio_ring, last));
        self.first().load(Ordering::Acquire) == last.load(Ordering::Acquire)
    }

    /// The oldest write. It stays in the ring until [`drop_first`](Self::drop_first): another virtual CPU that exits before that finds the
    /// ring not empty, and waits for the lock. One thread at a time calls this.
    fn first_write(&self) -> Option<Write> {
        if self.is_empty() {
            return None;
        }
        let first = self.first().load(Ordering::Relaxed) % ENTRIES;
        let at = size_of::<kvm_coalesced_mmio_ring>() + first as usize * size_of::<kvm_coalesced_mmio>();
        // SAFETY: inside the page by the remainder. KVM has filled the entry, and does not change it until `first` passes it.
        let entry = unsafe { self.0.as_ptr().add(at).cast::<kvm_coalesced_mmio>().read_volatile() };
        let len = (entry.len as usize).min(entry.data.len());
        Some(Write { address: entry.phys_addr, data: entry.data, len })
    }

    fn drop_first(&self) {
        let first = self.first().load(Ordering::Relaxed) % ENTRIES;
        self.first().store((first + 1) % ENTRIES, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing refers to it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

struct Write {
    address: u64,
    data: [u8; 8],
    len: usize,
}

/// Registers of a device, and their address.
struct Zone {
    registers: PostedRegisters,
    fast: Arc<dyn FastRegisters>,
    mailbox: Mailbox,
    /// The address that the guest has assigned.
    address: Option<u64>,
    /// The address that is registered with KVM.
    registered: Option<u64>,
    wanted: bool,
}

/// Number of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZoneId(usize);

/// The posted writes of a machine.
pub(crate) struct PostedWrites {
    // Dropped before `vm`, to which it belongs.
    ring: Ring,
    vm: Arc<Vm>,
    zones: Mutex<Vec<Zone>>,
    /// Writes that virtual CPUs processed on an exit.
    prompt: AtomicU64,
    /// Writes that I/O threads processed, or that the guest may have waited for.
    late: AtomicU64,
}

impl PostedWrites {
    /// Any virtual CPU of the machine serves to map the ring. `None` if KVM has no ring.
    pub(crate) fn new(vm: &Arc<Vm>, vcpu: &VcpuFd) -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            ring: Ring::map(vm, vcpu)?,
            vm: Arc::clone(vm),
            zones: Mutex::default(),
            prompt: AtomicU64::new(0),
            late: AtomicU64::new(0),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Zone>> {
        self.zones.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device's registers.
    pub(crate) fn add(
        &self,
        registers: PostedRegisters,
        fast: Arc<dyn FastRegisters>,
        mailbox: Mailbox,
    ) -> ZoneId {
        let mut zones = self.lock();
        zones.push(Zone { registers, fast, mailbox, address: None, registered: None, wanted: false });
        ZoneId(zones.len() - 1)
    }

    /// The base address registers of a zone's device may have moved.
    pub(crate) fn moved(&self, id: ZoneId, bars: &[Bar]) {
        if let Some(zone) = self.lock().get_mut(id.0) {
            let PostedRegisters { bar, offset, .. } = zone.registers;
            let memory = bars.iter().find(|each| each.index == bar && !each.kind.is_io());
            zone.address = memory.and_then(|bar| bar.address?.checked_add(offset));
            zone.update(&self.vm);
        }
    }

    /// Enable or disable posting for the zone. Earlier posted writes are in the ring when this returns.
    pub(crate) fn set_wanted(&self, id: ZoneId, wanted: bool) {
        if let Some(zone) = self.lock().get_mut(id.0) {
            zone.wanted = wanted;
            zone.update(&self.vm);
        }
    }

    /// After an exit, before it is handled: process the posted writes.
    #[inline]
    pub(crate) fn take_on_exit(&self) {
        if !self.ring.is_empty() {
            self.take(None);
        }
    }

    /// On the I/O thread of zone `own`. True: its device has work.
    pub(crate) fn take_on_io_thread(&self, own: ZoneId) -> bool {
        !self.ring.is_empty() && self.take(Some(own))
    }

    /// Number of writes processed in time, and late.
    pub(crate) fn taken(&self) -> (u64, u64) {
        (self.prompt.load(Ordering::Relaxed), self.late.load(Ordering::Relaxed))
    }

    #[cold]
    fn take(&self, own: Option<ZoneId>) -> bool {
        let zones = self.lock();
        let mut work = false;
        let (mut prompt, mut late) = (0, 0);
        // Bounded, because the guest may continue to post.
        for _ in 0..ENTRIES {
            let Some(write) = self.ring.first_write() else { break };
            if own.is_some() {
                late += 1;
            } else {
                prompt += 1;
            }
            let found =
                zones.iter().enumerate().find_map(|(index, zone)| Some((index, zone, zone.find(&write)?)));
            // If no zone has this address, the guest has moved the zone since the write. Before the move, its processor processed all
            // earlier writes. So another processor wrote during the move, and the write is ignored.
            if let Some((index, zone, offset)) = found {
                let data = write.data.get(..write.len).unwrap_or_default();
                match zone.fast.write(zone.registers.bar, offset, data) {
                    FastWrite::Wake { .. } if own == Some(ZoneId(index)) => work = true,
                    FastWrite::Wake { idle } => {
                        late += u64::from(idle);
                        zone.mailbox.nudge();
                    }
                    // A width that the registers do not support is ignored, as the contract requires. If it were forwarded, a guest could
                    // fill the mailbox, because nothing waits for posted writes.
                    FastWrite::Taken | FastWrite::Forward => {}
                }
            }
            self.ring.drop_first();
        }
        self.prompt.fetch_add(prompt, Ordering::Relaxed);
        self.late.fetch_add(late, Ordering::Relaxed);
        work
    }
}

impl Zone {
    /// The offset of a write in the base address register's space, if the write is to this zone.
    fn find(&self, write: &Write) -> Option<u64> {
        let within = write.address.checked_sub(self.address?)?;
        (within < u64::from(self.registers.len)).then_some(self.registers.offset + within)
    }

    /// Register the zone's address with KVM.
    fn update(&mut self, vm: &Vm) {
        let address = self.address.filter(|_| self.wanted);
        if address == self.registered {
            return;
        }
        if let Some(old) = self.registered.take() {
            // Registered with these arguments. If this fails, writes are still posted, and processed.
            let _ = vm.fd.unregister_coalesced_mmio(IoEventAddress::Mmio(old), self.registers.len);
        }
        if let Some(new) = address
            && vm.fd.register_coalesced_mmio(IoEventAddress::Mmio(new), self.registers.len).is_ok()
        {
            self.registered = Some(new);
        }
    }
}

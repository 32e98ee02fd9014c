//! Posted writes: registers whose writes need not leave the guest (`KVM_CAP_COALESCED_MMIO`).
//!
//! KVM puts a write to a zone into a ring that it shares with this process, and the guest runs on. Whoever leaves the
//! guest next takes what is in the ring first, so order is kept; the device's I/O thread takes it, too, for a guest
//! that does not leave. So an adapter whose driver reads a register for each I/O anyway is spared the exit for its
//! writes. A zone is only worth having while that is so: see [`worth`].
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

/// The ring page of a virtual machine. All of its virtual CPUs have the same.
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

    /// The oldest write. It stays in the ring until [`drop_first`](Self::drop_first): whoever leaves the guest meanwhile finds
    /// the ring not empty, and waits until it has been handed over. One taker at a time.
    fn first_write(&self) -> Option<Write> {
        if self.is_empty() {
            return None;
        }
        let first = self.first().load(Ordering::Relaxed) % ENTRIES;
        let at = size_of::<kvm_coalesced_mmio_ring>() + first as usize * size_of::<kvm_coalesced_mmio>();
        // SAFETY: inside the page by the remainder; KVM has filled the entry, and leaves it alone until `first` passes it.
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

/// Registers of a device, and where they are.
struct Zone {
    registers: PostedRegisters,
    fast: Arc<dyn FastRegisters>,
    mailbox: Mailbox,
    /// Where the guest put them.
    address: Option<u64>,
    /// The address that KVM knows.
    registered: Option<u64>,
    wanted: bool,
}

/// Number of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZoneId(usize);

/// The posted writes of a machine.
pub(crate) struct PostedWrites {
    // Dropped before the machine that it belongs to.
    ring: Ring,
    vm: Arc<Vm>,
    zones: Mutex<Vec<Zone>>,
    /// Writes that virtual CPUs took on their way out.
    prompt: AtomicU64,
    /// Writes that I/O threads found, or that the guest might have waited for.
    late: AtomicU64,
}

impl PostedWrites {
    /// With any virtual CPU of the machine, to map the ring from; `None` where KVM has no ring.
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

    /// Let the zone's writes be posted, or not. Afterwards what was posted is in the ring.
    pub(crate) fn set_wanted(&self, id: ZoneId, wanted: bool) {
        if let Some(zone) = self.lock().get_mut(id.0) {
            zone.wanted = wanted;
            zone.update(&self.vm);
        }
    }

    /// On leaving the guest, before the exit is handled: hand over what was posted.
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

    /// Writes taken so far, in time and late.
    pub(crate) fn taken(&self) -> (u64, u64) {
        (self.prompt.load(Ordering::Relaxed), self.late.load(Ordering::Relaxed))
    }

    #[cold]
    fn take(&self, own: Option<ZoneId>) -> bool {
        let zones = self.lock();
        let mut work = false;
        let (mut prompt, mut late) = (0, 0);
        // Bounded: a guest may go on posting.
        for _ in 0..ENTRIES {
            let Some(write) = self.ring.first_write() else { break };
            if own.is_some() {
                late += 1;
            } else {
                prompt += 1;
            }
            let found =
                zones.iter().enumerate().find_map(|(index, zone)| Some((index, zone, zone.find(&write)?)));
            // Else nobody's: the zone has moved away meanwhile, which other processors had to wait for.
            if let Some((index, zone, offset)) = found {
                let data = write.data.get(..write.len).unwrap_or_default();
                match zone.fast.write(zone.registers.bar, offset, data) {
                    FastWrite::Wake { .. } if own == Some(ZoneId(index)) => work = true,
                    FastWrite::Wake { idle } => {
                        late += u64::from(idle);
                        zone.mailbox.nudge();
                    }
                    // Of a width that the registers do not know: nothing, as the contract says. To pass it on would let a
                    // guest fill the mailbox, for nobody waits for it.
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
    /// The offset in the base address register's space that a write is to, if it is one of this zone's.
    fn find(&self, write: &Write) -> Option<u64> {
        let within = write.address.checked_sub(self.address?)?;
        (within < u64::from(self.registers.len)).then_some(self.registers.offset + within)
    }

    /// Tell KVM where the zone is.
    fn update(&mut self, vm: &Vm) {
        let address = self.address.filter(|_| self.wanted);
        if address == self.registered {
            return;
        }
        if let Some(old) = self.registered.take() {
            // It was registered so; what cannot be taken back goes on being posted, and taken.
            let _ = vm.fd.unregister_coalesced_mmio(IoEventAddress::Mmio(old), self.registers.len);
        }
        if let Some(new) = address
            && vm.fd.register_coalesced_mmio(IoEventAddress::Mmio(new), self.registers.len).is_ok()
        {
            self.registered = Some(new);
        }
    }
}

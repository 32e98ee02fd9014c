//! A VMM that behaves as Cloud Hypervisor. Its client is the crate `vfio_user`, called in the order of Cloud Hypervisor's device
//! manager. As there, the VMM emulates the base address registers, the ROM register and the MSI-X table itself. The guest's
//! drivers run on top.
//!
//! Defects of the client (0.1.7), and what they mean for a server:
//! - It ignores the error of a reply. A reply with an error is a header alone. So after a refused read, write or unmap the client
//!   waits for ever for the rest. This is why configuration space reads as all ones beyond its end, where guests look for
//!   extended capabilities. A refused map goes unnoticed.
//! - It inverts the flag of reset: it resets no function that can be reset.
//! - It proposes version 0.1, ignores `max_msg_fds`, and has neither posted writes nor ioeventfds: each doorbell is two messages.
//! - It sends VERSION and register writes by one system call each. If the socket accepts a part, the rest is lost.
#![allow(unsafe_code, reason = "guest memory is handed to the driver as raw DMA memory")]

use std::cell::Cell;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use guest_driver::driver::Driver;
use guest_driver::workload::Fault;
use guest_driver::{DmaRegion, InterruptMode, LoadGenerator, Mode, Platform, Report, Workload};
use paradisk_devices::AdapterKind;
use paradisk_serve::vfio_user::spec::{CONFIG_REGION, IRQ_INTX, IRQ_MSI, IRQ_MSIX, IrqSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vfio_user::Client;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::drivers::{DISK, JOB, options, serve};
use crate::vmm::{Served, new_event, was_rung};

const REGION: u64 = 32 << 20;
/// Start of the second region, behind a hole, as memory above 4 GiB is.
const HIGH: u64 = 4 << 30;
const FIRST_DMA: u64 = 1 << 20;
const COMMAND: u16 = 4;
const BARS: Range<u16> = 0x10..0x28;
const ROM: u16 = 0x30;
const CAP_MSI: u8 = 5;
const CAP_MSIX: u8 = 0x11;
/// Descriptors that Cloud Hypervisor sends with one message.
const BLOCK: u32 = 16;
const SET: u32 = IrqSet::DATA_EVENTFD.union(IrqSet::TRIGGER).bits();
const TRIGGER: u32 = IrqSet::DATA_NONE.union(IrqSet::TRIGGER).bits();
const UNMASK: u32 = IrqSet::DATA_NONE.union(IrqSet::UNMASK).bits();

struct Msix {
    capability: u16,
    bar: u8,
    table: Range<u64>,
    /// The table, which the function never sees.
    entries: Vec<u8>,
}

struct Vmm {
    client: Client,
    memory: Arc<GuestMemoryMmap>,
    memfd: OwnedFd,
    next_dma: u64,
    /// The base address registers as the guest sees them: value and writable bits. The function's own registers keep the values of
    /// the sizing.
    bars: [(u32, u32); 6],
    msi: Option<u16>,
    msix: Option<Msix>,
    /// Signalled by all vectors and by the line.
    event: OwnedFd,
    line: bool,
    taken: Cell<u32>,
    origin: Instant,
}

impl Vmm {
    fn new(served: &Served) -> Self {
        let mut client = Client::new(&served.socket).unwrap();
        if client.resettable() {
            client.reset().unwrap();
        }
        let memfd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memfd, 2 * REGION).unwrap();
        let file = |offset| Some(FileOffset::new(File::from(memfd.try_clone().unwrap()), offset));
        let ranges = [(0, 0), (HIGH, REGION)]
            .map(|(start, offset)| (GuestAddress(start), REGION as usize, file(offset)));
        let memory = Arc::new(GuestMemoryMmap::from_ranges_with_files(ranges).unwrap());
        let mut vmm = Self {
            client,
            memory,
            memfd,
            next_dma: FIRST_DMA,
            bars: [(0, 0); 6],
            msi: None,
            msix: None,
            event: new_event(),
            line: false,
            taken: Cell::new(0),
            origin: Instant::now(),
        };
        vmm.parse_capabilities();
        if vmm.client.get_irq_info(IRQ_INTX).unwrap().count > 0 {
            vmm.enable_line();
        }
        vmm.size_bars();
        for (address, offset) in [(0, 0), (HIGH, REGION)] {
            vmm.client.dma_map(offset, address, REGION, vmm.memfd.as_raw_fd()).unwrap();
        }
        vmm
    }

    fn function_read<const N: usize>(&mut self, offset: u16) -> [u8; N] {
        let mut bytes = [0; N];
        self.client.region_read(CONFIG_REGION, offset.into(), &mut bytes).unwrap();
        bytes
    }

    fn parse_capabilities(&mut self) {
        let [mut at] = self.function_read(0x34);
        while at != 0 {
            let start = u16::from(at);
            let [id] = self.function_read(start);
            match id {
                CAP_MSI if self.client.get_irq_info(IRQ_MSI).unwrap().count > 0 => self.msi = Some(start),
                CAP_MSIX if self.client.get_irq_info(IRQ_MSIX).unwrap().count > 0 => {
                    let control = u16::from_le_bytes(self.function_read(start + 2));
                    let place = u32::from_le_bytes(self.function_read(start + 4));
                    let (first, len) = (u64::from(place & !7), 16 * (u64::from(control & 0x7ff) + 1));
                    assert!(
                        first.is_multiple_of(4096),
                        "it would be moved, and what is behind it be out of reach"
                    );
                    self.msix = Some(Msix {
                        capability: start,
                        bar: place as u8 & 7,
                        table: first..first + len,
                        entries: vec![0; len as usize],
                    });
                }
                _ => {}
            }
            [at] = self.function_read(start + 1);
        }
    }

    fn size_bars(&mut self) {
        let mut upper = false;
        for index in 0..6 {
            let register = BARS.start + 4 * index as u16;
            let flags = u32::from_le_bytes(self.function_read(register));
            self.client.region_write(CONFIG_REGION, register.into(), &[0xff; 4]).unwrap();
            let sized = u32::from_le_bytes(self.function_read(register));
            let kind = match flags {
                _ if upper => 0,
                flags if flags & 1 != 0 => 3,
                _ => 15,
            };
            self.bars[index] = (flags & kind, sized & !kind);
            if !upper && sized != 0 {
                let size = self.client.region(index as u32).unwrap().size;
                assert_eq!(u64::from(!(sized & !kind)) + 1, size, "register {index}");
            }
            upper = !upper && kind == 15 && flags & 4 != 0;
        }
    }

    fn set_irqs(&mut self, index: u32, count: u32) {
        for first in (0..count).step_by(BLOCK as usize) {
            let count = (count - first).min(BLOCK);
            let fds = vec![self.event.as_raw_fd(); count as usize];
            self.client.set_irqs(index, SET, first, count, &fds).unwrap();
        }
    }

    fn enable_line(&mut self) {
        self.set_irqs(IRQ_INTX, 1);
        self.line = true;
    }

    /// Enable `count` vectors of MSI or MSI-X after disabling the line; `None`: disable them, and enable the line again.
    fn switch(&mut self, index: u32, count: Option<u32>) {
        if let Some(count) = count {
            if std::mem::take(&mut self.line) {
                self.client.set_irqs(IRQ_INTX, TRIGGER, 0, 0, &[]).unwrap();
            }
            self.set_irqs(index, count);
        } else {
            self.client.set_irqs(index, TRIGGER, 0, 0, &[]).unwrap();
            self.enable_line();
        }
    }

    /// After each access to a register: it may have acknowledged the line's interrupt.
    fn unmask(&mut self) {
        if self.line {
            self.client.set_irqs(IRQ_INTX, UNMASK, 0, 1, &[]).unwrap();
        }
    }

    fn table_offset(&self, bar: u8, offset: u64) -> Option<usize> {
        let msix = self.msix.as_ref().filter(|msix| msix.bar == bar && msix.table.contains(&offset))?;
        Some((offset - msix.table.start) as usize)
    }
}

impl Platform for Vmm {
    fn config_read(&mut self, offset: u16) -> u32 {
        if BARS.contains(&offset) {
            return self.bars[usize::from((offset - BARS.start) / 4)].0;
        }
        if offset == ROM { 0 } else { u32::from_le_bytes(self.function_read(offset)) }
    }

    fn config_write(&mut self, offset: u16, value: u32) {
        if BARS.contains(&offset) {
            let (shown, mask) = &mut self.bars[usize::from((offset - BARS.start) / 4)];
            *shown = value & *mask | *shown & !*mask;
            return;
        }
        if offset == ROM {
            return;
        }
        let was = |vmm: &mut Self, bit: u32| vmm.config_read(offset) & bit != 0;
        if self.msi == Some(offset) && was(self, 1 << 16) != (value & 1 << 16 != 0) {
            self.switch(IRQ_MSI, (value & 1 << 16 != 0).then_some(1));
        }
        let msix = self.msix.as_ref().filter(|msix| msix.capability == offset);
        if let Some(vectors) = msix.map(|msix| msix.entries.len() as u32 / 16)
            && was(self, 1 << 31) != (value & 1 << 31 != 0)
        {
            self.switch(IRQ_MSIX, (value & 1 << 31 != 0).then_some(vectors));
        }
        self.client.region_write(CONFIG_REGION, offset.into(), &value.to_le_bytes()).unwrap();
    }

    fn read(&mut self, bar: u8, offset: u64, len: usize) -> u32 {
        let mut data = [0; 4];
        if let Some(at) = self.table_offset(bar, offset) {
            data[..len].copy_from_slice(&self.msix.as_ref().unwrap().entries[at..at + len]);
        } else {
            self.client.region_read(bar.into(), offset, &mut data[..len]).unwrap();
        }
        self.unmask();
        u32::from_le_bytes(data)
    }

    fn write(&mut self, bar: u8, offset: u64, len: usize, value: u32) {
        let data = &value.to_le_bytes()[..len];
        if let Some(at) = self.table_offset(bar, offset) {
            self.msix.as_mut().unwrap().entries[at..at + len].copy_from_slice(data);
        } else {
            self.client.region_write(bar.into(), offset, data).unwrap();
        }
        self.unmask();
    }

    fn dma(&mut self, len: usize, align: usize) -> Option<DmaRegion> {
        let mut start = self.next_dma.checked_next_multiple_of(align.max(8) as u64)?;
        // What does not fit into the first half of the first region is above the hole.
        if start + len as u64 > REGION / 2 && start < HIGH {
            start = HIGH;
        }
        let slice = self.memory.get_slice(GuestAddress(start), len).ok()?;
        self.next_dma = start + len as u64;
        let base = slice.ptr_guard_mut().as_ptr();
        // SAFETY: mapped as long as `memory` is, which `drop` leaks; aligned as a page is; no Rust reference to it exists.
        Some(unsafe { DmaRegion::new(base, start, len) })
    }

    fn msi_message(&self) -> (u64, u32) {
        (0xfee0_0000, 0x31)
    }

    fn interrupts(&self) -> u32 {
        if was_rung(&self.event) {
            self.taken.set(self.taken.get().wrapping_add(1));
        }
        self.taken.get()
    }

    fn wait_interrupt(&mut self, seen: u32) {
        if self.interrupts() == seen {
            let _ = poll(
                &mut [PollFd::new(&self.event, PollFlags::IN)],
                Some(&Timespec { tv_sec: 1, tv_nsec: 0 }),
            );
        }
    }

    fn ticks(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn timeout_ticks(&self) -> u64 {
        20_000_000_000
    }
}

/// DMA regions have no lifetime, and a driver may outlive its machine. So the memory is leaked.
impl Drop for Vmm {
    fn drop(&mut self) {
        let _ = self.client.shutdown();
        std::mem::forget(Arc::clone(&self.memory));
    }
}

/// Run a test on a thread of its own, with a time limit: the client waits for ever for a reply that does not come.
fn in_time(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if ended.recv_timeout(Duration::from_secs(600)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("the client waits for a reply");
    }
    thread.join().unwrap();
}

fn run(driver: &mut Driver, vmm: &mut Vmm, job: &Workload) {
    let mut report = Box::new(Report::EMPTY);
    driver.run(&mut Box::<LoadGenerator>::default(), vmm, job, &mut report);
    assert_eq!(report.fault, Fault::EMPTY, "{driver:?} {job:?}");
    assert!(report.capacity == DISK && report.interrupts > 0, "{driver:?} {job:?}");
}

fn written_is_read(kind: AdapterKind, interrupts: InterruptMode) {
    let served = serve(kind);
    let mut vmm = Vmm::new(&served);
    // In the second round the guest starts again, after a reset and after a region was unmapped and mapped again.
    for _ in 0..2 {
        let mut driver = Driver::start(&mut vmm, options(kind, interrupts)).unwrap();
        for mode in [Mode::Fill, Mode::Check, Mode::Churn] {
            run(&mut driver, &mut vmm, &Workload { mode, ..JOB });
        }
        vmm.client.reset().unwrap();
        vmm.client.dma_unmap(HIGH, REGION).unwrap();
        vmm.client.dma_map(REGION, HIGH, REGION, vmm.memfd.as_raw_fd()).unwrap();
        vmm.config_write(COMMAND, 0);
        vmm.next_dma = FIRST_DMA;
    }
    drop(vmm);
    let (_, stats) = served.stop();
    assert!(stats.requests >= 4 * DISK / 4096 + 2 * JOB.ios, "{stats:?}");
}

#[test]
fn each_adapter_in_each_interrupt_mode() {
    use AdapterKind::{Lsi, LsiSas, Pvscsi, VirtioBlk, VirtioScsi};
    use InterruptMode::{Intx, Msi, MsiX};
    in_time(|| {
        for (kind, modes) in [
            (Pvscsi, &[MsiX, Msi, Intx][..]),
            (Lsi, &[Msi, Intx]),
            (LsiSas, &[Msi, Intx]),
            (VirtioBlk, &[MsiX, Intx]),
            (VirtioScsi, &[MsiX, Intx]),
        ] {
            for mode in modes {
                written_is_read(kind, *mode);
            }
        }
    });
}

/// Guests look for extended capabilities through the machine's memory-mapped configuration space, whatever size the server
/// reports.
#[test]
fn configuration_space_has_no_end_that_a_client_could_hang_at() {
    in_time(|| {
        let served = serve(AdapterKind::Pvscsi);
        let mut vmm = Vmm::new(&served);
        assert_eq!(vmm.client.region(CONFIG_REGION).unwrap().size, 256);
        for offset in [0x100, 0x104, 0xffc] {
            assert_eq!(vmm.config_read(offset), u32::MAX);
            vmm.config_write(offset, 0);
        }
        assert_eq!(vmm.config_read(0), 0x07c0_15ad);
    });
}

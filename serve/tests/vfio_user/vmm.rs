//! A VMM around the client: guest memory in a memfd, interrupts by eventfd, doorbells by ioeventfd or by message, and the
//! guest's drivers on top. The server runs beside it on a thread.
#![allow(unsafe_code, reason = "guest memory is handed to the driver as raw DMA memory")]

use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use guest_driver::{DmaRegion, Platform};
use paradisk_devices::{AdapterConfig, AdapterKind, Attachment, Coalescing, Policy, Stats};
use paradisk_disk_formats::{Disk, EngineKind, ThreadKind, spawn};
use paradisk_serve::vfio_user::spec::{self, IrqSet};
use paradisk_serve::vfio_user::{Handle, Note, Server};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sandbox::{Program, Sandbox};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::client::Client;

/// Bytes of guest memory.
pub(crate) const MEMORY: u64 = 64 << 20;
const FIRST_DMA: u64 = 1 << 20;
/// Address and data of the guest's MSI messages.
const MESSAGE: (u64, u32) = (0xfee0_0000, 0x31);
const DRIVER_TIMEOUT: u64 = 20_000_000_000;

/// A server on its thread, which has the filter of `paradisk serve vfio-user`.
pub(crate) struct Served {
    pub(crate) socket: PathBuf,
    pub(crate) handle: Handle,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<(Vec<Note>, Stats)>>,
    _directory: tempfile::TempDir,
}

impl Served {
    /// Requests that the device has taken.
    pub(crate) fn requests(&self) -> u64 {
        self.handle.report(Duration::from_secs(60)).unwrap().stats.requests
    }

    pub(crate) fn new(kind: AdapterKind, disk: Arc<dyn Disk>) -> Self {
        Self::on_threads(kind, 0, disk)
    }

    /// A device whose queues are served by so many threads of its own.
    pub(crate) fn on_threads(kind: AdapterKind, threads: u16, disk: Arc<dyn Disk>) -> Self {
        Self::with(AdapterConfig { threads, ..AdapterConfig::new(kind) }, disk)
    }

    /// A device of this configuration, except that its moderation is [`Policy::Batch`].
    pub(crate) fn with(config: AdapterConfig, disk: Arc<dyn Disk>) -> Self {
        Self::polling(config, Duration::ZERO, disk)
    }

    /// As [`with`](Self::with), on a thread that polls for up to `poll`.
    pub(crate) fn polling(config: AdapterConfig, poll: Duration, disk: Arc<dyn Disk>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let target = config.kind.targets().next().unwrap();
        let disks = [(target, Attachment { disk, engine: EngineKind::default(), serial: None })];
        let config = AdapterConfig { coalescing: Coalescing::policy(Policy::Batch), ..config };
        drop(Sandbox::of_threads(Program::VfioUser).unwrap());
        let mut server = Server::new(listener, |memory, interrupts| {
            Ok(paradisk_devices::build(memory, interrupts, config, &disks)?)
        })
        .unwrap();
        server.set_poll(poll);
        let handle = server.handle();
        let run = move || {
            let mut notes = Vec::new();
            server.run(stopped.as_fd(), |note| notes.push(note)).unwrap();
            (notes, server.stats())
        };
        let thread = spawn(ThreadKind::VfioUserSession, "vfio-user", run).unwrap();
        Self { socket, handle, stop: Some(stop), thread: Some(thread), _directory: directory }
    }

    /// Stop the server. Returns its notes and the device's counters.
    pub(crate) fn stop(mut self) -> (Vec<Note>, Stats) {
        self.stop = None;
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server panicked");
        }
    }
}

/// Behaviour that the protocol leaves to the VMM.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Habits {
    /// Take the doorbells as ioeventfds.
    pub(crate) ioeventfds: bool,
    /// Keep the MSI-X table to itself.
    pub(crate) keeps_table: bool,
}

pub(crate) struct Vmm {
    pub(crate) client: Client,
    pub(crate) memfd: OwnedFd,
    pub(crate) memory: Arc<GuestMemoryMmap>,
    habits: Habits,
    /// Post register writes, as QEMU does. False while a driver starts: it reads memory right after the register write that makes
    /// the device fill that memory.
    pub(crate) posting: bool,
    next_dma: u64,
    doorbells: Vec<(u8, spec::IoEventFd, OwnedFd)>,
    pub(crate) line: OwnedFd,
    pub(crate) message: OwnedFd,
    /// Interrupts taken so far.
    taken: Cell<u32>,
    /// An interrupt of the line was taken, and the line is not unmasked yet.
    line_taken: Cell<bool>,
    msix: Option<(u8, std::ops::Range<u64>)>,
    origin: Instant,
}

pub(crate) fn new_event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

/// Whether the eventfd was written since the last call.
pub(crate) fn was_rung(event: &OwnedFd) -> bool {
    rustix::io::read(event, &mut [0; 8]).is_ok()
}

impl Vmm {
    pub(crate) fn new(served: &Served, habits: Habits) -> Self {
        Self::at(&served.socket, habits)
    }

    /// A VMM with the server at this socket.
    pub(crate) fn at(socket: &Path, habits: Habits) -> Self {
        let memfd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memfd, MEMORY).unwrap();
        let mut client = Client::new(socket);
        let file = FileOffset::new(File::from(memfd.try_clone().unwrap()), 0);
        let ranges = [(GuestAddress(0), MEMORY as usize, Some(file))];
        let memory = Arc::new(GuestMemoryMmap::from_ranges_with_files(ranges).unwrap());
        let (line, message) = (new_event(), new_event());
        // A machine's ROM has no descriptor.
        client.map(MEMORY, 0x1000, 0, spec::DMA_READ, None).unwrap();
        client.map(0, MEMORY, 0, spec::DMA_READ | spec::DMA_WRITE, Some(memfd.as_fd())).unwrap();
        let trigger = IrqSet::DATA_EVENTFD | IrqSet::TRIGGER;
        for (index, event) in [(spec::IRQ_INTX, &line), (spec::IRQ_MSI, &message), (spec::IRQ_MSIX, &message)]
        {
            let count = client.irq_info(index).unwrap().count.get();
            for first in (0..count).step_by(16) {
                let end = count.min(first + 16);
                let fds = vec![event; (end - first) as usize];
                client.set_irqs(trigger, index, first..end, &[], &fds).unwrap();
            }
        }
        let mut vmm = Self {
            client,
            memfd,
            memory,
            habits,
            posting: false,
            next_dma: FIRST_DMA,
            doorbells: Vec::new(),
            line,
            message,
            taken: Cell::new(0),
            line_taken: Cell::new(false),
            msix: None,
            origin: Instant::now(),
        };
        vmm.msix = vmm.find_msix();
        if habits.ioeventfds {
            for bar in 0..6u8 {
                let fds = vmm.client.io_fds(bar.into());
                vmm.doorbells.extend(fds.into_iter().map(|(place, fd)| (bar, place, fd)));
            }
        }
        vmm
    }

    fn find_msix(&mut self) -> Option<(u8, std::ops::Range<u64>)> {
        let mut at = self.config_read(0x34) as u8;
        while at != 0 {
            let header = self.config_read(at.into());
            if header as u8 == 0x11 {
                let table = self.config_read(u16::from(at) + 4);
                let (bar, start) = (table as u8 & 7, u64::from(table & !7));
                return Some((bar, start..start + 16 * (u64::from(header >> 16 & 0x7ff) + 1)));
            }
            at = (header >> 8) as u8;
        }
        None
    }

    /// Take further DMA memory from `address` on.
    pub(crate) fn skip_to(&mut self, address: u64) {
        self.next_dma = self.next_dma.max(address);
    }

    fn look(&self) {
        if was_rung(&self.message) {
            self.taken.set(self.taken.get().wrapping_add(1));
        }
        if was_rung(&self.line) {
            self.taken.set(self.taken.get().wrapping_add(1));
            self.line_taken.set(true);
        }
    }
}

impl Platform for Vmm {
    fn config_read(&mut self, offset: u16) -> u32 {
        let bytes = self.client.read(spec::CONFIG_REGION, offset.into(), 4).unwrap();
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    fn config_write(&mut self, offset: u16, value: u32) {
        self.client.write(spec::CONFIG_REGION, offset.into(), &value.to_le_bytes(), false).unwrap();
    }

    fn read(&mut self, bar: u8, offset: u64, len: usize) -> u32 {
        let mut data = [0; 4];
        data[..len].copy_from_slice(&self.client.read(bar.into(), offset, len as u32).unwrap());
        u32::from_le_bytes(data)
    }

    fn write(&mut self, bar: u8, offset: u64, len: usize, value: u32) {
        let table = self.msix.as_ref().is_some_and(|(at, table)| *at == bar && table.contains(&offset));
        if table && self.habits.keeps_table {
            return;
        }
        let hit = |(at, place, _): &&(u8, spec::IoEventFd, OwnedFd)| {
            (*at, place.offset.get(), place.size.get()) == (bar, offset, len as u64)
        };
        if let Some((_, _, event)) = self.doorbells.iter().find(hit) {
            rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
            return;
        }
        self.client.write(bar.into(), offset, &value.to_le_bytes()[..len], self.posting).unwrap();
    }

    fn dma(&mut self, len: usize, align: usize) -> Option<DmaRegion> {
        let start = self.next_dma.checked_next_multiple_of(align.max(8) as u64)?;
        let slice = self.memory.get_slice(GuestAddress(start), len).ok()?;
        self.next_dma = start + len as u64;
        let base = slice.ptr_guard_mut().as_ptr();
        // SAFETY: mapped as long as `memory` is, which `drop` leaks; aligned as a page is; no Rust reference to it exists.
        Some(unsafe { DmaRegion::new(base, start, len) })
    }

    fn msi_message(&self) -> (u64, u32) {
        MESSAGE
    }

    fn interrupts(&self) -> u32 {
        self.look();
        self.taken.get()
    }

    fn wait_interrupt(&mut self, seen: u32) {
        if self.line_taken.take() {
            // The guest has handled the interrupt: unmask the line.
            let flags = IrqSet::DATA_NONE | IrqSet::UNMASK;
            self.client.set_irqs(flags, spec::IRQ_INTX, 0..1, &[], &[]).unwrap();
        }
        if self.interrupts() != seen {
            return;
        }
        let mut fds = [PollFd::new(&self.line, PollFlags::IN), PollFd::new(&self.message, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
    }

    fn ticks(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn timeout_ticks(&self) -> u64 {
        DRIVER_TIMEOUT
    }
}

/// DMA regions have no lifetime, and a driver may outlive its machine. So the memory is leaked.
impl Drop for Vmm {
    fn drop(&mut self) {
        std::mem::forget(Arc::clone(&self.memory));
    }
}

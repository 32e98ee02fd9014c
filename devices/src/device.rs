//! The contract of a device: bus accesses and queue events in, memory writes and interrupts out.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use paradisk_disk_formats::QueueStats;

use crate::moderation::{Coalescing, ModerationState};
use crate::scsi::{Address, AttachError, LogicalUnit};
use crate::time::Time;

/// The address space of a base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// I/O ports.
    Io,
    /// I/O ports whose addresses are fixed, without a register: those of an IDE function in compatibility mode (PCI IDE Controller
    /// Specification 1.0, section 2.1).
    FixedIo,
    /// Memory below 4 GiB.
    Memory32,
    /// Memory anywhere.
    Memory64,
}

impl BarKind {
    /// Whether it decodes I/O ports.
    #[must_use]
    pub const fn is_io(self) -> bool {
        matches!(self, Self::Io | Self::FixedIo)
    }
}

/// A base address register and its current address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Register number, 0 to 5.
    pub index: u8,
    /// Kind of space.
    pub kind: BarKind,
    /// Bytes; a power of two.
    pub size: u64,
    /// Where the guest put it; `None` while its space is not enabled in the command register.
    pub address: Option<u64>,
}

/// A register whose writes may be turned into an event (ioeventfd). The written value does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// Base address register number.
    pub bar: u8,
    /// Byte offset.
    pub offset: u64,
    /// Bytes written: 1, 2, 4 or 8. As an ioeventfd, a write of any width rings.
    pub len: u8,
}

/// Which thread makes an access to a register ([`PciDevice::access_kind`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Any thread. The access reads or changes registers, and may signal the guest.
    Register,
    /// As [`Register`](Self::Register). It gives the device work: afterwards, the thread that serves the device calls
    /// [`on_completions`](IoDevice::on_completions).
    Submission,
    /// The thread that serves the device. The access may use a disk, wait for one, or change what
    /// [`before_sleep`](IoDevice::before_sleep) and [`completion_events`](IoDevice::completion_events) return.
    Command,
}

/// Whether the thread that serves a device may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// No: there is work. Call [`IoDevice::on_completions`] again at once.
    No,
    /// Until an event, at the latest until this time.
    Until(Time),
    /// Until an event.
    Forever,
}

/// Counters of an adapter since its creation. Requests for a disk count, and so does task management that has the form of such a request
/// (BusLogic's bus device reset is a CCB).
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Requests fetched from the guest.
    pub requests: u64,
    /// Requests that have ended: completions posted to the guest, and requests that an adapter reset has dropped.
    pub completions: u64,
    /// Completions whose status was not good.
    pub errors: u64,
    /// Interrupts signalled to the guest.
    pub interrupts: u64,
    /// Doorbell events (several writes of the guest may be one event).
    pub doorbells: u64,
    /// System calls of the disks' queues on the I/O thread.
    pub submits: u64,
    /// Time-stamp-counter ticks spent in these system calls.
    pub submit_ticks: u64,
}

impl Stats {
    /// With the counters of the disks' queues.
    pub(crate) const fn with(self, queues: &QueueStats) -> Self {
        Self { submits: queues.submits, submit_ticks: queues.submit_ticks, ..self }
    }
}

/// A device with an I/O queue, on any bus.
///
/// One thread at a time calls it. All calls are by the same thread, which serves the device, except accesses to registers of the kinds that
/// any thread may make ([`PciDevice::access_kind`]). No call panics, whatever the guest does.
pub trait IoDevice: Send {
    /// The doorbell of this index was rung since the last call. The trait of the bus has the list of doorbells: [`PciDevice::doorbells`],
    /// [`VmbusDevice::connections`](crate::vmbus::VmbusDevice::connections).
    fn on_doorbell(&mut self, index: usize, now: Time);

    /// Descriptors that become readable (level-triggered) when [`on_completions`](Self::on_completions) has work. They may change after a
    /// bus access, a hot-plug or a reset. A detached disk's descriptor is closed when the disk has completed its requests.
    fn completion_events(&self) -> Vec<BorrowedFd<'_>>;

    /// Call this when completions may be available, and at the time of the last [`Sleep::Until`]. It may also take new requests.
    fn on_completions(&mut self, now: Time);

    /// Call this before the thread sleeps. It checks for requests that raced with the decision to sleep, and returns how long the thread
    /// may sleep.
    fn before_sleep(&mut self, now: Time) -> Sleep;

    /// Power-on reset. It waits for the requests in flight; nothing is written to guest memory afterwards. A reset by the guest, through
    /// registers, waits only if the adapter's protocol cannot report its end later.
    fn reset(&mut self, now: Time);

    /// Wait for all requests in flight and post their completions. Then send the signals that were held back. Afterwards guest memory may
    /// be unmapped or saved.
    fn quiesce(&mut self, now: Time);

    /// Whether requests in flight use any of these guest-physical ranges, which the owner is about to unmap. The call posts available
    /// completions first, and takes no new requests. After a result of false, the owner replaces the memory and calls
    /// [`memory_replaced`](Self::memory_replaced). After a result of true, the owner asks again later, and may call
    /// [`refuse_memory`](Self::refuse_memory) meanwhile.
    ///
    /// The default waits for all requests in flight, and returns false.
    fn uses_memory(&mut self, _ranges: &[Range<u64>], now: Time) -> bool {
        self.quiesce(now);
        false
    }

    /// From now on, fail new requests that use any of these ranges, until the memory is replaced or the device is reset. Without new ones,
    /// the earlier requests that use the ranges all end.
    fn refuse_memory(&mut self, _ranges: &[Range<u64>]) {}

    /// The owner has removed guest memory: release the mappings of that memory.
    fn memory_replaced(&mut self, now: Time) {
        self.quiesce(now);
    }

    /// Change the interrupt moderation, with or without I/O in flight. Signals that were held back are sent first.
    fn set_coalescing(&mut self, coalescing: Coalescing);

    /// The state of the moderation of each interrupt vector; empty where interrupts are not moderated.
    fn moderation(&self) -> Vec<ModerationState> {
        Vec::new()
    }

    /// Attach and detach disks while the guest runs. `None`: the adapter has no bus of disks.
    fn hot_plug(&mut self) -> Option<&mut dyn HotPlug> {
        None
    }

    /// Check the capacity of the disks ([`Disk::rescan`](paradisk_disk_formats::Disk::rescan),
    /// [`Disk::grow`](paradisk_disk_formats::Disk::grow)), and report a change to the guest.
    fn refresh(&mut self, _now: Time) {}

    /// Counters since the creation.
    fn stats(&self) -> Stats;
}

/// A PCI function with an I/O queue.
///
/// Writes to [`doorbells`](Self::doorbells) arrive as events ([`IoDevice::on_doorbell`]). Unimplemented offsets read as in hardware and
/// ignore writes.
pub trait PciDevice: IoDevice {
    /// Read configuration space: `data.len()` is 1, 2 or 4, the offset aligned to it, below 4,096. [`AccessKind::Register`].
    fn config_read(&mut self, offset: u16, data: &mut [u8]);

    /// Write configuration space, with the same rules. [`bars`](Self::bars) may have moved afterwards. [`AccessKind::Command`].
    fn config_write(&mut self, offset: u16, data: &[u8]);

    /// The implemented base address registers, with their current addresses.
    fn bars(&self) -> Vec<Bar>;

    /// Read from a base address register's space.
    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], now: Time);

    /// Write to a base address register's space.
    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], now: Time);

    /// The kind of an access to a base address register's space, in the present state of the device; `write` has the data of a write. The
    /// data of a string instruction are those of all its accesses.
    fn access_kind(&self, _bar: u8, _offset: u64, _write: Option<&[u8]>) -> AccessKind {
        AccessKind::Command
    }

    /// A string instruction (`rep insw`) reads `data.len() / width` times from one port, `width` bytes each time.
    fn port_read_string(&mut self, bar: u8, offset: u64, width: usize, data: &mut [u8], now: Time) {
        data.chunks_mut(width.max(1)).for_each(|data| self.bar_read(bar, offset, data, now));
    }

    /// As [`port_read_string`](Self::port_read_string), for writes.
    fn port_write_string(&mut self, bar: u8, offset: u64, width: usize, data: &[u8], now: Time) {
        data.chunks(width.max(1)).for_each(|data| self.bar_write(bar, offset, data, now));
    }

    /// The registers that may be ioeventfds. Constant.
    fn doorbells(&self) -> &[Doorbell];

    /// An eventfd that rings this doorbell, for a device that serves the doorbell on a thread of its own. Instead of calling
    /// [`on_doorbell`](IoDevice::on_doorbell), the owner may let KVM or a client signal the eventfd. Neither the owner nor the device reads
    /// it, and the device does not write it. `None`: the owner must call. Constant.
    fn doorbell_event(&self, _index: usize) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether each register write should arrive at the device before the guest runs on. This is so if drivers rely on the effect of a
    /// write without reading a register after it: they read memory that the write makes the device fill, or they free memory that the
    /// device may use until the write arrives. Constant.
    fn needs_prompt_writes(&self) -> bool {
        false
    }

    /// The bus posts register writes: they may arrive later than the guest made them, but in order and before the guest's next read. From
    /// this call until [`reset`](IoDevice::reset), the device avoids operations that are unsafe with posted writes. The owner calls this
    /// once after each reset, or before each posted write. docs/servers.md, "Serving other VMMs", lists what the device cannot make safe.
    fn on_posted_writes(&mut self) {}

    /// As [`on_doorbell`](IoDevice::on_doorbell), for a doorbell that blocks the virtual CPU until the owner replies. The device may then
    /// poll for requests, so that the guest need not ring for each.
    fn on_blocking_doorbell(&mut self, index: usize, now: Time) {
        self.on_doorbell(index, now);
    }
}

/// Attaching and detaching disks while the guest runs, for adapters with a bus of targets.
pub trait HotPlug {
    /// Attach a unit, and report it to the guest if the adapter has an event for that.
    ///
    /// # Errors
    /// [`AttachError`]: nothing was attached.
    fn attach(&mut self, address: Address, unit: LogicalUnit) -> Result<(), AttachError>;

    /// Detach a unit, and report it to the guest; its requests end as if reset. Does not wait: requests in flight in the disk end when the
    /// disk has completed them. Until then the disk is in use ([`detaching`](Self::detaching)). False: no such unit.
    fn detach(&mut self, address: Address, now: Time) -> bool;

    /// Whether the disk of a unit that was detached from this address still has requests in flight. When it has none,
    /// [`IoDevice::on_completions`] drops its queue.
    fn detaching(&self, address: Address) -> bool;
}

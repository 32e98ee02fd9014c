//! The contract of a device: bus accesses and queue events in, memory writes and interrupts out.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use paradisk_disk_formats::QueueStats;

use crate::moderation::{Coalescing, ModerationState};
use crate::scsi::{Address, AttachError, LogicalUnit};
use crate::time::Time;

/// What kind of space a base address register decodes.
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

/// A base address register as it stands.
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

/// A register whose writes may be turned into an event (ioeventfd): whatever is written, only that it was counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// Base address register number.
    pub bar: u8,
    /// Byte offset.
    pub offset: u64,
    /// Bytes written: 1, 2, 4 or 8.
    pub len: u8,
}

/// [Fast registers](FastRegisters) whose writes may reach the device a little later than the guest made them, though in
/// order: they start work, and nothing that the guest reads afterwards depends on their having arrived. Writes that the fast
/// registers do not take ([`FastWrite::Forward`]) have no effect and are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedRegisters {
    /// Base address register number.
    pub bar: u8,
    /// Byte offset of the first.
    pub offset: u64,
    /// Bytes of all of them.
    pub len: u32,
}

/// Direction of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// What became of a write to a fast register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastWrite {
    /// It is not one: forward the write to the device.
    Forward,
    /// Taken.
    Taken,
    /// Taken, and the device's thread sleeps: wake it.
    Wake {
        /// The device had nothing else to do, and the guest nothing else to read: it may well wait for this.
        idle: bool,
    },
}

/// Registers that are answered on the thread of the virtual CPU that touches them, because a guest touches them for
/// each I/O and they hold no more than queues and flags.
pub trait FastRegisters: Send + Sync {
    /// Read. False: forward the read to the device.
    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) -> bool;

    /// Write.
    fn write(&self, bar: u8, offset: u64, data: &[u8]) -> FastWrite;
}

/// Whether the thread that serves a device may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// No: there is work, call [`IoDevice::on_completions`] again at once.
    No,
    /// Until an event, or this time at the latest.
    Until(Time),
    /// Until an event.
    Forever,
}

/// What an adapter has done since it was made. Requests are those for a disk: of management and configuration, only what a guest sends as a
/// request (BusLogic's reset of a target). All requests but those that have completed are in flight, or wait to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Requests fetched from the guest.
    pub requests: u64,
    /// Requests that have ended: completions posted to the guest, and requests that a reset of the adapter has dropped.
    pub completions: u64,
    /// Completions whose status was not good.
    pub errors: u64,
    /// Interrupts signalled to the guest.
    pub interrupts: u64,
    /// Doorbell events taken (several writes of the guest may be one event).
    pub doorbells: u64,
    /// What the disks' queues did: system calls on the I/O thread.
    pub submits: u64,
    /// Time-stamp-counter ticks spent in them.
    pub submit_ticks: u64,
}

impl Stats {
    /// With what the disks' queues did.
    pub(crate) const fn with(self, queues: &QueueStats) -> Self {
        Self { submits: queues.submits, submit_ticks: queues.submit_ticks, ..self }
    }
}

/// A device with an I/O queue, whatever bus it is on.
///
/// One thread at a time owns it and calls everything: the same one, but for [`completes_at_once`](Self::completes_at_once) and
/// [`PciDevice::is_register_access`]. No call
/// panics, whatever the guest does.
pub trait IoDevice: Send {
    /// The doorbell of this index was rung since the last call. What the doorbells are, its bus says: [`PciDevice::doorbells`],
    /// [`VmbusDevice::connections`](crate::vmbus::VmbusDevice::connections).
    fn on_doorbell(&mut self, index: usize, now: Time);

    /// Whether all disks complete their requests while these are started
    /// ([`DiskQueue::completes_in_push`](paradisk_disk_formats::DiskQueue::completes_in_push)). Then
    /// [`on_doorbell`](Self::on_doorbell), [`on_completions`](Self::on_completions) and [`before_sleep`](Self::before_sleep) may be called
    /// by threads in turns, for instance by the one of the virtual CPU that wrote the doorbell. Hot-plug changes the answer.
    fn completes_at_once(&self) -> bool {
        false
    }

    /// Descriptors that become readable (level) when [`on_completions`](Self::on_completions) has something to do.
    /// May change after a bus access, a hot-plug or a reset. The one of a disk that was detached is closed when the disk has completed
    /// its requests.
    fn completion_events(&self) -> Vec<BorrowedFd<'_>>;

    /// Completions may be there, or the time of the last [`Sleep::Until`] has come.
    fn on_completions(&mut self, now: Time);

    /// Asked before the thread sleeps: closes the races with the guest, and says how long the sleep may be.
    fn before_sleep(&mut self, now: Time) -> Sleep;

    /// Power-on reset: requests in flight are waited for, nothing is written to guest memory afterwards. A reset by the guest, through
    /// registers, waits only where the adapter's protocol has no later way to say that it is over.
    fn reset(&mut self, now: Time);

    /// Wait for all requests in flight and post their completions, then signal what was held back. Afterwards guest
    /// memory may be unmapped or saved.
    fn quiesce(&mut self, now: Time);

    /// Whether requests in flight use any of these guest-physical ranges, which the owner is about to unmap. Completions of those
    /// that have ended are posted, and nothing new is taken from the guest. Once it says no, the owner replaces the memory and calls
    /// [`memory_replaced`](Self::memory_replaced).
    ///
    /// A device that cannot tell waits for all of them.
    fn uses_memory(&mut self, _ranges: &[Range<u64>], now: Time) -> bool {
        self.quiesce(now);
        false
    }

    /// Fail requests that come from here on and use any of these ranges, until the memory is replaced or the device is reset:
    /// so that those of before come to an end.
    fn refuse_memory(&mut self, _ranges: &[Range<u64>]) {}

    /// The owner has replaced guest memory by less: release what is unmapped.
    fn memory_replaced(&mut self, now: Time) {
        self.quiesce(now);
    }

    /// Change the moderation of interrupts, with I/O in flight or not. What the old one held back is signalled first.
    fn set_coalescing(&mut self, coalescing: Coalescing);

    /// The state of the moderation of each interrupt vector; empty where interrupts are not moderated.
    fn moderation(&self) -> Vec<ModerationState> {
        Vec::new()
    }

    /// Attach and detach disks while the guest runs, where the adapter has a bus for them.
    fn hot_plug(&mut self) -> Option<&mut dyn HotPlug> {
        None
    }

    /// Disks may have another capacity ([`Disk::rescan`](paradisk_disk_formats::Disk::rescan), [`Disk::grow`](paradisk_disk_formats::Disk::grow)):
    /// check, and report a change to the guest.
    fn refresh(&mut self, _now: Time) {}

    /// What it has done so far.
    fn stats(&self) -> Stats;
}

/// A PCI function with an I/O queue.
///
/// Bus accesses from virtual CPUs are forwarded to the thread that owns it; writes to [`doorbells`](Self::doorbells) arrive as events
/// ([`IoDevice::on_doorbell`]) instead. Unimplemented offsets read as the hardware reads them and ignore writes.
pub trait PciDevice: IoDevice {
    /// Read configuration space: `data.len()` is 1, 2 or 4, the offset aligned to it, below 4,096.
    fn config_read(&mut self, offset: u16, data: &mut [u8]);

    /// Write configuration space, with the same rules. [`bars`](Self::bars) may have moved afterwards.
    fn config_write(&mut self, offset: u16, data: &[u8]);

    /// The base address registers that are implemented, as they stand.
    fn bars(&self) -> Vec<Bar>;

    /// Read from a base address register's space.
    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], now: Time);

    /// Write to a base address register's space.
    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], now: Time);

    /// Whether this access touches registers alone: no disk, no guest memory, and nothing that [`before_sleep`](IoDevice::before_sleep) or
    /// [`completion_events`](IoDevice::completion_events) depend on. Then the thread of the virtual CPU may make it, while no other thread
    /// calls the device.
    fn is_register_access(&self, _bar: u8, _offset: u64, _access: Access) -> bool {
        false
    }

    /// A string instruction reads `data.len() / width` times from one port (`rep insw`): as so many reads of `width` bytes.
    fn port_read_string(&mut self, bar: u8, offset: u64, width: usize, data: &mut [u8], now: Time) {
        data.chunks_mut(width.max(1)).for_each(|data| self.bar_read(bar, offset, data, now));
    }

    /// The same, for writes.
    fn port_write_string(&mut self, bar: u8, offset: u64, width: usize, data: &[u8], now: Time) {
        data.chunks(width.max(1)).for_each(|data| self.bar_write(bar, offset, data, now));
    }

    /// The registers that may be ioeventfds. Constant.
    fn doorbells(&self) -> &[Doorbell];

    /// The registers that virtual CPUs may reach without this thread. Constant.
    fn fast_registers(&self) -> Option<Arc<dyn FastRegisters>> {
        None
    }

    /// Those of them whose writes may be posted. Constant.
    fn posted_registers(&self) -> Option<PostedRegisters> {
        None
    }

    /// Whether drivers of this device read memory right after a write that has the device change it, or give memory back that it
    /// uses until then: each write had better have arrived before the guest runs on. Constant.
    fn needs_prompt_writes(&self) -> bool {
        false
    }

    /// The bus posts writes all the same: those to a base address register's space may reach the device later than the guest made them, though
    /// in order and before what the guest reads afterwards. Called before each such write (or once), and forgotten by
    /// [`reset`](IoDevice::reset). A device keeps to what is safe then. What is not in its hands: docs/internals.md, "Writes that are
    /// posted".
    fn on_posted_writes(&mut self) {}

    /// [`on_doorbell`](IoDevice::on_doorbell), for a doorbell that blocked the virtual CPU until the owner had answered. A device may then
    /// poll for requests rather than have the guest ring for each.
    fn on_blocking_doorbell(&mut self, index: usize, now: Time) {
        self.on_doorbell(index, now);
    }
}

/// Disks that come and go while the guest runs, for adapters that have a bus of targets.
pub trait HotPlug {
    /// Attach a unit, and report it to the guest if the adapter has an event for that.
    ///
    /// # Errors
    /// [`AttachError`]: nothing was attached.
    fn attach(&mut self, address: Address, unit: LogicalUnit) -> Result<(), AttachError>;

    /// Detach a unit, and report it to the guest; its requests end as if reset. Never waits: those that the disk has end when it has completed
    /// them, and until then the disk is in use ([`detaching`](Self::detaching)). False: no such unit.
    fn detach(&mut self, address: Address, now: Time) -> bool;

    /// Whether the disk of a unit that was detached from this address has yet to complete requests. Its queue is dropped when it has,
    /// on [`IoDevice::on_completions`].
    fn detaching(&self, address: Address) -> bool;
}

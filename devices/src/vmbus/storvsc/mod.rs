//! Hyper-V's synthetic SCSI controller ("storvsc", "vstor"), behind the channels of the bus.
//!
//! The controller gets packets of channels and returns answers; the bus handles the rings.
//! - `spec`: the protocol,
//! - `session`: the initialization,
//! - `request`: parses a packet into a task, and makes the answer of a completed task.
//!
//! A controller has up to [`MAX_LUNS`] units, all on path 0 and target 0. For a guest that scans, INQUIRY and REPORT LUNS are answered at
//! other addresses, too: INQUIRY reports that there is no unit, REPORT LUNS lists the units of the target. Other requests fail.

mod request;
mod session;
pub mod spec;

use paradisk_disk_formats::{IoBuf, QueueStats};
use vm_memory::GuestAddressSpace;
use zerocopy::FromZeros;
use zerocopy::little_endian::U64;

use self::request::{NOWHERE, Parsed, Pending, address, completion, host_packet};
use self::session::Session;
use self::spec::{HostPacket, VstorPacket, nt_status, operation};
use super::packet::Packet;
use super::spec::{VM_PKT_DATA_INBAND, VM_PKT_DATA_USING_GPA_DIRECT};
use crate::backlog::Backlog;
use crate::dma::{Dma, Footprint};
use crate::in_flight::InFlight;
use crate::scsi::{Address, AttachError, Bus, LogicalUnit, TaskEnd};

/// Maximum number of logical units.
pub const MAX_LUNS: u8 = 64;

/// Maximum number of requests of the backlog, which wait for a task number. Linux with up to 12 virtual processors has fewer outstanding.
/// Further requests wait in the rings.
const MAX_BACKLOG: usize = 1024;

/// A request of the backlog, which waits for a task number.
struct Queued {
    channel: u8,
    packet: Box<[U64]>,
}

/// The result of taking a packet.
pub(super) enum Taken {
    /// It requests no answer.
    Ignored,
    /// It is a request, now in flight with this task number.
    InFlight(u32),
    /// It is a request, and waits for a task number.
    Queued,
    /// It is a request that completed or failed at once.
    Answered(HostPacket),
    /// It is another operation. It may have ended requests, or requested sub-channels.
    Controlled(HostPacket),
}

/// Statistics of a controller.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// SCSI requests.
    pub(super) requests: u64,
    /// SCSI requests that failed.
    pub(super) errors: u64,
}

/// A controller.
pub(super) struct Storvsc {
    /// First, so that it is dropped first: requests in flight are waited for.
    bus: Bus,
    /// Logical unit numbers that have a unit, by bit.
    luns: u64,
    sub_channels: u16,
    session: Session,
    in_flight: InFlight<Pending>,
    backlog: Backlog<Queued>,
    bufs: Vec<IoBuf>,
    counts: Counts,
}

impl Storvsc {
    /// A controller in front of `bus`, whose units are at target 0, with at most `tasks` requests in flight and `sub_channels`
    /// sub-channels.
    pub(super) fn new(bus: Bus, tasks: u32, sub_channels: u16) -> Self {
        let luns = bus.addresses().filter(|at| at.target == 0 && at.lun < MAX_LUNS.into());
        let luns = luns.fold(0, |luns, at| luns | 1 << at.lun);
        Self {
            bus,
            luns,
            sub_channels,
            session: Session::default(),
            in_flight: InFlight::new(tasks),
            backlog: Backlog::new(),
            bufs: Vec::with_capacity(session::MAX_TRANSFER as usize / 4096 + 1),
            counts: Counts::default(),
        }
    }

    /// Restart the initialization: the primary channel was opened or closed, or the bus was reset.
    pub(super) fn restart(&mut self) {
        self.session = Session::default();
    }

    /// Whether the initialization is complete, so that requests are executed.
    pub(super) fn ready(&self) -> bool {
        self.session.ready()
    }

    /// Sub-channels that the driver has requested.
    pub(super) const fn wanted_sub_channels(&self) -> u16 {
        self.session.sub_channels()
    }

    /// Whether another packet can be taken.
    #[inline]
    pub(super) const fn can_take(&self) -> bool {
        self.backlog.len() < MAX_BACKLOG
    }

    /// Take a packet of a channel; the primary channel is 0. The answers of requests that a reset ends are appended to `ended`, with their
    /// channels.
    #[inline]
    pub(super) fn take<A: GuestAddressSpace>(
        &mut self,
        channel: u8,
        packet: &Packet<'_>,
        dma: &mut Dma<A>,
        ended: &mut Vec<(u8, HostPacket)>,
    ) -> Taken {
        let known = [VM_PKT_DATA_INBAND, VM_PKT_DATA_USING_GPA_DIRECT].contains(&packet.kind());
        if !known || !packet.wants_completion() {
            return Taken::Ignored;
        }
        match packet.payload::<VstorPacket>() {
            Ok(payload) if payload.operation.get() == operation::EXECUTE_SRB => {
                self.counts.requests += 1;
                let taken = self.execute(channel, packet, payload, dma);
                if let Taken::Queued = taken {
                    self.push_to_backlog(channel, *packet, payload);
                }
                taken
            }
            Ok(payload) => {
                let answer = self.control(channel, payload, ended);
                Taken::Controlled(completion(packet.transaction(), answer))
            }
            Err(_) => {
                Taken::Controlled(completion(packet.transaction(), answer(nt_status::INVALID_PARAMETER)))
            }
        }
    }

    /// Start a request of the backlog. Returns its channel and the result.
    #[cold]
    pub(super) fn start_from_backlog<A: GuestAddressSpace>(
        &mut self,
        dma: &mut Dma<A>,
    ) -> Option<(u8, Taken)> {
        let next = self.backlog.next(&self.bus, self.in_flight.free_slots())?;
        let packet = Packet::new(&next.packet).ok()?;
        let payload = packet.payload::<VstorPacket>().ok()?;
        Some((next.channel, self.start(next.channel, &packet, payload, dma)))
    }

    /// Start a request, if its unit may have a task number now.
    #[inline]
    fn execute<A: GuestAddressSpace>(
        &mut self,
        channel: u8,
        packet: &Packet<'_>,
        payload: &VstorPacket,
        dma: &mut Dma<A>,
    ) -> Taken {
        let free = self.in_flight.free_slots();
        let admitted = self.backlog.admits(&self.bus, address(&payload.srb), free);
        if admitted && self.session.ready() {
            return self.start(channel, packet, payload, dma);
        }
        if !self.session.ready() {
            return self.failed(Pending::new(channel, packet, payload).not_ready());
        }
        Taken::Queued
    }

    #[cold]
    fn push_to_backlog(&mut self, channel: u8, packet: Packet<'_>, payload: &VstorPacket) {
        self.backlog.push(address(&payload.srb), Queued { channel, packet: packet.words().into() });
    }

    /// Always inlined, for the requests that come from a ring while there are enough task numbers.
    #[inline(always)]
    fn start<A: GuestAddressSpace>(
        &mut self,
        channel: u8,
        packet: &Packet<'_>,
        payload: &VstorPacket,
        dma: &mut Dma<A>,
    ) -> Taken {
        let pending = || Pending::new(channel, packet, payload);
        let Ok(parsed) = Parsed::new(packet, payload) else { return self.failed(pending().malformed()) };
        if !has_unit(self.luns, parsed.address) {
            return self.answer_without_unit(channel, *packet, payload, dma);
        }
        dma.begin();
        let mut one = IoBuf::empty();
        let Ok(bufs) = parsed.map(dma, &mut one, &mut self.bufs) else {
            return self.failed(pending().malformed());
        };
        let Some(id) = self.in_flight.allocate() else {
            debug_assert!(false, "a request was admitted without a task number");
            return self.failed(pending().malformed());
        };
        match self.bus.submit(&parsed.task(id, bufs)) {
            None => {
                self.in_flight.store(id, pending(), dma.footprint());
                Taken::InFlight(id)
            }
            Some(end) => {
                self.in_flight.release(id);
                self.answered(&pending(), &end)
            }
        }
    }

    /// Answer a request for an address without a unit: INQUIRY and REPORT LUNS get data, others fail.
    #[cold]
    fn answer_without_unit<A: GuestAddressSpace>(
        &mut self,
        channel: u8,
        packet: Packet<'_>,
        payload: &VstorPacket,
        dma: &mut Dma<A>,
    ) -> Taken {
        let pending = Pending::new(channel, &packet, payload);
        dma.begin();
        let mut one = IoBuf::empty();
        let Ok(parsed) = Parsed::new(&packet, payload) else { return self.failed(pending.malformed()) };
        let Ok(bufs) = parsed.map(dma, &mut one, &mut self.bufs) else {
            return self.failed(pending.malformed());
        };
        match self.bus.no_unit_on_target(&parsed.task(0, bufs)) {
            end @ TaskEnd::Answered { sense: None, .. } => self.answered(&pending, &end),
            _ => self.failed(pending.no_unit()),
        }
    }

    #[cold]
    fn answered(&mut self, pending: &Pending, end: &TaskEnd) -> Taken {
        let (answer, good) = pending.answer(end);
        self.counts.errors += u64::from(!good);
        Taken::Answered(answer)
    }

    #[cold]
    fn failed(&mut self, answer: HostPacket) -> Taken {
        self.counts.errors += 1;
        Taken::Answered(answer)
    }

    /// Execute an operation that is not a request.
    #[cold]
    fn control(
        &mut self,
        channel: u8,
        payload: &VstorPacket,
        ended: &mut Vec<(u8, HostPacket)>,
    ) -> VstorPacket {
        match payload.operation.get() {
            operation::RESET_LUN if self.session.ready() => {
                let unit = address(&payload.srb);
                tracing::info!(?unit, "vstor unit reset");
                self.bus.reset_unit(unit);
                self.end_backlog(|at| at == unit, ended);
                answer(nt_status::SUCCESS)
            }
            // Each request is still answered; drivers wait for that.
            operation::RESET_ADAPTER | operation::RESET_BUS if self.session.ready() => {
                tracing::info!("vstor bus reset");
                self.bus.reset_all();
                self.end_backlog(|_| true, ended);
                answer(nt_status::SUCCESS)
            }
            _ if channel == 0 => self.session.control(payload, self.sub_channels),
            _ => answer(nt_status::INVALID_DEVICE_REQUEST),
        }
    }

    /// End requests of the backlog with the status of a reset.
    fn end_backlog(&mut self, wanted: impl Fn(Address) -> bool, ended: &mut Vec<(u8, HostPacket)>) {
        for request in self.backlog.take(|at, _| wanted(at)) {
            self.counts.errors += 1;
            if let Ok(packet) = Packet::new(&request.packet)
                && let Ok(payload) = packet.payload::<VstorPacket>()
            {
                let pending = Pending::new(request.channel, &packet, payload);
                ended.push((request.channel, pending.answer(&TaskEnd::Reset).0));
            }
        }
    }

    /// Submit the started requests to the disks.
    pub(super) fn kick(&mut self) {
        self.bus.kick();
    }

    /// Append the task number and result of each completed request.
    #[inline]
    pub(super) fn reap(&mut self, ended: &mut Vec<(u32, TaskEnd)>) {
        self.bus.reap(ended);
    }

    /// Complete a request. Returns its channel and the answer. Always inlined, so that the answer is made where it is used.
    #[inline(always)]
    pub(super) fn end(&mut self, id: u32, end: &TaskEnd) -> Option<(u8, HostPacket)> {
        let (channel, (answer, good)) =
            self.in_flight.complete_with(id, |pending| (pending.channel, pending.answer(end)))?;
        self.counts.errors += u64::from(!good);
        Some((channel, answer))
    }

    /// Abort the requests of a channel. Returns how many were in the backlog: these have ended.
    pub(super) fn abandon(&mut self, channel: u8) -> u32 {
        let of = self.in_flight.iter().filter(|(_, pending)| pending.channel == channel);
        let ids: Vec<u32> = of.map(|(id, _)| id).collect();
        for id in ids {
            self.bus.abort(id);
        }
        let over = self.backlog.take(|_, request| request.channel == channel).len() as u32;
        self.counts.errors += u64::from(over);
        over
    }

    /// The guest has reset the VMBus: restart the initialization, and reset all units.
    pub(super) fn reset(&mut self) {
        self.restart();
        self.bus.reset_all();
    }

    /// Power-on reset: wait for the disks, and drop all requests.
    pub(super) fn power_on(&mut self) {
        self.reset();
        self.bus.drain();
        self.bus.discard();
        self.counts.errors += u64::from(self.in_flight.count()) + self.backlog.len() as u64;
        self.in_flight.clear();
        self.backlog.clear();
    }

    /// Requests that have a task number.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.count()
    }

    /// Whether no request waits for a task number.
    pub(super) const fn backlog_is_empty(&self) -> bool {
        self.backlog.is_empty()
    }

    pub(super) const fn bus(&self) -> &Bus {
        &self.bus
    }

    pub(super) const fn bus_mut(&mut self) -> &mut Bus {
        &mut self.bus
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn queue_stats(&self) -> QueueStats {
        self.bus.queue_stats()
    }

    /// Guest memory that requests use.
    pub(super) fn footprint<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> Footprint {
        // Without the memory of answers: the rings hold their pages by themselves.
        self.in_flight.footprint(dma, |_| u64::MAX)
    }

    /// Attach a unit with this logical unit number.
    pub(super) fn attach(&mut self, lun: u8, unit: LogicalUnit) -> Result<(), AttachError> {
        self.bus.attach(Address { target: 0, lun: lun.into() }, unit)?;
        self.luns |= 1 << lun;
        Ok(())
    }

    /// Detach a unit. False: there is none.
    pub(super) fn detach(&mut self, lun: u8) -> bool {
        let there = self.bus.detach(Address { target: 0, lun: lun.into() });
        if there {
            self.luns &= !(1 << lun);
        }
        there
    }

    pub(super) fn detaching(&self, lun: u8) -> bool {
        self.bus.detaching(Address { target: 0, lun: lun.into() })
    }
}

/// Whether there is a unit at this address; `luns`: bit map of logical unit numbers with a unit.
#[inline]
fn has_unit(luns: u64, address: Address) -> bool {
    address.target != NOWHERE && address.lun < MAX_LUNS.into() && luns >> address.lun & 1 != 0
}

/// An answer without content.
fn answer(status: u32) -> VstorPacket {
    VstorPacket {
        operation: operation::COMPLETE_IO.into(),
        status: status.into(),
        ..VstorPacket::new_zeroed()
    }
}

/// The packet that makes drivers scan for units.
pub(super) fn enumerate_bus() -> HostPacket {
    let payload = VstorPacket { operation: operation::ENUMERATE_BUS.into(), ..VstorPacket::new_zeroed() };
    host_packet(VM_PKT_DATA_INBAND, U64::ZERO, payload)
}

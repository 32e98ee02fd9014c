//! Hyper-V's synthetic SCSI controller ("storvsc", "vstor"), behind the channels of the bus.
//!
//! Packets of channels come in, answers to them go out; which ring they are in is the bus's affair.
//! - `spec`: what drivers know of it,
//! - `session`: the initialization,
//! - `request`: a packet becomes a task, a task's end becomes an answer.
//!
//! A controller has up to [`MAX_LUNS`] units, all on path 0 and target 0. What is asked of other places, or of logical unit numbers without
//! a unit, is answered as a guest needs it that scans: INQUIRY says that there is no unit, REPORT LUNS lists those of the target.

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
use crate::scsi::{Address, AttachError, Bus, LogicalUnit, Task, TaskEnd};

/// Logical units at the most.
pub const MAX_LUNS: u8 = 64;

/// Requests without a task number that are kept at the most. Linux has fewer outstanding; further ones wait in the rings.
const MAX_KEPT: usize = 1024;

/// A request without a task number.
struct Kept {
    channel: u8,
    packet: Box<[U64]>,
}

/// What became of a packet.
pub(super) enum Taken {
    /// It wants no answer.
    Ignored,
    /// It is in flight, with this number.
    InFlight(u32),
    /// It waits for a number.
    Kept,
    /// It was executed.
    Answered(HostPacket),
    /// The same, of a packet that is no request: it may have ended others, or asked for channels.
    Controlled(HostPacket),
}

/// Numbers that a controller has counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// SCSI requests.
    pub(super) requests: u64,
    /// Those that did not go well.
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
    backlog: Backlog<Kept>,
    bufs: Vec<IoBuf>,
    counts: Counts,
}

impl Storvsc {
    /// In front of a bus whose units are at target 0, with so many requests in flight and sub-channels at the most.
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

    /// A driver opens the primary channel: the initialization begins.
    pub(super) fn restart(&mut self) {
        self.session = Session::default();
    }

    /// Whether requests are taken.
    pub(super) fn ready(&self) -> bool {
        self.session.ready()
    }

    /// Sub-channels that the driver has asked for.
    pub(super) const fn wanted_sub_channels(&self) -> u16 {
        self.session.sub_channels()
    }

    /// Whether another packet can be taken.
    #[inline]
    pub(super) const fn can_take(&self) -> bool {
        self.backlog.len() < MAX_KEPT
    }

    /// Take a packet of a channel, the primary being number 0. Requests that a reset ends go to `ended`, with their channels.
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
                if let Taken::Kept = taken {
                    self.keep(channel, packet, payload);
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

    /// Start a request that was kept. Its channel, and what became of it.
    #[cold]
    pub(super) fn take_kept<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<(u8, Taken)> {
        let free = self.in_flight.free_slots();
        let kept = self.backlog.next(|address| self.bus.admits(address, free))?;
        let packet = Packet::new(&kept.packet).ok()?;
        let payload = packet.payload::<VstorPacket>().ok()?;
        Some((kept.channel, self.start(kept.channel, &packet, payload, dma)))
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
        Taken::Kept
    }

    #[cold]
    fn keep(&mut self, channel: u8, packet: &Packet<'_>, payload: &VstorPacket) {
        self.backlog.push(address(&payload.srb), Kept { channel, packet: packet.words().into() });
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
        dma.begin();
        let mut one = IoBuf::empty();
        let Ok(bufs) = parsed.map(dma, &mut one, &mut self.bufs) else {
            return self.failed(pending().malformed());
        };
        let task = |id| Task {
            id,
            address: parsed.address,
            cdb: parsed.cdb(),
            attribute: parsed.attribute,
            direction: parsed.direction,
            bufs,
            len: parsed.len.into(),
        };
        if !has_unit(self.luns, parsed.address) {
            return match self.bus.vacant(&task(0)) {
                end @ TaskEnd::Answered { sense: None, .. } => self.answered(&pending(), &end),
                _ => self.failed(pending().no_unit()),
            };
        }
        let Some(id) = self.in_flight.number() else {
            debug_assert!(false, "a request was admitted without a task number");
            return self.failed(pending().malformed());
        };
        match self.bus.submit(&task(id)) {
            None => {
                self.in_flight.keep(id, pending(), dma.footprint());
                Taken::InFlight(id)
            }
            Some(end) => {
                self.in_flight.give_back(id);
                self.answered(&pending(), &end)
            }
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

    /// Everything but a request.
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
                self.end_kept(|at| at == unit, ended);
                answer(nt_status::SUCCESS)
            }
            // The requests end through their completions, which drivers wait for.
            operation::RESET_ADAPTER | operation::RESET_BUS if self.session.ready() => {
                tracing::info!("vstor bus reset");
                self.bus.reset_all();
                self.end_kept(|_| true, ended);
                answer(nt_status::SUCCESS)
            }
            _ if channel == 0 => self.session.control(payload, self.sub_channels),
            _ => answer(nt_status::INVALID_DEVICE_REQUEST),
        }
    }

    /// End requests without a number as of a reset.
    fn end_kept(&mut self, wanted: impl Fn(Address) -> bool, ended: &mut Vec<(u8, HostPacket)>) {
        for kept in self.backlog.take(|at, _| wanted(at)) {
            self.counts.errors += 1;
            if let Ok(packet) = Packet::new(&kept.packet)
                && let Ok(payload) = packet.payload::<VstorPacket>()
            {
                let pending = Pending::new(kept.channel, &packet, payload);
                ended.push((kept.channel, pending.answer(&TaskEnd::Reset).0));
            }
        }
    }

    /// Hand to the disks what was started.
    pub(super) fn kick(&mut self) {
        self.bus.kick();
    }

    /// Append the number and end of each request that has ended.
    #[inline]
    pub(super) fn reap(&mut self, ended: &mut Vec<(u32, TaskEnd)>) {
        self.bus.reap(ended);
    }

    /// A request has ended: its channel, and the answer. Always inlined, so that the answer is made where it is used.
    #[inline(always)]
    pub(super) fn end(&mut self, id: u32, end: &TaskEnd) -> Option<(u8, HostPacket)> {
        let (channel, (answer, good)) =
            self.in_flight.end_with(id, |pending| (pending.channel, pending.answer(end)))?;
        self.counts.errors += u64::from(!good);
        Some((channel, answer))
    }

    /// A channel closes: end its requests. How many had no number: they are over.
    pub(super) fn abandon(&mut self, channel: u8) -> u32 {
        let of = self.in_flight.iter().filter(|(_, pending)| pending.channel == channel);
        let ids: Vec<u32> = of.map(|(id, _)| id).collect();
        for id in ids {
            self.bus.abort(id);
        }
        let over = self.backlog.take(|_, kept| kept.channel == channel).len() as u32;
        self.counts.errors += u64::from(over);
        over
    }

    /// The guest begins anew: units are as after a reset of their bus.
    pub(super) fn reset(&mut self) {
        self.restart();
        self.bus.reset_all();
    }

    /// Power-on reset: wait for the disks, and forget all requests.
    pub(super) fn power_on(&mut self) {
        self.reset();
        self.bus.drain();
        self.bus.discard();
        self.counts.errors += u64::from(self.in_flight.count()) + self.backlog.len() as u64;
        self.in_flight.clear();
        self.backlog.clear();
    }

    /// Requests that have a number.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.count()
    }

    /// Whether no request waits for a number.
    pub(super) const fn none_kept(&self) -> bool {
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
        // Answers go to rings, which keep their memory.
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

/// Whether there is a unit at this address; `luns`: logical unit numbers that have one.
#[inline]
fn has_unit(luns: u64, address: Address) -> bool {
    address.target != NOWHERE && address.lun < MAX_LUNS.into() && luns >> address.lun & 1 != 0
}

/// An answer without a content.
fn answer(status: u32) -> VstorPacket {
    VstorPacket {
        operation: operation::COMPLETE_IO.into(),
        status: status.into(),
        ..VstorPacket::new_zeroed()
    }
}

/// Units have come or gone: drivers look for them.
pub(super) fn enumerate_bus() -> HostPacket {
    let payload = VstorPacket { operation: operation::ENUMERATE_BUS.into(), ..VstorPacket::new_zeroed() };
    host_packet(VM_PKT_DATA_INBAND, U64::ZERO, payload)
}

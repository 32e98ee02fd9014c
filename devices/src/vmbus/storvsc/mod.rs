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

use std::convert::Infallible;

use paradisk_disk_formats::IoBuf;
use vm_memory::GuestAddressSpace;
use zerocopy::FromZeros;
use zerocopy::little_endian::U64;

pub(super) use self::request::Pending;
use self::request::{NOWHERE, Parsed, address, completion, host_packet};
use self::session::Session;
use self::spec::{HostPacket, VstorPacket, nt_status, operation};
use super::packet::Packet;
use super::spec::{VM_PKT_DATA_INBAND, VM_PKT_DATA_USING_GPA_DIRECT};
use crate::hba::Engine;
use crate::scsi::{Address, TaskEnd};

/// Maximum number of logical units.
pub const MAX_LUNS: u8 = 64;

/// Maximum number of requests of the backlog, which wait for a task number. Linux with up to 12 virtual processors has fewer outstanding.
/// Further requests wait in the rings.
pub(super) const MAX_BACKLOG: usize = 1024;

/// A request of the backlog, which waits for a task number.
pub struct Queued {
    pub(super) channel: u8,
    pub(super) packet: Box<[U64]>,
}

/// The engine of the adapter. Answers that wait for free space are in their channels.
pub(super) type StorvscEngine<A> = Engine<A, Pending, Queued, Infallible>;

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

/// A controller, without its requests.
pub(super) struct Storvsc {
    /// Logical unit numbers that have a unit, by bit.
    luns: u64,
    sub_channels: u16,
    session: Session,
    bufs: Vec<IoBuf>,
}

impl Storvsc {
    /// A controller with up to `sub_channels` sub-channels. Of the units at `addresses`, it has those at target 0.
    pub(super) fn new(addresses: impl Iterator<Item = Address>, sub_channels: u16) -> Self {
        let luns = addresses.filter(|at| at.target == 0 && at.lun < MAX_LUNS.into());
        Self {
            luns: luns.fold(0, |luns, at| luns | 1 << at.lun),
            sub_channels,
            session: Session::default(),
            bufs: Vec::with_capacity(session::MAX_TRANSFER as usize / 4096 + 1),
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

    /// Take a packet of a channel; the primary channel is 0. The answers of requests that a reset ends are appended to `ended`, with their
    /// channels.
    #[inline]
    pub(super) fn take<A: GuestAddressSpace>(
        &mut self,
        channel: u8,
        packet: &Packet<'_>,
        engine: &mut StorvscEngine<A>,
        ended: &mut Vec<(u8, HostPacket)>,
    ) -> Taken {
        let known = [VM_PKT_DATA_INBAND, VM_PKT_DATA_USING_GPA_DIRECT].contains(&packet.kind());
        if !known || !packet.wants_completion() {
            return Taken::Ignored;
        }
        match packet.payload::<VstorPacket>() {
            Ok(payload) if payload.operation.get() == operation::EXECUTE_SRB => {
                engine.stats.requests += 1;
                if !self.session.ready() {
                    failed(Pending::new(channel, packet, payload).not_ready(), engine)
                } else if engine.admits(address(&payload.srb)) {
                    self.start(channel, packet, payload, engine)
                } else {
                    push_to_backlog(channel, *packet, payload, engine)
                }
            }
            Ok(payload) => {
                let answer = self.control(channel, payload, engine, ended);
                Taken::Controlled(completion(packet.transaction(), answer))
            }
            Err(_) => {
                Taken::Controlled(completion(packet.transaction(), answer(nt_status::INVALID_PARAMETER)))
            }
        }
    }

    /// Start a request of the backlog.
    #[cold]
    pub(super) fn start_queued<A: GuestAddressSpace>(
        &mut self,
        request: &Queued,
        engine: &mut StorvscEngine<A>,
    ) -> Taken {
        match Packet::new(&request.packet).and_then(|packet| Ok((packet, packet.payload::<VstorPacket>()?))) {
            Ok((packet, payload)) => self.start(request.channel, &packet, payload, engine),
            // It was valid when it was taken.
            Err(_) => Taken::Ignored,
        }
    }

    /// Always inlined, for the requests that come from a ring while there are enough task numbers.
    #[inline(always)]
    fn start<A: GuestAddressSpace>(
        &mut self,
        channel: u8,
        packet: &Packet<'_>,
        payload: &VstorPacket,
        engine: &mut StorvscEngine<A>,
    ) -> Taken {
        let pending = || Pending::new(channel, packet, payload);
        let Ok(parsed) = Parsed::new(packet, payload) else { return failed(pending().malformed(), engine) };
        if !has_unit(self.luns, parsed.address) {
            return self.answer_without_unit(channel, *packet, payload, engine);
        }
        engine.dma.next_request();
        let mut one = IoBuf::empty();
        let Ok(bufs) = parsed.map(&mut engine.dma, &mut one, &mut self.bufs) else {
            return failed(pending().malformed(), engine);
        };
        match engine.submit(parsed.task(bufs), pending) {
            Ok(id) => Taken::InFlight(id),
            Err(end) => answered(&pending(), &end, engine),
        }
    }

    /// Answer a request for an address without a unit: INQUIRY and REPORT LUNS get data, others fail.
    #[cold]
    fn answer_without_unit<A: GuestAddressSpace>(
        &mut self,
        channel: u8,
        packet: Packet<'_>,
        payload: &VstorPacket,
        engine: &mut StorvscEngine<A>,
    ) -> Taken {
        let pending = Pending::new(channel, &packet, payload);
        engine.dma.next_request();
        let mut one = IoBuf::empty();
        let Ok(parsed) = Parsed::new(&packet, payload) else { return failed(pending.malformed(), engine) };
        let Ok(bufs) = parsed.map(&mut engine.dma, &mut one, &mut self.bufs) else {
            return failed(pending.malformed(), engine);
        };
        match engine.bus.no_unit_on_target(&parsed.task(bufs)) {
            end @ TaskEnd::Answered { sense: None, .. } => answered(&pending, &end, engine),
            _ => failed(pending.no_unit(), engine),
        }
    }

    /// Execute an operation that is not a request.
    #[cold]
    fn control<A: GuestAddressSpace>(
        &mut self,
        channel: u8,
        payload: &VstorPacket,
        engine: &mut StorvscEngine<A>,
        ended: &mut Vec<(u8, HostPacket)>,
    ) -> VstorPacket {
        match payload.operation.get() {
            operation::RESET_LUN if self.session.ready() => {
                let unit = address(&payload.srb);
                tracing::info!(?unit, "vstor unit reset");
                engine.bus.reset_unit(unit);
                end_backlog(|at| at == unit, engine, ended);
                answer(nt_status::SUCCESS)
            }
            // Each request is still answered; drivers wait for that.
            operation::RESET_ADAPTER | operation::RESET_BUS if self.session.ready() => {
                tracing::info!("vstor bus reset");
                engine.bus.reset_all();
                end_backlog(|_| true, engine, ended);
                answer(nt_status::SUCCESS)
            }
            _ if channel == 0 => self.session.control(payload, self.sub_channels),
            _ => answer(nt_status::INVALID_DEVICE_REQUEST),
        }
    }

    /// A unit was attached to this logical unit number, or detached.
    pub(super) fn set_unit(&mut self, lun: u16, attached: bool) {
        self.luns = self.luns & !(1 << lun) | u64::from(attached) << lun;
    }
}

#[cold]
fn push_to_backlog<A: GuestAddressSpace>(
    channel: u8,
    packet: Packet<'_>,
    payload: &VstorPacket,
    engine: &mut StorvscEngine<A>,
) -> Taken {
    engine.backlog.push(address(&payload.srb), Queued { channel, packet: packet.words().into() });
    Taken::Queued
}

#[cold]
fn answered<A: GuestAddressSpace>(pending: &Pending, end: &TaskEnd, engine: &mut StorvscEngine<A>) -> Taken {
    let (answer, good) = pending.answer(end);
    engine.stats.errors += u64::from(!good);
    Taken::Answered(answer)
}

#[cold]
fn failed<A: GuestAddressSpace>(answer: HostPacket, engine: &mut StorvscEngine<A>) -> Taken {
    engine.stats.errors += 1;
    Taken::Answered(answer)
}

/// End requests of the backlog with the status of a reset.
fn end_backlog<A: GuestAddressSpace>(
    wanted: impl Fn(Address) -> bool,
    engine: &mut StorvscEngine<A>,
    ended: &mut Vec<(u8, HostPacket)>,
) {
    for request in engine.backlog.take(|at, _| wanted(at)) {
        engine.stats.errors += 1;
        if let Ok(packet) = Packet::new(&request.packet)
            && let Ok(payload) = packet.payload::<VstorPacket>()
        {
            let pending = Pending::new(request.channel, &packet, payload);
            ended.push((request.channel, pending.answer(&TaskEnd::Reset).0));
        }
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

//! SCSI I/O: from the request FIFO to the disks, and from the disks to the reply FIFO, with one decision about an
//! interrupt for a batch.

use std::ops::Range;
use std::slice;

use vm_memory::GuestAddressSpace;
use zerocopy::FromBytes;

use super::Lsi;
use super::pending::{ADDRESS_REPLY, Pending};
use super::personality::{Personality, REQUEST_FRAME};
use super::port::REQUEST_CREDITS;
use super::reply::Reply;
use super::sgl::{self, Start};
use super::spec::{IocState, ScsiIoReply, ScsiIoRequest, control, fault, function, ioc_status, scsi_state};
use crate::dma::{Access, Footprint, overlap};
use crate::hba::{BATCH, EngineOf, Hba};
use crate::kind::AdapterKind;
use crate::scsi::{Address, Attribute, Direction, Status, Task, TaskEnd};
use crate::time::Time;

/// Low bits of a posted value that are not part of the address.
const SIZE_HINT: u32 = 3;

/// Maximum length of a CDB in bytes.
const MAX_CDB: u8 = 16;

/// Maximum number of replies that wait for frames: those of all requests, and as many other messages.
const MAX_DEFERRED: usize = 2 * REQUEST_CREDITS;

impl<A: GuestAddressSpace> Hba for Lsi<A> {
    type Memory = A;
    type Pending = Pending;
    /// The posted value, by which the frame is fetched again.
    type Queued = (u32, Pending);
    type Completion = Reply;

    fn engine(&self) -> &EngineOf<Self> {
        &self.engine
    }

    fn engine_mut(&mut self) -> &mut EngineOf<Self> {
        &mut self.engine
    }

    fn kind(&self) -> AdapterKind {
        match self.personality {
            Personality::Spi1030 => AdapterKind::Lsi,
            Personality::Sas1068 => AdapterKind::LsiSas,
        }
    }

    fn place(&self, address: Address) -> Option<Address> {
        self.personality.has_target(address.target).then_some(address)
    }

    fn announce(&mut self, place: Address, attached: bool) {
        self.announce_device(place.target, attached);
    }

    fn power_on(&mut self) {
        self.message_unit_reset();
        self.engine.bus.drain();
        self.finish_reset();
        self.pages.reset();
        self.who_init = 0;
        self.diagnostic = 0;
        self.keys = 0;
        self.function.reset();
    }

    fn poll_reset(&mut self) {
        self.finish_reset();
    }

    fn can_start(&self) -> bool {
        !matches!(self.state, IocState::Fault | IocState::Reset) && self.function.bus_master()
    }

    /// Without bus mastering, neither sense data nor replies may be written: completions stay on the bus until bus
    /// mastering is enabled again.
    fn can_post(&self) -> bool {
        self.state != IocState::Reset && self.function.bus_master()
    }

    fn max_backlog(&self) -> usize {
        REQUEST_CREDITS
    }

    fn take_batch(&mut self, now: Time) -> bool {
        let mut taken = false;
        for _ in 0..BATCH {
            if !self.can_fetch() {
                break;
            }
            let Some(value) = self.port.next_request() else { break };
            taken = true;
            self.take_request(value, now);
        }
        taken
    }

    fn prepare_sleep(&mut self, _now: Time) -> bool {
        self.port.waiting() > 0 && self.can_fetch()
    }

    fn waiting(&self) -> u32 {
        self.port.waiting()
    }

    fn start_queued(&mut self, (value, _): (u32, Pending), now: Time) {
        let mut frame = [0; REQUEST_FRAME];
        if self.fetch_frame(value, &mut frame) {
            self.scsi_io(&frame, None, now);
        } else {
            self.lost();
        }
    }

    #[inline(always)]
    fn complete_task(&mut self, id: u32, pending: &Pending, end: &TaskEnd, now: Time) {
        self.end(pending, end, now);
        self.task_ended(id);
    }

    fn batch_posted(&mut self, _now: Time) {
        if !self.management.is_empty() {
            self.units_reset();
        }
    }

    /// False: there is no free frame, or bus mastering is off.
    fn try_post(&mut self, reply: &Reply) -> bool {
        if !self.function.bus_master() {
            return false;
        }
        let Some(frame) = self.port.take_reply_frame() else { return false };
        let bytes = reply.as_slice();
        let bytes = &bytes[..bytes.len().min(self.reply_frame_size.into())];
        let written = self.engine.dma.write_bytes(self.mfa_high | u64::from(frame), bytes).is_ok();
        if !written || !self.port.post_reply(ADDRESS_REPLY | frame >> 1) {
            self.enter_fault(fault::REPLY_MESSAGE_PCI_BUS_FAULT);
        }
        true
    }

    #[cold]
    fn defer(&mut self, reply: Reply) {
        if self.engine.deferred.len() >= MAX_DEFERRED {
            // The guest keeps posting requests, but provides no reply frames.
            self.enter_fault(fault::REPLY_MESSAGE_PCI_BUS_FAULT);
        }
        if self.state != IocState::Fault {
            self.engine.deferred.push_back(reply);
        }
    }

    fn signal(&mut self) {
        if self.port.has_replies() {
            let asserted = self.port.signal();
            self.signal_if(asserted);
        }
    }

    /// Without bus mastering there is none, because the disks have completed the requests whose replies are pending.
    /// During a reset the disks may still use memory, with or without bus mastering.
    fn memory_in_use(&mut self) -> Footprint {
        if !self.function.bus_master() && self.state != IocState::Reset {
            return Footprint::NONE;
        }
        let engine = &mut self.engine;
        engine.in_flight.footprint(&mut engine.dma, |pending| pending.sense_address)
    }

    /// Whether a free reply frame is in one of these ranges. The reply to any request may be written to it.
    fn has_queue_in(&self, ranges: &[Range<u64>]) -> bool {
        let (high, len) = (self.mfa_high, u64::from(self.reply_frame_size));
        self.port.free_frames().any(|frame| {
            let start = high | u64::from(frame);
            ranges.iter().any(|range| overlap(range, start, len))
        })
    }
}

impl<A: GuestAddressSpace> Lsi<A> {
    /// Copy the request frame at the posted address. False: the frame is not in guest memory, and the controller enters
    /// FAULT.
    #[inline(always)]
    fn fetch_frame(&mut self, value: u32, frame: &mut [u8; REQUEST_FRAME]) -> bool {
        // The low two bits are a size hint, which is ignored: the whole frame is copied. Bit 2 belongs to the address,
        // because the frames of SeaBIOS are at multiples of four.
        let address = self.mfa_high | u64::from(value & !SIZE_HINT);
        let fetched = self.engine.dma.read_bytes(address, frame).is_ok();
        if !fetched {
            self.enter_fault(fault::REQUEST_MESSAGE_PCI_BUS_FAULT);
        }
        fetched
    }

    #[inline(always)]
    fn take_request(&mut self, value: u32, now: Time) {
        let mut frame = [0; REQUEST_FRAME];
        if !self.fetch_frame(value, &mut frame) {
            return;
        }
        match frame[3] {
            function::SCSI_IO_REQUEST | function::RAID_SCSI_IO_PASSTHROUGH => {
                self.engine.stats.requests += 1;
                self.scsi_io(&frame, Some(value), now);
            }
            function::SCSI_TASK_MGMT => self.task_management(&frame, now),
            _ => {
                let reply = self.answer(&frame);
                self.reply(reply);
            }
        }
    }

    /// `value` is the posted value if the request may go to the backlog. Always inlined for requests from the FIFO.
    #[inline(always)]
    fn scsi_io(&mut self, frame: &[u8; REQUEST_FRAME], value: Option<u32>, now: Time) {
        let Ok((request, _)) = ScsiIoRequest::ref_from_prefix(frame) else { return };
        let pending = Pending::new(request, self.sense_high);
        if let Err(status) = self.start(request, frame, value, &pending, now) {
            self.engine.stats.errors += 1;
            self.post(Reply::new(&pending.reply(status)), now);
        }
    }

    /// Submit a SCSI I/O to its unit.
    #[inline(always)]
    fn start(
        &mut self,
        request: &ScsiIoRequest,
        frame: &[u8; REQUEST_FRAME],
        value: Option<u32>,
        pending: &Pending,
        now: Time,
    ) -> Result<(), u16> {
        if self.state != IocState::Operational {
            return Err(ioc_status::INVALID_STATE);
        }
        if request.bus != 0 {
            return Err(ioc_status::SCSI_INVALID_BUS);
        }
        if request.target_id >= self.personality.targets() {
            return Err(ioc_status::SCSI_INVALID_TARGETID);
        }
        if request.cdb_length == 0 || request.cdb_length > MAX_CDB {
            return Err(ioc_status::INVALID_FIELD);
        }
        let address = pending.address().ok_or(ioc_status::SCSI_DEVICE_NOT_THERE)?;
        if let Some(value) = value
            && !self.engine.admits(address)
        {
            self.engine.backlog.push(address, (value, *pending));
            return Ok(());
        }
        let flags = request.control.get();
        let (direction, access) = match flags >> control::DIRECTION_SHIFT & 3 {
            // Drivers request a read of 0 bytes for commands without data.
            _ if pending.data_length == 0 => (Direction::None, Access::Read),
            control::DIRECTION_NONE => (Direction::None, Access::Read),
            control::DIRECTION_WRITE => (Direction::Out, Access::Read),
            control::DIRECTION_READ => (Direction::In, Access::Write),
            _ => return Err(ioc_status::INVALID_FIELD),
        };
        let len = if direction == Direction::None { 0 } else { pending.data_length };
        let list = Start { offset: size_of::<ScsiIoRequest>(), chain: usize::from(request.chain_offset) * 4 };
        self.engine.dma.next_request();
        let one;
        let whole = sgl::whole(frame, list, len.into());
        let bufs = match whole.and_then(|address| self.engine.dma.piece(address, len.into())) {
            Some(piece) => {
                one = piece;
                slice::from_ref(&one)
            }
            None => {
                self.map_list(frame, list, len.into(), access).map_err(|_| ioc_status::INVALID_SGL)?;
                &self.bufs
            }
        };
        let task = Task {
            id: 0,
            address,
            cdb: request.cdb.get(..usize::from(request.cdb_length)).unwrap_or(&request.cdb),
            attribute: match flags >> control::ATTRIBUTE_SHIFT & 7 {
                control::ATTRIBUTE_HEAD_OF_QUEUE => Attribute::HeadOfQueue,
                control::ATTRIBUTE_ORDERED => Attribute::Ordered,
                _ => Attribute::Simple,
            },
            direction,
            bufs,
            len: len.into(),
        };
        if let Err(end) = self.engine.submit(task, || *pending) {
            self.end(pending, &end, now);
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn end(&mut self, pending: &Pending, end: &TaskEnd, now: Time) {
        match end {
            TaskEnd::Answered { status: Status::Good, transferred, wanted, .. }
                if *transferred == u64::from(pending.data_length)
                    && wanted <= transferred
                    && pending.has_short_reply() =>
            {
                // Success: a context reply.
                if !self.port.post_reply(pending.context) {
                    // There are more replies than credits: the guest has stopped reading.
                    self.lost();
                    return self.enter_fault(fault::REPLY_MESSAGE_PCI_BUS_FAULT);
                }
                self.posted(now);
            }
            _ => {
                self.engine.stats.errors +=
                    u64::from(!matches!(end, TaskEnd::Answered { status: Status::Good, .. }));
                let reply = self.long_reply(pending, end);
                self.post(reply, now);
            }
        }
    }

    #[cold]
    fn long_reply(&mut self, pending: &Pending, end: &TaskEnd) -> Reply {
        let terminated = |status| ScsiIoReply {
            scsi_state: scsi_state::TERMINATED | scsi_state::NO_SCSI_STATUS,
            ..pending.reply(status)
        };
        let reply = match end {
            TaskEnd::NoTarget => pending.reply(ioc_status::SCSI_DEVICE_NOT_THERE),
            TaskEnd::WrongDirection => pending.reply(ioc_status::SCSI_IO_DATA_ERROR),
            TaskEnd::Aborted | TaskEnd::Reset => terminated(ioc_status::SCSI_TASK_TERMINATED),
            TaskEnd::Answered { status, transferred, wanted, sense } => {
                let asked = u64::from(pending.data_length);
                let outcome = if *wanted > asked {
                    ioc_status::SCSI_DATA_OVERRUN
                } else if *transferred < asked {
                    ioc_status::SCSI_DATA_UNDERRUN
                } else {
                    ioc_status::SUCCESS
                };
                let sense = sense.as_ref().map_or(&[][..], |sense| sense.as_slice());
                let sense = &sense[..sense.len().min(pending.sense_length.into())];
                let delivered =
                    sense.is_empty() || self.engine.dma.write_bytes(pending.sense_address, sense).is_ok();
                ScsiIoReply {
                    scsi_status: *status as u8,
                    scsi_state: match (sense.is_empty(), delivered) {
                        (true, _) => 0,
                        (false, true) => scsi_state::AUTOSENSE_VALID,
                        (false, false) => scsi_state::AUTOSENSE_FAILED,
                    },
                    transfer_count: (*transferred as u32).into(),
                    sense_count: (if delivered { sense.len() as u32 } else { 0 }).into(),
                    ..pending.reply(outcome)
                }
            }
        };
        Reply::new(&reply)
    }

    /// Count a SCSI I/O that ends without a reply, because the controller is in FAULT.
    #[cold]
    fn lost(&mut self) {
        self.engine.stats.completions += 1;
        self.engine.stats.errors += 1;
    }

    /// Post a reply that is not the completion of a SCSI I/O, and signal it together with completions that the moderator
    /// held back.
    pub(super) fn reply(&mut self, reply: Reply) {
        if !self.engine.deferred.is_empty() || !self.try_post(&reply) {
            self.defer(reply);
        }
        let _ = self.engine.moderator.flush();
        self.signal();
    }

    /// Update the interrupt after a change of the status. An MSI is sent only when the interrupt is newly asserted, as
    /// on hardware: a driver reads the reply FIFO until it is empty, so further replies need no message.
    pub(super) fn signal_if(&mut self, asserted_anew: bool) {
        if asserted_anew {
            self.engine.stats.interrupts += u64::from(self.function.signal(0));
        }
        self.update_line();
    }

    pub(super) fn update_line(&mut self) {
        let raised = self.function.set_line(self.port.asserted());
        self.engine.stats.interrupts += u64::from(raised);
    }
}

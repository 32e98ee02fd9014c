//! SCSI I/O: from the request FIFO to the disks, and from the disks to the reply FIFO, with one decision about an
//! interrupt for a batch.

use std::ops::Range;
use std::slice;

use vm_memory::GuestAddressSpace;
use zerocopy::FromBytes;

use super::Lsi;
use super::pending::{ADDRESS_REPLY, Pending};
use super::personality::REQUEST_FRAME;
use super::port::REQUEST_CREDITS;
use super::reply::Reply;
use super::sgl::{self, Start};
use super::spec::{IocState, ScsiIoReply, ScsiIoRequest, control, fault, function, ioc_status, scsi_state};
use crate::bus_adapter::work;
use crate::dma::{Access, Footprint, overlap};
use crate::scsi::{Address, Attribute, Direction, Status, Task, TaskEnd};
use crate::time::Time;

/// Maximum number of requests that are taken before the disk queues are submitted.
const BATCH: usize = 128;

/// Low bits of a posted value that are not part of the address.
const SIZE_HINT: u32 = 3;

/// Maximum length of a CDB in bytes.
const MAX_CDB: u8 = 16;

impl<A: GuestAddressSpace> Lsi<A> {
    /// Process completions and requests.
    pub(super) fn service(&mut self, now: Time) {
        self.more = false;
        self.finish_reset();
        self.retry_late();
        let more = work(self, |adapter| adapter.fetch(now), |adapter| adapter.complete(now));
        self.more |= more;
    }

    /// Whether requests may be taken from the FIFO. SCSI I/O that cannot start goes to the backlog, so that other
    /// requests can pass it.
    pub(super) fn can_fetch(&self) -> bool {
        self.can_start() && self.late_replies.is_empty() && self.backlog.len() < REQUEST_CREDITS
    }

    /// Whether requests may be started.
    pub(super) fn can_start(&self) -> bool {
        !matches!(self.state, IocState::Fault | IocState::Reset) && self.function.bus_master()
    }

    /// Take a batch of requests, and submit it to the disks. False: there was none.
    fn fetch(&mut self, now: Time) -> bool {
        if self.frames_refused {
            return false;
        }
        let mut taken = !self.backlog.is_empty() && self.can_fetch() && self.start_backlog(now);
        for _ in 0..BATCH {
            if !self.can_fetch() {
                break;
            }
            let Some(value) = self.port.next_request() else { break };
            taken = true;
            self.take_request(value, now);
        }
        if taken {
            self.bus.kick();
        }
        taken
    }

    /// Start requests of the backlog, as far as there are task numbers. False: none was started.
    #[cold]
    pub(super) fn start_backlog(&mut self, now: Time) -> bool {
        let mut started = false;
        while self.can_start()
            && let Some((value, _)) = self.backlog.next(&self.bus, self.in_flight.free_slots())
        {
            started = true;
            let mut frame = [0; REQUEST_FRAME];
            if self.fetch_frame(value, &mut frame) {
                self.scsi_io_from_backlog(&frame, now);
            } else {
                self.lost();
            }
        }
        started
    }

    /// Copy the request frame at the posted address. False: the frame is not in guest memory, and the controller enters
    /// FAULT.
    #[inline(always)]
    fn fetch_frame(&mut self, value: u32, frame: &mut [u8; REQUEST_FRAME]) -> bool {
        // The low two bits are a size hint, which is ignored: the whole frame is copied. Bit 2 belongs to the address,
        // because the frames of SeaBIOS are at multiples of four.
        let address = self.mfa_high | u64::from(value & !SIZE_HINT);
        let fetched = self.dma.read_bytes(address, frame).is_ok();
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
                self.stats.requests += 1;
                self.scsi_io(&frame, Some(value), now);
            }
            function::SCSI_TASK_MGMT => self.task_management(&frame, now),
            _ => {
                let reply = self.answer(&frame);
                self.post(reply);
                self.signal_others();
            }
        }
    }

    /// Start a SCSI I/O of the backlog.
    #[cold]
    fn scsi_io_from_backlog(&mut self, frame: &[u8; REQUEST_FRAME], now: Time) {
        self.scsi_io(frame, None, now);
    }

    /// `place` is the posted value if the request may go to the backlog. Always inlined for requests from the FIFO.
    #[inline(always)]
    fn scsi_io(&mut self, frame: &[u8; REQUEST_FRAME], place: Option<u32>, now: Time) {
        let Ok((request, _)) = ScsiIoRequest::ref_from_prefix(frame) else { return };
        let pending = Pending::new(request, self.sense_high);
        if let Err(status) = self.start(request, frame, place, &pending, now) {
            self.stats.errors += 1;
            self.finish(Reply::new(&pending.reply(status)), now);
        }
    }

    /// Submit a SCSI I/O to its unit.
    #[inline(always)]
    fn start(
        &mut self,
        request: &ScsiIoRequest,
        frame: &[u8; REQUEST_FRAME],
        place: Option<u32>,
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
        if let Some(place) = place
            && !self.admits(address)
        {
            self.backlog.push(address, (place, *pending));
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
        self.dma.begin();
        let one;
        let whole = sgl::whole(frame, list, len.into());
        let bufs = match whole.and_then(|address| self.dma.piece(address, len.into())) {
            Some(piece) => {
                one = piece;
                slice::from_ref(&one)
            }
            None => {
                self.map_list(frame, list, len.into(), access).map_err(|_| ioc_status::INVALID_SGL)?;
                &self.bufs
            }
        };
        let id = self.in_flight.allocate().ok_or(ioc_status::INSUFFICIENT_RESOURCES)?;
        let task = Task {
            id,
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
        match self.bus.submit(&task) {
            None => {
                self.in_flight.store(id, *pending, self.dma.footprint());
            }
            Some(end) => {
                self.in_flight.release(id);
                self.end(pending, &end, now);
            }
        }
        Ok(())
    }

    /// Whether there is a task number for SCSI I/O of this unit.
    #[inline]
    fn admits(&self, address: Address) -> bool {
        self.backlog.admits(&self.bus, address, self.in_flight.free_slots())
    }

    /// Post the replies to requests that have completed, and decide about an interrupt.
    pub(super) fn complete(&mut self, now: Time) {
        if self.state == IocState::Reset {
            return self.finish_reset();
        }
        if !self.function.bus_master() {
            // Neither sense data nor replies may be written now. Completions stay on the bus until bus mastering is
            // enabled again.
            return;
        }
        let mut ended = std::mem::take(&mut self.ended);
        self.bus.reap(&mut ended);
        self.more |= !ended.is_empty() && !self.backlog.is_empty();
        for &(id, ref end) in &ended {
            if let Some(pending) = self.in_flight.end(id) {
                self.end(&pending, end, now);
                self.task_ended(id);
            }
        }
        ended.clear();
        self.ended = ended;
        if !self.management.is_empty() {
            self.units_reset();
        }
        if self.moderator.end_batch(now) {
            self.raise();
        }
    }

    #[inline(always)]
    pub(super) fn end(&mut self, pending: &Pending, end: &TaskEnd, now: Time) {
        match end {
            TaskEnd::Answered { status: Status::Good, transferred, wanted, .. }
                if *transferred == u64::from(pending.data_length)
                    && wanted <= transferred
                    && pending.has_short_reply() =>
            {
                self.finish_short(pending.context, now);
            }
            _ => {
                self.stats.errors +=
                    u64::from(!matches!(end, TaskEnd::Answered { status: Status::Good, .. }));
                let reply = self.long_reply(pending, end);
                self.finish(reply, now);
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
                    sense.is_empty() || self.dma.write_bytes(pending.sense_address, sense).is_ok();
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

    /// Success: a context reply.
    #[inline(always)]
    fn finish_short(&mut self, context: u32, now: Time) {
        if !self.port.post_reply(context) {
            // There are more replies than credits: the guest has stopped reading.
            self.lost();
            return self.enter_fault(fault::REPLY_MESSAGE_PCI_BUS_FAULT);
        }
        self.completed(now);
    }

    /// Count a SCSI I/O that ends without a reply, because the controller is in FAULT.
    #[cold]
    fn lost(&mut self) {
        self.stats.completions += 1;
        self.stats.errors += 1;
    }

    fn finish(&mut self, reply: Reply, now: Time) {
        self.post(reply);
        self.completed(now);
    }

    #[inline(always)]
    fn completed(&mut self, now: Time) {
        self.stats.completions += 1;
        let cif = self.in_flight.count() + self.port.waiting() + self.backlog.len() as u32;
        if self.moderator.completed(cif, now) {
            self.raise();
        }
    }

    /// Guest memory that requests use. Without bus mastering there is none, because the disks have completed the
    /// requests whose replies are pending. During a reset the disks may still use memory, with or without bus
    /// mastering.
    pub(super) fn memory_in_use(&mut self) -> Footprint {
        let held = self.function.bus_master() || self.state == IocState::Reset;
        if !held {
            return Footprint::NONE;
        }
        self.in_flight.footprint(&mut self.dma, |pending| pending.sense_address)
    }

    /// Whether a free reply frame is in one of these ranges. The reply to any request may be written to it.
    pub(super) fn has_frames_in(&self, ranges: &[Range<u64>]) -> bool {
        let (high, len) = (self.mfa_high, u64::from(self.reply_frame_size));
        self.port.free_frames().any(|frame| {
            let start = high | u64::from(frame);
            ranges.iter().any(|range| overlap(range, start, len))
        })
    }

    /// Post a reply, or queue it until the guest provides a frame.
    pub(super) fn post(&mut self, reply: Reply) {
        if !self.late_replies.is_empty() || !self.try_post(&reply) {
            if self.late_replies.len() >= MAX_LATE {
                // The guest keeps posting requests, but provides no reply frames.
                return self.enter_fault(fault::REPLY_MESSAGE_PCI_BUS_FAULT);
            }
            self.late_replies.push_back(reply);
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
        let written = self.dma.write_bytes(self.mfa_high | u64::from(frame), bytes).is_ok();
        if !written || !self.port.post_reply(ADDRESS_REPLY | frame >> 1) {
            self.enter_fault(fault::REPLY_MESSAGE_PCI_BUS_FAULT);
        }
        true
    }

    /// Post replies that waited for frames.
    fn retry_late(&mut self) {
        self.retry.tried();
        let mut posted = false;
        while let Some(reply) = self.late_replies.pop_front() {
            if self.state == IocState::Fault {
                self.late_replies.clear();
                return;
            }
            if !self.try_post(&reply) {
                self.late_replies.push_front(reply);
                break;
            }
            posted = true;
        }
        if posted {
            self.signal_others();
        }
    }

    /// Signal a reply that is not the completion of a SCSI I/O, together with completions that the moderator held back.
    pub(super) fn signal_others(&mut self) {
        let _ = self.moderator.flush();
        self.raise();
    }

    /// Raise the reply interrupt.
    pub(super) fn raise(&mut self) {
        if self.port.has_replies() {
            let asserted = self.port.signal();
            self.signal(asserted);
        }
    }

    /// Update the interrupt after a change of the status. An MSI is sent only when the interrupt is newly asserted, as
    /// on hardware: a driver reads the reply FIFO until it is empty, so further replies need no message.
    pub(super) fn signal(&mut self, asserted_anew: bool) {
        if asserted_anew {
            self.stats.interrupts += u64::from(self.function.signal(0));
        }
        self.update_line();
    }

    pub(super) fn update_line(&mut self) {
        let raised = self.function.set_line(self.port.asserted());
        self.stats.interrupts += u64::from(raised);
    }
}

/// Maximum number of replies that wait for frames: those of all requests, and as many other messages.
const MAX_LATE: usize = 2 * REQUEST_CREDITS;

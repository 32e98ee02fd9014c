//! The SCSI host device (VIRTIO 1.2, 5.6).

use super::pci::{Transport, Wanted};
use super::queue::{Piece, Shape, Virtqueue};
use super::queues::Queues;
use super::spec::*;
use super::{MAX_SEGMENTS, Options, Step, failed};
use crate::adapter::{Adapter, Completion, Counters, Geometry, Layout, PAGE, Request};
use crate::initiator::{Command, CommandEnd, Direction, Initiator};
use crate::platform::DmaRegion;
use crate::platform::Platform;
use crate::workload::Fault;

/// In the memory of a request: its header, the answer, and (not the device's) the bytes of its data.
const RESPONSE: usize = 64;
const DATA_LEN: usize = RESPONSE + SCSI_RESPONSE + SCSI_SENSE_SIZE;
const REQUEST_SIZE: usize = (DATA_LEN + 4).next_multiple_of(64);
/// What the device's answer is before it has answered.
const UNANSWERED: u8 = 0xff;

/// Buffers for events.
const EVENTS: u32 = 8;
/// Entries of control and event queue at the most.
const SMALL_QUEUE: u16 = 16;
/// In the memory of the control queue: the answer.
const CONTROL_RESPONSE: usize = 32;
const CONTROL_SIZE: usize = 64;

/// What an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Type, and whether events were lost.
    pub event: u32,
    /// Logical unit, as the device addresses it.
    pub lun: [u8; 8],
    /// More about it.
    pub reason: u32,
}

/// The driver of one SCSI host device.
#[derive(Debug)]
pub struct VirtioScsi {
    options: Options,
    transport: Transport,
    control: Virtqueue,
    events: Virtqueue,
    queues: Queues,
    requests: DmaRegion,
    control_memory: DmaRegion,
    event_memory: DmaRegion,
    scratch: DmaRegion,
}

impl VirtioScsi {
    /// Find the device and bring it up.
    pub fn start<P: Platform>(platform: &mut P, options: Options) -> Result<Self, Fault> {
        let wanted = Wanted {
            device_type: TYPE_SCSI_HOST,
            features: SCSI_F_HOTPLUG | SCSI_F_CHANGE,
            queues: SCSI_REQUEST_QUEUES + options.queues,
        };
        let mut transport = Transport::start(platform, &options, wanted)?;
        let count = transport.config(platform, SCSI_NUM_QUEUES, 4) as u16;
        let segments = match options.layout {
            Layout::Contiguous => 1,
            Layout::Scattered => MAX_SEGMENTS as u16,
        };
        let mut small = |index, requests, pieces| {
            let size = transport.queue_size(platform, index, SMALL_QUEUE)?;
            let event_index = transport.event_index();
            let shape = Shape { size, requests, pieces, indirect: false, event_index };
            transport.make_queue(platform, index, shape)
        };
        let control = small(SCSI_CONTROL_QUEUE, 1, 2)?;
        let events = small(SCSI_EVENT_QUEUE, EVENTS, 1)?;
        // With header and answer.
        let range = (SCSI_REQUEST_QUEUES, count.min(options.queues));
        let queues = Queues::start(platform, &mut transport, &options, range, segments + 2)?;
        let no_memory = failed(Step::Memory);
        let mut memory = |len, align| platform.dma(len, align).ok_or(no_memory);
        let mut driver = Self {
            requests: memory((queues.slots() as usize + 1) * REQUEST_SIZE, 64)?,
            control_memory: memory(CONTROL_SIZE, 64)?,
            event_memory: memory(EVENTS as usize * SCSI_EVENT_SIZE, 64)?,
            scratch: memory(PAGE, PAGE)?,
            options,
            transport,
            control,
            events,
            queues,
        };
        driver.go(platform);
        Ok(driver)
    }

    fn go<P: Platform>(&mut self, platform: &mut P) {
        for number in 0..EVENTS {
            self.give_buffer(number);
        }
        self.transport.go(platform);
        self.publish_buffers(platform);
    }

    /// The transport, for tests.
    pub fn transport(&mut self) -> &mut Transport {
        &mut self.transport
    }

    /// Control queue, event queue and the rings for requests, for tests that spoil them.
    #[must_use]
    pub const fn rings(&self) -> (&Virtqueue, &Virtqueue, &Queues) {
        (&self.control, &self.events, &self.queues)
    }

    /// Reset the device: nothing is written to memory afterwards.
    ///
    /// # Errors
    /// [`Fault::BRING_UP`] where it does not reset.
    pub fn shut_down<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.transport.reset(platform)
    }

    /// Reset one of the queues for requests and take it into use again; its requests are gone.
    ///
    /// # Errors
    /// As [`Transport::reset_queue`] and [`Transport::enable_queue`].
    pub fn reset_queue<P: Platform>(&mut self, platform: &mut P, index: u16) -> Result<(), Fault> {
        self.queues.reset_ring(platform, &mut self.transport, index)
    }

    /// Task management of a target's logical unit 0, for the request with this tag where it is about one. Waits for the
    /// answer; requests that ended meanwhile are there to be polled.
    ///
    /// # Errors
    /// [`Fault::TIMEOUT`] where no answer comes, [`Fault::SPURIOUS`] where something else does.
    pub fn manage<P: Platform>(
        &mut self,
        platform: &mut P,
        function: u32,
        target: u32,
        tag: u32,
    ) -> Result<u8, Fault> {
        let spurious = Fault { kind: Fault::SPURIOUS, ..Fault::EMPTY };
        if !self.ask(platform, function, target, tag) {
            return Err(spurious);
        }
        let used = platform.wait_for(|platform| {
            self.interrupted(platform);
            self.control.take()
        });
        let response = self.control_memory.read(CONTROL_RESPONSE);
        if used.ok_or(Fault { kind: Fault::TIMEOUT, ..Fault::EMPTY })?.number == Some(0) {
            Ok(response)
        } else {
            Err(spurious)
        }
    }

    /// Put task management in, and wait for nothing; `false`: the queue is full.
    pub fn ask<P: Platform>(&mut self, platform: &mut P, function: u32, target: u32, tag: u32) -> bool {
        let memory = &self.control_memory;
        memory.write(0, u64::from(SCSI_T_TMF) | u64::from(function) << 32);
        memory.write(8, lun(target));
        memory.write(16, u64::from(tag));
        memory.write(CONTROL_RESPONSE, UNANSWERED);
        let address = memory.address();
        let pieces = [
            Piece { address, len: SCSI_TMF as u32, write: false },
            Piece { address: address + CONTROL_RESPONSE as u64, len: 1, write: true },
        ];
        let added = self.control.add(0, pieces.into_iter());
        if added && self.control.publish() {
            self.transport.notify(platform, SCSI_CONTROL_QUEUE, &self.control);
        }
        added
    }

    /// The next event; its buffer goes back to the device.
    pub fn take_event<P: Platform>(&mut self, platform: &mut P) -> Option<Event> {
        let number = self.events.take()?.number.filter(|number| *number < EVENTS)?;
        let at = number as usize * SCSI_EVENT_SIZE;
        let lun: u64 = u64::from(self.event_memory.read::<u32>(at + 4))
            | u64::from(self.event_memory.read::<u32>(at + 8)) << 32;
        let event = Event {
            event: self.event_memory.read(at),
            lun: lun.to_le_bytes(),
            reason: self.event_memory.read(at + 12),
        };
        self.give_buffer(number);
        self.publish_buffers(platform);
        Some(event)
    }

    fn give_buffer(&mut self, number: u32) {
        let address = self.event_memory.address() + u64::from(number) * SCSI_EVENT_SIZE as u64;
        let piece = Piece { address, len: SCSI_EVENT_SIZE as u32, write: true };
        self.events.add(number, core::iter::once(piece));
    }

    fn publish_buffers<P: Platform>(&mut self, platform: &mut P) {
        if self.events.publish() {
            self.transport.notify(platform, SCSI_EVENT_QUEUE, &self.events);
        }
    }

    /// The next command that ended. Its status is the device's response and the SCSI status.
    #[inline(always)]
    fn take_end(&mut self) -> Option<CommandEnd> {
        let (tag, _) = self.queues.take()?;
        let at = tag as usize * REQUEST_SIZE;
        if at + REQUEST_SIZE > self.requests.len() {
            return Some(CommandEnd::UNKNOWN);
        }
        let memory = self.requests.fields::<REQUEST_SIZE>(at);
        let sizes: u64 = memory.read::<RESPONSE, _>();
        let statuses: u32 = memory.read::<{ RESPONSE + 8 }, _>();
        let len: u32 = memory.read::<DATA_LEN, _>();
        let (scsi, response) = (statuses >> 16 & 0xff, statuses >> 24);
        let completion = Completion {
            tag,
            status: response << 8 | scsi,
            transferred: len.saturating_sub((sizes >> 32) as u32).into(),
        };
        Some(CommandEnd { completion, sense_len: sizes as u32 })
    }
}

/// Logical unit 0 of a target, by flat space addressing as Linux does it.
const fn lun(target: u32) -> u64 {
    1 | (target as u64 & 0xff) << 8 | 0x40 << 16
}

impl Adapter for VirtioScsi {
    fn slots(&self) -> u32 {
        self.queues.slots()
    }

    fn layout(&self) -> Layout {
        self.options.layout
    }

    fn geometry<P: Platform>(&mut self, platform: &mut P, target: u32) -> Result<Geometry, Fault> {
        self.read_capacity(platform, target)
    }

    fn submit<P: Platform>(&mut self, platform: &mut P, request: &Request) -> bool {
        self.queue_request(platform, request)
    }

    fn kick<P: Platform>(&mut self, platform: &mut P) {
        self.queues.kick(platform, &mut self.transport);
    }

    fn interrupted<P: Platform>(&mut self, platform: &mut P) {
        self.queues.interrupted(platform, &mut self.transport);
    }

    fn poll<P: Platform>(&mut self, _platform: &mut P) -> Option<Completion> {
        self.take_end().map(|end| end.completion)
    }

    fn reset<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.transport.restart(platform)?;
        for (index, queue) in [(SCSI_CONTROL_QUEUE, &mut self.control), (SCSI_EVENT_QUEUE, &mut self.events)]
        {
            queue.reset();
            self.transport.enable_queue(platform, index, queue)?;
        }
        self.queues.restart(platform, &mut self.transport)?;
        self.go(platform);
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.transport.counters()
    }
}

impl Initiator for VirtioScsi {
    fn own_tag(&self) -> u32 {
        self.queues.slots()
    }

    /// Put a command in: header, data to the device, answer, data from it. Always inlined: otherwise a CDB that is passed in memory would
    /// be loaded as a whole right after its bytes were stored, which stalls the processor.
    #[inline(always)]
    fn queue<P: Platform>(&mut self, platform: &mut P, command: Command<'_>) -> bool {
        let Command { tag, target, cdb, direction, data } = command;
        let at = tag as usize * REQUEST_SIZE;
        if at + REQUEST_SIZE > self.requests.len() {
            return false;
        }
        let [low, high] = cdb.words();
        // Task attribute, priority and reference number are zero; the CDB of 32 bytes begins at byte 19.
        let memory = self.requests.fields::<REQUEST_SIZE>(at);
        memory.write::<0, _>(lun(target));
        memory.write::<8, _>(u64::from(tag));
        memory.write::<16, _>(low << 24);
        memory.write::<24, _>(low >> 40 | high << 24);
        memory.write::<32, _>(high >> 40);
        memory.write::<40, _>(0u64);
        memory.write::<48, _>(0u64);
        memory.write::<{ RESPONSE + 11 }, _>(UNANSWERED);
        let len = if direction == Direction::None { 0 } else { data.len };
        memory.write::<DATA_LEN, _>(len);
        let address = self.requests.address() + at as u64;
        let header = Piece { address, len: SCSI_HEADER as u32, write: false };
        let response = Piece {
            address: address + RESPONSE as u64,
            len: (SCSI_RESPONSE + SCSI_SENSE_SIZE) as u32,
            write: true,
        };
        let (queues, transport) = (&mut self.queues, &mut self.transport);
        let (out, into) = (direction == Direction::ToDevice, direction == Direction::ToHost);
        if data.is_contiguous() {
            if len == 0 {
                return queues.add(platform, transport, tag, [header, response].into_iter());
            }
            let data = Piece { address: data.address, len, write: into };
            let [second, third] = if into { [response, data] } else { [data, response] };
            return queues.add(platform, transport, tag, [header, second, third].into_iter());
        }
        let data = data.segments().map(|(address, len)| Piece { address, len, write: into });
        let only = |wanted| if wanted { usize::MAX } else { 0 };
        let pieces = core::iter::once(header)
            .chain(data.clone().take(only(out)))
            .chain(core::iter::once(response))
            .chain(data.take(only(into)));
        queues.add(platform, transport, tag, pieces)
    }

    fn take<P: Platform>(&mut self, _platform: &mut P) -> Option<CommandEnd> {
        self.take_end()
    }

    fn sense_memory(&self, tag: u32) -> (&DmaRegion, usize) {
        (&self.requests, tag as usize * REQUEST_SIZE + RESPONSE + SCSI_RESPONSE)
    }

    fn scratch(&self) -> &DmaRegion {
        &self.scratch
    }
}

//! The storage protocol over one channel, and the adapter. Targets are logical unit numbers of the controller's only target.

use super::bus::{Bus, Offer};
use super::ring::Rings;
use super::spec::*;
use super::{Options, Step, failed};
use crate::adapter::{Adapter, Completion, Counters, Geometry, KickPolicy, Layout, PAGE, Request};
use crate::initiator::{Command, CommandEnd, Direction, Initiator};
use crate::platform::DmaRegion;
use crate::platform::Platform;
use crate::workload::Fault;

/// Bytes of memory for a request's sense data, whole words.
const SENSE_SIZE: usize = 24;
/// Seconds that the host has for a request.
const TIMEOUT: u64 = 60;
/// The transaction of the bring-up's packets: beyond those of requests.
const SETUP: u64 = u64::MAX - 2;
/// Bytes of a packet's descriptor, and of that of one with a list of pages.
const HEADER: usize = 16;
const PAGES_HEADER: usize = HEADER + 16;

/// The driver of one synthetic SCSI controller.
#[derive(Debug)]
pub struct Storvsc {
    options: Options,
    bus: Bus,
    offer: Offer,
    rings: Rings,
    sense: DmaRegion,
    scratch: DmaRegion,
    counters: Counters,
    /// Reports that units have come or gone.
    enumerations: u32,
}

/// A packet's descriptor.
const fn descriptor(kind: u64, header: usize, len: usize) -> u64 {
    kind | (header as u64 / 8) << 16 | (len as u64 / 8) << 32 | COMPLETION_REQUESTED << 48
}

impl Storvsc {
    /// Connect to the bus, find the controller and bring it up.
    pub fn start<P: Platform>(platform: &mut P, options: Options) -> Result<Self, Fault> {
        if !(2..=256).contains(&options.ring_pages) || options.slots == 0 {
            return Err(failed(Step::Options));
        }
        let mut bus = Bus::connect(platform)?;
        let offer = bus.find_scsi(platform)?;
        let pages = options.ring_pages as usize;
        let mut memory = |len| platform.dma(len, PAGE).ok_or(failed(Step::Memory));
        let mut driver = Self {
            options,
            bus,
            offer,
            rings: Rings::new(memory(2 * pages * PAGE)?, pages),
            sense: memory((options.slots as usize + 1) * SENSE_SIZE)?,
            scratch: memory(PAGE)?,
            counters: Counters::default(),
            enumerations: 0,
        };
        driver.open(platform)?;
        Ok(driver)
    }

    fn open<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.bus.open(platform, self.offer, self.rings.memory(), self.options.ring_pages)?;
        self.set_up(platform, BEGIN_INITIALIZATION, 0)?;
        self.set_up(platform, QUERY_PROTOCOL_VERSION, PROTOCOL_VERSION)?;
        self.set_up(platform, QUERY_PROPERTIES, 0)?;
        self.set_up(platform, END_INITIALIZATION, 0)
    }

    /// One step of the protocol's bring-up.
    fn set_up<P: Platform>(&mut self, platform: &mut P, operation: u64, argument: u64) -> Result<(), Fault> {
        let len = HEADER + 8 * STORAGE_WORDS;
        let words = [descriptor(PACKET_IN_BAND, HEADER, len), SETUP, operation | COMPLETION_REQUESTED << 32]
            .into_iter()
            .chain([argument << 32])
            .chain([0; STORAGE_WORDS - 2]);
        if !self.rings.put(words, len) {
            return Err(failed(Step::Protocol));
        }
        self.publish(platform);
        let packet = platform.wait_for(|platform| {
            self.interrupted(platform);
            self.rings.next()
        });
        let packet = packet.ok_or(failed(Step::Silence))?;
        let (operation, status) =
            (self.rings.payload(&packet, 0) as u32, self.rings.payload(&packet, 1) as u32);
        self.rings.done(&packet);
        let good = (packet.kind, packet.transaction) == (PACKET_COMPLETION, SETUP)
            && (operation, status) == (COMPLETE_IO, 0);
        if good { Ok(()) } else { Err(Fault { status, ..failed(Step::Protocol) }) }
    }

    fn publish<P: Platform>(&mut self, platform: &mut P) {
        if self.rings.publish() {
            self.counters.doorbells += 1;
            platform.hypercall(SIGNAL_EVENT, self.offer.connection.into(), 0);
        }
    }

    /// Reports so far that units have come or gone.
    #[must_use]
    pub const fn enumerations(&self) -> u32 {
        self.enumerations
    }

    /// The next command that ended.
    #[inline(always)]
    fn take_end(&mut self) -> Option<CommandEnd> {
        let mut packet = self.rings.next()?;
        while packet.kind == PACKET_IN_BAND && self.rings.payload(&packet, 0) as u32 == ENUMERATE_BUS {
            self.enumerations += 1;
            self.rings.done(&packet);
            packet = self.rings.next()?;
        }
        let [first, second, third, fourth] = [0, 1, 3, 4].map(|index| self.rings.payload(&packet, index));
        let tag = packet.transaction.wrapping_sub(1);
        let known = packet.kind == PACKET_COMPLETION
            && first as u32 == COMPLETE_IO
            && tag <= u64::from(self.options.slots);
        let (srb, scsi) = ((second >> 48) as u8 & SRB_STATUS_MASK, (second >> 56) as u8);
        let host = if srb == SRB_SUCCESS || scsi != 0 { 0 } else { srb };
        if known && scsi != 0 {
            // Sense data begin in the middle of a word.
            let words = [fourth, self.rings.payload(&packet, 5), self.rings.payload(&packet, 6)];
            let at = tag as usize * SENSE_SIZE;
            self.sense.write(at, third >> 32 | words[0] << 32);
            self.sense.write(at + 8, words[0] >> 32 | words[1] << 32);
            self.sense.write(at + 16, words[1] >> 32 | words[2] << 32);
        }
        self.rings.done(&packet);
        Some(CommandEnd {
            completion: Completion {
                tag: if known { tag as u32 } else { u32::MAX },
                status: u32::from(host) << 8 | u32::from(scsi),
                transferred: third & 0xffff_ffff,
            },
            sense_len: SENSE_LEN as u32,
        })
    }
}

impl Adapter for Storvsc {
    fn slots(&self) -> u32 {
        self.options.slots
    }

    fn layout(&self) -> Layout {
        self.options.layout
    }

    fn geometry<P: Platform>(&mut self, platform: &mut P, target: u32) -> Result<Geometry, Fault> {
        self.read_capacity(platform, target)
    }

    #[inline]
    fn submit<P: Platform>(&mut self, platform: &mut P, request: &Request) -> bool {
        self.queue_request(platform, request)
    }

    fn kick<P: Platform>(&mut self, platform: &mut P) {
        self.publish(platform);
    }

    #[inline]
    fn interrupted<P: Platform>(&mut self, _platform: &mut P) {
        self.bus.clear_flags(self.offer);
        self.rings.mask();
    }

    #[inline]
    fn poll<P: Platform>(&mut self, _platform: &mut P) -> Option<Completion> {
        self.take_end().map(|end| end.completion)
    }

    fn reset<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.bus.close(platform, self.offer)?;
        self.rings.clear();
        self.open(platform)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Initiator for Storvsc {
    fn own_tag(&self) -> u32 {
        self.options.slots
    }

    #[inline(always)]
    fn queue<P: Platform>(&mut self, platform: &mut P, command: Command<'_>) -> bool {
        let Command { tag, target, cdb, direction, data } = command;
        let len = if direction == Direction::None { 0 } else { data.len };
        let (data_direction, flags) = match direction {
            Direction::None => (DATA_NONE, 0),
            Direction::ToHost => (DATA_IN, SRB_FLAGS_IN),
            Direction::ToDevice => (DATA_OUT, SRB_FLAGS_OUT),
        };
        let [low, high] = cdb.words();
        let storage = [
            EXECUTE_SRB | COMPLETION_REQUESTED << 32,
            SRB_LEN << 32,
            // Port, path and target are 0.
            u64::from(target as u8) << 24
                | u64::from(cdb.len()) << 32
                | (SENSE_LEN as u64) << 40
                | data_direction << 48,
            u64::from(len) | low << 32,
            low >> 32 | high << 32,
            high >> 32,
            flags << 32,
            TIMEOUT,
        ];
        let transaction = u64::from(tag) + 1;
        let put = if len == 0 {
            let size = HEADER + 8 * STORAGE_WORDS;
            let head = [descriptor(PACKET_IN_BAND, HEADER, size), transaction];
            self.rings.put(head.into_iter().chain(storage), size)
        } else {
            let offset = data.address % PAGE as u64;
            let pages = (offset as usize + len as usize).div_ceil(PAGE);
            let header = PAGES_HEADER + 8 * pages;
            let size = header + 8 * STORAGE_WORDS;
            let head = [
                descriptor(PACKET_GPA_DIRECT, header, size),
                transaction,
                // One range.
                1 << 32,
                u64::from(len) | offset << 32,
            ];
            let stride = u64::from(data.page_stride) / PAGE as u64;
            let first = data.address / PAGE as u64;
            let numbers = (0..pages as u64).map(|page| first + page * stride);
            self.rings.put(head.into_iter().chain(numbers).chain(storage), size)
        };
        if put && self.options.kick == KickPolicy::PerRequest {
            self.publish(platform);
        }
        put
    }

    fn take<P: Platform>(&mut self, _platform: &mut P) -> Option<CommandEnd> {
        self.take_end()
    }

    fn sense_memory(&self, tag: u32) -> (&DmaRegion, usize) {
        (&self.sense, tag as usize * SENSE_SIZE)
    }

    fn scratch(&self) -> &DmaRegion {
        &self.scratch
    }
}

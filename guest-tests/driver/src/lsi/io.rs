//! SCSI I/O: requests in, completions out.

use core::sync::atomic::{Ordering, fence};

use super::adapter::{CHAINS, Lsi, SENSE_SIZE};
use super::message::IO_CONTEXT;
use super::spec::*;
use crate::adapter::{Buffer, Completion};
use crate::initiator::{Command, CommandEnd, Direction, Initiator};
use crate::platform::DmaRegion;
use crate::platform::Platform;

impl Lsi {
    /// Tell the controller where a frame is.
    pub(super) fn post_frame<P: Platform>(&mut self, platform: &mut P, tag: u32) {
        let address = self.shared.requests.address() + Self::frame(tag) as u64;
        fence(Ordering::Release);
        self.counters.doorbells += 1;
        platform.write32(self.function.bar, REQUEST_FIFO, address as u32);
    }

    /// Write the scatter-gather list; the chain offset of the frame in dwords, or `None` where it does not fit.
    #[inline]
    fn write_sgl(&self, tag: u32, data: &Buffer, direction: u32) -> Option<u8> {
        let list = List { driver: self, region: &self.shared.requests, at: Self::frame(tag) + IO_SGL };
        if data.len == 0 {
            // An address of all ones that must not be touched.
            list.simple(SGE_END, direction, u64::MAX, 0);
            return Some(0);
        }
        if data.is_contiguous() {
            list.simple(SGE_END, direction, data.address, data.len);
            return Some(0);
        }
        self.write_chained(tag, data, direction)
    }

    /// A list of several elements, as Linux lays it out: a segment's last slot is the next chain element.
    fn write_chained(&self, tag: u32, data: &Buffer, direction: u32) -> Option<u8> {
        let size = self.element();
        let chains = self.shared.chains.as_ref()?;
        let mut left = data.segments().count();
        let mut segments = data.segments();
        let frame = Self::frame(tag);
        let mut list = List { driver: self, region: &self.shared.requests, at: frame + IO_SGL };
        let mut free = (REQUEST_FRAME - IO_SGL) / size;
        let mut chain_offset = 0;
        for chain in 0..=CHAINS {
            let last = left <= free;
            let here = if last { left } else { free - 1 };
            for index in 1..=here {
                let (address, len) = segments.next()?;
                let end = match (index == here, last) {
                    (true, true) => SGE_END,
                    (true, false) => SGE_LAST,
                    _ => 0,
                };
                list.simple(end, direction, address, len);
                list.at += size;
            }
            if last {
                return Some(chain_offset);
            }
            left -= here;
            if chain == CHAINS {
                break;
            }
            if chain == 0 {
                chain_offset = ((list.at - frame) / 4) as u8;
            }
            // The next segment, and where its own chain element will be.
            free = REQUEST_FRAME / size;
            let (elements, next) = if left <= free { (left, 0) } else { (free, (free - 1) * size / 4) };
            let at = (tag as usize * CHAINS + chain) * REQUEST_FRAME;
            list.chain((elements * size) as u32, next as u32, chains.address() + at as u64);
            list = List { driver: self, region: chains, at };
        }
        None
    }

    /// Bytes of a scatter-gather element.
    const fn element(&self) -> usize {
        if self.options.wide { 12 } else { 8 }
    }

    /// The next completion. Replies to other messages are stored for [`take_reply`](Self::take_reply) and
    /// [`take_event`](Self::take_event). Always inlined: otherwise the caller would load the result right after it was stored in smaller
    /// pieces, which stalls the processor.
    #[inline(always)]
    pub(super) fn take_completion<P: Platform>(&mut self, platform: &mut P) -> Option<CommandEnd> {
        loop {
            let value = self.register_read(platform, REPLY_FIFO);
            if value == FIFO_EMPTY {
                return None;
            }
            fence(Ordering::Acquire);
            if value & ADDRESS_REPLY == 0 {
                return Some(self.short_reply(value));
            }
            let address = value << 1;
            let Some(at) = self.reply_at(address) else { return Some(CommandEnd::UNKNOWN) };
            let end = match self.shared.replies.read::<u8>(at + MSG_FUNCTION) {
                SCSI_IO => Some(self.long_reply(at)),
                _ => {
                    self.other_reply(platform, at);
                    None
                }
            };
            // The frame was read: it is the controller's again.
            fence(Ordering::Release);
            self.register_write(platform, REPLY_FIFO, address);
            if end.is_some() {
                return end;
            }
        }
    }

    /// The context alone: success, and everything was moved.
    #[inline(always)]
    fn short_reply(&self, value: u32) -> CommandEnd {
        let tag = value & 0xffff;
        if value & 0xffff_0000 != IO_CONTEXT || tag > self.slots {
            return CommandEnd::UNKNOWN;
        }
        let wanted: u32 = self.shared.requests.read(Self::frame(tag) + IO_DATA_LENGTH);
        CommandEnd { completion: Completion { tag, status: 0, transferred: wanted.into() }, sense_len: 0 }
    }

    #[cold]
    fn long_reply(&self, at: usize) -> CommandEnd {
        let frame = &self.shared.replies;
        let context: u32 = frame.read(at + MSG_CONTEXT);
        let tag = context & 0xffff;
        if context & 0xffff_0000 != IO_CONTEXT || tag > self.slots {
            return CommandEnd::UNKNOWN;
        }
        let ioc = frame.read::<u16>(at + REPLY_IOC_STATUS) & IOC_STATUS_MASK;
        // These leave the verdict to the SCSI status and the count.
        let host = match ioc {
            STATUS_RECOVERED | STATUS_OVERRUN | STATUS_UNDERRUN => 0,
            other => other,
        };
        let scsi: u8 = frame.read(at + IO_REPLY_STATUS);
        CommandEnd {
            completion: Completion {
                tag,
                status: u32::from(host) << 8 | u32::from(scsi),
                transferred: frame.read::<u32>(at + IO_REPLY_TRANSFERRED).into(),
            },
            sense_len: frame.read(at + IO_REPLY_SENSE),
        }
    }
}

/// Where the next scatter-gather element goes.
struct List<'a> {
    driver: &'a Lsi,
    region: &'a DmaRegion,
    at: usize,
}

impl List<'_> {
    fn simple(&self, end: u32, direction: u32, address: u64, len: u32) {
        self.element(SGE_SIMPLE | end | direction | len & 0x00ff_ffff, address);
    }

    fn chain(&self, len: u32, next: u32, address: u64) {
        self.element(SGE_CHAIN | next << 16 | len & 0xffff, address);
    }

    fn element(&self, head: u32, address: u64) {
        let wide = self.driver.options.wide;
        self.region.write(self.at, if wide { head | SGE_64 } else { head });
        self.region.write(self.at + 4, address as u32);
        if wide {
            self.region.write(self.at + 8, (address >> 32) as u32);
        }
    }
}

impl Initiator for Lsi {
    fn own_tag(&self) -> u32 {
        self.slots
    }

    /// Fill the tag's frame and post it. Always inlined: the CDB's bytes are loaded as words right after they were stored.
    #[inline(always)]
    fn queue<P: Platform>(&mut self, platform: &mut P, command: Command<'_>) -> bool {
        let Command { tag, target, cdb, direction, data } = command;
        let (control, sge_direction) = match direction {
            Direction::None => (0, 0),
            Direction::ToHost => (CONTROL_READ, 0),
            Direction::ToDevice => (CONTROL_WRITE, SGE_WRITE),
        };
        let Some(chain_offset) = self.write_sgl(tag, data, sge_direction) else { return false };
        let sense = self.shared.sense.address() + u64::from(tag) * SENSE_SIZE as u64;
        let frame = self.shared.requests.fields::<REQUEST_FRAME>(Self::frame(tag));
        let [cdb_low, cdb_high] = cdb.words();
        // Dwords from the frame's start; LUN 0: all its bytes are zero.
        let head = target & 0xff | u32::from(chain_offset) << 16 | u32::from(SCSI_IO) << 24;
        frame.write::<0, _>(head);
        frame.write::<4, _>(u32::from(cdb.len()) | (SENSE_SIZE as u32) << 8);
        frame.write::<MSG_CONTEXT, _>(IO_CONTEXT | tag);
        frame.write::<IO_LUN, _>(0u32);
        frame.write::<{ IO_LUN + 4 }, _>(0u32);
        frame.write::<IO_CONTROL, _>(control);
        frame.write::<IO_CDB, _>(cdb_low);
        frame.write::<{ IO_CDB + 8 }, _>(cdb_high);
        frame.write::<IO_DATA_LENGTH, _>(data.len);
        frame.write::<IO_SENSE_ADDR, _>(sense as u32);
        self.post_frame(platform, tag);
        true
    }

    fn take<P: Platform>(&mut self, platform: &mut P) -> Option<CommandEnd> {
        self.take_completion(platform)
    }

    fn sense_memory(&self, tag: u32) -> (&DmaRegion, usize) {
        (&self.shared.sense, tag as usize * SENSE_SIZE)
    }

    fn scratch(&self) -> &DmaRegion {
        &self.shared.scratch
    }
}

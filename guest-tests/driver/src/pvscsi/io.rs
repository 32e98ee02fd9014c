//! Requests in, completions and messages out.

use core::sync::atomic::{Ordering, fence};

use super::spec::*;
use super::{Pvscsi, SENSE_SIZE, SG_TABLE};
use crate::adapter::{Buffer, Completion, KickPolicy};
use crate::initiator::{Command, CommandEnd, Direction, Initiator};
use crate::platform::DmaRegion;
use crate::platform::Platform;

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A device was added.
    Added,
    /// A device was removed.
    Removed,
    /// Another type.
    Unknown(u32),
}

/// An entry of the message ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it says.
    pub kind: MessageKind,
    /// Bus, always 0.
    pub bus: u32,
    /// Target.
    pub target: u32,
    /// Logical unit number.
    pub lun: u8,
}

impl Pvscsi {
    /// Write the segments of a buffer to the tag's list; its address, or `None` where there is no list or it does not fit.
    fn write_sg(&self, tag: u32, data: &Buffer) -> Option<u64> {
        let tables = self.shared.sg.as_ref()?;
        let table = tag as usize * SG_TABLE;
        for (index, (address, len)) in data.segments().enumerate() {
            let at = index * SG_ELEMENT_SIZE;
            if at >= SG_TABLE {
                return None;
            }
            tables.write(table + at, address);
            tables.write(table + at + 8, u64::from(len));
        }
        Some(tables.address() + table as u64)
    }

    /// Show the device what was put into the ring, and ring the doorbell unless it asked not to.
    pub(super) fn publish<P: Platform>(&mut self, platform: &mut P) {
        let state = &self.shared.state;
        fence(Ordering::Release);
        state.write(REQ_PROD_IDX, self.request_producer);
        self.published_producer = self.request_producer;
        if self.non_rw_pending {
            self.non_rw_pending = false;
            self.doorbell(platform, KICK_NON_RW_IO);
            return;
        }
        if self.threshold_enabled {
            let waiting = self.request_producer.wrapping_sub(state.read(REQ_CONS_IDX));
            if waiting < state.read(REQ_CALL_THRESHOLD) {
                return;
            }
        }
        self.doorbell(platform, KICK_RW_IO);
    }

    pub(super) fn doorbell<P: Platform>(&mut self, platform: &mut P, register: u64) {
        self.counters.doorbells += 1;
        platform.write32(self.function.bar, register, 0);
    }

    /// The next completion; advances the ring. Always inlined: otherwise the caller would load the result right after it was stored in
    /// smaller pieces, which stalls the processor.
    #[inline(always)]
    pub(super) fn take_completion(&mut self) -> Option<CommandEnd> {
        let consumer = self.completion_consumer;
        if self.shared.state.read::<u32>(CMP_PROD_IDX) == consumer {
            return None;
        }
        fence(Ordering::Acquire);
        // The completion ring has four entries for each of the request ring.
        let slot = (consumer & (self.entries * 4 - 1)) as usize;
        let at = (slot * COMPLETION_SIZE) ^ self.flip;
        let ring = self.shared.completions.fields::<COMPLETION_SIZE>(at);
        let context: u64 = ring.read::<CMP_CONTEXT, _>();
        let transferred = ring.read::<CMP_DATA_LEN, _>();
        let status: u64 = ring.read::<CMP_SENSE_LEN_STATUS, _>();
        // The entry is read before its slot is freed.
        fence(Ordering::Release);
        self.completion_consumer = consumer.wrapping_add(1);
        self.shared.state.write(CMP_CONS_IDX, self.completion_consumer);
        let known = (1..=u64::from(self.entries) + 1).contains(&context);
        let (host, scsi) = ((status >> 32) as u16, (status >> 48) as u16);
        Some(CommandEnd {
            completion: Completion {
                tag: if known { context as u32 - 1 } else { u32::MAX },
                status: u32::from(host) << 8 | u32::from(scsi),
                transferred,
            },
            sense_len: status as u32,
        })
    }

    /// The next message; advances the ring.
    pub fn take_message(&mut self) -> Option<Message> {
        let ring = self.shared.messages.as_ref()?;
        let state = &self.shared.state;
        let consumer = self.message_consumer;
        if state.read::<u32>(MSG_PROD_IDX) == consumer {
            return None;
        }
        fence(Ordering::Acquire);
        let entries = ring.len() / MESSAGE_SIZE;
        let at = (consumer as usize & (entries - 1)) * MESSAGE_SIZE;
        let message = Message {
            kind: match ring.read::<u32>(at) {
                MSG_DEV_ADDED => MessageKind::Added,
                MSG_DEV_REMOVED => MessageKind::Removed,
                other => MessageKind::Unknown(other),
            },
            bus: ring.read(at + 4),
            target: ring.read(at + 8),
            lun: ring.read(at + 13),
        };
        fence(Ordering::Release);
        self.message_consumer = consumer.wrapping_add(1);
        state.write(MSG_CONS_IDX, self.message_consumer);
        Some(message)
    }
}

impl Initiator for Pvscsi {
    fn own_tag(&self) -> u32 {
        self.entries
    }

    /// Put a command into the ring, and kick it where the policy says so. Always inlined, for the same reason: the CDB's bytes are
    /// loaded as words.
    #[inline(always)]
    fn queue<P: Platform>(&mut self, platform: &mut P, command: Command<'_>) -> bool {
        let Command { tag, target, cdb, direction, data } = command;
        if self.in_flight() >= self.entries {
            return false;
        }
        let mut flags = match direction {
            Direction::None => FLAG_CMD_DIR_NONE,
            Direction::ToHost => FLAG_CMD_DIR_TOHOST,
            Direction::ToDevice => FLAG_CMD_DIR_TODEVICE,
        };
        let mut data_address = data.address;
        if !data.is_contiguous() {
            flags |= FLAG_CMD_WITH_SG_LIST;
            let Some(address) = self.write_sg(tag, data) else { return false };
            data_address = address;
        }
        let slot = (self.request_producer & (self.entries - 1)) as usize;
        let at = (slot * REQUEST_SIZE) ^ self.flip;
        let ring = self.shared.requests.fields::<REQUEST_SIZE>(at);
        let [cdb_low, cdb_high] = cdb.words();
        ring.write::<REQ_CONTEXT, _>(u64::from(tag) + 1);
        ring.write::<REQ_DATA_ADDR, _>(data_address);
        ring.write::<REQ_DATA_LEN, _>(u64::from(data.len));
        ring.write::<REQ_SENSE_ADDR, _>(self.shared.sense.address() + u64::from(tag) * SENSE_SIZE as u64);
        ring.write::<REQ_SENSE_LEN_FLAGS, _>(SENSE_SIZE as u64 | u64::from(flags) << 32);
        ring.write::<REQ_CDB, _>(cdb_low);
        ring.write::<{ REQ_CDB + 8 }, _>(cdb_high);
        // LUN 0: all its bytes are zero.
        ring.write::<REQ_CDB_LEN_LUN, _>(u64::from(cdb.len()));
        ring.write::<REQ_TAG_BUS_TARGET, _>(u64::from(SIMPLE_QUEUE_TAG) << 8 | u64::from(target as u8) << 24);
        self.request_producer = self.request_producer.wrapping_add(1);
        self.non_rw_pending |= !cdb.is_read_write();
        if self.options.kick == KickPolicy::PerRequest {
            self.publish(platform);
        }
        true
    }

    fn take<P: Platform>(&mut self, _platform: &mut P) -> Option<CommandEnd> {
        self.take_completion()
    }

    fn sense_memory(&self, tag: u32) -> (&DmaRegion, usize) {
        (&self.shared.sense, tag as usize * SENSE_SIZE)
    }

    fn scratch(&self) -> &DmaRegion {
        &self.shared.scratch
    }
}

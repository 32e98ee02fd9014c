//! Requests in, completions and messages out.

use core::sync::atomic::{Ordering, fence};

use super::spec::*;
use super::{Pvscsi, SENSE_SIZE, SG_TABLE};
use crate::Platform;
use crate::adapter::{Adapter, Buffer, Completion, Geometry, KickPolicy, Op, PAGE, Request};
use crate::scsi::{CHECK_CONDITION, Cdb, Sense, UNIT_ATTENTION};
use crate::workload::Fault;

/// How a command of the driver's own ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandEnd {
    /// Tag, status and bytes moved.
    pub completion: Completion,
    /// Bytes of sense data that the adapter says it delivered.
    pub sense_len: u32,
}

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

/// Which way data move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    None,
    ToHost,
    ToDevice,
}

impl Pvscsi {
    /// The tag of the driver's own commands: one beyond those of requests.
    const fn own_tag(&self) -> u32 {
        self.entries
    }

    pub(super) fn submit_request<P: Platform>(&mut self, platform: &mut P, request: &Request) -> bool {
        let (cdb, way) = match request.op {
            Op::Read => (Cdb::transfer(false, request.lba, request.blocks), Way::ToHost),
            Op::Write => (Cdb::transfer(true, request.lba, request.blocks), Way::ToDevice),
            Op::Flush => (Cdb::synchronize_cache(), Way::None),
        };
        self.queue(platform, request.tag, request.target, &cdb, way, &request.data)
    }

    /// Put a command into the ring, and kick it where the policy says so.
    fn queue<P: Platform>(
        &mut self,
        platform: &mut P,
        tag: u32,
        target: u32,
        cdb: &Cdb,
        way: Way,
        data: &Buffer,
    ) -> bool {
        if self.in_flight() >= self.entries {
            return false;
        }
        let mut flags = match way {
            Way::None => FLAG_CMD_DIR_NONE,
            Way::ToHost => FLAG_CMD_DIR_TOHOST,
            Way::ToDevice => FLAG_CMD_DIR_TODEVICE,
        };
        let mut data_address = data.address;
        if !data.is_contiguous() {
            flags |= FLAG_CMD_WITH_SG_LIST;
            let Some(address) = self.write_sg(tag, data) else { return false };
            data_address = address;
        }
        let slot = (self.request_producer & (self.entries - 1)) as usize;
        let at = (slot * REQUEST_SIZE) ^ self.flip;
        let ring = &self.shared.requests;
        let [cdb_low, cdb_high] = cdb.words();
        ring.write(at + REQ_CONTEXT, u64::from(tag) + 1);
        ring.write(at + REQ_DATA_ADDR, data_address);
        ring.write(at + REQ_DATA_LEN, u64::from(data.len));
        ring.write(at + REQ_SENSE_ADDR, self.shared.sense.address() + u64::from(tag) * SENSE_SIZE as u64);
        ring.write(at + REQ_SENSE_LEN_FLAGS, SENSE_SIZE as u64 | u64::from(flags) << 32);
        ring.write(at + REQ_CDB, cdb_low);
        ring.write(at + REQ_CDB + 8, cdb_high);
        // LUN 0: all its bytes are zero.
        ring.write(at + REQ_CDB_LEN_LUN, u64::from(cdb.len()));
        ring.write(at + REQ_TAG_BUS_TARGET, u64::from(SIMPLE_QUEUE_TAG) << 8 | u64::from(target as u8) << 24);
        self.request_producer = self.request_producer.wrapping_add(1);
        self.non_rw_pending |= !cdb.is_read_write();
        if self.options.kick == KickPolicy::PerRequest {
            self.publish(platform);
        }
        true
    }

    /// Write the segments of a buffer to the tag's list; its address, or `None` where there is no list or no room.
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

    /// The next completion; advances the ring.
    pub(super) fn take_completion(&mut self) -> Option<CommandEnd> {
        let consumer = self.completion_consumer;
        if self.shared.state.read::<u32>(CMP_PROD_IDX) == consumer {
            return None;
        }
        fence(Ordering::Acquire);
        // The completion ring has four entries for each of the request ring.
        let slot = (consumer & (self.entries * 4 - 1)) as usize;
        let at = (slot * COMPLETION_SIZE) ^ self.flip;
        let ring = &self.shared.completions;
        let context: u64 = ring.read(at + CMP_CONTEXT);
        let transferred = ring.read(at + CMP_DATA_LEN);
        let status: u64 = ring.read(at + CMP_SENSE_LEN_STATUS);
        // The entry is read before its slot is given back.
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

    /// Run one command with nothing else in flight, and wait for its end. Data-In goes to `data`; `write`: Data-Out.
    ///
    /// # Errors
    /// [`Fault::TIMEOUT`] where it does not end, [`Fault::SPURIOUS`] where something else ends.
    pub fn execute<P: Platform>(
        &mut self,
        platform: &mut P,
        target: u32,
        cdb: &Cdb,
        data: &Buffer,
        write: bool,
    ) -> Result<CommandEnd, Fault> {
        let way = match (data.len, write) {
            (0, _) => Way::None,
            (_, false) => Way::ToHost,
            (_, true) => Way::ToDevice,
        };
        let tag = self.own_tag();
        if !self.queue(platform, tag, target, cdb, way, data) {
            return Err(Fault {
                kind: Fault::SPURIOUS,
                expected: 0,
                found: self.in_flight().into(),
                ..Fault::EMPTY
            });
        }
        self.kick(platform);
        let start = platform.ticks();
        loop {
            let seen = platform.interrupts();
            self.interrupted(platform);
            if let Some(end) = self.take_completion() {
                if end.completion.tag != tag {
                    let (expected, found) = (tag.into(), end.completion.tag.into());
                    return Err(Fault { kind: Fault::SPURIOUS, expected, found, ..Fault::EMPTY });
                }
                return Ok(end);
            }
            if platform.ticks().wrapping_sub(start) > platform.timeout_ticks() {
                return Err(Fault { kind: Fault::TIMEOUT, ..Fault::EMPTY });
            }
            platform.wait_interrupt(seen);
        }
    }

    /// Sense data of a request or of the driver's own command that ended with CHECK CONDITION.
    #[must_use]
    pub fn sense(&self, end: &CommandEnd) -> Option<Sense> {
        if end.completion.status != u32::from(CHECK_CONDITION) || end.completion.tag > self.own_tag() {
            return None;
        }
        let mut bytes = [0u8; 18];
        let len = (end.sense_len as usize).min(bytes.len());
        for (index, byte) in bytes[..len].iter_mut().enumerate() {
            *byte = self.shared.sense.read(end.completion.tag as usize * SENSE_SIZE + index);
        }
        Sense::parse(&bytes[..len])
    }

    /// The unit is ready, unit attentions are cleared; then READ CAPACITY (16).
    pub(super) fn read_capacity<P: Platform>(
        &mut self,
        platform: &mut P,
        target: u32,
    ) -> Result<Geometry, Fault> {
        const ATTEMPTS: u32 = 8;
        let fault = |status: u32| Fault { kind: Fault::STATUS, status, ..Fault::EMPTY };
        let mut attempts = 0;
        loop {
            let end = self.execute(platform, target, &Cdb::test_unit_ready(), &Buffer::NONE, false)?;
            attempts += 1;
            match end.completion.status {
                BTSTAT_SUCCESS => break,
                status => {
                    let attention = self.sense(&end).is_some_and(|sense| sense.key == UNIT_ATTENTION);
                    if !attention || attempts == ATTEMPTS {
                        return Err(fault(status));
                    }
                }
            }
        }
        let data = Buffer::contiguous(self.shared.scratch.address(), 32);
        let end = self.execute(platform, target, &Cdb::read_capacity16(data.len), &data, false)?;
        let status = end.completion.status;
        let last = u64::from_be(self.shared.scratch.read(0));
        let block_size = u32::from_be(self.shared.scratch.read(8));
        if status != BTSTAT_SUCCESS || end.completion.transferred < 12 {
            return Err(fault(status));
        }
        let sane = block_size.is_power_of_two() && (512..=PAGE as u32).contains(&block_size);
        match last.checked_add(1) {
            Some(blocks) if sane => Ok(Geometry { blocks, block_size }),
            _ => Err(Fault { found: block_size.into(), ..fault(status) }),
        }
    }
}

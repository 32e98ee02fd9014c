//! CCBs into outgoing mailboxes, and their ends out of incoming ones.

use core::sync::atomic::{Ordering, fence};

use super::adapter::{BusLogic, LIST, SENSE_SIZE};
use super::spec::*;
use crate::adapter::{Buffer, Completion, KickPolicy};
use crate::initiator::{Command, CommandEnd, Direction, Initiator};
use crate::platform::DmaRegion;
use crate::platform::Platform;

/// Host status where the adapter has none: this bit and the completion code. No adapter status has this bit.
const BY_CODE: u32 = 0x100;

impl BusLogic {
    /// Write the segments of a buffer to the tag's list; its address and bytes, or `None` where there is no list or it does not fit.
    fn write_list(&self, tag: u32, data: &Buffer) -> Option<(u32, u32)> {
        let lists = self.shared.lists.as_ref()?;
        let list = tag as usize * LIST;
        let mut at = 0;
        for (address, len) in data.segments() {
            if at >= LIST {
                return None;
            }
            lists.write(list + at, u64::from(len) | address << 32);
            at += SG_ELEMENT;
        }
        Some((lists.address() as u32 + list as u32, at as u32))
    }

    /// Load the next outgoing mailbox; `false`: the adapter has not freed it.
    #[inline(always)]
    fn load(&mut self, address: u32, action: u8) -> bool {
        let mailboxes = &self.shared.mailboxes;
        let at = self.out_next * MAILBOX_SIZE;
        if mailboxes.read::<u8>(at + MAILBOX_CODE) != 0 {
            return false;
        }
        mailboxes.write(at, address);
        // The address before the action.
        fence(Ordering::Release);
        mailboxes.write(at + MAILBOX_CODE, action);
        self.out_next =
            if self.out_next + 1 < usize::from(self.options.mailboxes) { self.out_next + 1 } else { 0 };
        self.loaded = true;
        true
    }

    /// Ring the doorbell.
    pub(super) fn ring<P: Platform>(&mut self, platform: &mut P) {
        self.loaded = false;
        self.counters.doorbells += 1;
        fence(Ordering::Release);
        platform.write(self.function.bar, DATA, 1, START_MAILBOX.into());
    }

    fn ccb_address(&self, tag: u32) -> u32 {
        self.shared.ccbs.address() as u32 + tag * CCB_STRIDE as u32
    }

    /// Abort the request with this tag. If it is still there, it ends as aborted. `false`: no mailbox is free.
    pub fn abort<P: Platform>(&mut self, platform: &mut P, tag: u32) -> bool {
        let loaded = self.load(self.ccb_address(tag), ACTION_ABORT);
        if loaded {
            self.ring(platform);
        }
        loaded
    }

    /// Reset the SCSI bus: requests in flight end with an error.
    pub fn reset_bus<P: Platform>(&mut self, platform: &mut P) {
        self.register_write(platform, STATUS, CONTROL_RESET_BUS);
    }

    /// The next completion. Always inlined: otherwise the caller would load the result right after it was stored in smaller pieces, which
    /// stalls the processor.
    #[inline(always)]
    pub(super) fn take_completion(&mut self) -> Option<CommandEnd> {
        loop {
            let count = usize::from(self.options.mailboxes);
            let at = (count + self.in_next) * MAILBOX_SIZE;
            let mailboxes = &self.shared.mailboxes;
            let code = mailboxes.read::<u8>(at + MAILBOX_CODE);
            if code == 0 {
                return None;
            }
            fence(Ordering::Acquire);
            let address = mailboxes.read::<u32>(at);
            let status = mailboxes.read::<u16>(at + MAILBOX_STATUS);
            // The mailbox is read before it is freed.
            fence(Ordering::Release);
            mailboxes.write(at + MAILBOX_CODE, 0u8);
            self.in_next = if self.in_next + 1 < count { self.in_next + 1 } else { 0 };
            // An abort that came too late: its request has ended.
            if code != CODE_NOT_FOUND {
                return Some(self.end(address, code, status));
            }
        }
    }

    #[inline(always)]
    fn end(&self, address: u32, code: u8, status: u16) -> CommandEnd {
        let offset = address.wrapping_sub(self.shared.ccbs.address() as u32);
        let tag = offset / CCB_STRIDE as u32;
        if !offset.is_multiple_of(CCB_STRIDE as u32) || tag > self.requests() {
            return CommandEnd::UNKNOWN;
        }
        let ccb = self.shared.ccbs.fields::<CCB_STRIDE>(tag as usize * CCB_STRIDE);
        let mut transferred = u64::from(ccb.read::<CCB_WANTED, u32>());
        if self.options.residual {
            transferred = transferred.wrapping_sub(ccb.read::<CCB_DATA_LEN, u32>().into());
        }
        let status = match code {
            CODE_GOOD => 0,
            // In the mailbox, the adapter's status is the low byte and the target's status the high byte.
            CODE_ERROR if status != 0 => u32::from(status.swap_bytes()),
            code => (BY_CODE | u32::from(code)) << 8,
        };
        // The adapter does not report how many bytes of sense data it delivered.
        let sense_len = if status == 2 { SENSE_SIZE as u32 } else { 0 };
        CommandEnd { completion: Completion { tag, status, transferred }, sense_len }
    }
}

impl Initiator for BusLogic {
    fn own_tag(&self) -> u32 {
        self.requests()
    }

    /// Fill the tag's CCB and load a mailbox. Always inlined: the CDB's bytes are loaded as words right after they were stored.
    #[inline(always)]
    fn queue<P: Platform>(&mut self, platform: &mut P, command: Command<'_>) -> bool {
        let Command { tag, target, cdb, direction, data } = command;
        if cdb.len() > MAX_CDB {
            return false;
        }
        let (opcode, address, len) = if data.is_contiguous() {
            (
                if self.options.residual { OPCODE_RESIDUAL } else { OPCODE_PLAIN },
                data.address as u32,
                data.len,
            )
        } else {
            let Some((address, len)) = self.write_list(tag, data) else { return false };
            (if self.options.residual { OPCODE_LIST_RESIDUAL } else { OPCODE_LIST }, address, len)
        };
        // Linux's driver sets the direction only for READ and WRITE.
        let control = CCB_TAGGED
            | match direction {
                Direction::ToHost if cdb.is_read_write() => CCB_IN,
                Direction::ToDevice if cdb.is_read_write() => CCB_OUT,
                _ => 0,
            };
        let sense = self.shared.sense.address() as u32 + tag * SENSE_SIZE as u32;
        let ccb = self.shared.ccbs.fields::<CCB_STRIDE>(tag as usize * CCB_STRIDE);
        let [low, high] = cdb.words();
        let head = u32::from_le_bytes([opcode, control, cdb.len(), SENSE_SIZE as u8]);
        ccb.write::<CCB_HEAD, _>(u64::from(head) | u64::from(len) << 32);
        ccb.write::<CCB_DATA, _>(u64::from(address));
        // LUN 0.
        ccb.write::<CCB_TARGET, _>(u64::from(target as u8) | low << 16);
        ccb.write::<CCB_CDB, _>(low >> 48 | (high & 0xffff_ffff) << 16);
        ccb.write::<CCB_SENSE, _>(u64::from(sense) << 32);
        ccb.write::<CCB_WANTED, _>(data.len);
        if !self.load(self.ccb_address(tag), ACTION_START) {
            return false;
        }
        if self.options.kick == KickPolicy::PerRequest {
            self.ring(platform);
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

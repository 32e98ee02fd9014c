//! Reads, writes and flushes.

use core::sync::atomic::{Ordering, fence};

use super::Ide;
use super::ports::{channel_of, device_of};
use super::running::{Kind, Running};
use super::spec::*;
use crate::adapter::{Buffer, Completion, Op, Request};
use crate::platform::Platform;

impl Ide {
    /// Start a request; `false`: there is one already, or it cannot be described.
    pub(super) fn start_request<P: Platform>(&mut self, platform: &mut P, request: &Request) -> bool {
        let Some(drive) = self.drive(request.target).filter(|_| self.running.is_none()) else { return false };
        let channel = channel_of(request.target);
        let write = request.op == Op::Write;
        let kind = match (request.op, self.options.dma) {
            (Op::Flush, _) => Kind::Flush,
            (_, true) => Kind::Dma,
            (Op::Write, false) => Kind::PortOut,
            (Op::Read, false) => Kind::PortIn,
        };
        if kind == Kind::Dma && !self.write_table(&request.data) {
            return false;
        }
        // As Linux does: 28-bit commands wherever 28 bits suffice, also on drives with 48-bit commands.
        let (lba, blocks) = if kind == Kind::Flush { (0, 0) } else { (request.lba, request.blocks) };
        let short = blocks <= 256 && lba + u64::from(blocks) < LBA28_END - 1;
        let code = match (kind, if short { TRANSFER_28 } else { TRANSFER_48 }[usize::from(write)]) {
            (Kind::Flush, _) => FLUSH[usize::from(drive.geometry.blocks >= LBA28_END)],
            (Kind::Dma, codes) => codes.dma,
            (_, codes) if drive.multiple > 1 => codes.multiple,
            (_, codes) => codes.sectors,
        };
        let device = device_of(request.target);
        self.ports.write(platform, channel, DEVICE, device);
        let address = lba.to_le_bytes();
        let [low, mid, high, fourth, fifth, sixth, ..] = address;
        if !short {
            let pairs = [(COUNT, (blocks >> 8) as u8), (LBA[0], fourth), (LBA[1], fifth), (LBA[2], sixth)];
            for (register, value) in pairs {
                self.ports.write(platform, channel, register, value);
            }
        }
        for (register, value) in [(COUNT, blocks as u8), (LBA[0], low), (LBA[1], mid), (LBA[2], high)] {
            self.ports.write(platform, channel, register, value);
        }
        let head = if short { fourth & 0xf } else { 0 };
        self.ports.write(platform, channel, DEVICE, device | DEVICE_LBA | head);
        let block = drive.multiple * drive.geometry.block_size;
        self.running = Some(Running { tag: request.tag, channel, kind, data: request.data, moved: 0, block });
        self.seen = None;
        fence(Ordering::Release);
        match kind {
            Kind::Dma => {
                let way = if write { 0 } else { BM_TO_MEMORY };
                let table = self.table.address() as u32;
                self.ports.bm_write(platform, channel, BM_TABLE, 4, table);
                self.ports.bm_write(platform, channel, BM_COMMAND, 1, way.into());
                self.ports.command(platform, channel, code);
                self.ports.bm_write(platform, channel, BM_COMMAND, 1, (way | BM_START).into());
            }
            Kind::PortOut => {
                self.ports.command(platform, channel, code);
                // The first block is asked for without an interrupt.
                let status = self.ports.wait_ready(platform, channel).unwrap_or(BSY);
                self.seen = Some((status, 0));
            }
            Kind::PortIn | Kind::Flush => self.ports.command(platform, channel, code),
        }
        // The first block of a write goes out now; if the drive refuses, the interrupt tells.
        if kind == Kind::PortOut && self.seen.is_some_and(|(status, _)| status & (DRQ | ERR) == DRQ) {
            let ended = self.go_on(platform);
            debug_assert!(ended.is_none(), "a write ends with an interrupt");
        }
        self.seen = None;
        true
    }

    /// After an interrupt: read the channel's status, and clear the interrupt.
    pub(super) fn look<P: Platform>(&mut self, platform: &mut P) {
        let Some(Running { channel, kind, .. }) = self.running else {
            // No command is in flight: clear the interrupt.
            for channel in 0..2 {
                self.ports.read(platform, channel, STATUS);
                self.ports.bm_write(platform, channel, BM_STATUS, 1, BM_INTERRUPT.into());
            }
            return;
        };
        let mut bus = 0;
        if kind == Kind::Dma {
            bus = self.ports.bm_read(platform, channel, BM_STATUS);
            if bus & BM_INTERRUPT == 0 {
                return;
            }
            self.ports.bm_write(platform, channel, BM_COMMAND, 1, 0);
        }
        if self.ports.alternate_status(platform, channel) & BSY != 0 {
            return;
        }
        let status = self.ports.read(platform, channel, STATUS);
        self.ports.bm_write(platform, channel, BM_STATUS, 1, (bus | BM_INTERRUPT).into());
        self.seen = Some((status, bus));
        fence(Ordering::Acquire);
    }

    /// Continue the command as the status of the last interrupt requires. Returns its completion, if it has ended.
    pub(super) fn go_on<P: Platform>(&mut self, platform: &mut P) -> Option<Completion> {
        let (status, bus) = self.seen.take()?;
        let Running { tag, channel, kind, data, moved, block } = self.running?;
        let left = data.len - moved;
        let bad = status & (BSY | ERR | DF) != 0 || bus & BM_ERROR != 0 || status & DRDY == 0;
        let wants = status & DRQ != 0;
        let port = matches!(kind, Kind::PortIn | Kind::PortOut);
        if !bad && port && wants && left > 0 {
            let len = block.min(left);
            self.move_block(platform, channel, kind, &data, moved, len)?;
            self.running = Some(Running { tag, channel, kind, data, moved: moved + len, block });
            // A read ends with its last block, without an interrupt.
            if kind == Kind::PortOut || len < left {
                return None;
            }
            let end = self.ports.alternate_status(platform, channel);
            return Some(self.end(platform, end, 0));
        }
        // The drive requests more data than the command has, or has ended before all data were moved.
        let odd = wants || port && left > 0;
        Some(self.end(platform, if odd && !bad { status | ERR } else { status }, bus))
    }

    fn end<P: Platform>(&mut self, platform: &mut P, status: u8, bus: u8) -> Completion {
        let running = self.running.take();
        let (tag, channel, len) =
            running.map_or((u32::MAX, 0, 0), |running| (running.tag, running.channel, running.data.len));
        let good = status & (BSY | DRQ | ERR | DF) == 0 && status & DRDY != 0 && bus & BM_ERROR == 0;
        if good {
            return Completion { tag, status: 0, transferred: len.into() };
        }
        let error = self.ports.read(platform, channel, ERROR);
        Completion { tag, status: u32::from(status) << 8 | u32::from(error), transferred: 0 }
    }

    /// Move a block between the data port and memory.
    fn move_block<P: Platform>(
        &mut self,
        platform: &mut P,
        channel: u8,
        kind: Kind,
        data: &Buffer,
        from: u32,
        len: u32,
    ) -> Option<()> {
        let (mut skip, mut left) = (from, len);
        for (address, part) in data.segments() {
            let start = skip.min(part);
            let count = (part - start).min(left);
            skip -= start;
            left -= count;
            if count == 0 {
                continue;
            }
            let memory = platform.region(address + u64::from(start), count as usize)?;
            for at in (0..count as usize).step_by(4) {
                match kind {
                    Kind::PortIn => memory.write(at, self.ports.data_read(platform, channel)),
                    _ => self.ports.data_write(platform, channel, memory.read(at)),
                }
            }
        }
        Some(())
    }

    /// The table of a buffer: entries do not cross 64 KiB. False: it does not fit.
    fn write_table(&mut self, data: &Buffer) -> bool {
        let mut used = 0;
        let mut put = |address: u64, len: u64| {
            let fits = used + 8 <= self.table.len() && address >> 32 == 0;
            if fits {
                self.table.write(used, address as u32);
                self.table.write(used + 4, len as u32 & 0xffff);
                used += 8;
            }
            fits
        };
        let whole = data.is_contiguous().then_some((data.address, data.len));
        let pages = data.segments().filter(|_| whole.is_none());
        for (mut address, len) in whole.into_iter().chain(pages) {
            let end = address + u64::from(len);
            while address < end {
                let next = (address + PRD_BOUNDARY) & !(PRD_BOUNDARY - 1);
                if !put(address, next.min(end) - address) {
                    return false;
                }
                address = next;
            }
        }
        if used == 0 {
            return false;
        }
        let last: u32 = self.table.read(used - 4);
        self.table.write(used - 4, last | PRD_LAST);
        true
    }
}

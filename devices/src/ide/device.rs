//! Configuration space, ports, and the contract with the owner.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use vm_memory::GuestAddressSpace;

use super::channel::Channel;
use super::spec::{BUS_MASTER_CHANNEL, COMMAND_BLOCK_SIZE, COMPATIBILITY, NATIVE_CONTROL, bm, reg};
use super::{Ide, Mode};
use crate::device::{AccessKind, Bar, BarKind, Doorbell, IoDevice, PciDevice, Sleep, Stats};
use crate::dma::Footprint;
use crate::moderation::Coalescing;
use crate::pci::BusMaster;
use crate::time::Time;

/// The register at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The data register of a channel.
    Data(usize),
    /// Another register of a channel's command block.
    Command(usize, u64),
    /// The control register of a channel.
    Control(usize),
    /// A channel's half of the bus master block.
    Engine(usize, u64),
    Nothing,
}

impl Place {
    fn of(mode: Mode, bar: u8, offset: u64) -> Self {
        let control = match mode {
            Mode::Compatibility => 0,
            Mode::Native => NATIVE_CONTROL,
        };
        let channel = usize::from(bar / 2);
        match bar {
            0 | 2 if offset == reg::DATA => Self::Data(channel),
            0 | 2 if offset < COMMAND_BLOCK_SIZE => Self::Command(channel, offset),
            1 | 3 if offset == control => Self::Control(channel),
            4 if offset < BUS_MASTER_CHANNEL => Self::Engine(0, offset),
            4 if offset < 2 * BUS_MASTER_CHANNEL => Self::Engine(1, offset - BUS_MASTER_CHANNEL),
            _ => Self::Nothing,
        }
    }
}

impl<A: GuestAddressSpace> Ide<A> {
    fn serve(&mut self) {
        let may_dma = self.function.bus_master();
        for channel in &mut self.channels {
            channel.serve(&mut self.dma, may_dma);
        }
        self.update_lines();
    }

    /// [`serve`](Self::serve) for one channel.
    fn serve_channel(&mut self, channel: usize) {
        let may_dma = self.function.bus_master();
        if let Some(channel) = self.channels.get_mut(channel) {
            channel.serve(&mut self.dma, may_dma);
        }
        self.update_lines();
    }

    /// Set the interrupt lines to the channels' levels.
    fn update_lines(&mut self) {
        let [primary, secondary] = &mut self.channels;
        let wanted = [primary.update_line(), secondary.update_line()];
        if wanted != self.lines {
            self.set_lines(wanted);
        }
    }

    fn set_lines(&mut self, wanted: [bool; 2]) {
        let before = std::mem::replace(&mut self.lines, wanted);
        match self.mode {
            Mode::Native => {
                let raised = self.function.set_line(wanted.contains(&true));
                self.interrupts += u64::from(raised);
            }
            Mode::Compatibility => {
                for ((before, wanted), (.., irq)) in before.into_iter().zip(wanted).zip(COMPATIBILITY) {
                    if before != wanted {
                        self.function.isa_line(irq, wanted);
                        self.interrupts += u64::from(wanted);
                    }
                }
            }
        }
    }

    /// Execute a command, unless the channel ignores it.
    fn execute(&mut self, index: usize, code: u8) {
        let Some(channel) = self.channels.get_mut(index) else { return };
        if channel.begin_command() {
            // The falling edge must be visible first: the command may complete and interrupt within `execute`.
            self.update_lines();
            if let Some(channel) = self.channels.get_mut(index) {
                channel.execute(code);
            }
            self.serve_channel(index);
        }
    }

    /// Read the data port until `data` is full. A string instruction may cover several blocks.
    fn read_data(&mut self, index: usize, width: usize, data: &mut [u8]) {
        let mut rest = data;
        while !rest.is_empty() {
            let Some(channel) = self.channels.get_mut(index) else { return };
            let moved = match width {
                // The port is 16 bits wide: a byte access loses the upper half.
                1 => {
                    let mut word = [0; 2];
                    let moved = channel.read_data(&mut word);
                    rest[0] = word[0];
                    moved.min(1)
                }
                _ => channel.read_data(rest),
            };
            if moved == 0 {
                let nothing = channel.no_data_value();
                return rest.fill(nothing);
            }
            rest = rest.get_mut(moved..).unwrap_or_default();
            self.serve_channel(index);
        }
    }

    /// Write the data port. Accesses of a single byte are ignored.
    fn write_data(&mut self, index: usize, width: usize, data: &[u8]) {
        let mut rest: &[u8] = if width == 1 { &[] } else { data };
        while !rest.is_empty() {
            let moved = self.channels.get_mut(index).map_or(0, |channel| channel.write_data(rest));
            if moved == 0 {
                return;
            }
            rest = rest.get(moved..).unwrap_or_default();
            self.serve_channel(index);
        }
    }

    /// Guest memory that requests use.
    fn memory_in_use(&self) -> Footprint {
        self.channels.iter().fold(Footprint::NONE, |all, channel| all | channel.footprint())
    }
}

impl<A> PciDevice for Ide<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.function.config_read(offset, data);
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        match self.function.config_write(offset, data) {
            BusMaster::Same => {}
            // No access to memory from here on.
            BusMaster::Off => {
                for channel in &mut self.channels {
                    channel.stop_dma();
                }
                self.serve();
            }
            // A transfer may wait for bus mastering.
            BusMaster::On => self.serve(),
        }
    }

    /// In compatibility mode, the fixed ports are decoded while I/O space is enabled.
    fn bars(&self) -> Vec<Bar> {
        let mut bars = self.function.bars();
        if self.mode == Mode::Compatibility {
            let enabled = bars.iter().any(|bar| bar.address.is_some());
            let fixed = |index, port: u64, size| {
                let address = enabled.then_some(port);
                Bar { index, kind: BarKind::FixedIo, size, address }
            };
            for ((command, control, _), index) in COMPATIBILITY.into_iter().zip([0, 2]) {
                bars.push(fixed(index, command, COMMAND_BLOCK_SIZE));
                bars.push(fixed(index + 1, control, 1));
            }
        }
        bars
    }

    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], _now: Time) {
        let place = Place::of(self.mode, bar, offset);
        match (place, data) {
            (Place::Data(channel), data) => self.read_data(channel, data.len(), data),
            (Place::Command(channel, offset), [byte]) => {
                *byte = self.channels.get_mut(channel).map_or(0xff, |channel| channel.read(offset));
                if offset == reg::STATUS {
                    self.update_lines();
                }
            }
            (Place::Control(channel), [byte]) => {
                *byte = self.channels.get(channel).map_or(0xff, Channel::alternate_status);
            }
            (Place::Engine(channel, offset), data) => {
                if let Some(channel) = self.channels.get(channel) {
                    channel.engine_read(offset, data);
                }
            }
            (_, data) => data.fill(0xff),
        }
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], _now: Time) {
        let place = Place::of(self.mode, bar, offset);
        let (Place::Data(index) | Place::Command(index, _) | Place::Control(index) | Place::Engine(index, _)) =
            place
        else {
            return;
        };
        let Some(channel) = self.channels.get_mut(index) else { return };
        let may_serve = match (place, data) {
            (Place::Data(_), data) => return self.write_data(index, data.len(), data),
            (Place::Command(_, reg::STATUS), [code]) => return self.execute(index, *code),
            (Place::Command(_, offset), [value]) => return channel.write(offset, *value),
            (Place::Control(_), [value]) => {
                channel.write_control(*value);
                true
            }
            (Place::Engine(_, offset), data) => channel.engine_write(offset, data),
            _ => false,
        };
        if may_serve {
            self.serve_channel(index);
        }
    }

    fn port_read_string(&mut self, bar: u8, offset: u64, width: usize, data: &mut [u8], now: Time) {
        match Place::of(self.mode, bar, offset) {
            Place::Data(channel) => self.read_data(channel, width, data),
            _ => data.chunks_mut(width.max(1)).for_each(|data| self.bar_read(bar, offset, data, now)),
        }
    }

    fn port_write_string(&mut self, bar: u8, offset: u64, width: usize, data: &[u8], now: Time) {
        match Place::of(self.mode, bar, offset) {
            Place::Data(channel) => self.write_data(channel, width, data),
            _ => data.chunks(width.max(1)).for_each(|data| self.bar_write(bar, offset, data, now)),
        }
    }

    /// None: the value written to a register matters.
    fn doorbells(&self) -> &[Doorbell] {
        &[]
    }

    /// Commands start a command, a reset or a DMA transfer, wait for the disk, or transfer data.
    fn access_kind(&self, bar: u8, offset: u64, write: Option<&[u8]>) -> AccessKind {
        let is_register = match (Place::of(self.mode, bar, offset), write) {
            (Place::Data(_), _) | (Place::Control(_), Some(_)) => false,
            (Place::Command(_, offset), Some(_)) => offset != reg::STATUS,
            (Place::Engine(channel, bm::COMMAND), Some(_)) => {
                self.channels.get(channel).is_some_and(Channel::stops_at_once)
            }
            _ => true,
        };
        if is_register { AccessKind::Register } else { AccessKind::Command }
    }
}

impl<A> IoDevice for Ide<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn on_doorbell(&mut self, _index: usize, now: Time) {
        self.on_completions(now);
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        self.channels.iter().flat_map(Channel::events).collect()
    }

    fn on_completions(&mut self, _now: Time) {
        self.channels.iter_mut().for_each(Channel::reap);
        self.serve();
    }

    fn before_sleep(&mut self, _now: Time) -> Sleep {
        let lost = self.channels.iter_mut().fold(false, |any, channel| channel.fail_lost() | any);
        let has_more = lost || self.channels.iter().any(Channel::has_next_step);
        if has_more { Sleep::No } else { Sleep::Forever }
    }

    fn reset(&mut self, _now: Time) {
        self.channels.iter_mut().for_each(Channel::power_on);
        self.update_lines();
        self.function.reset();
        self.dma.release();
    }

    fn quiesce(&mut self, _now: Time) {
        self.channels.iter_mut().for_each(Channel::drain);
        self.serve();
        // `serve` may have started a transfer.
        self.channels.iter_mut().for_each(Channel::drain);
        self.update_lines();
        self.dma.release();
    }

    fn uses_memory(&mut self, ranges: &[Range<u64>], _now: Time) -> bool {
        self.serve();
        self.memory_in_use().meets(self.dma.users_of(ranges))
    }

    fn refuse_memory(&mut self, ranges: &[Range<u64>]) {
        self.dma.refuse(ranges);
    }

    fn memory_replaced(&mut self, _now: Time) {
        let in_use = self.memory_in_use();
        self.dma.replaced(in_use);
    }

    /// No effect: every command interrupts, and the driver waits for that interrupt before the next command.
    fn set_coalescing(&mut self, _coalescing: Coalescing) {}

    fn stats(&self) -> Stats {
        let mut stats = Stats { interrupts: self.interrupts, ..Stats::default() };
        for (counts, queue) in self.channels.iter().flat_map(Channel::counts) {
            stats.requests += counts.commands;
            stats.completions += counts.ended;
            stats.errors += counts.failed;
            stats.submits += queue.submits;
            stats.submit_ticks += queue.submit_ticks;
        }
        stats
    }
}

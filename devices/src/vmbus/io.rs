//! The I/O path of a batch: from the rings to the disks, then into the rings, with one decision to signal for each channel.

use vm_memory::GuestAddressSpace;

use std::convert::Infallible;

use super::Vmbus;
use super::ring::Broken;
use super::storvsc::spec::HostPacket;
use super::storvsc::{MAX_BACKLOG, MAX_LUNS, Pending, Queued, Taken, enumerate_bus};
use crate::device::Stats;
use crate::dma::Footprint;
use crate::hba::{BATCH, EngineOf, Hba};
use crate::kind::AdapterKind;
use crate::moderation::{Coalescing, ModerationState};
use crate::scsi::{Address, TaskEnd};
use crate::time::Time;

/// Moderation and answers that wait for free space are per channel: [`Duplex`].
impl<A: GuestAddressSpace> Hba for Vmbus<A> {
    type Memory = A;
    type Pending = Pending;
    type Queued = Queued;
    type Completion = Infallible;

    fn engine(&self) -> &EngineOf<Self> {
        &self.engine
    }

    fn engine_mut(&mut self) -> &mut EngineOf<Self> {
        &mut self.engine
    }

    fn kind(&self) -> AdapterKind {
        AdapterKind::Storvsc
    }

    /// The `target` of the owner's address is the logical unit number; its `lun` is 0.
    fn place(&self, address: Address) -> Option<Address> {
        let known = address.lun == 0 && address.target < MAX_LUNS;
        known.then(|| Address { target: 0, lun: address.target.into() })
    }

    /// Send ENUMERATE_BUS, unless the driver has not finished its initialization: then it scans anyway.
    fn announce(&mut self, place: Address, attached: bool) {
        self.storvsc.set_unit(place.lun, attached);
        if self.storvsc.ready()
            && let Some(duplex) = &mut self.channels[0].duplex
            && let Err(broken) = duplex.send(&enumerate_bus(), &mut self.signals)
        {
            self.break_channel(0, broken);
        }
    }

    fn power_on(&mut self) {
        self.power_on_reset();
    }

    fn can_start(&self) -> bool {
        true
    }

    fn max_backlog(&self) -> usize {
        MAX_BACKLOG
    }

    fn take_batch(&mut self, now: Time) -> bool {
        let (mut any, first, count) = (false, self.first, self.channels.len());
        for index in (0..count).map(|n| (first + n) % count) {
            let taken = self.fetch_channel(index, now);
            any |= taken.unwrap_or_else(|broken| {
                self.break_channel(index, broken);
                // Packets before the broken one may have started requests, or a reset.
                self.after_control(now);
                true
            });
        }
        // The channels take turns in being first: the limited backlog may not suffice for all.
        self.first = (first + 1) % count;
        any
    }

    fn prepare_sleep(&mut self, now: Time) -> bool {
        let (mut any, blocked) = (false, !self.can_fetch());
        for index in 0..self.channels.len() {
            let channel = &mut self.channels[index];
            let Some(duplex) = &mut channel.duplex else { continue };
            match duplex.before_sleep(channel.requests, blocked, now) {
                Ok(found) => any |= found,
                Err(broken) => self.break_channel(index, broken),
            }
        }
        any
    }

    fn start_queued(&mut self, request: Queued, now: Time) {
        if let Taken::Answered(answer) = self.storvsc.start_queued(&request, &mut self.engine) {
            self.end(request.channel, &answer, None, now);
        }
    }

    #[inline(always)]
    fn complete_task(&mut self, id: u32, pending: &Pending, end: &TaskEnd, now: Time) {
        let (answer, good) = pending.answer(end);
        self.engine.stats.errors += u64::from(!good);
        self.end(pending.channel, &answer, Some(id), now);
    }

    fn batch_reaped(&mut self, any: bool) {
        if any {
            self.channels
                .iter_mut()
                .filter_map(|channel| channel.duplex.as_mut())
                .for_each(|duplex| duplex.batch_reaped());
        }
    }

    fn batch_posted(&mut self, now: Time) {
        for index in 0..self.channels.len() {
            if let Some(duplex) = &mut self.channels[index].duplex
                && let Err(broken) = duplex.batch_posted(now, &mut self.signals)
            {
                self.break_channel(index, broken);
            }
        }
        self.finish_closing();
    }

    fn try_post(&mut self, never: &Infallible) -> bool {
        match *never {}
    }

    fn signal(&mut self) {
        for duplex in self.channels.iter_mut().filter_map(|channel| channel.duplex.as_mut()) {
            duplex.flush(&mut self.signals);
        }
    }

    /// Without the memory of answers: the rings hold their pages by themselves.
    fn memory_in_use(&mut self) -> Footprint {
        let engine = &mut self.engine;
        engine.in_flight.footprint(&mut engine.dma, |_| u64::MAX)
    }

    fn flush_signals(&mut self) {
        self.signal();
    }

    fn moderate(&mut self, coalescing: Coalescing) {
        let _ = self.engine.moderator.set_options(coalescing);
        for duplex in self.channels.iter_mut().filter_map(|channel| channel.duplex.as_mut()) {
            duplex.set_coalescing(coalescing, &mut self.signals);
        }
    }

    fn moderation_states(&self) -> Vec<ModerationState> {
        let open = self.channels.iter().filter_map(|channel| channel.duplex.as_ref());
        open.map(|duplex| duplex.moderation()).collect()
    }

    fn deadline(&mut self, now: Time) -> Option<Time> {
        let open = self.channels.iter_mut().filter_map(|channel| channel.duplex.as_mut());
        open.filter_map(|duplex| duplex.deadline(now)).min()
    }

    fn counters(&self) -> Stats {
        Stats { interrupts: self.signals.sent, ..self.engine.stats }
    }
}

impl<A: GuestAddressSpace> Vmbus<A> {
    /// Take a batch from a channel. False: nothing was taken.
    #[inline]
    fn fetch_channel(&mut self, index: usize, now: Time) -> Result<bool, Broken> {
        let channel = &mut self.channels[index];
        let Some(duplex) = channel.duplex.as_mut().filter(|duplex| duplex.can_take()) else {
            return Ok(false);
        };
        duplex.before_take(channel.requests, now);
        let (mut taken, mut controlled) = (0, false);
        while taken < BATCH && self.engine.backlog.len() < MAX_BACKLOG && duplex.can_take() {
            let Some(packet) = duplex.take(&mut self.buffer)? else { break };
            taken += 1;
            match self.storvsc.take(index as u8, &packet, &mut self.engine, &mut self.answers) {
                Taken::InFlight(number) => {
                    channel.requests += 1;
                    duplex.started(number);
                }
                Taken::Queued => channel.requests += 1,
                Taken::Answered(answer) => {
                    self.engine.stats.completions += 1;
                    duplex.post(&answer, channel.requests, now, &mut self.signals)?;
                }
                Taken::Controlled(answer) => {
                    controlled = true;
                    duplex.post(&answer, channel.requests, now, &mut self.signals)?;
                }
                Taken::Ignored => {}
            }
        }
        if taken > 0 {
            duplex.end_take(taken, &mut self.signals);
        }
        if controlled {
            self.after_control(now);
        }
        Ok(taken > 0)
    }

    /// Post the answers to requests that a reset has ended, and offer requested sub-channels.
    #[cold]
    fn after_control(&mut self, now: Time) {
        for (channel, answer) in std::mem::take(&mut self.answers) {
            self.end(channel, &answer, None, now);
        }
        self.offer_sub_channels();
    }

    /// A request of a channel has completed, with its task number if it had one. It is answered if the channel is still open.
    #[inline(always)]
    fn end(&mut self, index: u8, answer: &HostPacket, number: Option<u32>, now: Time) {
        let channel = &mut self.channels[usize::from(index)];
        debug_assert!(channel.requests > 0, "channel {index} has no request");
        channel.requests = channel.requests.saturating_sub(1);
        // Also for closed channels: requests minus completions is the number in flight.
        self.engine.stats.completions += 1;
        let Some(duplex) = &mut channel.duplex else { return };
        if let Some(number) = number {
            duplex.ended(number, now);
        }
        if let Err(broken) = duplex.post(answer, channel.requests, now, &mut self.signals) {
            self.break_channel(index.into(), broken);
        }
    }

    /// Abort the requests of a closed channel. Those that wait for a task number end at once.
    pub(super) fn abandon(&mut self, index: usize) {
        let engine = &mut self.engine;
        let of_channel = |channel: u8| usize::from(channel) == index;
        for (id, _) in engine.in_flight.iter().filter(|(_, pending)| of_channel(pending.channel)) {
            engine.bus.abort(id);
        }
        let waiting = engine.backlog.take(|_, request| of_channel(request.channel)).len() as u32;
        engine.stats.errors += u64::from(waiting);
        engine.stats.completions += u64::from(waiting);
        self.channels[index].requests -= waiting;
    }

    /// The guest has broken the rules of a ring: stop serving the channel until it is opened again.
    #[cold]
    pub(super) fn break_channel(&mut self, index: usize, broken: Broken) {
        tracing::warn!(channel = index, %broken, "VMBus channel stopped");
        self.channels[index].duplex = None;
    }
}

//! The I/O path of a batch: from the rings to the disks, then into the rings, with one decision to signal for each channel.

use vm_memory::GuestAddressSpace;

use super::Vmbus;
use super::ring::Broken;
use super::storvsc::Taken;
use super::storvsc::spec::HostPacket;
use crate::bus_adapter::work;
use crate::time::Time;

/// Packets taken from a channel before the next channel's turn.
const BATCH: u32 = 128;

impl<A: GuestAddressSpace> Vmbus<A> {
    /// Complete requests that have ended, and take packets that wait.
    pub(super) fn service(&mut self, now: Time) {
        self.more = false;
        let more = work(self, |adapter| adapter.fetch(now), |adapter| adapter.complete(now));
        self.more |= more;
    }

    /// Take a batch from each channel and hand it to the disks. False: nothing was taken.
    fn fetch(&mut self, now: Time) -> bool {
        let mut any = !self.storvsc.backlog_is_empty() && self.start_backlog(now);
        let count = self.channels.len();
        let first = self.first;
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
        if any {
            self.storvsc.kick();
        }
        any
    }

    /// Take a batch from a channel. False: nothing was taken.
    #[inline]
    fn fetch_channel(&mut self, index: usize, now: Time) -> Result<bool, Broken> {
        let channel = &mut self.channels[index];
        let Some(duplex) = channel.duplex.as_mut().filter(|duplex| duplex.can_take()) else {
            return Ok(false);
        };
        duplex.begin(channel.requests, now);
        let (mut taken, mut controlled) = (0, false);
        while taken < BATCH && self.storvsc.can_take() && duplex.can_take() {
            let Some(packet) = duplex.take(&mut self.buffer)? else { break };
            taken += 1;
            match self.storvsc.take(index as u8, &packet, &mut self.dma, &mut self.answers) {
                Taken::InFlight(number) => {
                    channel.requests += 1;
                    duplex.taken(number);
                }
                Taken::Queued => channel.requests += 1,
                Taken::Answered(answer) => {
                    self.stats.completions += 1;
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

    /// Start requests of the backlog while there are task numbers. False: nothing was started.
    #[cold]
    pub(super) fn start_backlog(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some((channel, taken)) = self.storvsc.start_from_backlog(&mut self.dma) {
            any = true;
            if let Taken::Answered(answer) = taken {
                self.end(channel, &answer, None, now);
            }
        }
        any
    }

    /// Post the answers to completed requests, and decide whether to signal.
    pub(super) fn complete(&mut self, now: Time) {
        let mut ended = std::mem::take(&mut self.ended);
        self.storvsc.reap(&mut ended);
        // The backlog may get the freed task numbers, and no event reports that.
        self.more |= !ended.is_empty() && !self.storvsc.backlog_is_empty();
        if !ended.is_empty() {
            self.channels
                .iter_mut()
                .filter_map(|channel| channel.duplex.as_mut())
                .for_each(|duplex| duplex.begin_batch());
        }
        for &(id, ref end) in &ended {
            let Some((channel, answer)) = self.storvsc.end(id, end) else {
                debug_assert!(false, "task {id} ended and was not in flight");
                continue;
            };
            self.end(channel, &answer, Some(id), now);
        }
        ended.clear();
        self.ended = ended;
        for index in 0..self.channels.len() {
            if let Some(duplex) = &mut self.channels[index].duplex
                && let Err(broken) = duplex.end_batch(now, &mut self.signals)
            {
                self.break_channel(index, broken);
            }
        }
        self.finish_closing();
    }

    /// A request of a channel has completed, with its task number if it had one. It is answered if the channel is still open.
    #[inline(always)]
    fn end(&mut self, index: u8, answer: &HostPacket, number: Option<u32>, now: Time) {
        let channel = &mut self.channels[usize::from(index)];
        debug_assert!(channel.requests > 0, "channel {index} has no request");
        channel.requests = channel.requests.saturating_sub(1);
        // Also for closed channels: requests minus completions is the number in flight.
        self.stats.completions += 1;
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
        let over = self.storvsc.abandon(index as u8);
        self.channels[index].requests -= over;
        self.stats.completions += u64::from(over);
    }

    /// The guest has broken the rules of a ring: stop serving the channel until it is opened again.
    #[cold]
    pub(super) fn break_channel(&mut self, index: usize, broken: Broken) {
        tracing::warn!(channel = index, %broken, "VMBus channel stopped");
        self.channels[index].duplex = None;
    }
}

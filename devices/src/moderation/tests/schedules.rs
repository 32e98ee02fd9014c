//! No completion waits for ever for its signal: random schedules in simulated time. A guest keeps commands in flight; a
//! device completes them or stalls; a thread reaps in batches and sleeps until the moderator's deadline; and an owner
//! changes the options, aborts commands and resets the device at any time.
//!
//! The oracle does not know ratios and epochs: it counts completions that no signal has covered yet.

use std::collections::BTreeSet;

use super::*;
use crate::testing::{Random, effort};

/// Multiplied by [`effort`].
const SCHEDULES: u64 = 12_500;
const US: u64 = 1_000;

/// How long commands take.
#[derive(Clone, Copy, Debug)]
enum Device {
    Constant(u64),
    Spread(u64),
    /// Mostly fast; one in eight takes a hundred times as long.
    Stalls(u64),
    /// All commands in flight end together, at the next multiple.
    Bursts(u64),
}

impl Device {
    fn any(random: &mut Random) -> Self {
        let time = random.pick(&[1, 10, 80, 1_000, 5_000]) * US;
        random.pick(&[Self::Constant(time), Self::Spread(time), Self::Stalls(time), Self::Bursts(time)])
    }

    fn due(self, now: u64, random: &mut Random) -> u64 {
        match self {
            Self::Constant(time) => now + time,
            Self::Spread(time) => now + time / 2 + random.below(time),
            Self::Stalls(time) => now + if random.below(8) == 0 { time * 100 } else { time },
            Self::Bursts(time) => now / time * time + time,
        }
    }
}

fn any_options(random: &mut Random) -> Coalescing {
    Coalescing {
        policy: random.pick(&[Policy::Off, Policy::Batch, Policy::Oio, Policy::OioIops, Policy::OioIops]),
        cif_threshold: random.pick(&[1, 2, 4, 4, 8]),
        // 0: the rate is always reached. The maximum: it never is.
        iops_threshold: random.pick(&[0, 2_000, 2_000, 100_000, u64::MAX]),
        epoch: Duration::from_nanos(random.pick(&[20, 500, 10_000, 200_000]) * US),
        longest_hold: random.pick(&[Duration::ZERO, Duration::from_micros(50), Duration::MAX]),
        backstop: Duration::from_nanos(random.pick(&[50, 1_000, 5_000]) * US),
    }
}

/// The state of a schedule.
struct World {
    random: Random,
    now: u64,
    moderator: Moderator,
    device: Device,
    /// The time at which each command in flight ends; the second number distinguishes commands with the same time.
    in_flight: BTreeSet<(u64, u64)>,
    commands: u64,
    /// Number of commands that the guest has not submitted yet.
    left: u64,
    /// Completions without a signal, and the time of the first.
    unseen: u64,
    unseen_since: u64,
    largest_cif: u64,
    completions: u64,
    signals: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let depth = random.pick(&[1, 2, 3, 4, 7, 8, 16, 33, 64, 512]).min(1 + random.below(512));
        let left = depth + random.below(200);
        let (device, options) = (Device::any(&mut random), any_options(&mut random));
        let mut world = Self {
            random,
            now: 0,
            moderator: Moderator::new(options),
            device,
            in_flight: BTreeSet::new(),
            commands: 0,
            left,
            unseen: 0,
            unseen_since: 0,
            largest_cif: 0,
            completions: 0,
            signals: 0,
        };
        world.submit(depth);
        world
    }

    fn cif(&self) -> u64 {
        self.in_flight.len() as u64
    }

    fn submit(&mut self, count: u64) {
        for _ in 0..count.min(self.left) {
            self.left -= 1;
            self.commands += 1;
            self.in_flight.insert((self.device.due(self.now, &mut self.random), self.commands));
        }
        self.largest_cif = self.largest_cif.max(self.cif());
    }

    /// The guest gets a signal, reads all completions, and submits as many commands, or fewer.
    fn signal(&mut self) {
        assert!(self.unseen > 0, "a signal for nothing");
        self.signals += 1;
        let ended = std::mem::take(&mut self.unseen);
        let again = if self.random.below(16) == 0 { self.random.below(ended + 1) } else { ended };
        self.submit(again);
    }

    /// A command ends; the moderator decides.
    fn complete(&mut self) {
        self.completions += 1;
        if self.unseen == 0 {
            self.unseen_since = self.now;
        }
        self.unseen += 1;
        if self.moderator.completed(self.cif() as u32, Time(self.now)) {
            self.signal();
        }
        if self.moderator.options().policy == Policy::Off {
            assert_eq!(self.unseen, 0, "off: each completion signals");
        }
    }

    /// The thread is awake: it reaps the commands that have ended by now.
    fn reap(&mut self) {
        let mut low = u64::MAX;
        let mut any = false;
        // Commands that are submitted during this call end later, or in the next batch.
        let ended: Vec<_> = self.in_flight.range(..=(self.now, u64::MAX)).copied().collect();
        let before = self.signals;
        for command in ended {
            self.in_flight.remove(&command);
            any = true;
            low = low.min(self.cif());
            self.complete();
        }
        if self.moderator.end_batch(Time(self.now)) {
            self.signal();
        }
        let options = *self.moderator.options();
        match options.policy {
            Policy::Off => {}
            Policy::Batch => assert!(self.signals - before <= 1 && self.unseen == 0, "batch: once"),
            Policy::Oio | Policy::OioIops => {
                assert!(self.signals - before <= 1, "more than one signal for a batch");
                let never = options.policy == Policy::OioIops
                    && (options.iops_threshold == u64::MAX || options.longest_hold.is_zero());
                if any && (low < u64::from(options.cif_threshold) || never) {
                    assert_eq!(self.unseen, 0, "few in flight, or a low rate: nothing is held back");
                }
            }
        }
        // The longest period of the table for the maximum number of commands that were in flight, or that of its first
        // rows, because the ratio may change within a period.
        let most = (self.largest_cif / u64::from(options.cif_threshold) / 2).max(5);
        assert!(self.unseen < most, "{} held back, expected fewer than {most}", self.unseen);
    }

    /// A random action of the owner.
    fn meddle(&mut self) {
        match self.random.below(64) {
            0 => {
                let options = any_options(&mut self.random);
                if self.moderator.set_options(options) {
                    self.signal();
                }
                assert_eq!(self.unseen, 0, "new options: what the old ones held back is signalled");
            }
            1 => {
                // Commands are aborted: they end at once.
                for _ in 0..self.random.below(4) {
                    let Some(&command) = self.in_flight.last() else { break };
                    self.in_flight.remove(&command);
                    self.complete();
                }
                if self.moderator.flush() {
                    self.signal();
                }
                assert_eq!(self.unseen, 0, "flushed");
            }
            2 if self.random.below(4) == 0 => {
                // Reset: no completion needs a signal any more.
                self.in_flight.clear();
                let _ = self.moderator.flush();
                self.unseen = 0;
                let depth = self.random.below(64);
                self.submit(depth);
            }
            _ => {}
        }
    }

    /// Before the thread sleeps. False: there are no further events.
    fn sleep(&mut self) -> bool {
        let deadline = self.moderator.deadline().map(|deadline| deadline.0);
        assert_eq!(self.unseen > 0, deadline.is_some(), "{} unseen, deadline {deadline:?}", self.unseen);
        if self.cif() == 0 {
            assert_eq!(self.unseen, 0, "stranded: nothing is in flight");
        }
        if let Some(deadline) = deadline {
            let backstop = self.moderator.options().backstop.as_nanos() as u64;
            assert!(deadline <= self.unseen_since + backstop, "held back for longer than the backstop");
        }
        let next = self.in_flight.first().map(|(due, _)| *due);
        let Some(wake) = next.into_iter().chain(deadline).min() else { return false };
        // Threads may wake late.
        let late = if self.random.below(4) == 0 { self.random.below(50 * US) } else { 0 };
        self.now = self.now.max(wake) + late;
        true
    }

    fn run(mut self) -> (u64, u64) {
        while self.sleep() {
            let overdue = self.moderator.deadline().is_some_and(|deadline| deadline.0 <= self.now);
            self.reap();
            assert!(!overdue || self.moderator.deadline().is_none_or(|deadline| deadline.0 > self.now));
            self.meddle();
        }
        assert!(self.unseen == 0 && self.in_flight.is_empty());
        assert!(self.signals <= self.completions, "more signals than completions");
        (self.completions, self.signals)
    }
}

#[test]
fn no_completion_is_stranded_in_any_schedule() {
    let (mut completions, mut signals) = (0, 0);
    let schedules = SCHEDULES * effort();
    for seed in 0..schedules {
        let outcome = std::panic::catch_unwind(|| World::new(seed).run());
        let (ended, told) = outcome.unwrap_or_else(|_| panic!("schedule {seed}: see above"));
        completions += ended;
        signals += told;
    }
    // Some completions are coalesced, but not all.
    assert!(completions > 100 * schedules && signals > completions / 10 && signals < completions * 9 / 10);
    eprintln!("{schedules} schedules, {completions} completions, {signals} signals");
}

//! Interrupt moderation: fewer signals than completions, and none that is missed. The disk completes requests only as the test lets it, so
//! the server finds as many completions at once as the test says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use paradisk_devices::{Coalescing, Policy};
use paradisk_serve::vhost_user_blk::{Options, QueueReport};

use crate::client::*;
use crate::gate::{Gate, GatedDisk};
use crate::rig::{MIB, Rig};

const DEPTH: u16 = 32;
/// Completions of a load: a multiple of [`PERIOD`].
const REQUESTS: u64 = 96;
/// With 32 in flight and a threshold of 4, the policy `oio` signals for one of this many completions.
const PERIOD: u64 = 3;
const NEVER: Duration = Duration::from_secs(10_000);

/// The share of completions that signal is chosen for each completion, and only completions signal.
fn moderation(policy: Policy) -> Coalescing {
    Coalescing { epoch: Duration::from_nanos(1), backstop: NEVER, ..Coalescing::policy(policy) }
}

/// A guest that keeps a number of requests in flight.
struct Load {
    client: Client,
    rig: Rig,
    gate: Gate,
}

impl Load {
    fn start(coalescing: Coalescing, depth: u16, event_index: bool) -> Self {
        let gate = Gate::default();
        gate.close();
        let disk = Arc::new(GatedDisk::new(64 * MIB, gate.clone()));
        let options = Options { coalescing, ..Options::default() };
        let rig = Rig::with_options(tempfile::tempdir().unwrap(), disk, options);
        let shape = Shape { event_index, ..Shape::default() };
        let mut client = Client::connect(&rig.socket(), Guest::new(shape));
        let guest = &mut client.guest;
        let _ = guest.rings[0].call.read();
        (0..depth).for_each(|slot| guest.add(0, slot, IN, 0, 4096));
        guest.publish(0);
        Self { client, rig, gate }
    }

    fn report(&self) -> QueueReport {
        let [report] = self.rig.server.reports()[..] else { panic!("one queue") };
        report
    }

    /// Signals for [`REQUESTS`] completions, which come one by one. The guest requests a signal for each.
    fn signals(&mut self) -> u64 {
        let before = self.report().signals;
        for _ in 0..REQUESTS {
            let guest = &mut self.client.guest;
            assert!(guest.ask(0), "a request has passed a gate that is closed");
            self.gate.let_through(1);
            let start = Instant::now();
            let ended = loop {
                let ended = guest.take(0);
                if !ended.is_empty() {
                    break ended;
                }
                assert!(start.elapsed() < Duration::from_secs(60), "no completion");
                std::thread::yield_now();
            };
            let [(slot, 0)] = ended[..] else { panic!("{ended:?}") };
            guest.add(0, slot, IN, 0, 4096);
            // The report comes from the thread of the queue: it has decided about a signal. The next completion finds as many in flight.
            let _ = self.report();
            self.client.guest.publish(0);
        }
        self.report().signals - before
    }
}

impl Drop for Load {
    /// A server that stops completes what is in flight.
    fn drop(&mut self) {
        self.gate.open();
    }
}

fn signals(policy: Policy, depth: u16, event_index: bool) -> u64 {
    let mut load = Load::start(moderation(policy), depth, event_index);
    let signals = load.signals();
    assert_eq!(load.report().moderation.policy, policy);
    signals
}

#[test]
fn many_requests_in_flight_share_signals() {
    for event_index in [true, false] {
        assert_eq!(signals(Policy::Off, DEPTH, event_index), REQUESTS);
        // The first completion signals, and begins the first period.
        assert_eq!(signals(Policy::Oio, DEPTH, event_index), REQUESTS / PERIOD);
    }
}

/// The policy changes while signals for completions are held back.
#[test]
fn the_policy_changes_while_a_guest_runs() {
    let mut load = Load::start(moderation(Policy::Oio), DEPTH, false);
    assert_eq!(load.signals(), REQUESTS / PERIOD);
    let signals = load.report().signals;
    assert!(load.report().moderation.held_back);
    load.rig.server.set_coalescing(moderation(Policy::Off));
    assert_eq!(load.report().signals, signals + 1, "for what was held back");
    assert_eq!(load.signals(), REQUESTS);
    load.rig.server.set_coalescing(moderation(Policy::Oio));
    assert_eq!(load.signals(), REQUESTS / PERIOD);
}

#[test]
fn few_requests_in_flight_signal_each() {
    for policy in [Policy::Off, Policy::Oio, Policy::OioIops] {
        assert_eq!(signals(policy, 2, false), REQUESTS, "{policy:?}");
    }
}

/// Completions that no others follow are signalled without them.
#[test]
fn the_backstop_signals_what_is_held_back() {
    let coalescing = Coalescing { epoch: Duration::from_nanos(1), ..Coalescing::policy(Policy::Oio) };
    let mut load = Load::start(coalescing, 40, false);
    for left in [36, 32] {
        // The guest sleeps until there is a signal.
        load.gate.let_through(4);
        assert_eq!(load.client.guest.wait(0, 4).len(), 4);
        assert_eq!(load.client.guest.rings[0].avail - load.client.guest.rings[0].used, left);
    }
}

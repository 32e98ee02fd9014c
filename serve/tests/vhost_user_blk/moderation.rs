//! Interrupt moderation: fewer signals than completions, and none that is missed.

use std::sync::Arc;
use std::time::Duration;

use paradisk_devices::{Coalescing, Policy};
use paradisk_disk_formats::{Delayed, RamDisk, SectorSize};
use paradisk_serve::vhost_user_blk::Options;

use crate::client::*;
use crate::rig::{MIB, Rig};

const DEPTH: u16 = 32;
const REQUESTS: u64 = 1500;
/// The mean latency, divided by the number of requests in flight. A guest that is faster than the disk requests a signal for
/// almost each completion, with the event index, too. So only the server's moderation makes signals fewer.
const LATENCY: Duration = Duration::from_micros(300);

fn moderation(policy: Policy) -> Coalescing {
    // Longer than by default: otherwise the backstop would signal for completions that the ratio holds back.
    let (epoch, backstop) = (Duration::from_millis(20), Duration::from_millis(100));
    Coalescing { epoch, backstop, ..Coalescing::policy(policy) }
}

/// A guest that keeps a number of requests in flight, and only waits for signals.
struct Load {
    client: Client,
    rig: Rig,
}

impl Load {
    fn start(policy: Policy, depth: u16, event_index: bool) -> Self {
        let ram = Arc::new(RamDisk::new(64 * MIB, SectorSize::B512).unwrap());
        let disk = Arc::new(Delayed::spread(ram, LATENCY * u32::from(depth)));
        let options = Options { coalescing: moderation(policy), ..Options::default() };
        let rig = Rig::with_options(tempfile::tempdir().unwrap(), disk, options);
        let shape = Shape { event_index, ..Shape::default() };
        let mut client = Client::connect(&rig.socket(), Guest::new(shape));
        let guest = &mut client.guest;
        let _ = guest.rings[0].call.read();
        (0..depth).for_each(|slot| guest.add(0, slot, IN, 0, 4096));
        guest.publish(0);
        Self { client, rig }
    }

    /// Signals for [`REQUESTS`] completions.
    fn signals(&mut self) -> u64 {
        let guest = &mut self.client.guest;
        let (mut left, mut signals) = (REQUESTS, 0);
        while left > 0 {
            assert!(!guest.ask(0) || signalled(&guest.rings[0].call, Duration::from_secs(60)), "no signal");
            signals += guest.rings[0].call.read().unwrap_or(0);
            for (slot, status) in guest.take(0) {
                assert_eq!(status, 0);
                guest.add(0, slot, IN, 0, 4096);
                left = left.saturating_sub(1);
            }
            guest.publish(0);
        }
        signals
    }
}

fn signals(policy: Policy, depth: u16, event_index: bool) -> u64 {
    let mut load = Load::start(policy, depth, event_index);
    let signals = load.signals();
    // The last completions, which no others follow, are signalled, too.
    load.client.guest.wait(0, depth.into());
    let [report] = load.rig.server.reports()[..] else { panic!("one queue") };
    assert_eq!(report.moderation.policy, policy);
    assert!(
        (signals..=REQUESTS + 2 * u64::from(depth)).contains(&report.signals),
        "{report:?}, {signals} taken"
    );
    signals
}

/// One of some comparisons is as expected: a server that gets a processor late finds several completions at once, under any policy.
#[track_caller]
fn compare<const N: usize>(mut signals: impl FnMut() -> (bool, [u64; N])) {
    let mut compared = Vec::new();
    let found = (0..10).any(|n| {
        std::thread::sleep(Duration::from_millis(300) * n);
        let (expected, signals) = signals();
        compared.push(signals);
        expected
    });
    assert!(found, "{compared:?}");
}

#[test]
fn many_requests_in_flight_share_signals() {
    for event_index in [true, false] {
        // With 32 in flight, a quarter of the completions signals. With the event index, a slow guest requests fewer signals
        // under either policy. So the bound is then the number of completions.
        compare(|| {
            let all = signals(Policy::Off, DEPTH, event_index);
            let some = signals(Policy::Oio, DEPTH, event_index);
            let most = if event_index { REQUESTS / 2 } else { all / 2 };
            (some > REQUESTS / 64 && some < most, [some, all])
        });
    }
}

/// The policy changes while signals for completions are held back.
#[test]
fn the_policy_changes_while_a_guest_runs() {
    compare(|| {
        let mut load = Load::start(Policy::Oio, DEPTH, false);
        let few = load.signals();
        load.rig.server.set_coalescing(moderation(Policy::Off));
        let all = load.signals();
        load.rig.server.set_coalescing(moderation(Policy::Oio));
        let few_again = load.signals();
        (few < all / 2 && few_again < all / 2, [few, all, few_again])
    });
}

#[test]
fn few_requests_in_flight_signal_each() {
    // A guest that is slow in one of two runs finds both completions at once.
    compare(|| {
        let (some, all) = (signals(Policy::OioIops, 2, false), signals(Policy::Off, 2, false));
        (some > all * 2 / 3 && all > REQUESTS * 3 / 4, [some, all])
    });
}

/// Completions that come long before others are signalled without them.
#[test]
fn the_backstop_signals_what_is_held_back() {
    let ram = Arc::new(RamDisk::new(64 * MIB, SectorSize::B512).unwrap());
    let disk = Arc::new(Delayed::new(ram, Duration::from_millis(3000)));
    let coalescing = Coalescing { epoch: Duration::from_nanos(1), ..Coalescing::policy(Policy::Oio) };
    let options = Options { coalescing, ..Options::default() };
    let rig = Rig::with_options(tempfile::tempdir().unwrap(), disk, options);
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    let guest = &mut client.guest;
    // In the second burst, the ratio is that which was chosen in the first.
    for _ in 0..2 {
        for slot in 0..40 {
            guest.add(0, slot, IN, 0, 4096);
            if slot == 2 {
                guest.publish(0);
                guest.rings[0].kick.write(1).unwrap();
                std::thread::sleep(Duration::from_millis(2500));
            }
        }
        guest.publish(0);
        guest.rings[0].kick.write(1).unwrap();
        // The others complete long after them.
        assert_eq!(guest.wait(0, 3).len(), 3);
        while guest.rings[0].used != guest.rings[0].avail {
            guest.wait(0, 1);
        }
    }
}

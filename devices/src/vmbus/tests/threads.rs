//! Guest and device on their own threads, each asleep until the other signals: if a wake-up is lost, both sleep for ever.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// If nothing happens for this long, a wake-up was lost.
const SILENCE: Duration = Duration::from_secs(20);
const REQUESTS: u64 = 20_000;

/// Event flags are sent to the guest's thread.
struct Doorbell(Sender<()>);

impl Synic for Doorbell {
    fn post_message(&mut self, _vp: u32, _payload: &[u8]) -> Posted {
        Posted::Off
    }
    fn signal_event(&mut self, _vp: u32, _flag: u16) {
        let _ = self.0.send(());
    }
}

/// Serve the device until nobody can signal it any more.
fn serve(mut device: Vmbus<Arc<GuestMemoryMmap>>, doorbell: &Receiver<()>, start: Instant) {
    let now = || Time(start.elapsed().as_nanos() as u64);
    loop {
        let time = now();
        let longest = match device.before_sleep(time) {
            Sleep::No => Duration::ZERO,
            Sleep::Until(until) => until.since(time),
            Sleep::Forever => Duration::from_secs(3600),
        };
        match doorbell.recv_timeout(longest) {
            Ok(()) => device.on_doorbell(0, now()),
            Err(RecvTimeoutError::Timeout) => device.on_completions(now()),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Keep `depth` requests outstanding. Returns the number of signals.
fn drive(
    memory: &GuestMemoryMmap,
    rings: &mut Rings,
    depth: u64,
    host: &Sender<()>,
    flag: &Receiver<()>,
) -> u64 {
    let (mut sent, mut ended, mut signals) = (0, 0, 0);
    let mut signal = |rings: &mut Rings| {
        if std::mem::take(&mut rings.signal) {
            signals += 1;
            let _ = host.send(());
        }
    };
    while ended < REQUESTS {
        while sent < REQUESTS && sent - ended < depth {
            let packet = transfer_at(sent, transfer(false, 0, 0, 1), DATA + sent % 64 * 4096);
            if !rings.put(memory, &packet) {
                break;
            }
            sent += 1;
            signal(rings);
        }
        rings.set(memory, 1, MASK, 1);
        while let Some((received, next)) = rings.peek(memory) {
            assert_eq!(received.end(), (1, 0, 512));
            ended += 1;
            rings.release(memory, next);
            signal(rings);
        }
        rings.set(memory, 1, MASK, 0);
        std::sync::atomic::fence(Ordering::SeqCst);
        if rings.peek(memory).is_none() && (sent - ended == depth || sent == REQUESTS) && ended < REQUESTS {
            flag.recv_timeout(SILENCE).expect("a wake-up is lost");
        }
    }
    signals
}

#[test]
fn no_wake_up_is_lost_between_threads() {
    for policy in [Policy::Off, Policy::OioIops] {
        for depth in [1, 4, 60] {
            let mut guest = Guest::up(config(policy));
            let (to_guest, flag) = channel();
            let (host, doorbell) = channel();
            guest.device.signals.synic = Box::new(Doorbell(to_guest));
            let Guest { device, memory, mut rings, .. } = guest;
            let start = Instant::now();
            let server = thread::spawn(move || serve(device, &doorbell, start));
            let rings = rings.get_mut(&1).unwrap();
            let signals = drive(&memory, rings, depth, &host, &flag);
            assert!(signals <= REQUESTS + 100);
            drop(host);
            server.join().unwrap();
        }
    }
}

//! The KVM machine with the bare-metal guest. Without `/dev/kvm` each test says why it is skipped.

#[path = "common/echo.rs"]
mod echo;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use facts::tsc::{ticks, tsc_hz};
use guest_tests::kvm::SelfTest;
use guest_tests::rig::RigError;
use guest_tests::{KvmConfig, KvmRig};
use paradisk_vmm::{MsiDelivery, layout};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use self::echo::{
    BAR_SIZE, DOORBELL, Echo, MESSAGE_ADDRESS, MESSAGE_DATA, PANIC, SCRATCH, SILENT_DOORBELL, Seen,
};
use crate::host::host;

const SOON: Duration = Duration::from_secs(60);

fn echo_rig(config: &KvmConfig) -> Option<(KvmRig, Arc<Seen>)> {
    let host = host()?;
    let seen = Arc::new(Seen::default());
    let shared = Arc::clone(&seen);
    let rig = KvmRig::boot(&host, config, |_, sink| Ok(Echo::boxed(sink, shared))).unwrap();
    Some((rig, seen))
}

fn test(rig: &mut KvmRig, test: SelfTest, argument: [u64; 2]) -> [u64; 4] {
    rig.guest().self_test(test, argument, SOON).unwrap()
}

fn failure(rig: &mut KvmRig, test: SelfTest, argument: [u64; 2], within: Duration) -> String {
    match rig.guest().self_test(test, argument, within) {
        Err(RigError::Guest(why)) => why,
        other => panic!("expected the guest to fail, got {other:?}"),
    }
}

/// Accesses to registers that left the kernel so far. Exits for signals do not count: their number depends on the host.
fn accesses(rig: &mut KvmRig) -> u64 {
    let exits = rig.machine().exits()[0];
    exits.mmio + exits.pio
}

fn micros(ticks: u64) -> f64 {
    ticks as f64 * 1e6 / tsc_hz() as f64
}

#[test]
fn the_guest_boots_and_sees_its_function() {
    let Some((mut rig, _)) = echo_rig(&KvmConfig::default()) else { return };
    let ratio = rig.machine().tsc_hz() as f64 / tsc_hz() as f64;
    assert!((ratio - 1.0).abs() < 1e-3, "{ratio}");
    // Configuration space by mechanism 1 and by ECAM: all 64 dwords alike.
    assert_eq!(test(&mut rig, SelfTest::Config, [64, 0])[..2], [0, 0x0005_1b36]);
}

#[test]
fn messages_arrive_both_ways() {
    for msi in [MsiDelivery::Ioctl, MsiDelivery::Irqfd] {
        let Some((mut rig, seen)) = echo_rig(&KvmConfig { msi, ..KvmConfig::default() }) else { return };
        test(&mut rig, SelfTest::Route, [MESSAGE_ADDRESS, MESSAGE_DATA]);
        let count = 2_000;
        let [all, fewest, most, interrupts] = test(&mut rig, SelfTest::Ping, [count, DOORBELL]);
        assert_eq!((interrupts, seen.rung.load(Ordering::Relaxed)), (count, count), "{msi:?}");
        eprintln!(
            "{msi:?}: doorbell to interrupt {:.1} us, {:.1} to {:.1}",
            micros(all) / count as f64,
            micros(fewest),
            micros(most)
        );
    }
}

#[test]
fn doorbells_do_not_leave_the_kernel() {
    let Some((mut rig, seen)) = echo_rig(&KvmConfig::default()) else { return };
    let before = accesses(&mut rig);
    let [took, ..] = test(&mut rig, SelfTest::Write, [10_000, SILENT_DOORBELL]);
    let left = accesses(&mut rig) - before;
    eprintln!("ioeventfd {:.2} us a write; {left} accesses left the kernel", micros(took) / 10_000.0);
    // The job's begin and end.
    assert!(left < 20, "{left}");
    let deadline = Instant::now() + SOON;
    while seen.silent.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < deadline, "the doorbell was not heard");
        std::thread::yield_now();
    }
    assert_eq!(seen.writes.load(Ordering::Relaxed), 0);
}

#[test]
fn registers_are_forwarded() {
    let Some((mut rig, seen)) = echo_rig(&KvmConfig::default()) else { return };
    let [wrote, ..] = test(&mut rig, SelfTest::Write, [1_000, SCRATCH]);
    let [read, value, ..] = test(&mut rig, SelfTest::Read, [1_000, SCRATCH]);
    assert_eq!((value, seen.writes.load(Ordering::Relaxed)), (999, 1_000));
    eprintln!("register write {:.1} us, read {:.1} us", micros(wrote) / 1e3, micros(read) / 1e3);
}

#[test]
fn doorbells_follow_their_register() {
    let Some((mut rig, seen)) = echo_rig(&KvmConfig::default()) else { return };
    let new = layout::PCI_MEMORY.end - BAR_SIZE;
    assert_eq!(test(&mut rig, SelfTest::Move, [new, 0])[0], new);
    let before = accesses(&mut rig);
    test(&mut rig, SelfTest::Write, [1_000, SILENT_DOORBELL]);
    assert!(accesses(&mut rig) - before < 20);
    test(&mut rig, SelfTest::Route, [MESSAGE_ADDRESS, MESSAGE_DATA]);
    assert_eq!(test(&mut rig, SelfTest::Ping, [10, DOORBELL])[3], 10);
    assert_eq!(seen.rung.load(Ordering::Relaxed), 10);
}

#[test]
fn a_spinning_guest_stops() {
    let Some((mut rig, _)) = echo_rig(&KvmConfig::default()) else { return };
    let why = failure(&mut rig, SelfTest::Spin, [0; 2], Duration::from_millis(200));
    assert_eq!(why, "no answer within 200ms");
    let start = Instant::now();
    rig.machine().stop();
    drop(rig);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn a_waiting_guest_stops() {
    let Some((rig, _)) = echo_rig(&KvmConfig::default()) else { return };
    let start = Instant::now();
    drop(rig);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn a_sleeping_guest_stops() {
    let Some((mut rig, _)) = echo_rig(&KvmConfig::default()) else { return };
    let why = failure(&mut rig, SelfTest::Wake, [1, SCRATCH], Duration::from_millis(200));
    assert_eq!(why, "no answer within 200ms");
    let start = Instant::now();
    drop(rig);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn faults_of_the_guest_are_told() {
    let Some((mut rig, _)) = echo_rig(&KvmConfig::default()) else { return };
    let why = failure(&mut rig, SelfTest::Touch, [0x10, 0], SOON);
    assert!(why.starts_with("exception 14 at rip 0x1") && why.ends_with("error code 0x4, cr2 0x10"), "{why}");
    // It has ended: the next job says so instead of waiting.
    assert_eq!(
        failure(&mut rig, SelfTest::Touch, [0x1000, 0], SOON),
        "virtual CPU 0 ended: a bus handler stopped it"
    );

    let Some((mut rig, _)) = echo_rig(&KvmConfig::default()) else { return };
    let why = failure(&mut rig, SelfTest::Undefined, [0; 2], SOON);
    assert!(why.starts_with("exception 6 at rip 0x1"), "{why}");

    let Some((mut rig, _)) = echo_rig(&KvmConfig::default()) else { return };
    let why = failure(&mut rig, SelfTest::Panic, [0x77, 0], SOON);
    assert!(why.contains("selftest.rs") && why.ends_with("asked to, with 0x77"), "{why}");
}

#[test]
fn a_device_that_panics_ends_the_job() {
    let Some((mut rig, _)) = echo_rig(&KvmConfig::default()) else { return };
    let why = failure(&mut rig, SelfTest::Write, [1, PANIC], SOON);
    assert_eq!(why, "I/O thread of slot 1: panicked");
}

#[test]
fn memory_that_nobody_touched_is_not_resident() {
    let Some((mut rig, _)) = echo_rig(&KvmConfig { memory: 2 << 30, ..KvmConfig::default() }) else { return };
    test(&mut rig, SelfTest::Route, [MESSAGE_ADDRESS, MESSAGE_DATA]);
    test(&mut rig, SelfTest::Ping, [1_000, DOORBELL]);
    let memory = rig.machine().memory();
    let used: u64 = memory.iter().map(|region| resident(region.as_ptr() as u64, region.len())).sum();
    eprintln!("{} KiB for a guest of 2 GiB", used >> 10);
    assert!(used > 0 && used < 48 << 20, "{used} bytes");
}

/// Bytes of a mapping that are in memory. Other tests of this process have mappings of their own.
fn resident(address: u64, len: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut bytes) = (false, 0);
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let range = range.and_then(|(start, end)| {
            Some([u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?])
        });
        if let Some([start, end]) = range {
            inside = start < address + len && address < end;
        } else if inside && let Some(size) = line.strip_prefix("Rss:") {
            bytes += size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        }
    }
    bytes
}

/// Costs that `docs/results.md` may quote: `cargo test --release -p paradisk-guest-tests --test kvm -- --ignored
/// --nocapture --test-threads 1`.
#[test]
#[ignore = "a measurement"]
fn costs() {
    let start = Instant::now();
    let Some((rig, _)) = echo_rig(&KvmConfig::default()) else { return };
    eprintln!("start to the guest's first request: {:?}", start.elapsed());
    drop(rig);
    for halt_poll in [Some(Duration::ZERO), None] {
        for msi in [MsiDelivery::Ioctl, MsiDelivery::Irqfd] {
            let (mut rig, seen) = echo_rig(&KvmConfig { msi, halt_poll, ..KvmConfig::default() }).unwrap();
            test(&mut rig, SelfTest::Route, [MESSAGE_ADDRESS, MESSAGE_DATA]);
            let [all, fewest, ..] = test(&mut rig, SelfTest::Ping, [5_000, DOORBELL]);
            eprintln!("{msi:?}, halt poll {halt_poll:?}:");
            eprintln!(
                "  doorbell to interrupt: mean {:.1} us, least {:.1}",
                micros(all) / 5e3,
                micros(fewest)
            );
            let device = rig.device();
            // Guest asleep between messages, which come 300 us apart.
            let (mut send, mut wake, count) = (0, 0, 500);
            rig.guest().begin(SelfTest::Wake, [count, SCRATCH]).unwrap();
            for done in 1..=count {
                std::thread::sleep(Duration::from_micros(300));
                let mailbox = rig.machine().device(device).unwrap();
                let (before, after) = mailbox
                    .call(|device, now| {
                        let before = ticks();
                        device.quiesce(now);
                        (before, ticks())
                    })
                    .unwrap();
                send += after - before;
                while seen.writes.load(Ordering::Relaxed) < done + 2 {
                    std::thread::yield_now();
                }
                wake += u64::from((seen.last.load(Ordering::Relaxed) as u32).wrapping_sub(before as u32));
            }
            rig.guest().wait(SOON).unwrap();
            eprintln!(
                "  sent to a sleeping guest: {:.2} us of the sender, awake at CPL 3 after {:.1} us",
                micros(send) / count as f64,
                micros(wake) / count as f64
            );
            // To a guest that runs.
            rig.guest().begin(SelfTest::Spin, [0; 2]).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            let mailbox = rig.machine().device(device).unwrap();
            let spent = mailbox
                .call(|device, now| {
                    let mut spent = 0;
                    for _ in 0..2_000 {
                        let before = ticks();
                        device.quiesce(now);
                        let after = ticks();
                        spent += after - before;
                        while ticks() - after < 100_000 {}
                    }
                    spent
                })
                .unwrap();
            eprintln!("  sent to a running guest: {:.2} us of the sender", micros(spent) / 2e3);
        }
    }
}

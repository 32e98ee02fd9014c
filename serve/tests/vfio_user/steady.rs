//! The number of messages on the socket for each I/O.

use guest_driver::driver::Driver;
use guest_driver::{InterruptMode, KickPolicy, Mode, Workload, driver, pvscsi};
use paradisk_devices::AdapterKind;

use crate::drivers::{JOB, clean, options, serve};
use crate::vmm::{Habits, Vmm};

/// Messages, both ways, that so many reads at depth 32 take.
fn messages(options: driver::Options, kind: AdapterKind, ioeventfds: bool, ios: u64) -> u64 {
    let served = serve(kind);
    let mut vmm = Vmm::new(&served, Habits { ioeventfds, keeps_table: true });
    let mut driver = Driver::start(&mut vmm, options).unwrap();
    vmm.posting = true;
    let mut messages = |ios| {
        let before = vmm.client.messages;
        let job = Workload { mode: Mode::Measure, read_percent: 100, ios, ..JOB };
        clean(&mut driver, &mut vmm, &job);
        vmm.client.messages - before
    };
    // The start of each job (it reads the disk's capacity) is not the steady state. The first job also takes the unit attention.
    messages(32);
    let start = messages(32);
    messages(32 + ios).saturating_sub(start)
}

const IOS: u64 = 3200;

#[test]
fn with_ioeventfds_and_msix_the_socket_is_silent() {
    for kind in [AdapterKind::Pvscsi, AdapterKind::VirtioBlk, AdapterKind::VirtioScsi] {
        let messages = messages(options(kind, InterruptMode::MsiX), kind, true, IOS);
        println!("{kind}: {} messages for 32 I/Os", messages as f64 * 32.0 / IOS as f64);
        assert_eq!(messages, 0, "{kind}");
    }
}

/// Without ioeventfds, each doorbell is a message. A driver that honours the request-call threshold rings few.
#[test]
fn without_ioeventfds_a_doorbell_is_a_message() {
    let alone = pvscsi::Options { threshold: false, ..Default::default() };
    let batch = pvscsi::Options { kick: KickPolicy::PerBatch, ..alone };
    let usual = pvscsi::Options::default();
    for (name, options, least) in
        [("each request", alone, IOS), ("a batch", batch, IOS / 32), ("the threshold", usual, 0)]
    {
        let messages = messages(driver::Options::Pvscsi(options), AdapterKind::Pvscsi, false, IOS);
        println!(
            "pvscsi, doorbell by {name}: {:.2} messages for 32 I/Os",
            messages as f64 * 32.0 / IOS as f64
        );
        assert!((least..=IOS).contains(&messages), "{name}: {messages} messages");
    }
}

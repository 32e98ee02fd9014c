//! Clients that disconnect, in any state, and the next clients.

use guest_driver::driver::Driver;
use guest_driver::{InterruptMode, Mode, Workload};
use paradisk_devices::AdapterKind;
use paradisk_serve::vfio_user::spec::command;
use paradisk_serve::vfio_user::{Ended, Note};

use crate::client::Client;
use crate::drivers::{JOB, clean, options, serve};
use crate::vmm::{Habits, Vmm};

const MSIX: InterruptMode = InterruptMode::MsiX;

#[test]
fn the_next_client_finds_the_disk_as_it_was_left() {
    let served = serve(AdapterKind::Pvscsi);
    for mode in [Mode::Fill, Mode::Check] {
        let mut vmm = Vmm::new(&served, Habits { ioeventfds: true, keeps_table: true });
        let mut driver = Driver::start(&mut vmm, options(AdapterKind::Pvscsi, MSIX)).unwrap();
        clean(&mut driver, &mut vmm, &Workload { mode, ..JOB });
    }
    let (notes, _) = served.stop();
    let left = Note::Left(Ended::Closed);
    // The server may stop before it sees the second client disconnect.
    assert_eq!(notes[..3], [Note::Connected, left, Note::Connected]);
}

#[test]
fn a_client_that_waits_is_served_when_the_first_leaves() {
    let served = serve(AdapterKind::Pvscsi);
    let first = Client::new(&served.socket);
    let socket = served.socket.clone();
    let second = std::thread::spawn(move || Client::new(&socket).read(7, 0, 4).unwrap());
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!second.is_finished());
    drop(first);
    assert_eq!(second.join().unwrap(), [0xad, 0x15, 0xc0, 0x07]);
}

/// The eventfds outlive a reset, as in VFIO.
#[test]
fn reset_is_power_on() {
    let served = serve(AdapterKind::Pvscsi);
    let mut vmm = Vmm::new(&served, Habits { ioeventfds: true, keeps_table: true });
    for mode in [Mode::Fill, Mode::Check] {
        let mut driver = Driver::start(&mut vmm, options(AdapterKind::Pvscsi, MSIX)).unwrap();
        clean(&mut driver, &mut vmm, &Workload { mode, ..JOB });
        let before = vmm.client.read(7, 4, 2).unwrap();
        assert_eq!(before[0] & 4, 4, "bus mastering");
        vmm.client.request(command::RESET, &[], &[]).unwrap();
        assert_eq!(vmm.client.read(7, 4, 2).unwrap(), [0, 0]);
    }
}

#[test]
fn a_server_stops_while_a_client_is_connected() {
    let served = serve(AdapterKind::VirtioBlk);
    let mut vmm = Vmm::new(&served, Habits::default());
    let mut driver = Driver::start(&mut vmm, options(AdapterKind::VirtioBlk, MSIX)).unwrap();
    clean(&mut driver, &mut vmm, &Workload { mode: Mode::Fill, ..JOB });
    let (notes, stats) = served.stop();
    assert_eq!(notes, [Note::Connected]);
    assert_eq!(stats.requests, stats.completions);
}

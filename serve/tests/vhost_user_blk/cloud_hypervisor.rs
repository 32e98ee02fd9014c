//! Cloud Hypervisor's order of messages. Three things differ from QEMU's: the features are also set before the guest starts; the
//! memory of in-flight tracking is passed after guest memory, and is kept when the guest resets the device; and the base of a queue
//! is the guest's available index.

use std::os::fd::AsRawFd;
use std::path::Path;

use vhost::VhostBackend;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vm_memory::Bytes;

use crate::client::*;
use crate::rig::Rig;

const QUEUES: u16 = 2;
/// Version 1, protocol features, event index, indirect descriptors, multiqueue, flush, discard, write zeroes.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 29 | 1 << 28 | 1 << 12 | 1 << 9 | 1 << 13 | 1 << 14;

fn connect(path: &Path) -> (Frontend, u64) {
    let mut frontend = Frontend::connect(path, QUEUES.into()).unwrap();
    frontend.set_owner().unwrap();
    let features = frontend.get_features().unwrap() & FEATURES;
    assert_eq!(features, FEATURES, "all are offered");
    // The guest has not started yet.
    frontend.set_features(features).unwrap();
    let wanted = VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
    assert!(frontend.get_protocol_features().unwrap().contains(wanted));
    frontend.set_protocol_features(wanted).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    assert!(frontend.get_queue_num().unwrap() >= QUEUES.into());
    (frontend, features)
}

/// The guest's driver is ready.
fn activate((frontend, features): (Frontend, u64), guest: Guest) -> (Client, u64) {
    frontend.set_features(features).unwrap();
    let mut client = Client { frontend, guest };
    client.share();
    let Client { frontend, guest: shown } = &mut client;
    for queue in 0..QUEUES.into() {
        frontend.set_vring_num(queue, shown.shape.size).unwrap();
    }
    if shown.inflight.is_none() {
        let asked = VhostUserInflight::new(0, 0, QUEUES, shown.shape.size);
        shown.inflight = Some(frontend.get_inflight_fd(&asked).unwrap());
    }
    let (described, file) = shown.inflight.as_ref().unwrap();
    frontend.set_inflight_fd(described, file.as_raw_fd()).unwrap();
    for queue in 0..QUEUES.into() {
        frontend.set_vring_addr(queue, &shown.vring_config(queue)).unwrap();
        let available: u16 = shown.memory.read_obj(shown.at(queue, AVAIL + 2)).unwrap();
        frontend.set_vring_base(queue, available).unwrap();
        frontend.set_vring_call(queue, &shown.rings[queue].call).unwrap();
        frontend.set_vring_kick(queue, &shown.rings[queue].kick).unwrap();
    }
    for queue in 0..QUEUES.into() {
        frontend.set_vring_enable(queue, true).unwrap();
    }
    (client, features)
}

/// Each slot of each queue with a pattern of its own.
fn written_is_read(guest: &mut Guest, salt: u8) {
    const DEPTH: u16 = 16;
    for request_type in [OUT, IN] {
        for queue in 0..QUEUES.into() {
            for slot in 0..DEPTH {
                let byte = salt ^ (slot as u8 + 64 * queue as u8);
                guest.fill(queue, slot, if request_type == OUT { byte } else { !byte }, 4096);
                let sector = (u64::from(slot) + 32 * queue as u64) * 8;
                guest.add(queue, slot, request_type, sector, 4096);
            }
            guest.publish(queue);
            assert!(guest.wait(queue, DEPTH.into()).iter().all(|(_, status)| *status == 0));
            if request_type == IN {
                for slot in 0..DEPTH {
                    let byte = salt ^ (slot as u8 + 64 * queue as u8);
                    assert_eq!(guest.bytes(queue, slot, 4096), [byte; 4096], "{queue} {slot}");
                }
            }
        }
    }
    assert_eq!(guest.run(1, FLUSH, 0, 0), 0);
}

#[test]
fn guests_come_up_again_and_again() {
    let rig = Rig::new(QUEUES);
    let shape = Shape { queues: QUEUES, ..Shape::default() };
    let mut connection = connect(&rig.socket());
    let mut inflight = None;
    for boot in 0..4u8 {
        let guest = Guest { inflight, ..Guest::new(shape.clone()) };
        let (mut client, features) = activate(connection, guest);
        let capacity = client.config(8);
        assert_eq!(capacity, (64u64 << 11).to_le_bytes());
        written_is_read(&mut client.guest, 0x11 * boot);
        // The guest resets its device: the rings are new afterwards, and the memory of in-flight tracking is the same.
        for queue in 0..QUEUES.into() {
            client.frontend.set_vring_enable(queue, false).unwrap();
            client.frontend.get_vring_base(queue).unwrap();
        }
        inflight = client.guest.inflight.take();
        connection = (client.frontend, features);
    }
}

/// Requests are made available while no connection exists, so the base (the available index) is behind them. The server finds its
/// place in the memory of in-flight tracking.
#[test]
fn a_machine_that_reconnects_loses_nothing() {
    let rig = Rig::new(QUEUES);
    let shape = Shape { queues: QUEUES, ..Shape::default() };
    let (mut client, _) = activate(connect(&rig.socket()), Guest::new(shape));
    written_is_read(&mut client.guest, 0x21);
    let Client { frontend, mut guest } = client;
    drop(frontend);
    // Made available while no connection exists.
    for slot in 0..5 {
        guest.fill(0, slot, 0x99, 4096);
        guest.add(0, slot, OUT, 1024 + 8 * u64::from(slot), 4096);
    }
    guest.publish(0);
    let (mut client, _) = activate(connect(&rig.socket()), guest);
    let mut ended = client.guest.wait(0, 5);
    ended.sort_unstable();
    assert_eq!(ended, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]);
    assert_eq!(client.guest.run(0, IN, 1024 + 32, 4096), 0);
    assert_eq!(client.guest.bytes(0, 0, 4096), [0x99; 4096]);
    written_is_read(&mut client.guest, 0x42);
}

//! Requests of a client that keeps to the protocol.

use std::time::Duration;

use paradisk_serve::vhost_user_blk::Options;
use vm_memory::Bytes;

use crate::client::*;
use crate::rig::{MIB, Rig, raw};

#[test]
fn what_is_written_is_read() {
    for (event_index, indirect) in [(true, true), (false, false), (true, false), (false, true)] {
        let rig = Rig::new(1);
        let mut client =
            Client::connect(&rig.socket(), Guest::new(Shape { event_index, indirect, ..Shape::default() }));
        let guest = &mut client.guest;
        guest.fill(0, 0, 0x5a, 4096);
        assert_eq!(guest.run(0, OUT, 8, 4096), 0);
        assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
        guest.fill(0, 0, 0, 8192);
        assert_eq!(guest.run(0, IN, 4, 8192), 0);
        let bytes = guest.bytes(0, 0, 8192);
        assert!(bytes[2048..6144].iter().all(|&byte| byte == 0x5a));
        assert!(bytes[..2048].iter().chain(&bytes[6144..]).all(|&byte| byte == 0));
    }
}

/// Each round writes and reads 128 places of the disk on all queues. Each place has its own byte, another one in each round.
#[test]
fn many_requests_on_all_queues() {
    const QUEUES: u16 = 4;
    const DEPTH: u16 = 32;
    for event_index in [true, false] {
        let rig = Rig::new(QUEUES);
        let shape = Shape { queues: QUEUES, event_index, ..Shape::default() };
        let mut guest = Client::connect(&rig.socket(), Guest::new(shape));
        for round in 0..40u64 {
            for write in [true, false] {
                for queue in 0..QUEUES.into() {
                    for slot in 0..DEPTH {
                        let place = (queue as u64 * u64::from(DEPTH) + u64::from(slot) + round * 7) % 128;
                        let byte = (place * 3 + round) as u8;
                        let guest = &mut guest.guest;
                        guest.fill(queue, slot, if write { byte } else { !byte }, 4096);
                        guest.add(queue, slot, if write { OUT } else { IN }, place * 8, 4096);
                    }
                    guest.guest.publish(queue);
                }
                for queue in 0..QUEUES.into() {
                    let ended = guest.guest.wait(queue, DEPTH.into());
                    assert!(ended.iter().all(|&(_, status)| status == 0), "{ended:?}");
                    if !write {
                        for slot in 0..DEPTH {
                            let place = (queue as u64 * u64::from(DEPTH) + u64::from(slot) + round * 7) % 128;
                            let byte = (place * 3 + round) as u8;
                            assert_eq!(guest.guest.bytes(queue, slot, 4096), vec![byte; 4096]);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_queue_that_polls_needs_no_kicks() {
    for event_index in [true, false] {
        let (directory, disk) = raw(MIB);
        let poll = Duration::from_secs(2);
        let rig = Rig::with_options(directory, disk, Options { poll, ..Options::default() });
        let mut client =
            Client::connect(&rig.socket(), Guest::new(Shape { event_index, ..Shape::default() }));
        let kick = client.guest.rings[0].kick.try_clone().unwrap();
        client.guest.check_polling(poll, || kick.write(1).unwrap());
    }
}

#[test]
fn the_configuration_says_what_the_disk_is() {
    let rig = Rig::new(3);
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape { queues: 3, ..Shape::default() }));
    let config = client.config(60);
    assert_eq!(config[..8], (64u64 << 11).to_le_bytes());
    assert_eq!(config[34..36], 3u16.to_le_bytes());
    // A client may know a longer configuration structure.
    assert_eq!(client.config(96)[..60], config);
    assert_eq!(client.guest.run(0, GET_ID, 0, 20), 0);
    assert_eq!(client.guest.bytes(0, 0, 4), b"S-1\0");
}

#[test]
fn zeros_and_discards() {
    let rig = Rig::new(1);
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    let guest = &mut client.guest;
    guest.fill(0, 0, 7, 65536);
    assert_eq!(guest.run(0, OUT, 0, 65536), 0);
    for (request_type, sector) in [(WRITE_ZEROES, 8u64), (DISCARD, 64)] {
        let at = guest.data(0, 0);
        guest.memory.write_obj(sector.to_le(), at).unwrap();
        guest.memory.write_obj(u64::from(8u32).to_le(), vm_memory::GuestAddress(at.0 + 8)).unwrap();
        assert_eq!(guest.run(0, request_type, 0, 16), 0);
    }
    assert_eq!(guest.run(0, IN, 0, 65536), 0);
    let bytes = guest.bytes(0, 0, 65536);
    assert!(bytes[4096..8192].iter().all(|&byte| byte == 0));
    assert!(bytes[..4096].iter().chain(&bytes[8192..32768]).all(|&byte| byte == 7));
    assert_eq!(guest.run(0, OUT, u64::MAX / 512, 4096), 1, "outside the disk");
}

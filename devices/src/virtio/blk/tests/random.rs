//! A guest that writes random values anywhere, then initializes the device, which must work.

use super::*;
use crate::testing::{Random, seeds};

fn random_request(guest: &mut Guest, random: &mut Random) {
    let queue = random.below(2) as u16;
    let n = random.below(100);
    let request_type = match random.below(8) {
        0..3 => VIRTIO_BLK_T_IN,
        3..6 => VIRTIO_BLK_T_OUT,
        6 => random.below(16) as u32,
        _ => random.value() as u32,
    };
    let sector = if random.below(8) == 0 { random.value() } else { random.below(2048) };
    let mut pieces = vec![guest.header(n, request_type, sector)];
    pieces.extend((0..random.below(4)).map(|_| piece(random)));
    pieces.push(writes(REQUESTS + 64 * n + 32, 1));
    guest.put_random(queue, pieces, random);
}

#[test]
fn anything_goes_and_a_clean_start_follows() {
    for (seed, tasks) in seeds(48) {
        let mut random = Random::new(seed);
        let config = Config { queues: 2, tasks, queue_size: 256, ..Config::default() };
        let mut guest = Guest::held(config);
        guest.do_anything(&mut random, random_request);
        guest.check_io();
        assert_eq!(guest.in_flight(), 0);
    }
}

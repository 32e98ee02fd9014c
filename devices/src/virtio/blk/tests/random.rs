//! A guest that writes anything anywhere, and then comes up as if nothing had happened.

use std::time::Instant;

use super::*;
use crate::testing::Random;

fn piece(random: &mut Random) -> Piece {
    let address = DATA + random.below(MIB - 65536);
    let len = (random.below(9) * 512) as u32;
    let mut piece = if random.below(2) == 0 { reads(address, len) } else { writes(address, len) };
    match random.below(30) {
        0 => piece.address = random.value(),
        1 => piece.len = random.value() as u32,
        2 => piece.flags = random.value() as u16,
        3 => piece.flags |= INDIRECT,
        _ => {}
    }
    piece
}

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
    let header = guest.header(n, request_type, sector);
    let mut pieces = vec![header];
    for _ in 0..random.below(4) {
        pieces.push(piece(random));
    }
    pieces.push(writes(REQUESTS + 64 * n + 32, 1));
    if random.below(40) == 0 {
        let at = random.below(pieces.len() as u64) as usize;
        pieces.remove(at);
    }
    if pieces.is_empty() || guest.rings[usize::from(queue)].size == 0 {
        return;
    }
    if random.below(3) == 0 && pieces.len() < 16 {
        guest.put_indirect(queue, &pieces);
    } else {
        guest.put(queue, &pieces);
    }
}

/// The driver again, with any features and sizes.
fn up(guest: &mut Guest, random: &mut Random) {
    guest.device.config_write(4, &6u16.to_le_bytes());
    guest.bring_up(random.next() | BASE, 4 << random.below(5));
    if random.below(2) == 0 {
        guest.enable_msix();
    }
}

fn step(guest: &mut Guest, random: &mut Random) {
    match random.below(100) {
        0..58 => random_request(guest, random),
        58..70 => guest.kick(random.below(2) as u16),
        70..76 => guest.device.on_completions(guest.now),
        76..80 => drop(guest.completions(random.below(2) as u16)),
        80..83 => {
            let _ = guest.device.before_sleep(guest.now);
        }
        83..85 => guest.hold.set(random.below(3) == 0),
        85 => {
            // Descriptors, rings, headers full of anything.
            let address = (RINGS + random.below(DATA - RINGS)) & !7;
            guest.memory.write_obj(random.value(), GuestAddress(address)).unwrap();
        }
        86 => guest.set_used_event(random.below(2) as u16, random.value() as u16),
        87 => {
            let len = [1, 2, 4, 8][random.below(4) as usize];
            let data = random.value().to_le_bytes();
            guest.device.bar_write(random.below(3) as u8, random.below(0x8100), &data[..len], guest.now);
        }
        88 => {
            // Registers of the common configuration.
            let len = [1, 2, 4, 8][random.below(4) as usize];
            guest.write(random.below(64) & !1, len, random.value());
        }
        89 => {
            let mut data = [0; 8];
            let len = [1, 2, 4, 8][random.below(4) as usize];
            guest.device.bar_read(random.below(3) as u8, random.below(0x8100), &mut data[..len], guest.now);
        }
        90 => {
            let len = [1, 2, 4][random.below(3) as usize];
            let offset = random.below(256 / len as u64) * len as u64;
            guest.device.config_write(offset as u16, &random.next().to_le_bytes()[..len]);
            guest.device.config_write(4, &6u16.to_le_bytes());
        }
        91 => {
            let policy = [Policy::Off, Policy::Batch, Policy::Oio, Policy::OioIops][random.below(4) as usize];
            guest.device.set_coalescing(Coalescing::policy(policy));
        }
        92 => {
            guest.write(QUEUE_SELECT, 2, random.below(3));
            guest.write([QUEUE_RESET, QUEUE_MSIX_VECTOR][random.below(2) as usize], 2, random.below(4));
        }
        93 => {
            guest.device.quiesce(guest.now);
        }
        94 => guest.device.config_write(4, &[random.below(8) as u8, 0]),
        95..97 => {
            if random.below(4) == 0 || !guest.device.transport.live() {
                up(guest, random);
            }
        }
        _ => guest.now.0 += random.below(5_000_000),
    }
}

#[test]
fn anything_goes_and_a_clean_start_follows() {
    for seed in 1..=4u64 {
        let mut random = Random(seed * 0x9e37_79b9);
        let config = Config { queues: 2, tasks: 48, queue_size: 256, ..Config::default() };
        let mut guest = Guest::held(config);
        let mut longest = std::time::Duration::ZERO;
        for _ in 0..50_000 {
            let begin = Instant::now();
            step(&mut guest, &mut random);
            longest = longest.max(begin.elapsed());
        }
        assert!(longest.as_secs() < 2, "a step took {longest:?}");
        let stats = guest.device.stats();
        assert!(stats.requests > 5_000 && stats.completions > 4_000, "the test lost its guest: {stats:?}");
        assert!(stats.errors > 500 && stats.interrupts > 500, "the test lost its teeth: {stats:?}");
        guest.hold.set(false);
        guest.device.reset(guest.now);
        guest.device.config_write(4, &6u16.to_le_bytes());
        guest.bring_up(ALL, 64);
        guest.check_io();
        assert_eq!(guest.in_flight(), 0);
    }
}

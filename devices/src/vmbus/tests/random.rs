//! A guest that writes random values anywhere, then initializes the adapter, which must work.

use super::*;
use crate::testing::{Random, seeds};

fn random_packet(random: &mut Random) -> Vec<u64> {
    let transaction = random.below(100);
    let lun = if random.below(8) == 0 { random.value() as u8 } else { random.pick(&LUNS) };
    let payload = match random.below(8) {
        0 => vstor(random.below(16), random.value()),
        1 => srb(lun, &[random.next() as u8; 16], random.below(3) as u8, random.below(4096) as u32),
        _ => transfer(random.below(2) == 0, lun, random.below(2100) as u32, random.below(17) as u16),
    };
    let mut words = match random.below(8) {
        0 => in_band(transaction, payload),
        // Data are mostly outside the rings.
        _ => transfer_at(transaction, payload, random.data_address()),
    };
    for _ in 0..random.below(3) {
        let len = words.len() as u64;
        match random.below(6) {
            0 => words[random.below(len) as usize] = random.value(),
            1 => words[random.below(len) as usize] ^= 1 << random.below(64),
            2 if random.below(20) == 0 => words[0] = random.next(),
            3 if len > 4 => words[3] = random.value(),
            4 => words[0] &= !(1 << 48),
            _ => {}
        }
    }
    words
}

fn random_message(guest: &mut Guest, random: &mut Random) {
    let number = |random: &mut Random| match random.below(3) {
        0 => random.below(6) as u32,
        1 => 0xe1e10,
        _ => random.value() as u32,
    };
    let kind = random.below(26) as u32;
    let mut message: Vec<u32> = vec![kind, 0];
    message.extend((0..random.below(58)).map(|_| number(random)));
    if kind == 8 && random.below(2) == 0 && message.len() > 6 {
        // A GPADL that is likely to be valid.
        let pages = random.below(30) as u32;
        (message[4], message[5], message[6]) = ((8 + 8 * pages) | 1 << 16, pages << 12, 0);
    }
    guest.post(&message[..message.len().min(60)]);
}

fn bring_up_again(guest: &mut Guest) {
    guest.hold.set(false);
    guest.received();
    guest.pages = 3;
    guest.post(&[14, 0, guest.version, 0, 2, 0, 0, 0, 0, 0]);
    guest.run_all(9);
    let received = guest.received();
    assert_eq!(received.last().map(|message| message[..3].to_vec()), Some(vec![15, 0, 1]), "{received:x?}");
    guest.post(&[3, 0]);
    assert_eq!(guest.offers().len(), 1);
    guest.open_primary();
}

fn step(guest: &mut Guest, random: &mut Random) {
    let relid = 1 + random.below(3) as u32;
    match random.below(100) {
        0..55 => {
            let words = random_packet(random);
            guest.put(relid, &words);
        }
        55..65 => guest.device.on_completions(guest.now),
        65..75 => {
            if random.below(4) == 0 {
                guest.device.on_doorbell(random.below(6) as usize, guest.now);
            } else if let Some(rings) = guest.rings.get_mut(&relid) {
                // Its write index is random: packets there are not checked.
                let write = rings.get(&guest.memory, 1, WRITE);
                if write < rings.size() && write % 8 == 0 {
                    let memory = guest.memory.clone();
                    rings.release(&memory, write);
                }
            }
        }
        75..78 => {
            let _ = guest.device.before_sleep(guest.now);
        }
        78..82 => guest.hold.set(random.below(3) == 0),
        82..86 => random_message(guest, random),
        86..88 => guest.read_messages(),
        88 => {
            let ring = random.below(2);
            let field = random.pick(&[WRITE, READ, MASK, PENDING, FEATURES]);
            if let Some(rings) = guest.rings.get(&relid) {
                rings.set(&guest.memory, ring, field, random.value() as u32);
            }
        }
        89 => {
            // Random content of the rings.
            let address = (RINGS + random.below(3 * RINGS_LEN)) & !7;
            let _ = guest.memory.write_obj(random.value(), GuestAddress(address));
        }
        90 => {
            let address = Address { target: random.below(70) as u8, lun: 0 };
            let now = guest.now;
            let Some(bus) = guest.device.hot_plug() else { return };
            if random.below(2) == 0 {
                let _ = bus.attach(address, unit(&guest.hold));
            } else if !LUNS.contains(&address.target) {
                bus.detach(address, now);
            }
        }
        91 => guest.device.set_coalescing(Coalescing::policy(random.policy())),
        92 if random.below(4) == 0 => {
            let vp = random.below(5) as u32;
            guest.device.on_end_of_message(vp, guest.now);
        }
        93..96 => {
            // As a driver does: close, tear the GPADL down, open again, with sub-channels.
            guest.messages.clear();
            guest.post(&[7, 0, relid]);
            guest.post(&[11, 0, relid, 100 + relid]);
            guest.post(&[13, 0, relid]);
            let rings = Rings { relid, pages: guest.pages, write: 0, read: 0, signal: false };
            let pages: Vec<u64> = (0..2 * guest.pages).map(|number| rings.page(number) >> 12).collect();
            guest.share_pages(relid, 100 + relid, &pages);
            let memory = guest.memory.clone();
            guest.rings.entry(relid).or_insert(rings).clear(&memory);
            guest.post_open(relid, 100 + relid, 0);
            for payload in [vstor(7, 0), vstor(9, 0x0602), vstor(10, 0), vstor(8, 0), vstor(13, 2)] {
                guest.put(1, &in_band(CONTROL, payload));
            }
            guest.read_messages();
        }
        96 if random.below(4) == 0 => {
            // The guest must not see completions of the disks after the answer to INITIATE_CONTACT.
            bring_up_again(guest);
        }
        _ => guest.now.0 += random.below(5_000_000),
    }
}

fn run(seed: u64, steps: u32, tasks: u32) -> Guest {
    let mut random = Random::new(seed);
    let mut guest = Guest::up(Config { tasks, ..config(Policy::Batch) });
    for _ in 0..steps {
        step(&mut guest, &mut random);
        guest.messages.clear();
    }
    guest
}

#[test]
fn anything_goes_and_a_clean_start_follows() {
    for (seed, tasks) in seeds(1024) {
        let mut guest = run(seed, 50_000, tasks);
        let stats = guest.device.stats();
        assert!(stats.requests > 1000 && stats.completions > 1000, "the test lost its guest: {stats:?}");
        bring_up_again(&mut guest);
        guest.clear_unit_attention(&LUNS);
        guest.clear_unit_attention(&LUNS);
        guest.check_io(1);
        assert_eq!(guest.device.engine.in_flight.count(), 0);
        guest.device.reset(guest.now);
        guest.writes_nothing(|guest| guest.device.on_completions(guest.now));
        let stats = guest.device.stats();
        assert_eq!(stats.requests, stats.completions, "nothing is in flight");
        guest.received();
        guest.bring_up();
    }
}

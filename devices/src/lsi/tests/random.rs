//! A guest that writes random values to random registers, and then initializes the controller as usual.

use super::*;
use crate::testing::{Random, seeds};

const STEPS: u32 = 50_000;

fn step(guest: &mut Guest, random: &mut Random) {
    match random.below(100) {
        0..45 => {
            let mut request =
                guest.transfer(random.below(2) == 0, random.below(2100) as u32, random.below(9) as u16);
            request.target_id = random.pick(&[0, 0, 3, 5]);
            let mut bytes = request.as_bytes().to_vec();
            let list = match random.below(5) {
                0 => element(random.next() as u8, random.value() as u32 & 0xff_ffff, random.value()),
                1 => {
                    element(sge::TYPE_CHAIN, random.value() as u32 & 0xff_ffff, CHAINS + random.below(64) * 4)
                }
                _ => simple(request.data_length.get(), random.data_address()),
            };
            for _ in 0..random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
            guest.post(&bytes, &list);
        }
        45..55 => {
            let address = CHAINS + random.below(64) * 4;
            let bytes = element(random.next() as u8, random.value() as u32 & 0xff_ffff, CHAINS);
            guest.memory.write_slice(&bytes, GuestAddress(address)).unwrap();
        }
        55..65 => guest.write(reg::DOORBELL, random.value() as u32),
        65..70 => {
            let function = random.pick(&[
                doorbell_fn::HANDSHAKE,
                doorbell_fn::MESSAGE_UNIT_RESET,
                doorbell_fn::IO_UNIT_RESET,
            ]);
            guest.write(reg::DOORBELL, u32::from(function) << 24 | (random.below(40) as u32) << 16);
        }
        70..75 => guest.write(reg::INT_STATUS, random.value() as u32),
        75..80 => guest.write(reg::REPLY_FIFO, (REPLIES + random.below(16) * REPLY_SIZE) as u32),
        80..83 => guest.write(random.below(0x50), random.value() as u32),
        83..86 => {
            guest.replies();
        }
        86..90 => {
            guest.read(random.below(0x60));
        }
        90..94 => guest.hold.set(random.below(2) == 0),
        94..97 => {
            guest.now = Time(guest.now.0 + random.below(2_000_000));
            guest.device.on_completions(guest.now);
        }
        _ => {
            // The device may not be ready to sleep. Requests continue anyway.
            let _ = guest.device.before_sleep(guest.now);
            guest.device.on_completions(guest.now);
        }
    }
}

#[test]
fn nothing_that_a_guest_writes_breaks_it() {
    for (seed, tasks) in seeds(64) {
        let mut random = Random::new(seed);
        let personality = if seed % 2 == 0 { Personality::Sas1068 } else { Personality::Spi1030 };
        let mut guest = Guest::running(tasks, personality);
        for number in 0..STEPS {
            step(&mut guest, &mut random);
            let stats = guest.device.stats();
            assert_eq!(stats.requests, stats.completions + guest.held());
            // Otherwise the controller would be in FAULT most of the time.
            if number % 97 == 0 && guest.state() != IocState::Operational as u32 {
                guest.hold.set(false);
                guest.hard_reset();
                // The guest must not see completions of the disks from here on.
                guest.writes_nothing(|guest| guest.device.on_completions(guest.now));
                guest.bring_up(16);
            }
        }
        guest.hold.set(false);
        guest.hard_reset();
        assert_eq!(guest.device.engine.in_flight.count(), 0);
        guest.works_again();
        let stats = guest.device.stats();
        assert!(stats.requests == stats.completions && stats.requests > 500, "{stats:?}");
    }
}

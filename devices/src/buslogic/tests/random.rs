//! A guest that writes random values anywhere, then initializes the adapter, which must work.

use super::*;
use crate::device::HotPlug;
use crate::testing::{Random, seeds};

const STEPS: u32 = 50_000;

fn random_ccb(guest: &Guest, random: &mut Random) -> Ccb {
    let mut ccb = match random.below(4) {
        0 => guest.ccb(&[random.next() as u8; 6]),
        1 => guest.transfer(random.below(2) == 0, random.value() as u32, random.below(9) as u16),
        _ => guest.transfer(random.below(2) == 0, random.below(2048) as u32, random.below(17) as u16),
    };
    // Data are mostly outside the mailboxes.
    ccb.data_address = (random.data_address() as u32).into();
    ccb.target = random.pick(&[0, 0, 3, 5]);
    if random.below(3) == 0 {
        ccb.opcode = random.pick(&[2, 4, 3, 0x81, 1]);
        ccb.data_address = ((LISTS + random.below(0x1_0000)) as u32).into();
        ccb.data_len = (random.below(40) as u32 * 8).into();
    }
    for _ in 0..random.below(3) {
        match random.below(11) {
            0 => ccb.data_address = (random.value() as u32).into(),
            1 => ccb.data_len = (random.value() as u32).into(),
            2 => ccb.sense_address = (random.value() as u32).into(),
            3 => ccb.sense_len = random.next() as u8,
            4 => ccb.opcode = random.value() as u8,
            5 => ccb.cdb_len = random.value() as u8,
            6 => ccb.lun = random.value() as u8,
            7 => ccb.target = random.value() as u8,
            8 => ccb.cdb[random.below(12) as usize] = random.next() as u8,
            9 => ccb.control = random.next() as u8,
            _ => ccb.reserved2 = [random.next() as u8; 6],
        }
    }
    ccb
}

fn step(guest: &mut Guest, random: &mut Random) {
    match random.below(100) {
        0..55 => {
            let ccb = random_ccb(guest, random);
            guest.put(&ccb);
        }
        55..67 => guest.ring(),
        67..75 => guest.device.on_completions(guest.now),
        75..79 => {
            guest.interrupt();
            guest.acknowledge();
            guest.incoming();
        }
        79..81 => {
            let _ = guest.device.before_sleep(guest.now);
        }
        81..83 => guest.hold.set(random.below(3) == 0),
        83..85 => {
            let action = random.pick(&[action::ABORT, action::START, 3]);
            guest.put_mailbox(CCBS + random.below(1024) * 64, action);
        }
        85..87 => {
            let address = GuestAddress(LISTS + (random.below(0x1_0000) & !7));
            let element = [random.value() as u32, random.value() as u32];
            let element = if random.below(3) > 0 { [random.below(600) as u32, DATA as u32] } else { element };
            guest.memory.write_slice(element.as_bytes(), address).unwrap();
        }
        87 => {
            // A command, whole or not.
            guest.write(reg::DATA, random.next() as u8);
            (0..random.below(7)).for_each(|_| guest.write(reg::DATA, random.next() as u8));
            for _ in 0..random.below(40) {
                guest.read(reg::DATA);
            }
        }
        88 => {
            let value = if random.below(4) > 0 { 0x10 } else { random.next() as u8 };
            guest.write(reg::STATUS_CONTROL, value);
        }
        89..91 => {
            let mut data = [0; 8];
            let len = random.pick(&[1, 2, 4, 8]);
            guest.device.bar_read(random.below(3) as u8, random.value(), &mut data[..len], guest.now);
        }
        91 => random.write_config(&mut guest.device, 4096),
        92 => {
            let address = Address { target: random.below(17) as u8, lun: random.below(3) as u16 };
            if random.below(2) == 0 {
                let _ = guest.device.attach(address, unit(&guest.hold));
            } else if address.target != 0 {
                guest.device.detach(address, guest.now);
            }
        }
        93 => guest.device.set_coalescing(Coalescing::policy(random.policy())),
        94 => {
            // Occupied mailboxes that should be free, and free ones that should be occupied.
            let at = MAILBOXES + random.below(u64::from(COUNT) * 16);
            guest.memory.write_obj(random.below(3) as u8, GuestAddress(at)).unwrap();
        }
        95 if random.below(8) == 0 => {
            guest.write(reg::STATUS_CONTROL, if random.below(2) == 0 { 0x80 } else { 0x40 });
            // The guest must not see completions of the disks from here on.
            guest.writes_nothing(|guest| {
                guest.hold.set(false);
                guest.device.on_completions(guest.now);
            });
            guest.bring_up();
        }
        _ => guest.now.0 += random.below(5_000_000),
    }
}

#[test]
fn anything_goes_and_a_clean_start_follows() {
    for (seed, tasks) in seeds(256) {
        let mut random = Random::new(seed);
        let coalescing = Coalescing::policy(Policy::Batch);
        let mut guest = Guest::up(Config { coalescing, tasks });
        for _ in 0..STEPS {
            step(&mut guest, &mut random);
            let stats = guest.device.stats();
            assert_eq!(
                stats.requests,
                stats.completions + (guest.device.engine.unanswered() + guest.device.resets.len() as u64)
            );
        }
        let stats = guest.device.stats();
        assert!(stats.requests > 2000 && stats.completions > 2000, "the test lost its guest: {stats:?}");
        guest.hold.set(false);
        guest.device.reset(guest.now);
        guest.device.config_write(4, &3u16.to_le_bytes());
        guest.bring_up();
        guest.clear_unit_attention(&[0]);
        guest.check_io();
        assert_eq!(guest.device.engine.in_flight.count(), 0);
        let stats = guest.device.stats();
        assert_eq!(stats.requests, stats.completions);
    }
}

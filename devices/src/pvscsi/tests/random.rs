//! A guest that writes random values anywhere, then initializes the adapter, which must work.

use super::*;
use crate::device::HotPlug;
use crate::testing::{Random, seeds};

fn random_request(guest: &Guest, random: &mut Random) -> RingReqDesc {
    let mut request = match random.below(4) {
        0 => guest.request(&[random.next() as u8; 6]),
        1 => guest.transfer(random.below(2) == 0, random.value() as u32, random.below(9) as u16),
        _ => guest.transfer(random.below(2) == 0, random.below(2048) as u32, random.below(17) as u16),
    };
    // Data are mostly outside the rings.
    request.data_addr = random.data_address().into();
    for _ in 0..random.below(3) {
        match random.below(11) {
            0 => request.data_addr = random.value().into(),
            1 => request.data_len = random.value().into(),
            2 => request.sense_addr = random.value().into(),
            3 => request.sense_len = (random.value() as u32).into(),
            4 => request.flags = (random.below(32) as u32).into(),
            5 => request.cdb_len = random.value() as u8,
            6 => request.lun[random.below(8) as usize] = random.next() as u8,
            7 => request.target = random.value() as u8,
            8 => request.cdb[random.below(16) as usize] = random.next() as u8,
            9 => request.tag = random.next() as u8,
            _ => request.context = random.value().into(),
        }
    }
    request
}

fn random_command(guest: &mut Guest, random: &mut Random) {
    let number = random.below(12) as u32;
    let mut descriptor = match number {
        command::SETUP_RINGS if random.below(4) > 0 => {
            guest.pages = 1 << random.below(3);
            guest.set_up();
            return;
        }
        command::SETUP_RINGS => setup_rings(random.below(34) as u32).as_bytes().to_vec(),
        _ => (0..random.below(140)).map(|_| random.value() as u8).collect(),
    };
    if let Some(byte) = descriptor.get_mut(random.below(600) as usize) {
        *byte = random.next() as u8;
    }
    guest.command(number, &descriptor);
}

fn step(guest: &mut Guest, random: &mut Random) {
    match random.below(100) {
        0..60 => {
            let request = random_request(guest, random);
            guest.put(&request);
        }
        60..72 => guest.kick(),
        72..80 => guest.device.on_completions(guest.now),
        80..84 => drop(guest.completions()),
        84..86 => {
            let _ = guest.device.before_sleep(guest.now);
        }
        86..88 => guest.hold.set(random.below(3) == 0),
        88..90 => guest.set_state(random.below(36) as usize * 4, random.value() as u32),
        90 => random_command(guest, random),
        91..93 => {
            let len = random.pick(&[1, 2, 4, 8]);
            let offset = random.below(0x8100) & !3;
            let data = random.next().to_le_bytes();
            guest.device.bar_write(random.below(3) as u8, offset, &data[..len], guest.now);
        }
        93 => {
            let mut data = [0; 8];
            guest.device.bar_read(random.below(3) as u8, random.value(), &mut data[..4], guest.now);
        }
        94 => {
            random.write_config(&mut guest.device, 4096);
            guest.device.config_write(4, &6u16.to_le_bytes());
        }
        95 => {
            let address = Address { target: random.below(64) as u8, lun: 0 };
            if random.below(2) == 0 {
                let _ = guest.device.attach(address, unit(&guest.hold));
            } else if address.target != 0 {
                guest.device.detach(address, guest.now);
            }
        }
        96 => guest.device.set_coalescing(Coalescing::policy(random.policy())),
        97 => {
            // Random content of scatter lists and rings.
            let address = random.below(DATA) & !7;
            let _ = guest.memory.write_obj(random.value(), GuestAddress(address));
        }
        98 if random.below(8) == 0 => {
            guest.command(command::ADAPTER_RESET, &[]);
            // The guest must not see completions of the disks from here on.
            guest.writes_nothing(|guest| {
                guest.hold.set(false);
                guest.device.on_completions(guest.now);
            });
            guest.set_up();
        }
        _ => guest.now.0 += random.below(5_000_000),
    }
}

fn run(seed: u64, steps: u32, tasks: u32) -> Guest {
    let mut random = Random::new(seed);
    let coalescing = Coalescing::policy(Policy::Batch);
    let mut guest = Guest::up(1, Config { coalescing, tasks, ..Config::default() });
    for _ in 0..steps {
        step(&mut guest, &mut random);
        let stats = guest.device.stats();
        assert_eq!(stats.requests, stats.completions + guest.device.engine.unanswered());
    }
    guest
}

#[test]
fn anything_goes_and_a_clean_start_follows() {
    for (seed, tasks) in seeds(1024) {
        let mut guest = run(seed, 50_000, tasks);
        let stats = guest.device.stats();
        let least = if tasks > 4 { 5_000 } else { 2_000 };
        assert!(stats.requests > least && stats.completions > least, "the test lost its guest: {stats:?}");
        guest.hold.set(false);
        guest.device.reset(guest.now);
        guest.device.config_write(4, &6u16.to_le_bytes());
        guest.pages = 1;
        assert_eq!(guest.set_up(), COMMAND_SUCCEEDED);
        guest.write(REG_INTR_MASK, 0xf);
        guest.clear_unit_attention(&[0]);
        guest.check_io();
        assert_eq!(guest.device.engine.in_flight.count(), 0);
        let stats = guest.device.stats();
        assert_eq!(stats.requests, stats.completions);
    }
}

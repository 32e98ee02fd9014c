//! A guest that writes random values anywhere, then initializes the adapter, which must work.

use super::*;
use crate::testing::{Random, effort};

const CODES: [u8; 24] = [
    command::READ_DMA,
    command::READ_DMA_EXT,
    command::WRITE_DMA,
    command::WRITE_DMA_EXT,
    command::READ_SECTORS,
    command::WRITE_SECTORS,
    command::READ_SECTORS_EXT,
    command::WRITE_SECTORS_EXT,
    command::READ_MULTIPLE,
    command::WRITE_MULTIPLE,
    command::READ_MULTIPLE_EXT,
    command::WRITE_MULTIPLE_EXT,
    command::READ_VERIFY,
    command::FLUSH_CACHE,
    command::DATA_SET_MANAGEMENT,
    command::IDENTIFY,
    command::SET_FEATURES,
    command::SET_MULTIPLE,
    command::SMART,
    command::READ_NATIVE_MAX_EXT,
    command::INITIALIZE_PARAMETERS,
    command::DIAGNOSTIC,
    command::RECALIBRATE,
    0xe0,
];

fn random_command(guest: &mut Guest, random: &mut Random) {
    let mut code = random.pick(&CODES);
    if random.below(20) == 0 {
        code = random.next() as u8;
    }
    let lba = if random.below(8) == 0 { random.value() } else { random.below(SECTORS) };
    let count = if random.below(8) == 0 { random.value() } else { random.below(40) };
    let features = [1, 3, 2, 0x82, 0xd0, random.next() as u8][random.below(6) as usize];
    guest.slave = random.below(4) == 0;
    match random.below(3) {
        0 => guest.command48(code, features.into(), lba & 0xffff_ffff_ffff, count as u16),
        _ => guest.command28(code, features, lba as u32 & 0x0fff_ffff, count as u8),
    }
}

fn random_table(guest: &mut Guest, random: &mut Random) {
    let regions: Vec<_> = (0..1 + random.below(4))
        .map(|_| match random.below(8) {
            0 => (random.value(), random.value()),
            _ => (DATA + random.below(MIB - 0x1_0000), random.below(0x1_0000)),
        })
        .collect();
    guest.set_table(&regions);
    if random.below(16) == 0 {
        let table = random.value() as u32;
        guest.bm_write(bm::TABLE, &table.to_le_bytes());
    }
}

fn step(guest: &mut Guest, random: &mut Random) {
    guest.channel = random.below(2) as u8;
    match random.below(100) {
        0..25 => random_command(guest, random),
        25..35 => random_table(guest, random),
        35..45 => guest.start_engine(random.below(2) == 0),
        45..48 => guest.bm_write(bm::COMMAND, &[random.next() as u8]),
        48..55 => drop(guest.read_block(random.below(5000) as usize)),
        55..65 => guest.write_block(&vec![random.next() as u8; random.below(5000) as usize]),
        65..75 => drop((guest.bm_read(bm::STATUS), guest.in_byte(reg::STATUS))),
        75..80 => guest.device.on_completions(guest.now),
        80..82 => guest.hold.set(random.below(3) == 0),
        82..84 => {
            let _ = guest.device.before_sleep(guest.now);
        }
        84..89 => {
            let data = random.next().to_le_bytes();
            let len = random.pick(&[1, 2, 4]);
            let (bar, offset) = (random.below(6) as u8, random.below(18));
            guest.device.bar_write(bar, offset, &data[..len], guest.now);
        }
        89..93 => {
            let mut data = [0; 4];
            let len = random.pick(&[1, 2, 4]);
            let offset = if random.below(8) == 0 { random.value() } else { random.below(18) };
            guest.device.bar_read(random.below(6) as u8, offset, &mut data[..len], guest.now);
        }
        93 => {
            let mut data = vec![random.next() as u8; random.below(100) as usize];
            let (bar, width) = (random.below(6) as u8, random.below(6) as usize);
            guest.device.port_write_string(bar, random.below(8), width, &data, guest.now);
            guest.device.port_read_string(bar, random.below(8), width, &mut data, guest.now);
        }
        94 => guest.control(random.next() as u8 & 0x8e),
        95 => guest.control(8),
        96 => {
            random.write_config(&mut guest.device, 256);
            guest.device.config_write(4, &5u16.to_le_bytes());
        }
        97 => {
            let range = random.below(MEMORY_END)..MEMORY_END;
            guest.device.uses_memory(std::slice::from_ref(&range), guest.now);
        }
        98 if random.below(8) == 0 => guest.device.quiesce(guest.now),
        _ => {
            // Random content of the tables.
            let _ = guest.memory.write_obj(random.value(), GuestAddress(TABLE + 8 * random.below(64)));
        }
    }
}

#[test]
fn anything_goes_and_a_clean_start_follows() {
    for seed in 1..=3 * effort() {
        let mut random = Random::new(seed);
        let setup = match seed % 3 {
            0 => Setup { drives: [true; 4], ..USUAL },
            1 => USUAL,
            _ => Setup { mode: Mode::Native, ..USUAL },
        };
        let mut guest = Guest::with(setup);
        for _ in 0..20_000 {
            step(&mut guest, &mut random);
        }
        let stats = guest.device.stats();
        assert!(stats.requests > 400 && stats.completions > 400, "the test lost its guest: {stats:?}");
        assert!(stats.completions - stats.errors > 100, "{stats:?}");
        guest.hold.set(true);
        for channel in 0..2 {
            guest.channel = channel;
            guest.control(0xc);
            guest.control(8);
        }
        guest.hold.set(false);
        guest.serve();
        // Requests that were in flight have ended, and nothing is written any more.
        guest.writes_nothing(Guest::serve);
        for target in [0, 1, 2] {
            guest.select(target);
            assert_eq!((guest.alternate_status(), guest.line()), (GOOD, false), "seed {seed}, {target}");
            guest.bm_write(bm::COMMAND, &[0]);
            guest.bm_write(bm::STATUS, &[6]);
            guest.check_io();
        }
        guest.device.reset(guest.now);
        guest.device.config_write(4, &5u16.to_le_bytes());
        guest.select(0);
        guest.check_io();
    }
}

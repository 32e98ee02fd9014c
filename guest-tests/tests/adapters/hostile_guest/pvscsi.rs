//! PVSCSI: commands, registers, and both rings.

use guest_driver::loadgen::Rng;
use guest_driver::pvscsi::{Options, spec};
use guest_driver::{Platform, Pvscsi};
use guest_tests::{Harness, HarnessConfig, Machine};
use vm_memory::{Bytes, GuestAddress};

use super::{
    COMMAND, Hostile, MEMORY, MEMORY_AND_BUS_MASTER, config_space, layout, value, withstands, write,
};
use crate::common::{DiskSpec, harness};

#[test]
fn no_guest_can_break_the_device() {
    withstands::<Pvscsi>();
}

impl Hostile for Pvscsi {
    const STREAM: u32 = 0;
    const RECOVERY: usize = 100;
    /// Of the rings' state and of the request ring.
    type Places = (u64, u64);

    fn set_up(config: &HarnessConfig, seed: u32, rng: &mut Rng) -> (Harness<Self>, Options) {
        let options = Options { ring_pages: 1 << rng.below(3), layout: layout(seed), ..Default::default() };
        (harness(config, options, &[DiskSpec::Ram(1 << 20)]), options)
    }

    fn places(&self, _: &mut Machine) -> (u64, u64) {
        self.ring_addresses()
    }

    fn attack(&mut self, machine: &mut Machine, rng: &mut Rng, &(state, requests): &(u64, u64)) {
        match rng.below(64) {
            0 => command(machine, rng),
            1 => config_space(machine, rng, 4096),
            2..10 => register(machine, rng),
            _ => rings(machine, rng, state, requests),
        }
    }

    fn recover(&mut self, machine: &mut Machine) {
        machine.config_write(COMMAND, MEMORY_AND_BUS_MASTER);
        let _ = self.reset_adapter(machine);
    }
}

/// A register write that the device knows, or any.
fn register(machine: &mut Machine, rng: &mut Rng) {
    const REGISTERS: [u64; 8] = [
        spec::COMMAND,
        spec::COMMAND_DATA,
        spec::COMMAND_DATA,
        spec::INTR_STATUS,
        spec::INTR_MASK,
        spec::KICK_NON_RW_IO,
        spec::KICK_RW_IO,
        0x6000,
    ];
    let any = rng.below(0x8000) & !3;
    let offset = REGISTERS.get(rng.below(12) as usize).copied().unwrap_or(any);
    let value = if offset == spec::COMMAND { rng.below(12) } else { value(rng) } as u32;
    machine.write32(0, offset, value);
    machine.read32(0, any);
}

/// A whole command with a descriptor of any content.
fn command(machine: &mut Machine, rng: &mut Rng) {
    machine.write32(0, spec::COMMAND, rng.below(12) as u32);
    for _ in 0..rng.below(140) {
        // Page numbers mostly inside memory.
        let dword = if rng.below(2) == 0 { rng.below(MEMORY as u64 >> 12) as u32 } else { value(rng) as u32 };
        machine.write32(0, spec::COMMAND_DATA, if rng.below(3) == 0 { 0 } else { dword });
    }
}

/// Spoil what the device reads next: the state page's indices and the entries of the request ring.
fn rings(machine: &Machine, rng: &mut Rng, state: u64, requests: u64) {
    for _ in 0..rng.below(4) {
        let entry = requests + rng.below(64) * spec::REQUEST_SIZE as u64;
        let spoiled = rng.below(16) * 8;
        write(machine, entry + spoiled, value(rng));
        if rng.below(4) == 0 {
            const OPERATION_CODES: [u64; 16] = [
                0x00, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x1a, 0x28, 0x2a, 0x41, 0x42, 0x5e, 0x88, 0x89, 0x93,
                0xa0,
            ];
            let code = OPERATION_CODES[rng.below(16) as usize];
            write(machine, entry + spec::REQ_CDB as u64, code | value(rng) << 16);
            write(machine, entry + spec::REQ_CDB_LEN_LUN as u64, rng.below(20));
            let len = rng.next() >> (40 + rng.below(24));
            write(machine, entry + spec::REQ_DATA_LEN as u64, len);
        }
    }
    if rng.below(2) == 0 {
        let _ = machine.memory().read_obj::<u32>(GuestAddress(state)).map(|producer| {
            let next = producer.wrapping_add(rng.below(40) as u32);
            let _ = machine.memory().write_obj(next, GuestAddress(state));
        });
    } else if rng.below(8) == 0 {
        let field = [
            spec::REQ_PROD_IDX,
            spec::REQ_CONS_IDX,
            spec::CMP_PROD_IDX,
            spec::CMP_CONS_IDX,
            spec::MSG_CONS_IDX,
        ];
        let at = state + field[rng.below(5) as usize] as u64;
        let _ = machine.memory().write_obj(value(rng) as u32, GuestAddress(at));
    }
}

//! BusLogic: registers and commands, mailboxes, CCBs.

use guest_driver::adapter::Adapter as _;
use guest_driver::buslogic::{Options, spec};
use guest_driver::loadgen::Rng;
use guest_driver::{BusLogic, Platform};
use guest_tests::{Harness, HarnessConfig, Machine};
use vm_memory::{Bytes, GuestAddress};

use super::{COMMAND, Hostile, config_space, disk, layout, request, value, withstands, write};
use crate::common::buslogic_harness;

const MEMORY_SPACE: u32 = 2;

#[test]
fn no_guest_can_break_the_device() {
    withstands::<BusLogic>();
}

/// Addresses of the mailboxes, the CCBs and the data.
pub(crate) struct Places {
    mailboxes: u64,
    ccbs: u64,
    data: u64,
}

impl Hostile for BusLogic {
    const STREAM: u32 = 3;
    const RECOVERY: usize = 20;
    type Places = Places;

    fn set_up(config: &HarnessConfig, seed: u32, rng: &mut Rng) -> (Harness<Self>, Options) {
        let options = Options { mailboxes: 8 << rng.below(5), layout: layout(seed), ..Options::default() };
        (buslogic_harness(config, options, &[disk(seed / 2)]), options)
    }

    fn places(&self, machine: &mut Machine) -> Places {
        let (mailboxes, ccbs) = self.addresses();
        Places { mailboxes, ccbs, data: machine.dma(4096, 4096).unwrap().address() }
    }

    fn attack(&mut self, machine: &mut Machine, rng: &mut Rng, places: &Places) {
        let slots = u64::from(self.slots());
        // One mailbox of each kind stays free.
        let mailboxes = slots + 1;
        match rng.below(64) {
            0 => registers(machine, rng),
            1 => config_space(machine, rng, 256),
            2..40 => request(machine, rng, self, places.data),
            40..43 => {
                self.abort(machine, rng.below(slots) as u32);
            }
            43..45 => {
                let place = rng.below(mailboxes * 2);
                spoil(machine, rng, places.mailboxes + place * 8);
            }
            _ => {
                let ccb = places.ccbs + rng.below(mailboxes) * 64;
                let place = ccb + rng.below(5) * 8;
                spoil(machine, rng, place);
            }
        }
    }

    fn recover(&mut self, machine: &mut Machine) {
        machine.config_write(COMMAND, MEMORY_SPACE);
        let _ = self.reset_adapter(machine);
    }
}

/// Overwrite 8 bytes, mostly with something like what was there.
fn spoil(machine: &Machine, rng: &mut Rng, address: u64) {
    let before = machine.memory().read_obj::<u64>(GuestAddress(address)).unwrap_or_default();
    let spoiled = if rng.below(2) == 0 { value(rng) } else { before ^ 1 << rng.below(64) };
    write(machine, address, spoiled);
}

/// A register, a command or a part of one.
fn registers(machine: &mut Machine, rng: &mut Rng) {
    match rng.below(4) {
        0 => machine.write(1, rng.below(32), 1, value(rng) as u32 & 0x3f),
        1 => machine.write(1, rng.below(8) * 4, 4, value(rng) as u32),
        _ => {
            machine.write(1, spec::DATA, 1, rng.next() as u32 & 0xff);
            for _ in 0..rng.below(7) {
                machine.write(1, spec::DATA, 1, value(rng) as u32);
            }
            for _ in 0..rng.below(40) {
                machine.read(1, spec::DATA, 1);
            }
        }
    }
    machine.read(1, rng.below(32), 1);
}

//! Tasks that try the machine itself, with the test device of `tests/kvm.rs` in slot 1.

use core::arch::asm;

use guest_driver::Platform;

use crate::abi::{FUNCTION_MECHANISM1, Job, task};
use crate::entry::config_read_mechanism1;
use crate::machine::Machine;

/// Do the task; its results are in the job.
pub fn run(machine: &mut Machine, job: &mut Job) {
    let [first, second] = job.argument;
    job.result = match job.task {
        task::CONFIG => config(machine, first as u32),
        task::PING => ping(machine, first, second),
        task::WRITE => {
            let start = machine.ticks();
            (0..first).for_each(|count| machine.write32(0, second, count as u32));
            [machine.ticks() - start, 0, 0, 0]
        }
        task::READ => {
            let start = machine.ticks();
            let value = (0..first).fold(0, |_, _| machine.read32(0, second));
            [machine.ticks() - start, value.into(), 0, 0]
        }
        task::WAKE => {
            for _ in 0..first {
                sleep(machine);
                let now = machine.ticks();
                machine.write32(0, second, now as u32);
            }
            [0; 4]
        }
        task::SPIN => loop {
            core::hint::spin_loop();
        },
        // SAFETY: not safe: the host wants to see the fault.
        task::TOUCH => [unsafe { (first as *const u8).read_volatile() }.into(), 0, 0, 0],
        task::PANIC => panic!("asked to, with {first:#x}"),
        task::UNDEFINED => {
            // SAFETY: it faults, and the host ends the guest.
            unsafe { asm!("ud2") };
            [0; 4]
        }
        task::ROUTE => {
            let (address, data) = machine.msi_message();
            machine.write32(0, first, address as u32);
            machine.write32(0, second, data);
            [0; 4]
        }
        task::MOVE => {
            machine.config_write(0x10, first as u32);
            [machine.config_read(0x10).into(), 0, 0, 0]
        }
        other => panic!("no task {other}"),
    };
}

fn config(machine: &mut Machine, dwords: u32) -> [u64; 4] {
    let mut different = 0;
    for index in 0..dwords {
        let window = machine.config_read(4 * index as u16);
        different += u64::from(window != config_read_mechanism1(FUNCTION_MECHANISM1 + 4 * index));
    }
    [different, machine.config_read(0).into(), 0, 0]
}

fn ping(machine: &mut Machine, count: u64, doorbell: u64) -> [u64; 4] {
    let (mut all, mut fewest, mut most) = (0, u64::MAX, 0);
    let before = machine.interrupts();
    for _ in 0..count {
        let seen = machine.interrupts();
        let start = machine.ticks();
        machine.write32(0, doorbell, 1);
        while machine.interrupts() == seen {
            machine.wait_interrupt(seen);
        }
        let took = machine.ticks() - start;
        all += took;
        fewest = fewest.min(took);
        most = most.max(took);
    }
    [all, fewest, most, machine.interrupts().wrapping_sub(before).into()]
}

/// Sleep until one more interrupt came.
fn sleep(machine: &mut Machine) {
    let seen = machine.interrupts();
    while machine.interrupts() == seen {
        machine.wait_interrupt(seen);
    }
}

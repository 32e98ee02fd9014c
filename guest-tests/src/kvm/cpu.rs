//! Where the CPU time of a job went: threads' clocks, divided by what the kernel's accounting saw each thread doing.

use std::io;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use vmm::{DeviceId, Machine, ThreadTime};

use crate::rig::CpuSplit;

/// Fewer samples of 1/100 s than these divide nothing.
const ENOUGH_SAMPLES: u64 = 10;

/// CPU time so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clocks {
    /// All threads, those that have ended and the kernel's I/O workers included.
    process: Duration,
    /// The thread that asks and waits.
    caller: Duration,
    vcpu: ThreadTime,
    io: ThreadTime,
}

impl Clocks {
    pub(super) fn now(machine: &Machine, device: DeviceId) -> io::Result<Self> {
        let read = |clock| {
            let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
            Duration::new(tv_sec as u64, tv_nsec as u32)
        };
        let of = |tid: Option<u32>| tid.map_or(Ok(ThreadTime::default()), ThreadTime::of);
        Ok(Self {
            vcpu: of(machine.vcpu_tids().first().copied())?,
            io: of(machine.io_thread_tid(device))?,
            process: read(ClockId::ProcessCPUTime),
            caller: read(ClockId::ThreadCPUTime),
        })
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self {
            process: self.process.saturating_sub(earlier.process),
            caller: self.caller.saturating_sub(earlier.caller),
            vcpu: self.vcpu.since(&earlier.vcpu),
            io: self.io.since(&earlier.io),
        }
    }
}

/// Divide what was spent; `submit_ticks`: of the device's queues in system calls.
pub(super) fn split(spent: &Clocks, submit_ticks: u64, to_ticks: impl Fn(Duration) -> u64) -> CpuSplit {
    let (vcpu, io) = (to_ticks(spent.vcpu.on_cpu), to_ticks(spent.io.on_cpu));
    let others = spent.process.saturating_sub(spent.caller + spent.vcpu.on_cpu + spent.io.on_cpu);
    let guest = share(vcpu, spent.vcpu.guest, spent.vcpu.user + spent.vcpu.system).unwrap_or(vcpu);
    let kernel = share(io, spent.io.system, spent.io.user + spent.io.system).unwrap_or(submit_ticks.min(io));
    let others = to_ticks(others);
    CpuSplit {
        total: vcpu + io + others,
        guest,
        exit: vcpu - guest,
        device: io - kernel,
        kernel: kernel + others,
    }
}

/// `part` in `all` of `ticks`; `None` with too few samples.
fn share(ticks: u64, part: u64, all: u64) -> Option<u64> {
    if all < ENOUGH_SAMPLES {
        return None;
    }
    Some((u128::from(ticks) * u128::from(part.min(all)) / u128::from(all)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        let ms = Duration::from_millis;
        let thread = |on_cpu, user, system, guest| ThreadTime { on_cpu: ms(on_cpu), user, system, guest };
        let spent = Clocks {
            process: ms(2000),
            caller: ms(100),
            vcpu: thread(1000, 90, 10, 60),
            io: thread(800, 60, 20, 0),
        };
        let cpu = split(&spent, 0, |time| time.as_millis() as u64);
        assert_eq!([cpu.total, cpu.guest, cpu.exit, cpu.device, cpu.kernel], [1900, 600, 400, 600, 300]);
        let short = Clocks { io: thread(50, 3, 2, 0), vcpu: thread(40, 4, 0, 4), ..Clocks::default() };
        let cpu = split(&short, 30, |time| time.as_millis() as u64);
        assert_eq!([cpu.total, cpu.guest, cpu.exit, cpu.device, cpu.kernel], [90, 40, 0, 20, 30]);
    }
}

//! CPU time by component: threads' clocks, split in proportion to the kernel's samples of each thread.

use std::io;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::machine::{DeviceId, Machine};
use crate::thread_time::ThreadTime;

/// Below this many 10 ms samples, the samples are not used.
const ENOUGH_SAMPLES: u64 = 10;

/// CPU time by component, in time-stamp-counter ticks, over all threads of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuSplit {
    /// Total.
    pub total: u64,
    /// Code of the guest.
    pub guest: u64,
    /// Exits, entries and the handling of exits on the virtual CPUs' threads.
    pub exit: u64,
    /// Device model: adapter, SCSI target, disk format, queue; user mode.
    pub device: u64,
    /// Kernel on the devices' behalf: system calls of I/O threads, I/O workers.
    pub kernel: u64,
}

/// CPU time so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuClocks {
    /// All threads, including threads that have ended and the kernel's I/O workers.
    process: Duration,
    /// The calling thread.
    caller: Duration,
    vcpu: ThreadTime,
    io: ThreadTime,
}

impl CpuClocks {
    /// CPU time of a machine's virtual CPUs and of these devices.
    ///
    /// # Errors
    /// A thread has ended, or the kernel does not report its time.
    pub fn now(machine: &Machine, devices: &[DeviceId]) -> io::Result<Self> {
        let read = |clock| {
            let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
            Duration::new(tv_sec as u64, tv_nsec as u32)
        };
        let mut io = ThreadTime::default();
        for device in devices {
            io = io.and(&machine.io_thread_time(*device)?);
        }
        Ok(Self {
            vcpu: machine.vcpu_time()?,
            io,
            process: read(ClockId::ProcessCPUTime),
            caller: read(ClockId::ThreadCPUTime),
        })
    }

    /// CPU time since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            process: self.process.saturating_sub(earlier.process),
            caller: self.caller.saturating_sub(earlier.caller),
            vcpu: self.vcpu.since(&earlier.vcpu),
            io: self.io.since(&earlier.io),
        }
    }

    /// Split by component. `submit_ticks` is the time of the devices' queues in system calls, which is used if the time
    /// is too short to be sampled.
    pub fn split(&self, submit_ticks: u64, to_ticks: impl Fn(Duration) -> u64) -> CpuSplit {
        let (vcpu, io) = (to_ticks(self.vcpu.on_cpu), to_ticks(self.io.on_cpu));
        let others = self.process.saturating_sub(self.caller + self.vcpu.on_cpu + self.io.on_cpu);
        let guest = share(vcpu, self.vcpu.guest, self.vcpu.user + self.vcpu.system).unwrap_or(vcpu);
        let kernel = share(io, self.io.system, self.io.user + self.io.system).unwrap_or(submit_ticks.min(io));
        let others = to_ticks(others);
        CpuSplit {
            total: vcpu + io + others,
            guest,
            exit: vcpu - guest,
            device: io - kernel,
            kernel: kernel + others,
        }
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
        let spent = CpuClocks {
            process: ms(2000),
            caller: ms(100),
            vcpu: thread(1000, 90, 10, 60),
            io: thread(800, 60, 20, 0),
        };
        let cpu = spent.split(0, |time| time.as_millis() as u64);
        assert_eq!([cpu.total, cpu.guest, cpu.exit, cpu.device, cpu.kernel], [1900, 600, 400, 600, 300]);
        let short = CpuClocks { io: thread(50, 3, 2, 0), vcpu: thread(40, 4, 0, 4), ..CpuClocks::default() };
        let cpu = short.split(30, |time| time.as_millis() as u64);
        assert_eq!([cpu.total, cpu.guest, cpu.exit, cpu.device, cpu.kernel], [90, 40, 0, 20, 30]);
    }
}

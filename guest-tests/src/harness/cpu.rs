//! The CPU time of a job by component.

use std::time::Duration;

use facts::tsc::{ticks, to_ticks};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::stopwatch::Meter;
use crate::rig::CpuSplit;

/// CPU time so far, and the time-stamp counter.
///
/// The process's clock counts all its threads, including threads that have ended and the kernel's I/O workers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    process: Duration,
    thread: Duration,
    ticks: u64,
}

impl Clocks {
    pub(super) fn now() -> Self {
        let read = |clock| {
            let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
            Duration::new(tv_sec as u64, tv_nsec as u32)
        };
        Self { process: read(ClockId::ProcessCPUTime), thread: read(ClockId::ThreadCPUTime), ticks: ticks() }
    }

    /// CPU time since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self {
            process: self.process.saturating_sub(earlier.process),
            thread: self.thread.saturating_sub(earlier.thread),
            ticks: self.ticks - earlier.ticks,
        }
    }
}

/// Split CPU time by the meter's wall-clock ticks. `submit_ticks` are those in system calls inside device calls.
///
/// The total excludes the measurement's own time. Sleep is no CPU time, so a sleeping system call gets the time of the thread's clock
/// beyond guest and device. If the thread was preempted, guest and device have more wall-clock time than the thread has CPU time: then the
/// parts are scaled to the clock.
pub(super) fn split(spent: &Clocks, meter: &Meter, submit_ticks: u64) -> CpuSplit {
    let thread = to_ticks(spent.thread);
    let others = to_ticks(spent.process).saturating_sub(thread);
    let submit = submit_ticks.min(meter.device);
    let device = meter.device - submit;
    let guest = spent.ticks.saturating_sub(meter.device + meter.sleep + meter.overhead);
    let awake = guest + meter.device + meter.overhead;
    let sleep = thread.saturating_sub(awake).min(meter.sleep);
    let seen = (awake + sleep).max(1);
    let scaled = |part: u64| (u128::from(part) * u128::from(thread) / u128::from(seen)) as u64;
    let (guest, device) = (scaled(guest), scaled(device));
    let thread = thread.saturating_sub(scaled(meter.overhead)).max(guest + device);
    CpuSplit { total: thread + others, guest, exit: 0, device, kernel: thread - guest - device + others }
}

#[cfg(test)]
mod tests {

    use facts::tsc::tsc_hz;

    use super::*;

    fn clocks(process_ms: u64, thread_ms: u64, wall_ms: u64) -> Clocks {
        Clocks {
            process: Duration::from_millis(process_ms),
            thread: Duration::from_millis(thread_ms),
            ticks: wall_ms * tsc_hz() / 1000,
        }
    }

    fn milliseconds(ticks: u64) -> u64 {
        (ticks * 1000 + tsc_hz() / 2) / tsc_hz()
    }

    #[test]
    fn parts_add_up_whether_asleep_or_preempted() {
        let ms = tsc_hz() / 1000;
        for (spent, meter, submit, expected) in [
            // Never asleep: 100 ms, 60 of them in the device, 20 of those in system calls.
            (clocks(100, 100, 100), Meter { device: 60 * ms, sleep: 0, overhead: 0 }, 20, [40, 40, 20]),
            // 50 ms in sleeping calls, 10 of them on the CPU; 30 ms on other threads.
            (clocks(90, 60, 100), Meter { device: 30 * ms, sleep: 50 * ms, overhead: 0 }, 0, [20, 30, 40]),
            // Preempted half of the time.
            (clocks(50, 50, 100), Meter { device: 60 * ms, sleep: 0, overhead: 0 }, 20, [20, 20, 10]),
            // 10 ms of measurement count for no component.
            (clocks(100, 100, 100), Meter { device: 60 * ms, sleep: 0, overhead: 10 * ms }, 20, [30, 40, 20]),
            (clocks(50, 50, 100), Meter { device: 60 * ms, sleep: 0, overhead: 10 * ms }, 20, [15, 20, 10]),
        ] {
            let cpu = split(&spent, &meter, submit * ms);
            assert_eq!([cpu.guest, cpu.device, cpu.kernel].map(milliseconds), expected, "{spent:?}");
            assert_eq!(cpu.guest + cpu.device + cpu.kernel, cpu.total);
        }
    }
}

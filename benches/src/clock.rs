//! CPU time, and ticks in microseconds.

use std::time::Duration;

use facts::tsc::tsc_hz;
use rustix::time::{ClockId, clock_gettime};

/// CPU time of the calling thread so far.
#[must_use]
pub fn thread_cpu() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// CPU time of all threads of this process, including the kernel's I/O workers for it.
#[must_use]
pub fn process_cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// Ticks of the time-stamp counter in microseconds.
#[must_use]
pub fn to_us(ticks: u64) -> f64 {
    ticks as f64 * 1e6 / tsc_hz() as f64
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_agree() {
        assert!((to_us(tsc_hz()) - 1e6).abs() < 1.0);
        let (thread, process) = (thread_cpu(), process_cpu());
        let mut sum = 0u64;
        while thread_cpu() - thread < Duration::from_millis(2) {
            sum = std::hint::black_box(sum + 1);
        }
        // The two clocks are not read at the same moment.
        assert!(process_cpu() - process >= Duration::from_millis(1));
    }
}

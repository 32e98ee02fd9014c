//! Time-stamp counter and CPU time: the two clocks of the meter.
#![allow(unsafe_code, reason = "the time-stamp counter is read by an intrinsic")]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Time-stamp counter.
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 processor and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Frequency of the time-stamp counter in Hz, measured once (20 ms) against the monotonic clock.
#[must_use]
pub fn tsc_hz() -> u64 {
    static HZ: OnceLock<u64> = OnceLock::new();
    *HZ.get_or_init(|| {
        let (begin, ticks_at_begin) = (Instant::now(), ticks());
        std::thread::sleep(Duration::from_millis(20));
        let (elapsed, counted) = (begin.elapsed(), ticks().wrapping_sub(ticks_at_begin));
        (u128::from(counted) * 1_000_000_000 / elapsed.as_nanos().max(1)) as u64
    })
}

/// CPU time of the calling thread so far.
#[must_use]
pub fn thread_cpu() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// CPU time of all threads of this process so far, the kernel's I/O workers for it among them.
#[must_use]
pub fn process_cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// A time in ticks of the time-stamp counter.
#[must_use]
pub fn to_ticks(time: Duration) -> u64 {
    (time.as_nanos() * u128::from(tsc_hz()) / 1_000_000_000) as u64
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
        let hz = tsc_hz();
        assert!((100_000_000..20_000_000_000).contains(&hz), "{hz} Hz");
        assert_eq!(to_ticks(Duration::from_secs(2)) / 1000, hz * 2 / 1000);
        assert!((to_us(hz) - 1e6).abs() < 1.0);
        let (thread, process) = (thread_cpu(), process_cpu());
        let mut sum = 0u64;
        while thread_cpu() - thread < Duration::from_millis(2) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(process_cpu() - process >= Duration::from_millis(2));
    }
}

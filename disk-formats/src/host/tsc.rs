//! The time-stamp counter, to measure the time spent in system calls.
#![allow(unsafe_code, reason = "RDTSC is an intrinsic")]

/// The time-stamp counter; on machines other than x86-64 nanoseconds of the monotonic clock.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 and reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The time-stamp counter; on machines other than x86-64 nanoseconds of the monotonic clock.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn ticks_advance() {
        let before = super::ticks();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(super::ticks() > before);
    }
}

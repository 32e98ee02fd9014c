//! The time-stamp counter, which is the unit of all measurements, and its frequency.
#![allow(
    unsafe_code,
    reason = "reading the time-stamp counter is an intrinsic, and a loop of known instructions is assembly"
)]

use std::arch::x86_64::{__cpuid, _rdtsc};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time over which the counter is compared with the monotonic clock where CPUID does not report its frequency.
const CALIBRATION: Duration = Duration::from_millis(20);

/// The time-stamp counter now.
#[must_use]
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: x86-64 has the instruction, and Linux allows it in user mode.
    unsafe { _rdtsc() }
}

/// Ticks that a loop of two instructions takes.
fn time_of_loop(iterations: u32) -> u64 {
    let start = ticks();
    // SAFETY: changes the named register and the flags.
    unsafe { std::arch::asm!("2: dec {0:e}", "jnz 2b", inout(reg) iterations => _, options(nomem, nostack)) };
    ticks() - start
}

/// Ticks in a second: as CPUID reports (the processor's leaf 15h or a hypervisor's leaf 4000_0010h), else measured against
/// the monotonic clock. Determined once; the first call may take 20 ms.
#[must_use]
pub fn tsc_hz() -> u64 {
    static HZ: OnceLock<u64> = OnceLock::new();
    *HZ.get_or_init(|| from_processor().or_else(from_hypervisor).unwrap_or_else(calibrate))
}

/// Whether the counter counts instructions, as on an emulated processor whose clock counts them (QEMU's `-icount shift=0`).
#[must_use]
pub fn counts_instructions() -> bool {
    const ITERATIONS: [u32; 4] = [1000, 1700, 2900, 4100];
    /// Several, because a timer interrupt may occur during a try.
    const TRIES: usize = 5;
    let took = ITERATIONS.map(|number| (0..TRIES).map(|_| time_of_loop(number)).min().unwrap_or_default());
    let instructions = ITERATIONS.map(|number| 2 * u64::from(number));
    // If the counter counts instructions, what is counted beside the loop is the same for each length. A real processor executes both
    // instructions of an iteration in about one cycle.
    let around = took.iter().zip(instructions).map(|(took, number)| took.checked_sub(number));
    let around: Vec<_> = around.collect();
    around.iter().all(|each| each.is_some() && *each == around[0])
}

/// A duration in ticks.
#[must_use]
pub fn to_ticks(duration: Duration) -> u64 {
    (duration.as_nanos() * u128::from(tsc_hz()) / 1_000_000_000) as u64
}

fn from_processor() -> Option<u64> {
    if __cpuid(0).eax < 0x15 {
        return None;
    }
    let leaf = __cpuid(0x15);
    let (denominator, numerator, crystal) = (u64::from(leaf.eax), u64::from(leaf.ebx), u64::from(leaf.ecx));
    if numerator == 0 || crystal == 0 {
        return None;
    }
    (crystal * numerator).checked_div(denominator)
}

fn from_hypervisor() -> Option<u64> {
    const HYPERVISOR_PRESENT: u32 = 1 << 31;
    if __cpuid(1).ecx & HYPERVISOR_PRESENT == 0
        || !(0x4000_0010..0x4001_0000).contains(&__cpuid(0x4000_0000).eax)
    {
        return None;
    }
    let kilohertz = u64::from(__cpuid(0x4000_0010).eax);
    (kilohertz != 0).then_some(kilohertz * 1000)
}

fn calibrate() -> u64 {
    let (start_ticks, start) = reading();
    while start.elapsed() < CALIBRATION {
        std::hint::spin_loop();
    }
    let (end_ticks, end) = reading();
    let nanoseconds = end.duration_since(start).as_nanos();
    (u128::from(end_ticks - start_ticks) * 1_000_000_000 / nanoseconds) as u64
}

/// Both clocks at once: of several tries the one that took least, so that an interruption between them does not count.
fn reading() -> (u64, Instant) {
    let mut best = (u64::MAX, 0, Instant::now());
    for _ in 0..16 {
        let before = ticks();
        let instant = Instant::now();
        let took = ticks() - before;
        if took < best.0 {
            best = (took, before + took / 2, instant);
        }
    }
    (best.1, best.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequency_agrees_with_the_monotonic_clock() {
        let measured = calibrate() as f64;
        let told = tsc_hz() as f64;
        assert!((measured / told - 1.0).abs() < 0.01, "measured {measured}, used {told}");
        assert_eq!(to_ticks(Duration::from_secs(2)), tsc_hz() * 2);
    }

    #[test]
    fn a_processor_does_not_count_instructions() {
        assert!(!counts_instructions());
        // However often it is interrupted.
        assert!(time_of_loop(1 << 20) > 1 << 10);
    }
}

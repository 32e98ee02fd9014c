//! Zipf's law as shares of accesses for the load generator, which has no floating point.

use guest_driver::workload::SKEW_CLASSES;

/// Number of terms that are summed exactly; the rest is an integral.
const EXACT: u64 = 1 << 16;

/// Entry k: the share, in units of 2^-32, of accesses to the 2^(k+1) most popular of `positions` positions. The popularity of rank r
/// (from 1) is r to the power of -`exponent`.
pub(super) fn shares(exponent: f64, positions: u64) -> [u32; SKEW_CLASSES] {
    let all = sum(exponent, positions);
    std::array::from_fn(|class| {
        let ranks = 2u64 << class;
        // The last share is 1, which 32 bits cannot represent. Random numbers above it are spread evenly.
        if ranks >= positions { u32::MAX } else { (sum(exponent, ranks) / all * 2f64.powi(32)) as u32 }
    })
}

/// The sum of r^-exponent for r of 1 to `ranks`; beyond [`EXACT`] terms by the integral between the middles of ranks.
fn sum(exponent: f64, ranks: u64) -> f64 {
    let exact: f64 = (1..=ranks.min(EXACT)).rev().map(|rank| (rank as f64).powf(-exponent)).sum();
    if ranks <= EXACT {
        return exact;
    }
    let (from, to) = (EXACT as f64 + 0.5, ranks as f64 + 0.5);
    let power = 1.0 - exponent;
    let rest =
        if power.abs() < 1e-9 { (to / from).ln() } else { (to.powf(power) - from.powf(power)) / power };
    exact + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_law() {
        // Harmonic numbers, and the Riemann zeta function at 2.
        assert!((sum(1.0, 10) - 2.928_968).abs() < 1e-6);
        assert!((sum(1.0, 1_000_000) - 14.392_727).abs() < 1e-5);
        assert!((sum(2.0, 1 << 40) - 1.644_934).abs() < 1e-6);
        assert!((sum(0.5, 1_000_000) - 1998.540).abs() < 0.01);
    }

    #[test]
    fn shares_grow_to_all() {
        for (exponent, positions) in [(0.5, 10), (0.99, 1 << 20), (1.2, 1 << 36), (1.0, 1)] {
            let shares = shares(exponent, positions);
            assert!(shares.is_sorted(), "{exponent} {positions}: {shares:?}");
        }
        let shares = shares(1.0, 8);
        let of = |share: u32| f64::from(share) / 2f64.powi(32);
        // 1 + 1/2, and with 1/3 + 1/4, of 2.717857.
        assert!((of(shares[0]) - 0.551_906).abs() < 1e-6 && (of(shares[1]) - 0.766_535).abs() < 1e-5);
        assert_eq!(shares[2], u32::MAX);
    }
}

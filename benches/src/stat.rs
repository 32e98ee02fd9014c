//! Median, minimum and maximum of repeated runs, and ratios pair by pair.

use serde::{Deserialize, Serialize};

/// The spread of repeated runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stat {
    /// Middle value; for an even number of values, the mean of the two middle ones.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl Stat {
    /// One value, without a spread.
    #[must_use]
    pub const fn at(value: f64) -> Self {
        Self { median: value, min: value, max: value }
    }

    /// The spread of these values; `None` if there are none, or if one is not finite.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        if !values.iter().all(|value| value.is_finite()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }
}

/// Why there is no ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRatio {
    /// One pair has no spread.
    #[error("a ratio needs at least 2 runs")]
    SingleRun,
    /// The sides have different numbers of runs, so there are no pairs.
    #[error("baseline ran {baseline} times and candidate {candidate} times")]
    Unpaired {
        /// Runs of the baseline.
        baseline: usize,
        /// Runs of the candidate.
        candidate: usize,
    },
    /// The baseline is zero.
    #[error("the baseline is zero")]
    ZeroBaseline,
}

/// Candidate over baseline, for the runs of each round, in the order of the rounds.
///
/// # Errors
/// [`NoRatio`] if there are no pairs, or only one.
pub fn ratios(baseline: &[f64], candidate: &[f64]) -> Result<Vec<f64>, NoRatio> {
    if baseline.len() != candidate.len() {
        return Err(NoRatio::Unpaired { baseline: baseline.len(), candidate: candidate.len() });
    }
    if baseline.len() < 2 {
        return Err(NoRatio::SingleRun);
    }
    let ratios: Vec<f64> = baseline.iter().zip(candidate).map(|(base, value)| value / base).collect();
    if ratios.iter().all(|ratio| ratio.is_finite()) { Ok(ratios) } else { Err(NoRatio::ZeroBaseline) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_numbers() {
        assert_eq!(Stat::of([3.0, 1.0, 2.0]), Some(Stat { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Stat::of([4.0, 1.0, 2.0, 3.0]), Some(Stat { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Stat::of([7.0]), Some(Stat { median: 7.0, min: 7.0, max: 7.0 }));
        assert_eq!(Stat::of([]), None);
        assert_eq!(Stat::of([1.0, f64::NAN]), None);
    }

    fn ratio(baseline: &[f64], candidate: &[f64]) -> Option<Stat> {
        Stat::of(ratios(baseline, candidate).ok()?)
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        // The machine slowed down threefold in the second round: the ratio of each pair is still 2.
        let stat = ratio(&[10.0, 30.0, 10.0], &[20.0, 60.0, 20.0]).unwrap();
        assert_eq!(stat, Stat { median: 2.0, min: 2.0, max: 2.0 });
        // A ratio of medians would be 1 here.
        let stat = ratio(&[1.0, 2.0, 4.0], &[2.0, 1.0, 6.0]).unwrap();
        assert_eq!(stat, Stat { median: 1.5, min: 0.5, max: 2.0 });
    }

    #[test]
    fn a_ratio_is_refused() {
        assert_eq!(ratios(&[1.0], &[2.0]), Err(NoRatio::SingleRun));
        assert_eq!(ratios(&[], &[]), Err(NoRatio::SingleRun));
        assert_eq!(ratios(&[1.0, 2.0], &[2.0]), Err(NoRatio::Unpaired { baseline: 2, candidate: 1 }));
        assert_eq!(ratios(&[0.0, 1.0], &[2.0, 2.0]), Err(NoRatio::ZeroBaseline));
    }
}

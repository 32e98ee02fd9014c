//! The 95% interval of a ratio, and the verdict that follows from it.
//!
//! Runs of one document are paired by round ([`paired`]); runs of two documents are not ([`unpaired`]). The interval is a percentile
//! bootstrap. The runs are resampled with replacement `RESAMPLES` times, as pairs or each side separately. The ends of the interval are
//! quantiles of the resampled medians. The quantiles are those of the "expanded percentile interval" (Hesterberg, "What Teachers Should
//! Know About the Bootstrap", 2015), because plain percentiles are too narrow for a few runs. With fewer than `FEWEST_RESAMPLED` runs,
//! the interval is Student's t of the logarithms instead.
//!
//! The seed is fixed and the runs are sorted first, so the same runs in any order have the same interval.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::stat::Stat;

/// Number of resampled medians for an interval.
const RESAMPLES: usize = 4000;
/// Arbitrary but fixed, so that a document always has the same intervals.
const SEED: u64 = 0x9a5a_d15c;
/// With fewer runs, even the range of all resampled medians covers the true median in less than 90% of measurements.
const FEWEST_RESAMPLED: usize = 5;
/// Maximum number for `--runs`.
pub const MOST_RUNS: u32 = 1000;

/// Tail probability of the expanded percentile interval, by the least number of runs to which it applies.
const TAILS: [(usize, f64); 12] = [
    (5, 0.00096),
    (6, 0.00243),
    (7, 0.00411),
    (8, 0.00574),
    (9, 0.00722),
    (10, 0.00855),
    (12, 0.01076),
    (15, 0.01321),
    (20, 0.01588),
    (30, 0.01876),
    (50, 0.02117),
    (100, 0.02305),
];
/// 97.5% quantile of Student's t, by degrees of freedom from 1 on.
const STUDENT: [f64; 3] = [12.706, 4.303, 3.182];
/// 97.5% quantile of the normal distribution times the standard error of a median over that of a mean.
const MEDIAN_ERROR: f64 = 1.96 * 1.2533;

/// An interval whose half length equals a difference excludes 1 in half of all measurements. Shorter by this factor, it does so in 80%.
const POWER: f64 = (1.96 + 0.84) / 1.96;

/// The verdict on a candidate. "Faster" means better by the ratio's metric: fewer cycles or interrupts, more IOPS, less latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole interval is inside the margin.
    Equal,
    /// The interval excludes 1, and the ratio is outside the margin.
    Faster,
    /// As [`Faster`](Self::Faster), in the other direction.
    Slower,
    /// Neither equal nor faster nor slower.
    NotDecided,
}

impl Verdict {
    /// The text in tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NotDecided => "not decided",
        }
    }
}

/// Which values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Lower values: a cost.
    Lower,
    /// Higher values: a rate.
    Higher,
}

/// The interval and the verdict of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Confidence {
    /// Lower end of the 95% interval.
    pub low: f64,
    /// Upper end of the 95% interval.
    pub high: f64,
    /// Ratios from `1 / (1 + margin)` to `1 + margin` count as equal.
    pub margin: f64,
    /// The verdict.
    pub verdict: Verdict,
    /// If the verdict is open: estimate of the runs that would decide. `None`: more than [`MOST_RUNS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_to_decide: Option<u32>,
}

impl Confidence {
    /// The verdict as text, with the margin and, if it is open, the estimate of the runs that would decide.
    #[must_use]
    pub fn words(&self) -> String {
        let needed = match (self.verdict, self.runs_to_decide) {
            (Verdict::NotDecided, Some(runs)) => format!("; about {runs} runs would decide"),
            (Verdict::NotDecided, None) => format!("; more than {MOST_RUNS} runs would be needed"),
            _ => String::new(),
        };
        format!("{} (equal: within {}{needed})", self.verdict.as_str(), percent(self.margin))
    }
}

/// A margin as text.
#[must_use]
pub fn percent(margin: f64) -> String {
    // Without the digits that binary fractions add.
    format!("{}%", (margin * 1e6).round() / 1e4)
}

/// Decides which ratios are equal, and which are better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Criterion {
    /// See [`Confidence::margin`].
    pub margin: f64,
    /// Which values are better.
    pub better: Better,
}

/// Confidence in the median of these ratios, one for each round. `None`: there are fewer than two, or one is not positive and finite.
#[must_use]
pub fn paired(ratios: &[f64], criterion: Criterion) -> Option<Confidence> {
    let ratios = Sorted::of(ratios)?;
    let (median, runs) = (ratios.median(), ratios.0.len());
    let interval = if runs < FEWEST_RESAMPLED {
        let (mean, variance) = ratios.logarithms();
        student(mean, variance / runs as f64, runs)?
    } else {
        let mut order = Vec::new();
        resampled(runs, |rng| ratios.resampled_median(rng, &mut order))
    };
    interval.confidence(median, runs, criterion)
}

/// Confidence in the ratio of the medians, candidate over baseline, of separate measurements. `None`: a side has fewer than two values, or
/// one that is not positive and finite.
#[must_use]
pub fn unpaired(baseline: &[f64], candidate: &[f64], criterion: Criterion) -> Option<Confidence> {
    let (baseline, candidate) = (Sorted::of(baseline)?, Sorted::of(candidate)?);
    let ratio = candidate.median() / baseline.median();
    let runs = baseline.0.len().min(candidate.0.len());
    let interval = if baseline == candidate {
        // Equal values: the same measurement, whose ratio is exactly 1.
        Interval { low: 1.0, high: 1.0, error: 0.0 }
    } else if runs < FEWEST_RESAMPLED {
        let ((base_mean, base_variance), (mean, variance)) = (baseline.logarithms(), candidate.logarithms());
        let error = base_variance / baseline.0.len() as f64 + variance / candidate.0.len() as f64;
        student(mean - base_mean, error, runs)?
    } else {
        let mut order = Vec::new();
        resampled(runs, |rng| {
            let divisor = baseline.resampled_median(rng, &mut order);
            candidate.resampled_median(rng, &mut order) / divisor
        })
    };
    interval.confidence(ratio, runs, criterion)
}

/// Positive values in ascending order, at least two.
#[derive(PartialEq)]
struct Sorted(Vec<f64>);

impl Sorted {
    fn of(values: &[f64]) -> Option<Self> {
        if values.len() < 2 || !values.iter().all(|value| value.is_finite() && *value > 0.0) {
            return None;
        }
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        Some(Self(values))
    }

    fn median(&self) -> f64 {
        Stat::of(self.0.iter().copied()).map_or(f64::NAN, |stat| stat.median)
    }

    /// Mean and variance of the logarithms.
    fn logarithms(&self) -> (f64, f64) {
        let count = self.0.len() as f64;
        let mean = self.0.iter().map(|value| value.ln()).sum::<f64>() / count;
        let squares: f64 = self.0.iter().map(|value| (value.ln() - mean).powi(2)).sum();
        (mean, squares / (count - 1.0))
    }

    /// The median of as many values drawn with replacement. `order` is scratch memory.
    fn resampled_median(&self, rng: &mut Rng, order: &mut Vec<usize>) -> f64 {
        let count = self.0.len();
        order.clear();
        order.extend((0..count).map(|_| rng.usize(..count)));
        let (below, upper, _) = order.select_nth_unstable(count / 2);
        let upper = *upper;
        let lower =
            if count.is_multiple_of(2) { below.iter().copied().max().unwrap_or(upper) } else { upper };
        let at = |index: usize| self.0.get(index).copied().unwrap_or(f64::NAN);
        f64::midpoint(at(lower), at(upper))
    }
}

/// An interval without a verdict.
struct Interval {
    low: f64,
    high: f64,
    /// Half of the length of the resampled interval, as a logarithm. It is inversely proportional to the square root of the number of runs.
    error: f64,
}

/// The quantiles of the statistic over resampled runs.
fn resampled(runs: usize, mut statistic: impl FnMut(&mut Rng) -> f64) -> Interval {
    let mut rng = Rng::with_seed(SEED);
    let mut values: Vec<f64> = (0..RESAMPLES).map(|_| statistic(&mut rng)).collect();
    values.sort_by(f64::total_cmp);
    let tail = TAILS.iter().rev().find(|(fewest, _)| *fewest <= runs).map_or(0.0, |(_, tail)| *tail);
    let skipped = (tail * RESAMPLES as f64) as usize;
    let end = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    let (low, high) = (end(skipped), end(RESAMPLES - 1 - skipped));
    Interval { low, high, error: (high / low).ln() / 2.0 }
}

/// Student's interval around a mean of logarithms with this squared standard error. `None` for other numbers of runs than 2 to 4.
fn student(mean: f64, squared_error: f64, runs: usize) -> Option<Interval> {
    let quantile = STUDENT.get(runs.checked_sub(2)?)?;
    let error = squared_error.sqrt();
    let half = error * quantile;
    Some(Interval { low: (mean - half).exp(), high: (mean + half).exp(), error: error * MEDIAN_ERROR })
}

impl Interval {
    fn confidence(self, ratio: f64, runs: usize, criterion: Criterion) -> Option<Confidence> {
        let Criterion { margin, better } = criterion;
        // The interval must include the ratio: Student's interval is around the mean, and a resampled one is subject to rounding.
        let (low, high) = (self.low.min(ratio), self.high.max(ratio));
        if !(low.is_finite() && high.is_finite() && self.error.is_finite()) {
            return None;
        }
        let most = 1.0 + margin;
        let verdict = if low >= most.recip() && high <= most {
            Verdict::Equal
        } else if low > 1.0 && ratio > most {
            if better == Better::Higher { Verdict::Faster } else { Verdict::Slower }
        } else if high < 1.0 && ratio < most.recip() {
            if better == Better::Higher { Verdict::Slower } else { Verdict::Faster }
        } else {
            Verdict::NotDecided
        };
        let runs_to_decide =
            (verdict == Verdict::NotDecided).then(|| self.runs_to_decide(ratio, runs, margin));
        Some(Confidence { low, high, margin, verdict, runs_to_decide: runs_to_decide.flatten() })
    }

    /// Estimate of the runs that decide with a probability of 80%: the interval then excludes 1 or, if the ratio is inside the margin, lies
    /// inside the margin.
    fn runs_to_decide(&self, ratio: f64, runs: usize, margin: f64) -> Option<u32> {
        let (distance, limit) = (ratio.ln().abs(), margin.ln_1p());
        let wanted = if distance > limit { distance } else { limit - distance };
        let needed = (runs as f64 * (self.error * POWER / wanted).powi(2)).ceil().max(runs as f64 + 1.0);
        // NaN compares as false.
        if needed <= f64::from(MOST_RUNS) { Some((needed as u32).max(FEWEST_RESAMPLED as u32)) } else { None }
    }
}

/// One line on undecided ratios, if any: their number, and the estimate of the runs that would decide.
#[must_use]
pub fn note<'a>(all: impl IntoIterator<Item = &'a Confidence>) -> Option<String> {
    let all: Vec<&Confidence> = all.into_iter().collect();
    let open: Vec<_> = all.iter().filter(|each| each.verdict == Verdict::NotDecided).collect();
    let mut needed: Vec<u32> = open.iter().filter_map(|each| each.runs_to_decide).collect();
    needed.sort_unstable();
    let beyond = open.len() - needed.len();
    let would = match (&needed[..], beyond) {
        ([], 0) => return None,
        ([], _) => format!("more than {MOST_RUNS} runs would be needed"),
        ([.., most], 0) => match needed.get(needed.len() / 2) {
            Some(half) if half < most => {
                format!("about {half} runs would decide half of them, {most} all")
            }
            _ => format!("about {most} runs would decide"),
        },
        ([.., most], _) => {
            let count = needed.len();
            format!("about {most} runs would decide {count}, the others need more than {MOST_RUNS}")
        }
    };
    Some(format!(
        "not decided at 95%: {} of {} ratios, because the machine is too noisy; {would} (--runs)",
        open.len(),
        all.len()
    ))
}

/// One line that explains the notation of ratios with these confidences; `None` if there are none.
#[must_use]
pub fn legend<'a>(all: impl IntoIterator<Item = &'a Confidence>) -> Option<String> {
    let mut margins: Vec<f64> = all.into_iter().map(|each| each.margin).collect();
    margins.sort_by(f64::total_cmp);
    let (least, most) = (margins.first()?, margins.last()?);
    let percentiles = format!(", percentiles within {}", percent(*most));
    let within = percent(*least) + if least < most { &percentiles } else { "" };
    Some(format!(
        "Ratios: median (smallest-largest where there is space) [95% interval] verdict; equal: within {within}."
    ))
}

#[cfg(test)]
mod tests;

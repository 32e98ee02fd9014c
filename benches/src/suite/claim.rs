//! Claims, and whether they hold here.

use facts::host::{CyclesSource, Kvm};

use super::view::View;
use crate::confidence::{Confidence, Verdict};
use crate::result::Ratio;
use crate::svg::Chart;

/// Whether a claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Holds,
    DoesNotHold,
    /// The runs, or the environment, do not decide it.
    NotDecided,
}

/// A claim beside what was measured on one engine.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// The claim, as one sentence.
    pub(crate) statement: String,
    /// Who published it. `None`: a claim of this project.
    pub(crate) source: Option<&'static str>,
    pub(crate) standing: Standing,
    /// The engine; empty where no load was driven.
    pub(crate) engine: String,
    /// The figures of this document, as one sentence.
    pub(crate) measured: String,
    /// Why this environment cannot decide the claim.
    pub(crate) limit: Option<&'static str>,
    /// One panel.
    pub(crate) chart: Chart,
}

/// A measurement that no claim is about.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    pub(crate) title: String,
    /// The figures, as one sentence.
    pub(crate) measured: String,
    /// The engine.
    pub(crate) engine: String,
    /// What this environment leaves open.
    pub(crate) limit: Option<&'static str>,
    /// One panel.
    pub(crate) chart: Chart,
}

impl Standing {
    /// Of a claim that holds where it holds in all rows; `None`: a row that is not decided.
    pub(super) fn of_all(rows: impl IntoIterator<Item = Option<bool>>) -> Self {
        let rows: Vec<_> = rows.into_iter().collect();
        if rows.contains(&Some(false)) {
            Self::DoesNotHold
        } else if rows.is_empty() || rows.contains(&None) {
            Self::NotDecided
        } else {
            Self::Holds
        }
    }

    /// Not decided where the environment is limited.
    pub(super) const fn within(self, limit: Option<&'static str>) -> Self {
        if limit.is_some() { Self::NotDecided } else { self }
    }
}

/// Whether a ratio has this verdict, where it has any.
pub(super) fn is(ratio: &Ratio, wanted: Verdict) -> Option<bool> {
    match ratio.confidence?.verdict {
        Verdict::NotDecided => None,
        verdict => Some(verdict == wanted),
    }
}

/// Whether a ratio is at most `most`, by its 95% interval. `None`: the interval does not decide.
pub(super) fn at_most(confidence: Confidence, most: f64) -> Option<bool> {
    match (confidence.low, confidence.high) {
        (_, high) if high <= most => Some(true),
        (low, _) if low > most => Some(false),
        _ => None,
    }
}

/// Whether it is at least `least`.
pub(super) fn at_least(confidence: Confidence, least: f64) -> Option<bool> {
    match (confidence.low, confidence.high) {
        (low, _) if low >= least => Some(true),
        (_, high) if high < least => Some(false),
        _ => None,
    }
}

/// `0.90 to 1.19`: the medians.
pub(super) fn range(ratios: &[&Ratio]) -> String {
    let medians = || ratios.iter().map(|ratio| ratio.median);
    format!("{:.2} to {:.2}", medians().fold(f64::INFINITY, f64::min), medians().fold(0.0, f64::max))
}

/// Why rows of this engine do not decide a claim that depends on what exits cost.
pub(super) fn exits_limit(view: View<'_>) -> Option<&'static str> {
    let host = view.host();
    match (host.cycles_source, view.engine, host.kvm) {
        (CyclesSource::Instructions, ..) => {
            Some("Instructions are counted here: the length of a path, not the time that an exit takes.")
        }
        (_, "harness", _) => {
            Some("The harness has no virtual CPU: what exits and interrupts cost is not in its figures.")
        }
        (_, "kvm", Kvm::Nested) => Some(
            "KVM is nested here: an exit costs much more than on hardware, so adapters that exit often look too expensive.",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_against_a_claim_is_enough() {
        let of = |rows: &[Option<bool>]| Standing::of_all(rows.iter().copied());
        assert_eq!(of(&[Some(true), Some(true)]), Standing::Holds);
        assert_eq!(of(&[Some(true), None]), Standing::NotDecided);
        assert_eq!(of(&[None, Some(false), Some(true)]), Standing::DoesNotHold);
        assert_eq!(of(&[]), Standing::NotDecided);
        let at = |low, high| Confidence {
            low,
            high,
            margin: 0.0,
            verdict: Verdict::NotDecided,
            runs_to_decide: None,
        };
        let most = [at(0.8, 1.0), at(0.9, 1.1), at(1.1, 1.2)].map(|interval| at_most(interval, 1.0));
        assert_eq!(most, [Some(true), None, Some(false)]);
        let least = [at(0.8, 0.9), at(0.9, 1.1), at(1.0, 1.2)].map(|interval| at_least(interval, 1.0));
        assert_eq!(least, [Some(false), None, Some(true)]);
        assert_eq!(Standing::Holds.within(Some("no KVM")), Standing::NotDecided);
    }
}

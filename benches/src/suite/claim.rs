//! Claims and their standing.

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
    /// Runs or environment do not decide the claim.
    NotDecided,
}

/// A claim, and its measurement on one engine.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// The claim, as one sentence.
    pub(crate) statement: String,
    /// Who published it. `None`: a claim of this project.
    pub(crate) source: Option<&'static str>,
    pub(crate) standing: Standing,
    /// The engine; empty if there is no load.
    pub(crate) engine: String,
    /// The figures of this document, as one sentence.
    pub(crate) measured: String,
    /// Why this environment cannot decide the claim.
    pub(crate) limit: Option<&'static str>,
    /// One panel.
    pub(crate) chart: Chart,
}

/// A measurement without a claim.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    pub(crate) title: String,
    /// The figures, as one sentence.
    pub(crate) measured: String,
    /// The engine.
    pub(crate) engine: String,
    /// The limit of this environment.
    pub(crate) limit: Option<&'static str>,
    /// One panel.
    pub(crate) chart: Chart,
}

impl Standing {
    /// The standing of a claim that holds if it holds in all rows. `None`: the row is not decided.
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

    /// Not decided if the environment has a limit.
    pub(super) const fn within(self, limit: Option<&'static str>) -> Self {
        if limit.is_some() { Self::NotDecided } else { self }
    }
}

/// Whether a ratio has this verdict; `None`: not decided.
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

/// Whether a ratio is at least `least`, by its 95% interval. `None`: the interval does not decide.
pub(super) fn at_least(confidence: Confidence, least: f64) -> Option<bool> {
    match (confidence.low, confidence.high) {
        (low, _) if low >= least => Some(true),
        (_, high) if high < least => Some(false),
        _ => None,
    }
}

/// The range of the medians: `0.90 to 1.19`.
pub(super) fn range(ratios: &[&Ratio]) -> String {
    let medians = || ratios.iter().map(|ratio| ratio.median);
    format!("{:.2} to {:.2}", medians().fold(f64::INFINITY, f64::min), medians().fold(0.0, f64::max))
}

/// Why rows of this engine cannot decide a claim on the time that exits take.
pub(super) fn time_limit(view: View<'_>) -> Option<&'static str> {
    match view.host().cycles_source {
        CyclesSource::Instructions => {
            Some("Instructions are counted here: the length of a path, not the time that an exit takes.")
        }
        _ => exits_limit(view),
    }
}

/// Why rows of this engine cannot decide a claim on the CPU cost of exits. Counted instructions take the place of cycles.
pub(super) fn exits_limit(view: View<'_>) -> Option<&'static str> {
    let host = view.host();
    match (host.cycles_source, view.engine, host.kvm) {
        (_, "harness", _) => {
            Some("The harness has no virtual CPU: what exits and interrupts cost is not in its figures.")
        }
        (CyclesSource::Instructions, ..) => None,
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

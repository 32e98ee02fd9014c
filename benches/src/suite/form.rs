//! Full or quick form of a suite.

use std::time::Duration;

/// Full or quick form of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// All combinations.
    Full,
    /// Under 3 minutes: short runs, two of each combination, fewer combinations where there are thousands.
    Quick,
}

/// Length and number of runs of the quick form.
pub(super) const QUICK_DURATION: Duration = Duration::from_millis(25);
/// See [`QUICK_DURATION`]. Ratios need at least two runs.
pub(super) const QUICK_RUNS: u32 = 2;

//! How much of a suite runs.

use std::time::Duration;

/// How much of a suite runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// All of it.
    Full,
    /// Under 3 minutes: short runs, two of each combination, fewer combinations where there are thousands.
    Quick,
}

/// Length and number of runs of the quick form.
pub(super) const QUICK_DURATION: Duration = Duration::from_millis(25);
/// See [`QUICK_DURATION`]: with two runs there are ratios.
pub(super) const QUICK_RUNS: u32 = 2;

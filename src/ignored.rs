//! Signals that were ignored when the process started, as `nohup` and shells for jobs in the background have it. They stay ignored.

use std::fs;

/// Their set, signal 1 in the lowest bit (proc(5)).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ignored(u64);

impl Ignored {
    /// Reads the current set; empty if the kernel does not report it. To be called before the sandbox, in which the file cannot be opened.
    pub(crate) fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        Self(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default())
    }

    /// Those of these signals that are not ignored.
    pub(crate) fn others<const N: usize>(self, signals: [i32; N]) -> impl Iterator<Item = i32> {
        signals.into_iter().filter(move |signal| self.0 >> (signal - 1) & 1 == 0)
    }
}

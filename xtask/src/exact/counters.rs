//! Parses the output of the QEMU plugin: all counters at each mark.

use std::error::Error;

use serde::Deserialize;

/// The marks at the beginning and the end of a job.
const MARKS: [u8; 2] = [b'<', b'>'];

/// All counters at a mark, or when the machine ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Counters {
    /// None when the machine ends.
    pub(super) mark: Option<u8>,
    pub(super) host_user: u64,
    pub(super) host_kernel: u64,
    pub(super) guest_user: u64,
    pub(super) guest_kernel: u64,
    pub(super) vmruns: u64,
}

impl Counters {
    /// Instructions of host and guest.
    pub(super) fn total(&self) -> u64 {
        self.host_user + self.host_kernel + self.guest_user + self.guest_kernel
    }

    /// The differences to `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self {
            mark: None,
            host_user: self.host_user.saturating_sub(earlier.host_user),
            host_kernel: self.host_kernel.saturating_sub(earlier.host_kernel),
            guest_user: self.guest_user.saturating_sub(earlier.guest_user),
            guest_kernel: self.guest_kernel.saturating_sub(earlier.guest_kernel),
            vmruns: self.vmruns.saturating_sub(earlier.vmruns),
        }
    }
}

/// The counters at the beginning and the end of each job.
///
/// # Errors
/// A line cannot be read, or a mark is missing.
pub(super) fn jobs(counts: &str) -> Result<Vec<[Counters; 2]>, Box<dyn Error>> {
    let lines = counts.lines().map(serde_json::from_str).collect::<Result<Vec<Counters>, _>>()?;
    let marks: Vec<_> = lines.into_iter().filter(|line| line.mark.is_some()).collect();
    let mut jobs = Vec::new();
    for pair in marks.chunks(2) {
        match pair {
            [begin, end] if [begin.mark, end.mark] == MARKS.map(Some) => jobs.push([*begin, *end]),
            _ => return Err(format!("unpaired marks, expected a beginning and an end: {pair:?}").into()),
        }
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: &str = r#"{"mark": 60, "host_user": 1, "host_kernel": 2, "guest_user": 3, "guest_kernel": 4, "vmruns": 5}
{"mark": 62, "host_user": 101, "host_kernel": 202, "guest_user": 303, "guest_kernel": 4, "vmruns": 25}
{"end": 0, "host_user": 900, "host_kernel": 900, "guest_user": 900, "guest_kernel": 900, "vmruns": 90}
"#;

    #[test]
    fn the_end_of_the_machine_is_no_mark() {
        let jobs = jobs(COUNTS).unwrap();
        let [[begin, end]] = &jobs[..] else { panic!("{jobs:?}") };
        assert_eq!((begin.total(), end.since(begin).total(), end.since(begin).vmruns), (10, 600, 20));
    }

    #[test]
    fn marks_come_in_pairs() {
        let [begin, end, _] = COUNTS.lines().collect::<Vec<_>>()[..] else { panic!() };
        assert_eq!(jobs(&format!("{begin}\n{end}\n{begin}\n{end}\n")).unwrap().len(), 2);
        for wrong in [begin.to_owned(), format!("{end}\n{begin}\n"), format!("{begin}\n{begin}\n")] {
            assert!(jobs(&wrong).unwrap_err().to_string().contains("unpaired marks"));
        }
    }
}

//! What libFuzzer prints.

/// A run in numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Stats {
    pub(super) executions: u64,
    pub(super) a_second: u64,
    /// Edges of the program that were reached.
    pub(super) coverage: u64,
    pub(super) new_inputs: u64,
    /// The file with the input that failed.
    pub(super) artefact: Option<String>,
    /// How it failed, in a few lines.
    pub(super) failure: Vec<String>,
}

/// Lines of a failure at the most.
const MOST: usize = 6;

impl Stats {
    pub(super) fn parse(text: &str) -> Self {
        let mut stats = Self::default();
        let mut telling = false;
        for line in text.lines() {
            if let Some((name, value)) = line.strip_prefix("stat::").and_then(|line| line.split_once(':')) {
                let value = value.trim().parse().unwrap_or(0);
                match name {
                    "number_of_executed_units" => stats.executions = value,
                    "average_exec_per_sec" => stats.a_second = value,
                    "new_units_added" => stats.new_inputs = value,
                    _ => {}
                }
            } else if let Some((_, path)) = line.split_once("Test unit written to ") {
                // Slow inputs are written, too, and are no failure.
                if !path.contains("slow-unit-") {
                    stats.artefact = Some(path.trim().to_owned());
                }
            } else if let Some(coverage) = word_after(line, " cov: ") {
                stats.coverage = coverage;
            }
            telling = telling && !line.starts_with("stack backtrace") && !line.is_empty();
            telling |= line.starts_with("thread '") || line.contains("ERROR: libFuzzer");
            if telling && stats.failure.len() < MOST {
                stats.failure.push(line.to_owned());
            }
        }
        stats
    }
}

fn word_after(line: &str, name: &str) -> Option<u64> {
    line.split_once(name)?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "INFO: Running with entropic power schedule (0xFF, 100).
#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 29Mb
#1000\tNEW    cov: 1205 ft: 5377 corp: 331/71Kb lim: 65536 exec/s: 889 rss: 31Mb L: 3186/3223 MS: 1 EraseBytes-
Test unit written to ./slow-unit-1234
#5000\tDONE   cov: 1206 ft: 5377 corp: 331/71Kb lim: 65536 exec/s: 889 rss: 31Mb
stat::number_of_executed_units: 5000
stat::average_exec_per_sec:     889
stat::new_units_added:          331
stat::slowest_unit_time_sec:    0";

    const BAD: &str = "#7\tNEW    cov: 9 ft: 9 corp: 1/1b
thread '<unnamed>' (77) panicked at devices/src/a.rs:1:2:
index out of bounds
stack backtrace:
   0: rust_begin_unwind
==77== ERROR: libFuzzer: deadly signal
SUMMARY: libFuzzer: deadly signal
artifact_prefix='/c/'; Test unit written to /c/crash-0011
Base64: AA==
stat::number_of_executed_units: 8";

    #[test]
    fn a_run_in_numbers() {
        let stats = Stats::parse(GOOD);
        let expected =
            Stats { executions: 5000, a_second: 889, coverage: 1206, new_inputs: 331, ..Stats::default() };
        assert_eq!(stats, expected);
    }

    #[test]
    fn a_failure_has_its_input_and_its_reason() {
        let stats = Stats::parse(BAD);
        assert_eq!((stats.executions, stats.coverage), (8, 9));
        assert_eq!(stats.artefact.as_deref(), Some("/c/crash-0011"));
        assert_eq!(stats.failure[0], "thread '<unnamed>' (77) panicked at devices/src/a.rs:1:2:");
        assert_eq!(stats.failure[1], "index out of bounds");
    }
}

//! What a test run did: its steps, its tests, those that skipped with their reasons, and the last lines of its output.

use std::path::Path;
use std::time::Instant;

use crate::times::{Timed, Times};

/// Lines that are shown of a failed test's output, from its panic on: at most this many from the beginning,
const FIRST: usize = 4;
/// and this many from the end, where a guest's console ends.
const LAST: usize = 24;

/// What ran and how it ended.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Steps that passed.
    pub(crate) passed: Vec<String>,
    /// Steps that failed, and why.
    pub(crate) failed: Vec<String>,
    pub(crate) tests: Tests,
    pub(crate) times: Times,
}

/// The tests of all binaries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tests {
    /// Those that skipped are among them.
    pub(crate) passed: u64,
    /// Name and excerpt of the output.
    pub(crate) failed: Vec<(String, Vec<String>)>,
    /// `test: reason` of each line `SKIP: test: reason`.
    pub(crate) skips: Vec<String>,
}

impl Report {
    /// Run a step, which may add tests to this report. It returns `None` if it passed, the reason if it was skipped, or what failed.
    /// Whether it passed.
    pub(crate) fn step(
        &mut self,
        name: &str,
        step: impl FnOnce(&mut Self) -> Result<Option<String>, String>,
    ) -> bool {
        println!("== {name}");
        let begin = Instant::now();
        let ended = step(self);
        self.times.steps.push(Timed { name: name.to_owned(), seconds: begin.elapsed().as_secs_f64() });
        match ended {
            Ok(None) => self.passed.push(name.to_owned()),
            Ok(Some(reason)) => {
                println!("skipped: {reason}");
                self.tests.skips.push(format!("{name}: {reason}"));
                self.tests.passed += 1;
            }
            Err(error) => {
                println!("FAILED: {name}: {error}");
                self.failed.push(format!("{name}: {error}"));
                return false;
            }
        }
        true
    }

    /// Account for a test that has ended.
    pub(crate) fn test(&mut self, binary: &str, name: &str, seconds: f64, failed: bool, output: &str) {
        self.times.test(binary, name, seconds);
        for line in output.lines() {
            let Some(skip) = line.trim().strip_prefix("SKIP: ") else { continue };
            if !self.tests.skips.iter().any(|known| known == skip) {
                self.tests.skips.push(skip.to_owned());
            }
        }
        if failed {
            self.tests.failed.push((format!("{binary} {name}"), excerpt(output)));
        } else {
            self.tests.passed += 1;
        }
    }
}

/// The first and the last lines of a failed test's output from its panic on.
fn excerpt(output: &str) -> Vec<String> {
    let is_panic = |line: &&str| line.starts_with("thread '") || line.starts_with("Error: ");
    let lines: Vec<&str> = output
        .lines()
        .skip_while(|line| !is_panic(line))
        .take_while(|line| *line != "stack backtrace:")
        .filter(|line| !line.is_empty())
        .collect();
    let lines = if lines.is_empty() { output.lines().collect() } else { lines };
    if lines.len() <= FIRST + LAST {
        return lines.iter().map(|line| format!("  {line}")).collect();
    }
    let (first, rest) = lines.split_at(FIRST);
    let (left_out, last) = rest.split_at(rest.len() - LAST);
    let indented = |line: &&str| format!("  {line}");
    let left_out = format!("  [{} lines]", left_out.len());
    first.iter().map(indented).chain([left_out]).chain(last.iter().map(indented)).collect()
}

/// Print the last lines. Returns whether the run is good: nothing failed, and with `ci` nothing was skipped that this machine has.
pub(crate) fn print(report: &Report, ci: bool) -> bool {
    let (text, good) = render(report, ci, |device| Path::new(device).exists());
    print!("{text}");
    good
}

fn render(report: &Report, ci: bool, exists: impl Fn(&str) -> bool) -> (String, bool) {
    let Tests { passed, failed, skips } = &report.tests;
    let mut lines = vec![String::new()];
    lines.extend(report.passed.iter().map(|step| format!("ran: {step}")));
    lines.extend(report.failed.iter().map(|step| format!("FAILED: {step}")));
    for (name, output) in failed {
        lines.push(format!("FAILED: test {name}"));
        lines.extend(output.iter().cloned());
    }
    let mut forbidden = 0;
    for skip in skips {
        let mut line = format!("skipped: {skip}");
        if ci && !excused(skip, &exists) {
            forbidden += 1;
            line += " (FAILED: with CI=true only a missing device node excuses a skip)";
        }
        lines.push(line);
    }
    // A skipped test ended without a failure, so it is among the passed ones.
    let passed = passed.saturating_sub(skips.len() as u64);
    let failed = failed.len() + report.failed.len() + forbidden;
    lines.push(format!("{passed} passed, {failed} failed, {} skipped", skips.len()));
    (lines.join("\n") + "\n", failed == 0)
}

/// Whether the machine truly lacks what a skipped test needed: the reason names a device node, and it is not there.
fn excused(skip: &str, exists: impl Fn(&str) -> bool) -> bool {
    ["/dev/kvm", "/dev/loop-control"].iter().any(|device| skip.contains(device) && !exists(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::default();
        report.passed.push("lints".to_owned());
        report.test("devices", "a", 1.0, false, "");
        report.test("linux", "b", 1.0, false, "SKIP: boots: /dev/kvm: No such file or directory\n");
        report.test("linux", "c", 1.0, false, "SKIP: loops: losetup: Permission denied");
        report.test("devices", "d", 1.0, true, "1 of 2\nthread 'd' panicked at d.rs:1\nleft: 1");
        report
    }

    #[test]
    fn the_last_line_says_it_all() {
        let (text, good) = render(&report(), false, |_| true);
        assert!(!good && text.ends_with("\n1 passed, 1 failed, 2 skipped\n"), "{text}");
        for line in [
            "ran: lints",
            "skipped: loops: losetup: Permission denied",
            "FAILED: test devices d",
            "  thread 'd' panicked at d.rs:1",
        ] {
            assert!(text.lines().any(|each| each == line), "{line}\n{text}");
        }
        assert!(!text.contains("1 of 2"), "{text}");
    }

    #[test]
    fn under_ci_only_a_missing_device_excuses_a_skip() {
        let (text, _) = render(&report(), true, |_| false);
        assert!(text.contains("loops: losetup: Permission denied (FAILED"), "{text}");
        assert!(text.ends_with("1 passed, 2 failed, 2 skipped\n"), "{text}");
        let (text, _) = render(&report(), true, |_| true);
        assert!(text.ends_with("1 passed, 3 failed, 2 skipped\n"), "{text}");
    }

    #[test]
    fn a_failed_step_counts() {
        let mut report = Report::default();
        assert!(!report.step("formatting", |_| Err("no".to_owned())));
        assert!(report.step("soak", |_| Ok(Some("no server".to_owned()))));
        report.test("devices", "a", 1.0, false, "");
        let (text, good) = render(&report, false, |_| true);
        assert!(
            !good
                && text.ends_with(
                    "FAILED: formatting: no\nskipped: soak: no server\n1 passed, 1 failed, 1 skipped\n"
                ),
            "{text}"
        );
        assert_eq!(report.times.steps.len(), 2);
    }

    #[test]
    fn of_a_long_message_the_first_and_the_last_lines_are_told() {
        let output =
            (1..100).fold("thread 'long' panicked".to_owned(), |text, line| format!("{text}\n{line}"));
        let told = excerpt(&output);
        assert_eq!(told[..5], ["  thread 'long' panicked", "  1", "  2", "  3", "  [72 lines]"]);
        assert_eq!((told.len(), told.last().map(String::as_str)), (FIRST + 1 + LAST, Some("  99")));
    }
}

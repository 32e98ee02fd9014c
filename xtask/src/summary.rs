//! Counts of tests, the tests that skipped with their reasons, and the last lines of a run.

use std::path::Path;

use crate::failures::Failures;

/// What ran and how it ended.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Checks that passed.
    pub(crate) passed: Vec<&'static str>,
    /// Checks that failed.
    pub(crate) failed: Vec<String>,
    /// Tests of all binaries.
    pub(crate) tests: Counts,
}

impl Report {
    /// Run a check that is not in a test binary. It returns `None` if it passed, the reason if it was skipped, or what failed.
    pub(crate) fn check(
        &mut self,
        name: &'static str,
        check: impl FnOnce() -> Result<Option<String>, String>,
    ) {
        println!("== {name}");
        match check() {
            Ok(None) => self.passed.push(name),
            Ok(Some(reason)) => {
                println!("skipped: {reason}");
                self.tests.skip(&format!("{name}: {reason}"));
            }
            Err(error) => self.failed.push(format!("{name}: {error}")),
        }
    }
}

/// What the test binaries printed, in numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// `test: reason` of each line `SKIP: test: reason`.
    skips: Vec<String>,
    failures: Failures,
}

impl Counts {
    /// Account for a check that is no test and was skipped: `check: reason`.
    fn skip(&mut self, skip: &str) {
        // Test binaries count a skipped test as passed, too.
        self.passed += 1;
        self.skips.push(skip.to_owned());
    }

    /// Account for one line of a test binary's output.
    pub(crate) fn read(&mut self, line: &str) {
        self.failures.read(line);
        if let Some(skip) = line.trim_start().strip_prefix("SKIP: ") {
            // A test may print its line twice (show-output repeats what failed).
            if !self.skips.iter().any(|known| known == skip) {
                self.skips.push(skip.trim_end().to_owned());
            }
            return;
        }
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        for part in counts.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(Ok(number)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// Whether a line of output is shown. Passed tests are counted, not listed.
pub(crate) fn worth_showing(line: &str) -> bool {
    let boring = line.starts_with("test ") && line.ends_with(" ... ok");
    !(boring || line.is_empty() || line == "running 0 tests")
}

/// Print the last lines. Returns the number of skips that are not allowed here.
pub(crate) fn print(report: &Report, ci: bool) -> usize {
    let (text, forbidden) = render(report, ci, |device| Path::new(device).exists());
    print!("{text}");
    forbidden
}

fn render(report: &Report, ci: bool, exists: impl Fn(&str) -> bool) -> (String, usize) {
    let Counts { passed, failed, ignored, skips, failures } = &report.tests;
    let mut lines = vec![String::new()];
    lines.extend(report.passed.iter().map(|check| format!("ran: {check}")));
    lines.extend(report.failed.iter().map(|check| format!("FAILED: {check}")));
    lines.extend(failures.lines());
    let mut forbidden = 0;
    for skip in skips {
        let mut line = format!("skipped: {skip}");
        if ci && !excused(skip, &exists) {
            forbidden += 1;
            line += " (FAILED: with CI=true only a missing device node excuses a skip)";
        }
        lines.push(line);
    }
    if *ignored > 0 {
        lines.push(format!("skipped: {ignored} tests are marked #[ignore]"));
    }
    // A skipped test ended without a failure, so the test binary counted it as passed.
    let skipped = skips.len() as u64;
    let (passed, skipped) = (passed.saturating_sub(skipped), skipped + ignored);
    // A check that failed without a failed test (formatting, lints, a test that does not compile) is a failure too.
    let checks = report.failed.iter().filter(|check| *check != "tests" || *failed == 0).count() as u64;
    let failed = failed + checks + forbidden as u64;
    lines.push(format!("{passed} passed, {failed} failed, {skipped} skipped"));
    (lines.join("\n") + "\n", forbidden)
}

/// Whether the machine truly lacks what a skipped test needed: the reason names a device node, and it is not there.
fn excused(skip: &str, exists: impl Fn(&str) -> bool) -> bool {
    ["/dev/kvm", "/dev/loop-control"].iter().any(|device| skip.contains(device) && !exists(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "running 3 tests
test a ... ok
SKIP: boots: /dev/kvm: No such file or directory
SKIP: boots: /dev/kvm: No such file or directory
SKIP: loops: losetup: Permission denied
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s";

    fn report() -> Report {
        let mut report =
            Report { passed: vec!["lints"], failed: vec!["tests".into()], tests: Counts::default() };
        OUTPUT.lines().for_each(|line| report.tests.read(line));
        report
    }

    #[test]
    fn tests_are_counted_over_all_binaries() {
        let Counts { passed, failed, ignored, skips, .. } = report().tests;
        assert_eq!((passed, failed, ignored), (10, 2, 1));
        assert_eq!(
            skips,
            ["boots: /dev/kvm: No such file or directory", "loops: losetup: Permission denied"]
        );
    }

    #[test]
    fn the_last_line_says_it_all() {
        let (text, forbidden) = render(&report(), false, |_| true);
        assert_eq!(forbidden, 0);
        assert!(text.ends_with("\n8 passed, 2 failed, 3 skipped\n"), "{text}");
        for line in ["ran: lints", "FAILED: tests", "skipped: loops: losetup: Permission denied"] {
            assert!(text.lines().any(|each| each == line), "{line}\n{text}");
        }
    }

    #[test]
    fn under_ci_only_a_missing_device_excuses_a_skip() {
        let (text, forbidden) = render(&report(), true, |_| false);
        assert_eq!(forbidden, 1);
        assert!(text.contains("loops: losetup: Permission denied (FAILED"), "{text}");
        let (text, forbidden) = render(&report(), true, |_| true);
        assert_eq!(forbidden, 2);
        assert!(text.ends_with("8 passed, 4 failed, 3 skipped\n"), "{text}");
    }

    #[test]
    fn a_failed_check_without_a_failed_test_counts() {
        let mut report = Report::default();
        report.failed.push("formatting".into());
        report.tests.read("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        assert!(render(&report, false, |_| true).0.ends_with("\n5 passed, 1 failed, 0 skipped\n"));
    }

    #[test]
    fn passed_tests_are_not_listed() {
        assert!(!worth_showing("test a::b ... ok") && !worth_showing(""));
        assert!(worth_showing("test a::b ... FAILED") && worth_showing("SKIP: a: b"));
    }
}

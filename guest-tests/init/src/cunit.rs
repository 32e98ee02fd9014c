//! What a test suite made with [CUnit](https://cunit.sourceforge.net) prints in its verbose mode.

use serde::{Deserialize, Serialize};

/// A test that ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tested {
    /// Suite and test: `WriteSame16.Unmap`.
    pub name: String,
    /// Whether an assertion failed.
    pub failed: bool,
    /// What it printed, and the assertions that failed.
    pub said: Vec<String>,
}

impl Tested {
    /// Whether it says that it did not test anything, or not all.
    #[must_use]
    pub fn skipped(&self) -> bool {
        self.said.iter().any(|line| line.starts_with("[SKIPPED]"))
    }
}

/// Read the output, from the first suite to the summary.
///
/// # Errors
/// The summary is not there, or counts other tests than those that were read.
pub fn parse(printed: &str) -> Result<Vec<Tested>, String> {
    let (mut tests, mut suite): (Vec<Tested>, _) = (Vec::new(), "");
    for line in printed.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Suite: ") {
            suite = name;
        } else if let Some((name, said)) =
            line.strip_prefix("Test: ").and_then(|test| test.split_once(" ..."))
        {
            tests.push(Tested { name: format!("{suite}.{name}"), ..Tested::default() });
            tests.last_mut().into_iter().for_each(|test| hear(test, said.trim()));
        } else if let Some(summary) = line.strip_prefix("Run Summary:") {
            return summarized(tests, printed.split_once(summary).map_or("", |(_, rest)| rest));
        } else {
            tests.last_mut().into_iter().for_each(|test| hear(test, line));
        }
    }
    Err(format!("no summary after {} tests: {printed}", tests.len()))
}

/// A line of a test's output.
fn hear(test: &mut Tested, line: &str) {
    match line {
        "" | "passed" => {}
        "FAILED" => test.failed = true,
        _ => test.said.push(line.to_owned()),
    }
}

/// The tests, where the summary's line `tests TOTAL RAN PASSED FAILED INACTIVE` says the same.
fn summarized(tests: Vec<Tested>, summary: &str) -> Result<Vec<Tested>, String> {
    let line = summary.lines().find_map(|line| line.trim().strip_prefix("tests ")).unwrap_or_default();
    let counted: Vec<usize> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let failed = tests.iter().filter(|test| test.failed).count();
    let read = [tests.len(), tests.len(), tests.len() - failed, failed, 0];
    match counted == read {
        true => Ok(tests),
        false => Err(format!("the summary says {counted:?}, the tests {read:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\n     CUnit - A unit testing framework for C - Version 2.1-3\n\n
Suite: Write
  Test: Simple ...passed
  Test: Zero ...    [SKIPPED] not for this disk.
passed
  Test: Size ...    [FAILED] WRITE successful but should have failed
FAILED
    1. test_size.c:51  - CU_ASSERT_EQUAL(_r,0)
Suite: Read
  Test: Simple ...FAILED
    1. test_read.c:7  - CU_ASSERT_EQUAL(_r,0)

Run Summary:    Type  Total    Ran Passed Failed Inactive
              suites      2      2    n/a      0        0
               tests      4      4      2      2        0
             asserts     10     10      8      2      n/a
";

    #[test]
    fn tests_with_what_they_said() {
        let tests = parse(OUTPUT).unwrap();
        let names: Vec<_> = tests.iter().map(|test| (&*test.name, test.failed, test.skipped())).collect();
        let expected = [
            ("Write.Simple", false, false),
            ("Write.Zero", false, true),
            ("Write.Size", true, false),
            ("Read.Simple", true, false),
        ];
        assert_eq!(names, expected);
        let size = [
            "[FAILED] WRITE successful but should have failed",
            "1. test_size.c:51  - CU_ASSERT_EQUAL(_r,0)",
        ];
        assert_eq!(tests[2].said, size);
        assert_eq!(tests[3].said, ["1. test_read.c:7  - CU_ASSERT_EQUAL(_r,0)"]);
    }

    #[test]
    fn output_that_does_not_end_or_does_not_add_up() {
        let cut = OUTPUT.split_once("Run").unwrap().0;
        assert!(parse(cut).unwrap_err().starts_with("no summary after 4 tests"));
        let other = OUTPUT.replace("4      4      2      2", "5      5      3      2");
        assert!(parse(&other).unwrap_err().contains("[5, 5, 3, 2, 0]"));
    }
}

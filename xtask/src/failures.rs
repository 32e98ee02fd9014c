//! The tests that failed, and why, for the last lines of a run.

use std::collections::VecDeque;

/// Lines that are shown of a failed test's output, from its panic on: at most this many from the beginning,
const FIRST: usize = 4;
/// and this many from the end, where a guest's console ends.
const LAST: usize = 24;

/// Tests that failed, in the order in which they ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    tests: Vec<Failure>,
    /// The test whose output the next lines are.
    telling: Option<usize>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Failure {
    name: String,
    first: Vec<String>,
    last: VecDeque<String>,
    left_out: usize,
}

impl Failure {
    fn push(&mut self, line: &str) {
        let line = line.to_owned();
        if self.first.len() < FIRST {
            return self.first.push(line);
        }
        self.last.push_back(line);
        if self.last.len() > LAST {
            self.last.pop_front();
            self.left_out += 1;
        }
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        let left_out = (self.left_out > 0).then(|| format!("  [{} lines]", self.left_out));
        let indented = |line: &String| format!("  {line}");
        std::iter::once(format!("FAILED: test {}", self.name))
            .chain(self.first.iter().map(indented))
            .chain(left_out)
            .chain(self.last.iter().map(indented))
    }
}

impl Failures {
    /// Account for one line of a test binary's output.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|test| test.strip_suffix(" ... FAILED")) {
            self.tests.push(Failure { name: name.to_owned(), ..Failure::default() });
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|test| test.strip_suffix(" stdout ----"))
        {
            self.telling = self.tests.iter().rposition(|test| test.name == name);
        } else if ["stack backtrace:", "failures:"].contains(&line) || line.starts_with("test result: ") {
            self.telling = None;
        } else if let Some(test) = self.telling.and_then(|test| self.tests.get_mut(test)) {
            let panics = line.starts_with("thread '") || line.starts_with("Error: ");
            if (panics || !test.first.is_empty()) && !line.is_empty() {
                test.push(line);
            }
        }
    }

    /// The lines to print for all failed tests.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.tests.iter().flat_map(Failure::lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named_with_their_panic() {
        let mut failures = Failures::default();
        let output = "running 3 tests
test good ... ok
test outer::bad ... FAILED
test worse ... FAILED

successes:

---- good stdout ----
thread 'expected' panicked at src/good.rs:1:1:

failures:

---- outer::bad stdout ----
41 of 42

thread 'outer::bad' (77) panicked at src/bad.rs:3:5:
assertion failed: left == right
stack backtrace:
   0: rust_begin_unwind

---- worse stdout ----
Error: \"no disk\"

failures:
    outer::bad
    worse

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        output.lines().for_each(|line| failures.read(line));
        let told = [
            "FAILED: test outer::bad",
            "  thread 'outer::bad' (77) panicked at src/bad.rs:3:5:",
            "  assertion failed: left == right",
            "FAILED: test worse",
            "  Error: \"no disk\"",
        ];
        assert_eq!(failures.lines().collect::<Vec<_>>(), told);
    }

    #[test]
    fn of_a_long_message_the_first_and_the_last_lines_are_told() {
        let mut failures = Failures::default();
        failures.read("test long ... FAILED");
        failures.read("---- long stdout ----");
        failures.read("thread 'long' panicked");
        (1..100).for_each(|line| failures.read(&line.to_string()));
        let told: Vec<_> = failures.lines().collect();
        assert_eq!(told[1..6], ["  thread 'long' panicked", "  1", "  2", "  3", "  [72 lines]"]);
        assert_eq!(told[6..].len(), LAST);
        assert_eq!(told.last().map(String::as_str), Some("  99"));
    }
}

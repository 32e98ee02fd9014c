//! The tests that failed, and the first words of why, for the last lines of a run.

/// At most this many lines of what a failed test printed: those from its panic on.
const LINES: usize = 6;

/// Tests that failed, in the order in which they ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    tests: Vec<Failure>,
    /// Of which test the next lines tell.
    telling: Option<usize>,
}

#[derive(Debug, PartialEq, Eq)]
struct Failure {
    name: String,
    words: Vec<String>,
}

impl Failures {
    /// Account for one line of a test binary's output.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|test| test.strip_suffix(" ... FAILED")) {
            self.tests.push(Failure { name: name.to_owned(), words: Vec::new() });
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|test| test.strip_suffix(" stdout ----"))
        {
            self.telling = self.tests.iter().rposition(|test| test.name == name);
        } else if ["stack backtrace:", "failures:"].contains(&line) || line.starts_with("test result: ") {
            self.telling = None;
        } else if let Some(Failure { words, .. }) = self.telling.and_then(|test| self.tests.get_mut(test)) {
            let panics = line.starts_with("thread '") || line.starts_with("Error: ");
            if words.len() < LINES && (panics || !words.is_empty()) && !line.is_empty() {
                words.push(line.to_owned());
            }
        }
    }

    /// The lines that tell of them.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.tests.iter().flat_map(|Failure { name, words }| {
            std::iter::once(format!("FAILED: test {name}"))
                .chain(words.iter().map(|line| format!("  {line}")))
        })
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
}

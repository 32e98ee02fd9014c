//! Host faults: for each format and each tool, every host call of the operation fails once in every possible way.
//!
//! A scenario is a small deterministic run over images in its own directory. It runs once without a fault, to count the
//! host calls. Then it runs again from fresh copies of the images for each call and each [`Fault`]. After each run the
//! images are checked three times: as the page cache has them, after an eviction of the pages that a failed flush left
//! behind, and after a power failure. Requirements:
//!
//! - Everything that a successful flush acknowledged is there. No later flush acknowledges more than is there.
//! - If `check` finds no damage in an image, its content is correct.
//! - Each operation ends.
//!
//! For more workloads: `PARADISK_TEST_EFFORT=100 cargo test -p paradisk-disk-formats fault_tests -- --nocapture`
//! multiplies their number.

mod images;
mod inline;
mod oracle;
mod queue;
mod tools;
mod watch;

use super::faults::{Call, Fault, Host};

/// The ways in which a call fails in the runs. Reads change nothing, so each fails in one way only.
fn faults_of(index: usize, call: Call) -> Vec<Fault> {
    let all = Fault::of(call);
    match call {
        Call::Read => all.get(index % all.len()).copied().into_iter().collect(),
        _ => all.to_vec(),
    }
}

/// The runs of a test, and their findings.
struct Runs {
    watch: watch::Watch,
    number: usize,
    /// Runs that did not reach their fault, because threads made the calls in another order.
    missed: usize,
    found: Vec<String>,
}

/// The outcome of a run without findings.
enum Outcome {
    /// The host calls.
    Done(Vec<Call>),
    Missed,
}

impl Runs {
    fn new() -> Self {
        Self { watch: watch::Watch::new(), number: 0, missed: 0, found: Vec::new() }
    }

    /// Run without a fault, then with every fault at every call.
    fn every_fault(
        &mut self,
        host: &Host,
        name: &str,
        mut run: impl FnMut(&Host, Option<(usize, Fault)>) -> Result<Outcome, String>,
    ) {
        self.watch.begin(format!("{name}: no fault"));
        self.number += 1;
        let calls = match run(host, None) {
            Ok(Outcome::Done(calls)) => calls,
            Ok(Outcome::Missed) => Vec::new(),
            Err(why) => return self.found.push(format!("{name}: no fault: {why}")),
        };
        for (index, call) in calls.iter().enumerate() {
            for fault in faults_of(index, *call) {
                let title = || format!("{name}: call {index} of {}, {call:?}, {fault:?}", calls.len());
                self.watch.begin(title());
                self.number += 1;
                match run(host, Some((index, fault))) {
                    Ok(Outcome::Done(_)) => {}
                    Ok(Outcome::Missed) => self.missed += 1,
                    Err(why) => self.found.push(format!("{}: {why}\nthe calls: {calls:?}", title())),
                }
            }
        }
    }

    /// Report the findings.
    ///
    /// # Panics
    /// If there are any.
    fn end(self, name: &str) {
        println!("{name}: {} runs, {} of them without their fault", self.number, self.missed);
        for found in self.found.iter().take(3) {
            println!("{found}\n");
        }
        assert!(self.found.is_empty(), "{name}: {} of {} runs", self.found.len(), self.number);
        assert!(self.missed <= self.number / 50, "{name}: the order of calls is arbitrary");
    }
}

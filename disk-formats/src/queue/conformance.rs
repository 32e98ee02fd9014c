//! The conformance suite for disks, of this crate and of others: create a [`Suite`], and call [`Suite::run`].
//!
//! It is meant for tests: it panics with the name of the failed check.

use crate::contract::queue::EngineKind;

mod checks;
mod content;
mod driver;

#[cfg(test)]
pub(crate) use driver::Random;
pub use driver::{Driver, Fresh, Guest, Peek, Suite};

/// A check: its name, whether it needs content, and its function.
type Check = (&'static str, bool, fn(&Suite<'_>, EngineKind));

const CHECKS: [Check; 15] = [
    ("info", false, checks::info),
    ("bounds", false, checks::bounds),
    ("alignment", false, checks::alignment),
    ("full queue", false, checks::full_queue),
    ("event", false, checks::event),
    ("drop in flight", false, checks::drop_in_flight),
    ("moved before use", false, checks::moved_before_use),
    ("read-only", false, checks::read_only),
    ("buffers", true, content::buffers),
    ("more than the queue holds", true, content::more_than_the_queue_holds),
    ("overlap", true, content::overlap),
    ("durability", true, content::durability),
    ("discard and zeroes", true, content::discard_and_zeroes),
    ("two queues", true, content::two_queues),
    ("model", true, content::model),
];

impl Suite<'_> {
    /// Run every check on every engine.
    ///
    /// # Panics
    /// If the disk fails a check.
    pub fn run(&self) {
        for (engine, called) in self.engines {
            let fresh = (self.make)();
            let driver = Driver::new(&*fresh.disk, *engine, 1);
            assert_eq!(driver.queue.engine(), *called, "{}: the queue's engine", self.name);
            drop(driver);
            for (name, content, check) in CHECKS {
                if self.keeps_data || !content {
                    println!("{} over {called}: {name}", self.name);
                    check(self, *engine);
                }
            }
        }
    }
}

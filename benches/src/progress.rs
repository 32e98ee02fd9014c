//! Reports of progress, implemented by what shows it.

use crate::result::Document;

/// Receives the progress of a measurement.
pub trait Progress {
    /// A measurement of `jobs` jobs begins.
    fn begin(&mut self, jobs: usize);
    /// The next job begins.
    fn job(&mut self, name: &str);
    /// The current job has ended.
    fn done(&mut self);
    /// After each job: `rows` makes the document of what has run so far, which takes up to a second.
    fn rows(&mut self, _rows: &dyn Fn() -> Document) {}
    /// The measurement has ended, or failed.
    fn end(&mut self);
}

/// Shows nothing.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _jobs: usize) {}
    fn job(&mut self, _name: &str) {}
    fn done(&mut self) {}
    fn end(&mut self) {}
}

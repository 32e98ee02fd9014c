//! A progress bar on standard error.

use benches::progress::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows the number of finished jobs, and the current job, if standard error is a terminal.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn new() -> Self {
        Self(ProgressBar::hidden())
    }
}

impl Progress for Bar {
    fn begin(&mut self, jobs: usize) {
        // Hidden if standard error is no terminal.
        let bar = ProgressBar::with_draw_target(Some(jobs as u64), ProgressDrawTarget::stderr());
        self.0 = match ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}") {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
    }

    fn job(&mut self, name: &str) {
        self.0.set_message(name.to_owned());
    }

    fn done(&mut self) {
        self.0.inc(1);
    }

    fn end(&mut self) {
        self.0.finish_and_clear();
    }
}

//! Progress on standard error, for people: only where that is a terminal; and SIGINT and SIGTERM as a wish to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar, and whether to go on.
pub(crate) struct Progress {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// A bar that counts in bytes. From now on, SIGINT and SIGTERM only ask to stop: what was begun is left whole.
    pub(crate) fn bytes(what: &'static str) -> Self {
        Self::new(what, "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}")
    }

    /// A bar that counts blocks.
    pub(crate) fn blocks(what: &'static str) -> Self {
        Self::new(what, "{msg} {wide_bar} {pos}/{len} blocks {eta}")
    }

    fn new(what: &'static str, template: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // Where it cannot be caught, it ends the process: what is half done says so when it is opened.
            let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
        }
        let bar = ProgressBar::new(0).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, stop }
    }

    /// What is done from now on.
    pub(crate) fn now(&self, what: &'static str) {
        self.bar.set_message(what);
    }

    /// Take the bar from the terminal, until the next step.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// `done` of `total`; `false` where the user wants it to stop.
    pub(crate) fn step(&self, done: u64, total: u64) -> bool {
        if self.bar.is_finished() {
            self.bar.reset();
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
        !self.stopped()
    }

    /// Whether the user wants it to stop.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The flag itself, for workers.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.stop
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

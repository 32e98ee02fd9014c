//! A progress bar on standard error, where that is a terminal, and SIGINT, SIGTERM and SIGHUP as requests to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use paradisk_disk_formats::image::{Control, default_workers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::ignored::Ignored;

/// A progress bar, and whether a signal requests to stop.
pub(crate) struct Progress {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// A bar that counts bytes. From now on, SIGINT, SIGTERM and SIGHUP only request to stop, so that no operation is cut off halfway.
    pub(crate) fn bytes(what: &'static str) -> Self {
        Self::new(what, "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}")
    }

    /// A bar that counts blocks.
    pub(crate) fn blocks(what: &'static str) -> Self {
        Self::new(what, "{msg} {wide_bar} {pos}/{len} blocks {eta}")
    }

    fn new(what: &'static str, template: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in Ignored::read().others([SIGINT, SIGTERM, SIGHUP]) {
            // Without a handler the signal ends the process, and opening the image reports the incomplete operation.
            let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
        }
        let bar = ProgressBar::new(0).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, stop }
    }

    /// Show the name of the next phase.
    pub(crate) fn now(&self, what: &'static str) {
        self.bar.set_message(what);
    }

    /// Hide the bar until the next step.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Show `done` of `total`; `false`: the user requests to stop.
    pub(crate) fn step(&self, done: u64, total: u64) -> bool {
        if self.bar.is_finished() {
            self.bar.reset();
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
        !self.stopped()
    }

    /// Whether the user requests to stop.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Run a tool with one worker for each processor.
    pub(crate) fn control<T>(&self, run: impl FnOnce(&Control<'_>) -> T) -> T {
        let step = |done, total| {
            self.step(done, total);
        };
        run(&Control { workers: default_workers(), cancel: &self.stop, progress: &step })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

//! `--poll`.

use std::time::Duration;

use crate::units;

/// Whether the threads of adapters poll before they sleep.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Polling {
    /// A thread that serves an adapter or a queue polls for up to this long after its last work, before it sleeps: lower latency, more
    /// CPU time. It does not poll while it waits longer than this for work [default: it does not poll]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    poll: Option<Duration>,
}

impl Polling {
    /// How long to poll; 0: not at all.
    pub(crate) fn get(self) -> Duration {
        self.poll.unwrap_or_default()
    }
}

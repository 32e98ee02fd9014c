//! Options of a command that can be watched and changed while it runs: `--metrics` and `--control`.

use std::path::PathBuf;

use crate::control::server;
use crate::failure::Failure;
use crate::metrics::{self, Metering};

/// Where statistics can be read and commands are taken.
#[derive(clap::Args)]
pub(crate) struct Monitoring {
    /// Take commands at this Unix socket: `paradisk ctl SOCKET list` prints the disks and their ids
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    #[command(flatten)]
    metrics: metrics::Options,
}

/// The sockets of these options, which listen.
pub(crate) struct Listeners {
    pub(crate) control: Option<server::Listener>,
    pub(crate) metrics: Option<metrics::Listener>,
}

impl Monitoring {
    /// What is counted for each disk.
    pub(crate) fn metering(&self) -> Metering {
        self.metrics.metering(self.control.is_some())
    }

    /// The paths of the sockets.
    pub(crate) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.control.clone().into_iter().chain(self.metrics.path())
    }

    /// Listen at the sockets.
    pub(crate) fn listen(&self) -> Result<Listeners, Failure> {
        let control = self.control.as_deref().map(server::Listener::bind).transpose()?;
        Ok(Listeners { control, metrics: self.metrics.listen()? })
    }
}

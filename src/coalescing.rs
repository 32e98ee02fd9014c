//! Options of interrupt moderation.

use std::time::Duration;

use facts::names::Coalescing;
use paradisk_devices::Policy;

use crate::units;

const HEADING: &str = "Coalescing";

/// Interrupt moderation of the adapters of a command.
#[derive(clap::Args)]
pub(crate) struct Moderation {
    /// Interrupt moderation: off, batch, oio, oio-iops
    #[arg(long, value_name = "NAME", default_value = "oio-iops")]
    coalescing: Coalescing,
    #[command(flatten)]
    thresholds: Thresholds,
}

impl Moderation {
    pub(crate) fn get(&self) -> paradisk_devices::Coalescing {
        paradisk_devices::Coalescing { policy: self.coalescing.into(), ..self.thresholds.get() }
    }
}

/// Thresholds of interrupt moderation.
#[derive(clap::Args)]
pub(crate) struct Thresholds {
    /// oio, oio-iops: with fewer outstanding I/Os no signal is held back: there is one for each batch of completions [default: 4]
    #[arg(long, help_heading = HEADING, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    cif_threshold: Option<u32>,
    /// oio-iops: with fewer completions in a second no signal is held back [default: 2000]
    #[arg(long, help_heading = HEADING, value_name = "N")]
    iops_threshold: Option<u64>,
    /// oio, oio-iops: how often rate and ratio are computed anew [default: 200ms]
    #[arg(long, help_heading = HEADING, value_name = "TIME", value_parser = units::duration)]
    coalescing_epoch: Option<Duration>,
    /// oio-iops: nothing is held back for completions that, at the rate measured, take longer to come [default: 50us]
    #[arg(long, help_heading = HEADING, value_name = "TIME", value_parser = units::duration)]
    coalescing_hold: Option<Duration>,
    /// oio, oio-iops: the longest that a signal is held back when no other completion follows [default: 1ms]
    #[arg(long, help_heading = HEADING, value_name = "TIME", value_parser = units::duration)]
    coalescing_backstop: Option<Duration>,
}

impl Thresholds {
    /// The values given, else the defaults.
    pub(crate) fn get(&self) -> paradisk_devices::Coalescing {
        let default = paradisk_devices::Coalescing::policy(Policy::default());
        paradisk_devices::Coalescing {
            cif_threshold: self.cif_threshold.unwrap_or(default.cif_threshold),
            iops_threshold: self.iops_threshold.unwrap_or(default.iops_threshold),
            epoch: self.coalescing_epoch.unwrap_or(default.epoch),
            longest_hold: self.coalescing_hold.unwrap_or(default.longest_hold),
            backstop: self.coalescing_backstop.unwrap_or(default.backstop),
            ..default
        }
    }
}

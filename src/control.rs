//! The protocol of the control socket of a machine or server: commands and replies, one JSON document a line.

pub(crate) mod server;

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::units;

/// Longest line in bytes.
pub(crate) const LONGEST: u64 = 64 << 10;

/// A command, in documents and on the command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Command {
    /// The disks, with their adapters and targets
    List,
    /// Attach a disk to a free target of an adapter that the machine has
    Attach {
        /// As `paradisk run --disk` takes it
        disk: String,
    },
    /// Detach a disk, after its requests have completed, and close it
    Detach {
        /// As `list` names it
        id: String,
    },
    /// Make a disk larger while it is in use, and report it to the guest: raw images
    Resize {
        /// As `list` names it
        id: String,
        /// Its new size, as 20G
        #[arg(value_parser = checked_size)]
        size: String,
    },
    /// Find disks that have become larger on the host, and report it to the guest: block devices, raw images
    Rescan,
    /// Switch interrupt moderation: off, batch, oio, oio-iops
    Coalescing {
        /// The policy
        policy: String,
        /// Of this adapter alone, as pvscsi0
        #[arg(long, value_name = "NAME")]
        adapter: Option<String>,
    },
    /// What the machine has done so far, as `paradisk run --stats` writes it, and the requests of each disk; of a server, its disks (always
    /// JSON)
    Stats {
        /// Before, begin to measure the latency of requests, or end it: on, off
        #[arg(long, value_name = "on|off", value_parser = on_off)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        latency: Option<bool>,
    },
    /// End the machine, as Ctrl-A x does, or the server, without a shutdown of the guest
    Stop,
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

/// Check a size, and pass it on as it was written.
fn checked_size(text: &str) -> Result<String, String> {
    units::size(text).map(|_| text.to_owned())
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply {
    /// Success.
    Ok(Value),
    /// Failure, and why.
    Error(String),
}

impl From<Result<Value, String>> for Reply {
    fn from(result: Result<Value, String>) -> Self {
        result.map_or_else(Self::Error, Self::Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_as_scripts_know_them() {
        let read = |text: &str| serde_json::from_str::<Command>(text);
        assert_eq!(read(r#"{"command":"list"}"#).unwrap(), Command::List);
        assert_eq!(
            read(r#"{"command":"coalescing","policy":"off"}"#).unwrap(),
            Command::Coalescing { policy: "off".to_owned(), adapter: None }
        );
        assert_eq!(read(r#"{"command":"stats"}"#).unwrap(), Command::Stats { latency: None });
        assert_eq!(
            read(r#"{"command":"stats","latency":true}"#).unwrap(),
            Command::Stats { latency: Some(true) }
        );
        let stats = serde_json::to_string(&Command::Stats { latency: None }).unwrap();
        assert_eq!(stats, r#"{"command":"stats"}"#);
        assert!(read(r#"{"command":"attach"}"#).is_err() && read(r#"{"command":"fly"}"#).is_err());
        let reply = Reply::from(Err("no".to_owned()));
        assert_eq!(serde_json::to_string(&reply).unwrap(), r#"{"error":"no"}"#);
    }
}

//! What a running machine can be told through its control socket: one JSON document a line, each answered by one.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest line in bytes.
pub(crate) const LONGEST: u64 = 64 << 10;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Command {
    /// The disks.
    List,
    /// Attach a disk.
    Attach {
        /// As `--disk` takes it.
        disk: String,
    },
    /// Detach a disk.
    Detach {
        /// As `List` calls it.
        id: String,
    },
    /// Switch interrupt moderation.
    Coalescing {
        /// Policy.
        policy: String,
        /// One adapter, or all.
        adapter: Option<String>,
    },
    /// What `--stats` would write now.
    Stats,
    /// End the machine, as Ctrl-A x.
    Stop,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply {
    /// It was done.
    Ok(Value),
    /// It was not.
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
        assert!(read(r#"{"command":"attach"}"#).is_err() && read(r#"{"command":"fly"}"#).is_err());
        let reply = Reply::from(Err("no".to_owned()));
        assert_eq!(serde_json::to_string(&reply).unwrap(), r#"{"error":"no"}"#);
    }
}

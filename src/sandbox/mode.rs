//! Whether there is a sandbox, and for which program.

use std::str::FromStr;

/// Whether there is a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A call that is not allowed ends the process.
    On,
    /// System calls that are not allowed are reported and made. Nothing is enforced: for finding out what a sandbox would stop.
    Log,
    /// No sandbox.
    Off,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "on" => Ok(Self::On),
            "log" => Ok(Self::Log),
            "off" => Ok(Self::Off),
            _ => Err(format!("`{name}` is not one of: on, log, off")),
        }
    }
}

/// A program, by what its main thread does after the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// `paradisk run`: waits for events, executes commands of the control socket.
    Run,
    /// The same with `--sandbox-path`: opens images for `paradisk ctl attach`.
    RunAttaching,
    /// `paradisk serve nbd`: waits for the end.
    Nbd,
    /// `paradisk serve vhost-user-blk`: accepts clients.
    VhostUser,
    /// `paradisk serve vfio-user`: waits for the end.
    VfioUser,
}

//! The options of the sandbox, common to `run` and `serve`.

use sandbox::{Error, Grants, Mode, Program, Sandbox};

use crate::failure::Failure;
use crate::tell;

/// Whether the process confines itself.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Confinement {
    /// Limit the process to what it needs once its disks and sockets are open: on; log (report the system calls that would be stopped,
    /// and stop none), off
    #[arg(long, value_name = "on|log|off", default_value = "on")]
    sandbox: Mode,
}

impl Confinement {
    /// Whether the process is limited: not if calls are only reported.
    pub(crate) fn is_on(self) -> bool {
        self.sandbox == Mode::On
    }

    /// Confine the process: everything is open but what `grants` names, and no thread has been started. Then start the thread that writes
    /// messages.
    pub(crate) fn enter(self, program: Program, grants: &Grants) -> Result<Confined, Failure> {
        let entered = Sandbox::enter(self.sandbox, program, grants, |text| tell!("note: {text}"));
        let entered = entered.map_err(failed)?;
        tell::start().map_err(|error| Failure::Failed(format!("thread for messages: {error}")))?;
        Ok(Confined(entered))
    }
}

/// The sandbox while threads are started.
#[must_use]
pub(crate) struct Confined(Sandbox);

impl Confined {
    /// Install the filter of the main thread: the start is over.
    pub(crate) fn close(self) -> Result<(), Failure> {
        self.0.close().map_err(failed)
    }
}

fn failed(error: Error) -> Failure {
    Failure::Failed(format!("sandbox: {error} (--sandbox off runs without)"))
}

//! Why a sandbox could not be made.

use std::io;
use std::path::PathBuf;

/// The sandbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Capabilities or no_new_privs.
    #[error("privileges: {0}")]
    Privileges(io::Error),
    /// A path that was to be granted cannot be opened.
    #[error("{}: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why it cannot be opened.
        source: io::Error,
    },
    /// Landlock.
    #[error("Landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// A filter of system calls.
    #[error("filter of system calls: {0}")]
    Filter(#[from] seccompiler::Error),
    /// The handler of denied calls.
    #[error("handler of SIGSYS: {0}")]
    Handler(io::Error),
    /// The thread that makes rings.
    #[error("thread for io_uring: {0}")]
    RingMaker(io::Error),
}

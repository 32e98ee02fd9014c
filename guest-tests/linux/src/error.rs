//! Why an image could not be made.

use std::io;
use std::path::{Path, PathBuf};

/// Why an image could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program that is not there or ended badly.
    #[error("{command}: {how}")]
    Command {
        /// The program with its arguments.
        command: String,
        /// Its status and last words.
        how: String,
    },
    /// No place for the cache.
    #[error("neither XDG_CACHE_HOME nor HOME is set")]
    NoHome,
    /// Programs that are built here need not run with Debian's libraries.
    #[error("the host is not Debian")]
    NotDebian,
    /// Debian's archive has no such package, or its lists were never fetched.
    #[error("apt knows no package {0}; has apt-get update run?")]
    NoPackage(String),
    /// The machine with KVM inside QEMU did not finish its job.
    #[error("{why}; the end of its console:\n{console}")]
    Host {
        /// How it ended.
        why: String,
        /// What it printed last.
        console: String,
    },
    /// More CPUs of the machine inside QEMU than this QEMU can emulate by instructions.
    #[error("a host with {cpus} CPUs: the QEMU of {release} hangs with more than {most} and -icount")]
    Cpus {
        /// Of Debian, which has this QEMU.
        release: &'static str,
        /// CPUs at the most.
        most: u8,
        /// CPUs asked for.
        cpus: u8,
    },
    /// A package is not made as expected.
    #[error("package {package} has no {what}")]
    Package {
        /// Which.
        package: String,
        /// What is missing.
        what: String,
    },
}

impl Error {
    /// For `map_err` after a file operation.
    pub(crate) fn file(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::File { path, source }
    }
}

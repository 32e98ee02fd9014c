//! Why a Linux system could not be loaded.

use std::io;
use std::path::PathBuf;

use crate::error::Error;

/// Why a system could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LinuxError {
    /// A file that cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is no kernel, or is damaged.
    #[error("{}: no Linux kernel for x86-64: {why}", path.display())]
    NoKernel {
        /// Which.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The kernel does not fit into guest memory.
    #[error("{what}: needs {needed:#x} bytes of guest memory, there are {have:#x} below the PCI hole")]
    MemoryTooSmall {
        /// What does not fit.
        what: String,
        /// Bytes from address 0.
        needed: u64,
        /// Available bytes.
        have: u64,
    },
    /// The initrd does not fit.
    #[error(
        "{}: initrd of {size} bytes, expected at most the {space} that guest memory and the kernel leave for it",
        path.display()
    )]
    InitrdTooLarge {
        /// Which.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// Available bytes.
        space: u64,
    },
    /// The command line is too long for the kernel.
    #[error("command line of {len} bytes, expected at most {most}")]
    CmdlineTooLong {
        /// Its length in bytes.
        len: usize,
        /// The kernel's limit.
        most: u64,
    },
    /// A command line with a zero byte, which would end it.
    #[error("command line with a zero byte")]
    CmdlineZero,
    /// The kernel has no PVH entry point.
    #[error("{}: no PVH entry point", .0.display())]
    NoPvh(PathBuf),
    /// An error of the machine.
    #[error(transparent)]
    Machine(#[from] Error),
}

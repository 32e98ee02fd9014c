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
    /// A kernel that is none, or is broken.
    #[error("{}: no Linux kernel for x86-64: {why}", path.display())]
    NoKernel {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The kernel does not fit into guest memory.
    #[error("{what}: needs {needed:#x} bytes of guest memory, there are {have:#x} below the PCI hole")]
    MemoryTooSmall {
        /// What does not fit.
        what: String,
        /// Bytes from address 0.
        needed: u64,
        /// Bytes there are.
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
        /// Its bytes.
        size: u64,
        /// Bytes there are for it.
        space: u64,
    },
    /// A command line that the kernel would cut.
    #[error("command line of {len} bytes, expected at most {most}")]
    CmdlineTooLong {
        /// Its bytes.
        len: usize,
        /// What the kernel takes.
        most: u64,
    },
    /// A command line with a zero byte, where the kernel would end it.
    #[error("command line with a zero byte")]
    CmdlineZero,
    /// PVH wanted of a kernel without it.
    #[error("{}: no PVH entry point", .0.display())]
    NoPvh(PathBuf),
    /// Not about the files.
    #[error(transparent)]
    Machine(#[from] Error),
}

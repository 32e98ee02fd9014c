//! Options that QEMU and libvirt expect of every vhost-user back end (QEMU's `docs/interop/vhost-user.rst`, "Backend program conventions").
//!
//! `--socket-path` is an alias of `--socket`. Programs find the back end by a description in `/usr/share/qemu/vhost-user`
//! (`packaging/50-paradisk-blk.json`).

use std::os::fd::RawFd;
use std::path::PathBuf;

use crate::disk_spec::DiskSpec;

/// `VHostUserBackendCapabilities` of QEMU's `docs/interop/vhost-user.json`.
pub(super) const CAPABILITIES: &str =
    "{\n  \"type\": \"block\",\n  \"features\": [\"read-only\", \"blk-file\"]\n}\n";

const HEADING: &str = "Conventions of vhost-user back ends";

#[derive(clap::Args)]
pub(super) struct Conventions {
    /// Print as JSON which of these options there are, and end; other options have no effect
    #[arg(long, help_heading = HEADING)]
    pub(super) print_capabilities: bool,
    /// In place of --socket: an open Unix socket, which listens, or is connected to the only client
    #[arg(long, help_heading = HEADING, value_name = "FDNUM", conflicts_with = "socket")]
    pub(super) fd: Option<RawFd>,
    /// In place of --disk: the path of an image file or a block device, of a format that is probed
    #[arg(long, help_heading = HEADING, value_name = "PATH", conflicts_with = "disk")]
    blk_file: Option<PathBuf>,
    /// Refuse writes to --blk-file
    #[arg(long, help_heading = HEADING, requires = "blk_file", conflicts_with = "disk")]
    read_only: bool,
}

impl Conventions {
    /// The disk of `--blk-file`.
    pub(super) fn disk(&self) -> Option<DiskSpec> {
        self.blk_file.clone().map(|path| DiskSpec::file(path, self.read_only))
    }
}

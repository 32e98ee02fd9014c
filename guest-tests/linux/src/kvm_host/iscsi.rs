//! A software iSCSI disk in L1: the kernel's target (LIO) over a block device, and the kernel's initiator, joined by the loopback network.

use std::path::PathBuf;

use super::KvmHost;
use super::bundle::Bundle;
use crate::error::Error;
use crate::with_libraries::ISCSISTART;

const BUNDLE: Bundle<'_> = Bundle {
    name: "iscsi",
    // The disk's driver; target and its store; initiator.
    modules: &["sd_mod", "target_core_iblock", "iscsi_target_mod", "iscsi_tcp"],
    program: ISCSISTART,
    up: include_str!("iscsi-up"),
};

impl KvmHost {
    /// The block device that [`ISCSI_UP`](Self::ISCSI_UP) makes.
    pub const ISCSI_DISK: &str = "/dev/sda";
    /// How a script makes it, if it has the files of [`iscsi`](Self::iscsi): the block device that the target exports follows. The exit
    /// status is 0 when the disk is there.
    pub const ISCSI_UP: &str = "sh iscsi/up";

    /// Modules of L1's kernel and the initiator's tool, for a job with an iSCSI disk.
    ///
    /// # Errors
    /// A package is not to be had, or the kernel lacks a module.
    pub fn iscsi() -> Result<Vec<(String, PathBuf)>, Error> {
        BUNDLE.files()
    }
}

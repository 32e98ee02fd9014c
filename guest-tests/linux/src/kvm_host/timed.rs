//! A disk of L1 that completes each request 50 microseconds later, by a timer interrupt, as a device does (`null_blk`).

use std::path::PathBuf;

use super::KvmHost;
use super::bundle::Bundle;
use crate::error::Error;
use crate::with_libraries::MKE2FS;

const BUNDLE: Bundle<'_> =
    Bundle { name: "timed", modules: &["null_blk"], program: MKE2FS, up: include_str!("timed-up") };

impl KvmHost {
    /// The block devices that [`TIMED_UP`](Self::TIMED_UP) makes; a number follows, from 0.
    pub const TIMED_DISK: &str = "/dev/nullb";
    /// Where its file system is, if it has one.
    pub const TIMED_FOLDER: &str = "/timed";
    /// How a script makes them, if it has the files of [`timed`](Self::timed): `empty` (they transfer no data) or `ext4` (their data are in
    /// L1's memory, and the first has this file system) follows, and then how many; default: one. The exit status is 0 when they are there.
    pub const TIMED_UP: &str = "sh timed/up";

    /// A module of L1's kernel and the tool that makes the file system, for a job with such a disk.
    ///
    /// # Errors
    /// A package is not to be had, or the kernel lacks a module.
    pub fn timed() -> Result<Vec<(String, PathBuf)>, Error> {
        BUNDLE.files()
    }
}

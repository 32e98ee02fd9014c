//! Fuzz targets: each takes the bytes of an input as the actions of an untrusted party, and calls the code under test in its own process.
//! A panic is a finding.
//!
//! The fuzzer (`fuzz/fuzzer.rs`) runs them guided by coverage; `tests/replay.rs` runs the inputs that are committed and those of earlier
//! runs of the fuzzer.

mod common {
    pub(crate) mod client;
    pub(crate) mod device;
    pub(crate) mod disk;
    pub(crate) mod folder;
    pub(crate) mod image;
    pub(crate) mod input;
    pub(crate) mod virtio;
}

mod boot;
mod buslogic;
mod control;
mod ide;
mod lsi;
mod nbd;
mod partitions;
mod pvscsi;
mod scsi;
mod tools;
mod vfio_user;
mod vhd;
mod vhdx;
mod vhdx_log;
mod vhost_user;
mod virtio_blk;
mod virtio_scsi;
mod vmbus;

/// Parts of the command line's source, which has no library: [`control`] needs them.
#[allow(dead_code, reason = "the command line uses the rest")]
#[path = "../../../src/failure.rs"]
mod failure;
#[allow(dead_code, unexpected_cfgs, reason = "the command line uses the rest, and has features")]
#[path = "../../../src/units.rs"]
mod units;

/// Pass the name of every target to the macro `$call`.
#[macro_export]
macro_rules! for_targets {
    ($call:ident) => {
        $call! {
            boot buslogic control ide lsi nbd partitions pvscsi scsi tools vfio_user vhd vhdx vhdx_log vhost_user
            virtio_blk virtio_scsi vmbus
        }
    };
}

macro_rules! table {
    ($($target:ident)*) => {
        /// Every target: its name, and what runs an input.
        pub const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($target), $target::run)),*];
    };
}
for_targets!(table);

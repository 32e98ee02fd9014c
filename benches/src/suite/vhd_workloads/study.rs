//! The study's targets and loads.

use facts::units::format_size;

use crate::grid::{Grid, Head, left, right};
use crate::mix::{self, Mix};
use crate::result::RunResult;

pub(in super::super) const SEQUENTIAL: [u32; 4] = [4 << 10, 64 << 10, 256 << 10, 1 << 20];
pub(in super::super) const RANDOM: [u32; 4] = [4 << 10, 8 << 10, 32 << 10, 64 << 10];

/// The targets, in the order of [`Bed::vhd_study`]: format, subformat, and their column.
pub(in super::super) const TARGETS: [(&str, Option<&str>, [&str; 2]); 8] = [
    ("passthrough", None, ["raw", "device"]),
    ("raw", None, ["raw", "file"]),
    ("vhd", Some("fixed"), ["VHD", "fixed"]),
    ("vhd", Some("dynamic"), ["VHD", "dynamic"]),
    ("vhd", Some("differencing"), ["VHD", "differencing"]),
    ("vhdx", Some("fixed"), ["VHDX", "fixed"]),
    ("vhdx", Some("dynamic"), ["VHDX", "dynamic"]),
    ("vhdx", Some("differencing"), ["VHDX", "differencing"]),
];
/// Places in [`TARGETS`].
pub(in super::super) const DEVICE: usize = 0;
pub(in super::super) const FILE: usize = 1;
pub(in super::super) const VHD_FIXED: usize = 2;
pub(in super::super) const VHD_DYNAMIC: usize = 3;
pub(in super::super) const VHD_DIFFERENCING: usize = 4;
pub(in super::super) const VHDX_FIXED: usize = 5;

/// Number of disks.
pub(in super::super) const DISKS: usize = TARGETS.len();
/// A part of the loads.
pub(in super::super) struct Group {
    pub(in super::super) title: &'static str,
    pub(super) file: &'static str,
    pub(in super::super) mixes: Vec<Mix>,
    /// Whether throughput is shown in MB/s.
    pub(super) bytes: bool,
}

pub(in super::super) fn groups() -> [Group; 3] {
    let plain = |sizes: [u32; 4], random: u32, word: &str| {
        [(100, "read"), (0, "write")]
            .into_iter()
            .flat_map(|(reads, access)| {
                sizes.map(|size| {
                    let name = format!("{word} {access} {}", format_size(size.into()));
                    Mix::plain(name, size, reads, random)
                })
            })
            .collect()
    };
    [
        Group {
            title: "Sequential",
            file: "sequential",
            mixes: plain(SEQUENTIAL, 0, "sequential"),
            bytes: true,
        },
        Group { title: "Random", file: "random", mixes: plain(RANDOM, 100, "random"), bytes: false },
        Group { title: "Applications", file: "applications", mixes: mix::all_shipped(), bytes: false },
    ]
}

/// Whether a row is of a load over a target.
pub(in super::super) fn is_of(result: &RunResult, target: usize, mix: &str) -> bool {
    let (format, subformat, _) = TARGETS[target];
    result.workload.as_deref() == Some(mix)
        && result.disk.format == format
        && result.disk.subformat.as_deref() == subformat
}

/// The row with the best median throughput.
pub(in super::super) fn best<'a>(rows: impl IntoIterator<Item = &'a RunResult>) -> Option<&'a RunResult> {
    rows.into_iter().max_by(|a, b| a.iops.median.total_cmp(&b.iops.median))
}

/// A target's name, short enough for an axis.
pub(in super::super) fn short_name(target: usize) -> String {
    TARGETS[target].2.join(" ").replace("differencing", "diff.")
}

/// A table of the loads of a group over the targets.
pub(in super::super) fn grid(
    group: &Group,
    what: &str,
    cell: impl Fn(usize, &str) -> Option<String>,
) -> Grid {
    let heads: Vec<Head> =
        [left(["load", ""])].into_iter().chain(TARGETS.map(|(.., head)| right(head))).collect();
    let row = |mix: &Mix| {
        let cells = (0..DISKS).map(|target| cell(target, &mix.name).unwrap_or_else(|| "-".to_owned()));
        [mix.name.clone()].into_iter().chain(cells).collect()
    };
    let rows = group.mixes.iter().map(row).collect();
    Grid { title: format!("{}: {what}", group.title), heads, rows }
}

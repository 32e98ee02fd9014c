//! The dimensions of the suite, its disks and its rows.

use facts::disk::DiskFacts;
use facts::names::Adapter;

use super::super::view::{View, Wanted};
use crate::bed::NAIVE;
use crate::result::{NATIVE, RunResult};
use crate::svg::Style;

/// Images of each chain.
pub(in super::super) const DEPTHS: [usize; 5] = [1, 8, 64, 256, 1024];
pub(in super::super) const LONGEST: usize = DEPTHS[DEPTHS.len() - 1];
/// Bytes of each disk.
pub(in super::super) const WORKING_SET: u64 = 64 << 20;
pub(in super::super) const BLOCK_SIZE: u32 = 4096;
pub(in super::super) const QUEUE_DEPTH: u32 = 32;
/// The formats with chains.
pub(in super::super) const FORMATS: [(&str, Style); 2] = [("vhd", Style::Solid), ("vhdx", Style::Dashed)];
/// Without an adapter, and with one.
pub(in super::super) const SUBJECTS: [&str; 2] = [NATIVE, Adapter::Pvscsi.as_str()];

pub(in super::super) fn is_naive(disk: &DiskFacts) -> bool {
    disk.options.iter().any(|option| option == NAIVE)
}

/// The chains of a format, in their order.
pub(in super::super) fn categories() -> Vec<String> {
    DEPTHS.iter().map(usize::to_string).chain([format!("{LONGEST} spread")]).collect()
}

pub(in super::super) fn find<'a>(view: View<'a>, disk: &DiskFacts, adapter: &str) -> Option<&'a RunResult> {
    view.find(&Wanted {
        adapter,
        disk,
        rw: None,
        block_size: BLOCK_SIZE,
        queue_depth: QUEUE_DEPTH,
        workers: 1,
        coalescing: None,
    })
}

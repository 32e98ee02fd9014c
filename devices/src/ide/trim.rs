//! The data of DATA SET MANAGEMENT: the ranges to discard (ACS-2, 7.10).

use paradisk_disk_formats::{DiskInfo, IoBuf};
use zerocopy::FromBytes;

use super::spec::{BLOCK, MAX_TRIM_BLOCKS, TrimRange};

/// Maximum length of these data in bytes.
const MAX_BYTES: usize = BLOCK * MAX_TRIM_BLOCKS as usize;

/// A range of the disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// The ranges in `len` bytes of memory, in reverse order. Contiguous ranges are joined: drivers split ranges at 65,535 sectors, and a disk
/// frees only whole blocks. `None`: a range is beyond the disk's end.
pub(super) fn ranges(bufs: &[IoBuf], len: usize, info: &DiskInfo) -> Option<Vec<Range>> {
    let mut data = [0; MAX_BYTES];
    let mut rest = data.get_mut(..len).unwrap_or_default();
    for buf in bufs {
        let copied = buf.read(rest);
        rest = rest.get_mut(copied..).unwrap_or_default();
    }
    let shift = info.logical_sector.shift();
    let mut ranges: Vec<Range> = Vec::new();
    for entry in data.get(..len)?.chunks_exact(size_of::<TrimRange>()) {
        let entry = TrimRange::read_from_bytes(entry).ok()?;
        let (lba, sectors) = (entry.lba(), entry.sectors());
        if sectors == 0 {
            continue;
        }
        if lba + sectors > info.sectors() {
            return None;
        }
        let (offset, len) = (lba << shift, sectors << shift);
        match ranges.last_mut() {
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => ranges.push(Range { offset, len }),
        }
    }
    ranges.reverse();
    Some(ranges)
}

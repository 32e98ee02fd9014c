//! A request as requests to the disk, which takes whole sectors only.
//!
//! A read is one part: it reads the sectors that cover the range. A write is one part, too: if the range begins or ends inside a sector,
//! it first reads that sector and merges the bytes outside of the range. Zeros are written to the sectors at the edges like that, each as a
//! part of its own; the disk zeroes the whole sectors between them, which may take long, without delaying other writes to the edges. A trim
//! leaves out the edges.
//!
//! ```text
//!      sector 0          sector 1          sector 2
//! |.......xxxxxxxxxx|xxxxxxxxxxxxxxxxx|xxxx.............|
//!  before <------------ range ------------> after
//! ```

use std::ops::Range;

use paradisk_disk_formats::Op;

use super::gate::Claim;

/// What a write writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The client's bytes.
    Payload,
    Zeros,
}

/// A request to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) op: Op,
    /// In bytes, whole sectors.
    pub(super) offset: u64,
    /// In bytes, whole sectors.
    pub(super) len: u64,
    /// Bytes of the first sector before the client's range.
    before: usize,
    /// Bytes of the last sector after the client's range.
    after: usize,
    source: Source,
    /// Bytes of a sector.
    sector: usize,
}

impl Part {
    fn writes_buffer(&self) -> bool {
        matches!(self.op, Op::Write { .. })
    }

    /// Bytes of the buffer that it needs: its data, and behind them a sector that is read for [`merge`](Self::merge).
    fn buffer_len(&self) -> usize {
        match self.op {
            Op::Read | Op::Write { .. } => {
                self.len as usize + if self.edge_from(0).is_some() { self.sector } else { 0 }
            }
            _ => 0,
        }
    }

    /// Where the first edge at `from` or behind begins, in bytes of the buffer: a sector to be [merged](Self::merge) before the write.
    pub(super) fn edge_from(&self, from: usize) -> Option<usize> {
        let last = (self.len as usize).saturating_sub(self.sector);
        let edges = [(self.before > 0).then_some(0), (self.after > 0).then_some(last)];
        edges.into_iter().flatten().find(|edge| *edge >= from).filter(|_| self.writes_buffer())
    }

    /// Where the sector of an edge is read into, in bytes of the buffer.
    pub(super) fn edge_buffer(&self) -> Range<usize> {
        let at = self.len as usize;
        at..at + self.sector
    }

    /// Before the first edge is merged.
    pub(super) fn prepare(&self, buffer: &mut [u8]) {
        if self.source == Source::Zeros {
            buffer.get_mut(..self.len as usize).unwrap_or_default().fill(0);
        }
    }

    /// The sector of this edge has been read: copy its bytes outside of the client's range into the data.
    pub(super) fn merge(&self, buffer: &mut [u8], edge: usize) {
        let (data, old) = buffer.split_at_mut_checked(self.len as usize).unwrap_or_default();
        let data = data.get_mut(edge..edge + self.sector).unwrap_or_default();
        let is_last = (edge + self.sector) as u64 == self.len;
        let before = 0..if edge == 0 { self.before } else { 0 };
        let after = self.sector - if is_last { self.after } else { 0 }..self.sector;
        for kept in [before, after] {
            if let (Some(to), Some(from)) = (data.get_mut(kept.clone()), old.get(kept)) {
                to.copy_from_slice(from);
            }
        }
    }

    /// What the gate has to know; `None` for reads.
    pub(super) fn claim(&self) -> Option<Claim> {
        let long = match self.op {
            Op::Write { .. } => false,
            Op::Discard | Op::WriteZeroes { .. } => true,
            _ => return None,
        };
        let sector = self.sector as u64;
        let sectors = self.offset / sector..(self.offset + self.len) / sector;
        let parts = self.writes_buffer();
        let (part_of_first, part_of_last) = (parts && self.before > 0, parts && self.after > 0);
        Some(Claim { sectors, part_of_first, part_of_last, long })
    }
}

/// The parts of a request that are left. They are done one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    left: [Option<Part>; 3],
    before: usize,
}

impl Parts {
    /// The parts of an operation on this range, with sectors of so many bytes; `None` if the range ends beyond 2^64 bytes.
    pub(super) fn new(op: Op, offset: u64, len: u64, sector: u32) -> Option<Self> {
        let (size, sector) = (u64::from(sector), sector as usize);
        let end = offset.checked_add(len)?;
        let (first, last) = (offset - offset % size, end.checked_next_multiple_of(size)?);
        let (before, after) = ((offset - first) as usize, (last - end) as usize);
        let part = |op, range: Range<u64>| Part {
            op,
            offset: range.start,
            len: range.end - range.start,
            before: 0,
            after: 0,
            source: Source::Payload,
            sector,
        };
        let inside = || {
            let inside = offset.checked_next_multiple_of(size)?..end - end % size;
            (inside.start < inside.end).then(|| part(op, inside))
        };
        if len == 0 {
            return Some(Self::default());
        }
        let left = match op {
            Op::Read | Op::Write { .. } => {
                [Some(Part { before, after, ..part(op, first..last) }), None, None]
            }
            Op::WriteZeroes { .. } => {
                let edge = |range, before, after| {
                    let zeros = Part { source: Source::Zeros, ..part(Op::Write { fua: false }, range) };
                    Some(Part { before, after, ..zeros }).filter(|_| before + after > 0)
                };
                if last - first == size {
                    let edge = edge(first..last, before, after);
                    [if edge.is_some() { edge } else { inside() }, None, None]
                } else {
                    [edge(first..first + size, before, 0), edge(last - size..last, 0, after), inside()]
                }
            }
            _ => [inside(), None, None],
        };
        Some(Self { left, before })
    }

    /// Bytes of the buffer that the parts need; 0: none.
    pub(super) fn buffer_len(&self) -> usize {
        self.left.iter().flatten().map(Part::buffer_len).max().unwrap_or_default()
    }

    /// Where the client's bytes are in the buffer of a read or write.
    pub(super) fn place(&self, len: usize) -> Range<usize> {
        self.before..self.before + len
    }
}

impl Iterator for Parts {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        self.left.iter_mut().find_map(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Op = Op::Write { fua: true };
    const ZEROES: Op = Op::WriteZeroes { may_unmap: true };

    /// Operation, range, bytes before and after.
    type Shape = (Op, Range<u64>, usize, usize);

    fn shapes(op: Op, offset: u64, len: u64) -> Vec<Shape> {
        let shape = |part: Part| (part.op, part.offset..part.offset + part.len, part.before, part.after);
        Parts::new(op, offset, len, 512).unwrap().map(shape).collect()
    }

    #[test]
    fn the_parts_are_whole_sectors() {
        let edge = Op::Write { fua: false };
        let none: [Shape; 0] = [];
        for op in [Op::Read, WRITE] {
            assert_eq!(shapes(op, 512, 1024), [(op, 512..1536, 0, 0)]);
            assert_eq!(shapes(op, 513, 1), [(op, 512..1024, 1, 510)]);
            assert_eq!(shapes(op, 0, 513), [(op, 0..1024, 0, 511)]);
            assert_eq!(shapes(op, 1023, 1026), [(op, 512..2560, 511, 511)]);
            assert_eq!(shapes(op, 7, 0), none);
        }
        assert_eq!(shapes(ZEROES, 512, 1024), [(ZEROES, 512..1536, 0, 0)]);
        assert_eq!(shapes(ZEROES, 512, 512), [(ZEROES, 512..1024, 0, 0)]);
        assert_eq!(shapes(ZEROES, 513, 1), [(edge, 512..1024, 1, 510)]);
        assert_eq!(shapes(ZEROES, 1023, 2), [(edge, 512..1024, 511, 0), (edge, 1024..1536, 0, 511)]);
        assert_eq!(shapes(ZEROES, 1024, 513), [(edge, 1536..2048, 0, 511), (ZEROES, 1024..1536, 0, 0)]);
        assert_eq!(
            shapes(ZEROES, 100, 1024),
            [(edge, 0..512, 100, 0), (edge, 1024..1536, 0, 412), (ZEROES, 512..1024, 0, 0)]
        );
        assert_eq!(shapes(Op::Discard, 512, 1024), [(Op::Discard, 512..1536, 0, 0)]);
        assert_eq!(shapes(Op::Discard, 100, 1024), [(Op::Discard, 512..1024, 0, 0)]);
        assert_eq!(shapes(Op::Discard, 100, 800), none);
        for (offset, len) in [(u64::MAX, 1), (u64::MAX - 1, 1), (u64::MAX - 511, 1024)] {
            assert_eq!(Parts::new(Op::Read, offset, len, 512), None, "{offset}");
        }
    }

    #[test]
    fn only_edges_exclude_writes_of_whole_sectors() {
        let claims = |op, offset, len| -> Vec<_> {
            let claim = |part: Part| {
                part.claim().map(|claim| (claim.sectors, claim.part_of_first, claim.part_of_last, claim.long))
            };
            Parts::new(op, offset, len, 512).unwrap().map(claim).collect()
        };
        assert_eq!(claims(Op::Read, 1, 1), [None]);
        assert_eq!(claims(WRITE, 0, 1024), [Some((0..2, false, false, false))]);
        assert_eq!(claims(WRITE, 1, 1024), [Some((0..3, true, true, false))]);
        assert_eq!(claims(Op::Discard, 1, 5000), [Some((1..9, false, false, true))]);
        assert_eq!(
            claims(ZEROES, 1, 5000),
            [
                Some((0..1, true, false, false)),
                Some((9..10, false, true, false)),
                Some((1..9, false, false, true))
            ]
        );
    }

    /// Writes of any range, done as the connection does them, change these bytes and no others.
    #[test]
    fn what_is_outside_of_the_range_stays() {
        const SIZE: usize = 4096;
        let mut random = fastrand::Rng::with_seed(1);
        let mut disk: Vec<u8> = (0..SIZE).map(|_| random.u8(..)).collect();
        for _ in 0..3000 {
            let offset = random.usize(..SIZE);
            let len = random.usize(1..=SIZE - offset);
            let op = if random.bool() { WRITE } else { ZEROES };
            let parts = Parts::new(op, offset as u64, len as u64, 512).unwrap();
            // What an earlier request has left.
            let mut buffer = vec![0xEE; parts.buffer_len()];
            let mut expected = disk.clone();
            expected[offset..offset + len].fill(0);
            if op == WRITE {
                random.fill(&mut expected[offset..offset + len]);
                buffer[parts.place(len)].copy_from_slice(&expected[offset..offset + len]);
            }
            for part in parts {
                let at = part.offset as usize;
                let Op::Write { .. } = part.op else {
                    disk[at..at + part.len as usize].fill(0);
                    continue;
                };
                part.prepare(&mut buffer);
                let mut from = 0;
                while let Some(edge) = part.edge_from(from) {
                    buffer[part.edge_buffer()].copy_from_slice(&disk[at + edge..][..512]);
                    part.merge(&mut buffer, edge);
                    from = edge + 1;
                }
                disk[at..at + part.len as usize].copy_from_slice(&buffer[..part.len as usize]);
            }
            assert!(disk == expected, "{op:?} {offset} {len}");
        }
    }
}

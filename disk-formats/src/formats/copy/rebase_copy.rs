//! The copy before a rebase: sectors that differ between the old and the new parent are written to the child, so that
//! the child reads the same data with either parent.

use std::iter::from_fn;
use std::ops::Range;

use super::content::{Buffer, CHUNK, Content, ImageError};
use super::offload::Offload;
use super::runs::{Run, Runs, WINDOW};
use crate::contract::disk::Status;
use crate::formats::parents::identity;
use crate::map::extent::{Extents, Place};

/// The identity of a file: device and inode.
type Identity = (u64, u64);

/// Copies sectors that differ between two chains to a disk.
pub(crate) struct RebaseCopy<'a> {
    /// The content that the disk must have.
    old: Content<'a>,
    /// Destination of the copies; `None`: the top of `old`, which has file 0.
    to: Option<Content<'a>>,
    /// The new parent. It counts as zeros beyond its end.
    new: Content<'a>,
    /// Identities of the files of both.
    files: [Vec<Option<Identity>>; 2],
    buffers: [Buffer; 2],
    /// From the files of `old` to the destination.
    offload: Offload<'a>,
    extents: Extents,
    copied: u64,
}

impl<'a> RebaseCopy<'a> {
    /// Copy the data that differ to the top of the chain `old`, which is writable; or to `to`, an empty disk over `new`, so that it reads the
    /// data of `old`.
    pub(crate) fn new(old: Content<'a>, new: Content<'a>, to: Option<Content<'a>>) -> Self {
        let buffers = [Buffer::new(CHUNK as usize), Buffer::new(CHUNK as usize)];
        Self {
            old,
            to,
            new,
            files: [identities(old), identities(new)],
            buffers,
            offload: Offload::new(old, to.unwrap_or(old)),
            extents: Extents::new(),
            copied: 0,
        }
    }

    /// Compare all sectors that the top does not have itself, and write those that differ. `progress` is called with
    /// the number of bytes processed and the total number, and returns whether to continue. Returns the number of bytes
    /// copied. The caller must flush the chain. The chain reads the same data at all times.
    ///
    /// # Errors
    /// Errors of reading and writing; [`ImageError::Cancelled`].
    pub(crate) fn run(mut self, mut progress: impl FnMut(u64, u64) -> bool) -> Result<u64, ImageError> {
        let (before, after) = (self.old, self.new);
        let _holes = self.to.unwrap_or(before).keep_holes();
        let mut reached = |at| match progress(at, before.capacity()) {
            true => Ok(()),
            false => Err(ImageError::Cancelled),
        };
        for old in Runs::new(before) {
            let old = old?;
            let (mut at, end) = (old.offset, old.offset + old.len);
            // The image itself, which is written meanwhile: its runs are skipped, whatever their status.
            if self.to.is_none() && matches!(old.place, Place::File { file: 0, .. }) {
                reached(end)?;
                continue;
            }
            for new in Runs::between(after, at, end) {
                let new = new?;
                self.pair(&old, &new, &mut reached)?;
                at = new.offset + new.len;
            }
            if at < end {
                let nothing = Run { offset: at, len: end - at, status: Status::Zeros, place: Place::Zeros };
                self.pair(&old, &nothing, &mut reached)?;
            }
        }
        Ok(self.copied)
    }

    /// Process the range of `new`, which lies inside `old`.
    fn pair(
        &mut self,
        old: &Run,
        new: &Run,
        reached: &mut impl FnMut(u64) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let (mut at, end) = (new.offset, new.offset + new.len);
        let zeros = [old.status, new.status] == [Status::Zeros; 2];
        if zeros || self.same_place(old.place.advanced(at - old.offset), new.place) {
            return reached(end);
        }
        while at < end {
            let next = (at + WINDOW).min(end);
            let place = old.place.advanced(at - old.offset);
            self.compare(at..next, [old.status, new.status], place)?;
            reached(next)?;
            at = next;
        }
        Ok(())
    }

    /// Whether both are the same range of the same file: an image that is in both chains.
    fn same_place(&self, old: Place, new: Place) -> bool {
        let (Place::File { file: old, offset: from }, Place::File { file: new, offset: to }) = (old, new)
        else {
            return false;
        };
        let identity = |files: &[Option<Identity>], file: u32| files.get(file as usize).copied().flatten();
        let [ours, theirs] = &self.files;
        from == to && identity(ours, old).is_some_and(|one| Some(one) == identity(theirs, new))
    }

    /// Compare a range in which each disk is either data or zeros, and copy what differs. `place` is its location in
    /// the old chain.
    fn compare(&mut self, range: Range<u64>, status: [Status; 2], place: Place) -> Result<(), ImageError> {
        let sector = self.old.format().info().logical_sector.bytes() as usize;
        let to = self.to.unwrap_or(self.old);
        let [ours, theirs] = &mut self.buffers;
        let mut at = range.start;
        while at < range.end {
            let (ours, theirs) = (ours.first(range.end - at), theirs.first(range.end - at));
            for ((disk, status), data) in
                [self.old, self.new].iter().zip(status).zip([&mut *ours, &mut *theirs])
            {
                match status {
                    Status::Zeros => data.fill(0),
                    Status::Mapped => disk.read_at(data, at)?,
                }
            }
            for part in differing(ours, theirs, sector) {
                let (offset, len) = (at + part.start as u64, part.len() as u64);
                self.copied += len;
                let place = place.advanced(offset - range.start);
                let run = Run { offset, len, status: Status::Mapped, place };
                let (first, last) = match self.offload.copy(&run, &mut self.extents)? {
                    Some((cloned, _)) => (cloned.start, cloned.end),
                    None => (offset + len, offset + len),
                };
                // Zeros are copied, too: they must hide the new parent's data.
                for rest in [offset..first, last..offset + len] {
                    if !rest.is_empty() {
                        let data = &ours[(rest.start - at) as usize..(rest.end - at) as usize];
                        to.write_keeping_holes(data, rest.start)?;
                    }
                }
            }
            at += ours.len() as u64;
        }
        Ok(())
    }
}

/// Make the empty differencing disk `child` of `parent` read the data of `source`: write the data that differ, and
/// flush. Returns the number of bytes written. `progress` is called with the number of bytes processed and the total
/// number, and returns whether to continue.
///
/// # Errors
/// Errors of reading and writing; [`ImageError::Cancelled`].
pub fn write_difference(
    source: Content<'_>,
    parent: Content<'_>,
    child: Content<'_>,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<u64, ImageError> {
    let copied = RebaseCopy::new(source, parent, Some(child)).run(progress)?;
    let path = child.path().into();
    child.format().flush().map_err(|source| ImageError::Flush { path, source })?;
    Ok(copied)
}

fn identities(content: Content<'_>) -> Vec<Option<Identity>> {
    content.format().files().iter().map(|file| identity(file.path(), file.file()).ok()).collect()
}

/// The ranges in which `a` differs from `b`, which is as long: whole sectors, adjacent ones merged.
fn differing(a: &[u8], b: &[u8], sector: usize) -> impl Iterator<Item = Range<usize>> {
    let sectors = a.chunks(sector).zip(b.chunks(sector)).enumerate();
    let mut differ = sectors.filter(|(_, (a, b))| a != b).map(move |(number, _)| number * sector).peekable();
    from_fn(move || {
        let start = differ.next()?;
        let mut end = start + sector;
        while differ.next_if_eq(&end).is_some() {
            end += sector;
        }
        Some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_sectors_are_found_as_runs() {
        let parts = |a: &[u8], b: &[u8]| differing(a, b, 2).collect::<Vec<_>>();
        assert!(parts(&[1; 8], &[1; 8]).is_empty());
        assert_eq!(parts(&[1; 8], &[2; 8]), [Range { start: 0, end: 8 }]);
        assert_eq!(parts(&[1, 1, 1, 2, 2, 1, 1, 1, 1, 2], &[1; 10]), [2..6, 8..10]);
    }
}

//! Where the data of a disk are: run by run, in bounded memory.

use crate::image::Content;
use crate::{Extents, Format, IoError, Place, Status};

/// A run of a disk whose bytes are in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Byte offset on the disk.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Where they are: index of the file ([`Format::files`]; for a chain, from the top down) and byte offset in it. `None`:
    /// nowhere, they read as zeros.
    pub place: Option<(u32, u64)>,
    /// Whether the host has space for them: where not, they read as zeros.
    pub stored: bool,
}

impl Run {
    /// Whether `next` goes on where this ends.
    fn continues(&self, next: &Self) -> bool {
        let place = match (self.place, next.place) {
            (None, None) => true,
            (Some((file, offset)), Some((other, at))) => file == other && offset + self.len == at,
            _ => false,
        };
        place && self.stored == next.stored && self.offset + self.len == next.offset
    }
}

/// Bytes looked at before a run is handed out.
const STEP: u64 = 16 << 20;

/// All runs of a disk from `start` on, in order, adjacent ones merged.
pub fn runs(format: &dyn Format, start: u64) -> impl Iterator<Item = Result<Run, IoError>> {
    let content = Content::new(format);
    let (mut at, mut extents) = (start, Extents::new());
    let mut found = std::collections::VecDeque::new();
    std::iter::from_fn(move || {
        // The last run found may go on.
        while found.len() < 2 && at < content.len() {
            let len = (content.len() - at).min(STEP);
            if let Err(error) = content.pieces(at, len, &mut extents) {
                at = content.len();
                found.clear();
                return Some(Err(error));
            }
            split(format, at, &extents, |run| push(&mut found, run));
            at += len;
        }
        found.pop_front().map(Ok)
    })
}

fn push(found: &mut std::collections::VecDeque<Run>, run: Run) {
    match found.back_mut() {
        Some(last) if last.continues(&run) => last.len += run.len,
        _ => found.push_back(run),
    }
}

/// The runs of mapped pieces: what the host does not store apart from what it does.
pub(super) fn split(format: &dyn Format, start: u64, extents: &Extents, mut visit: impl FnMut(Run)) {
    let mut offset = start;
    for extent in extents.as_slice() {
        let end = offset + extent.len;
        match extent.place {
            Place::Zeros => visit(Run { offset, len: extent.len, place: None, stored: false }),
            Place::File { file, offset: in_file } => {
                let mut at = offset;
                while at < end {
                    let place = in_file + (at - offset);
                    let (len, stored) = match format.files().get(file as usize) {
                        Some(backing) => {
                            let run = backing.stored(place, end - at);
                            (run.len, run.status == Status::Mapped)
                        }
                        None => (end - at, true),
                    };
                    let len = len.clamp(1, end - at);
                    visit(Run { offset: at, len, place: Some((file, place)), stored });
                    at += len;
                }
            }
        }
        offset = end;
    }
}

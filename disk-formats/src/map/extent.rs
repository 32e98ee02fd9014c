//! Extents: the result of mapping a virtual range to ranges of files.

/// Location of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file of the format.
    File {
        /// Index into [`Format::files`](crate::Format::files).
        file: u32,
        /// Byte offset in that file.
        offset: u64,
    },
    /// In no file: reads as zeros.
    Zeros,
}

impl Place {
    /// The place `by` bytes further on.
    #[must_use]
    pub fn advanced(self, by: u64) -> Self {
        match self {
            Self::File { file, offset } => Self::File { file, offset: offset.saturating_add(by) },
            Self::Zeros => Self::Zeros,
        }
    }
}

/// A part of a virtual range that is contiguous in one file, or reads as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes; whole logical sectors.
    pub len: u64,
    /// Location.
    pub place: Place,
}

/// Extents in ascending virtual order, adjacent ones merged. A queue reuses the list for all requests, so that mapping
/// allocates nothing after warm-up.
#[derive(Debug, Default)]
pub struct Extents {
    list: Vec<Extent>,
}

impl Extents {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { list: Vec::new() }
    }

    /// Remove all extents, and keep the memory.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// Append `len` bytes at `place`, merged with the last extent if they continue it.
    pub fn push(&mut self, len: u64, place: Place) {
        if len == 0 {
            return;
        }
        match self.list.last_mut() {
            Some(last) if last.place.advanced(last.len) == place => last.len += len,
            _ => self.list.push(Extent { len, place }),
        }
    }

    /// Append the extents of another list.
    pub(crate) fn append(&mut self, other: &Self) {
        other.list.iter().for_each(|extent| self.push(extent.len, extent.place));
    }

    /// The extents.
    #[must_use]
    pub fn as_slice(&self) -> &[Extent] {
        &self.list
    }

    /// Total length in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.list.iter().map(|extent| extent.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_pieces_merge_and_others_do_not() {
        let mut extents = Extents::new();
        extents.push(512, Place::File { file: 0, offset: 1024 });
        extents.push(512, Place::File { file: 0, offset: 1536 });
        extents.push(512, Place::File { file: 1, offset: 2048 });
        extents.push(512, Place::Zeros);
        extents.push(512, Place::Zeros);
        extents.push(0, Place::Zeros);
        assert_eq!(
            extents.as_slice(),
            [
                Extent { len: 1024, place: Place::File { file: 0, offset: 1024 } },
                Extent { len: 512, place: Place::File { file: 1, offset: 2048 } },
                Extent { len: 1024, place: Place::Zeros },
            ]
        );
        assert_eq!(extents.total(), 2560);
    }
}

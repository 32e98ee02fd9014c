//! Entries of the BAT (\[MS-VHDX\] 2.5.1).

use super::spec::MIB;

/// Lowest bit of the file offset (in MiB) in an entry.
const OFFSET_SHIFT: u32 = 20;

/// A BAT entry in its on-disk form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry(pub(super) u64);

/// The state of a payload block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not allocated: reads from the parent, or as zeros without a parent.
    NotPresent,
    /// Freed; this implementation reads zeros.
    Undefined,
    /// Zeros.
    Zero,
    /// Trimmed; this implementation reads zeros.
    Unmapped,
    /// All sectors are in the file.
    FullyPresent,
    /// Sectors whose bits are set are in the file; the others are read from the parent.
    PartiallyPresent,
    /// A reserved value.
    Reserved(u8),
}

impl Entry {
    /// No block.
    pub(super) const NOT_PRESENT: Self = Self(0);
    /// A block of zeros.
    pub(super) const ZERO: Self = Self(2);
    /// A trimmed block.
    pub(super) const UNMAPPED: Self = Self(3);

    /// A fully present block at `offset`. Bitmap blocks use the same entry.
    pub(super) fn fully(offset: u64) -> Self {
        Self(offset & !(MIB - 1) | 6)
    }

    /// A partially present block at `offset`.
    pub(super) fn partially(offset: u64) -> Self {
        Self(offset & !(MIB - 1) | 7)
    }

    /// The same entry with another offset.
    pub(super) fn moved(self, offset: u64) -> Self {
        Self(offset & !(MIB - 1) | self.0 & (MIB - 1))
    }

    /// Byte offset in the file; 0 if there is none.
    pub(super) fn offset(self) -> u64 {
        self.0 >> OFFSET_SHIFT << OFFSET_SHIFT
    }

    /// The reserved bits.
    pub(super) fn reserved(self) -> u64 {
        self.0 >> 3 & 0x1_FFFF
    }

    pub(super) fn state(self) -> State {
        match self.0 & 7 {
            0 => State::NotPresent,
            1 => State::Undefined,
            2 => State::Zero,
            3 => State::Unmapped,
            6 => State::FullyPresent,
            7 => State::PartiallyPresent,
            other => State::Reserved(other as u8),
        }
    }

    /// Whether the block has data in the file.
    pub(super) fn present(self) -> bool {
        matches!(self.state(), State::FullyPresent | State::PartiallyPresent)
    }

    /// Whether the entry has space in the file: for data, or kept by a trimmed block.
    pub(super) fn holds_space(self) -> bool {
        match self.state() {
            State::FullyPresent | State::PartiallyPresent => true,
            State::Undefined | State::Unmapped => self.offset() != 0,
            State::NotPresent | State::Zero | State::Reserved(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_entry() {
        let entry = Entry::partially(0x1234_5670_0000);
        assert_eq!(
            (entry.offset(), entry.state(), entry.reserved()),
            (0x1234_5670_0000, State::PartiallyPresent, 0)
        );
        assert_eq!(Entry(5).state(), State::Reserved(5));
        assert_eq!(Entry(8).reserved(), 1);
        assert!(
            Entry(MIB | 3).holds_space() && !Entry::UNMAPPED.holds_space() && !Entry(MIB | 2).holds_space()
        );
    }
}

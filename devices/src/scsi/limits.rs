//! What one command may ask for, in bytes where nothing else is said; told in the block limits page.

/// READ, WRITE, VERIFY: maximum transfer length. READ (10) of 512-byte sectors is never cut.
pub(super) const TRANSFER_BYTES: u64 = 32 << 20;
/// WRITE SAME: it runs in steps of [`SCRATCH_BYTES`] where the pattern is not zeros.
pub(super) const SAME_BYTES: u64 = 128 << 20;
/// UNMAP: all descriptors of one command, in blocks. Of a larger number libiscsi's suite says that it is not sane.
pub(super) const UNMAP_BLOCKS: u32 = 1 << 20;
/// UNMAP: descriptors of one command.
pub(super) const UNMAP_DESCRIPTORS: u32 = 256;
/// COMPARE AND WRITE: it compares in one step.
pub(super) const COMPARE_BYTES: u64 = SCRATCH_BYTES as u64;
/// Memory of a unit for commands that cannot work on the initiator's buffers alone.
pub(super) const SCRATCH_BYTES: usize = 64 << 10;
/// Longest parameter list that is read.
pub(super) const LIST_BYTES: usize = 8 << 10;
/// GET LBA STATUS: descriptors of one answer.
pub(super) const STATUS_DESCRIPTORS: u32 = 32;
/// GET LBA STATUS: look-ups for one answer, on the adapter's thread. One takes a few microseconds, or where every sector of its
/// range lies in another place than the one before, less than a millisecond.
pub(super) const STATUS_LOOK_UPS: usize = 64;
/// GET LBA STATUS: bytes that a look-up covers at the most.
pub(super) const STATUS_WINDOW: u64 = 16 << 20;

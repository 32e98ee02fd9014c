//! Limits of one command, in bytes unless stated otherwise. The block limits page reports them.

/// READ, WRITE, VERIFY: maximum transfer length. READ (10) of 512-byte sectors is never cut.
pub(super) const TRANSFER_BYTES: u64 = 32 << 20;
/// WRITE SAME. A pattern other than zeros is written in steps of [`SCRATCH_BYTES`].
pub(super) const SAME_BYTES: u64 = 128 << 20;
/// UNMAP: blocks of all descriptors of one command. libiscsi's suite rejects larger limits.
pub(super) const UNMAP_BLOCKS: u32 = 1 << 20;
/// UNMAP: descriptors of one command.
pub(super) const UNMAP_DESCRIPTORS: u32 = 256;
/// COMPARE AND WRITE: it compares in one step.
pub(super) const COMPARE_BYTES: u64 = SCRATCH_BYTES as u64;
/// Memory of a unit for commands that cannot work on the initiator's buffers alone.
pub(super) const SCRATCH_BYTES: usize = 64 << 10;
/// Longest parameter list.
pub(super) const LIST_BYTES: usize = 8 << 10;
/// GET LBA STATUS: descriptors of one answer.
pub(super) const STATUS_DESCRIPTORS: u32 = 32;
/// GET LBA STATUS: look-ups for one answer, on the adapter's thread. A look-up takes a few microseconds; if the sectors of its range
/// alternate between files, up to a millisecond.
pub(super) const STATUS_LOOK_UPS: usize = 64;
/// GET LBA STATUS: maximum number of bytes of a look-up.
pub(super) const STATUS_WINDOW: u64 = 16 << 20;

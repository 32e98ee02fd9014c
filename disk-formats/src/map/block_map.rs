//! The block map of a chain: it caches for each granule of the disk in which file, and at which offset, its sectors
//! are. A look-up costs the same for chains of any length.
//!
//! The slow path fills the map; readers take no lock. A granule (`1 << shift` bytes) is unknown until the slow path
//! resolves it. If all of a resolved granule is in one place, a single word has the place. Otherwise the granule is
//! mixed: each of its sectors has a bit field (lane), which is 0 for the top file and else the number of another place.
//! After that, sectors only move to the top file, and readers see the move sector by sector. File 0 is the top of the
//! chain, the only file that is written.
//!
//! Memory consists of units of one size (`pool.rs`), up to a budget, and a directory of 8 bytes for each page of 64
//! granules. A granule whose sectors are in the top file and one other place takes one unit. When the budget is used
//! up, a clock algorithm evicts units. An evicted granule is unknown, and is resolved from the images at its next use.
//! Dirty granules (they have written sectors that the images do not record yet) are not evicted. If all units are dirty, [`BlockMap::set`]
//! returns [`Refused::Full`], and the caller must flush.
//!
//! A write may complete after its granule was evicted (an evicted write). The map lists the sectors of evicted writes, and
//! applies them when the granule is resolved again, before the granule can be mapped. A flush resolves such granules,
//! too. The number of evicted writes has a limit of its own. Once it is reached, [`BlockMap::evicted_writes_are_full`] is true, and the
//! slow path flushes before it resolves another range.
//!
//! ```text
//! directory --link--> unit of a page: 64 words --link--> unit of a mixed granule: lanes, or links to units of lanes and places
//! ```

mod claim;
mod entry;
mod map;
mod mixed;
mod pool;

// `map`, `mixed` and `pool` take their primitives from here; their model takes those of a checker.
use std::sync;

pub(crate) use claim::Claim;
pub(crate) use entry::Base;
pub(crate) use map::{BlockMap, Refused};
pub(crate) use mixed::{DEFAULT_MEMORY, step_of};
pub(crate) use pool::{Dirty, Presence, Scan};

/// Sizes of the map's memory; smaller in its model.
mod sizes {
    /// Number of words of a unit, and of granules of a page.
    pub(super) const WORDS: usize = 64;
    /// Number of units that are allocated together: at most the bits of `Chunk::dirty`.
    pub(super) const CHUNK: usize = 64;
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;

//! What the command line and the meter (`benches`) have in common, so that neither depends on the other: names in arguments
//! ([`mod@names`]), an opened disk and what documents say of it ([`disk`]), facts of the host ([`host`]), sizes as text ([`units`])
//! and the time-stamp counter ([`tsc`]).

// The program has its own way to print, which neither fails nor waits.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

pub mod disk;
pub mod host;
pub mod names;
pub mod tsc;
pub mod units;

/// Version of the JSON documents: results of `paradisk bench`, statistics of `paradisk run` and of servers. Scripts read them, so a
/// field keeps its name and its meaning as long as this number stays.
pub const SCHEMA: u32 = 1;

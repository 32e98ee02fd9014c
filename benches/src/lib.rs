//! The cycles-per-I/O meter: runs loads over adapters and disks in turn and reports the cost of each access.
//!
//! [`meter::run`] takes the dimensions ([`matrix::Matrix`]), the disks ([`facts::disk::OpenDisk`]) and an engine that makes guests
//! ([`meter::Rigs`]), runs all combinations in rounds, and returns the results document ([`result::Document`]). [`table`], [`csv`] and
//! [`html`] render it. A [`suite::Suite`] is an experiment with fixed dimensions, disks, tables and plots. [`regression`] compares two
//! documents row by row. Progress is reported to a [`progress::Progress`].
//!
//! ```text
//! matrix -> combinations -> meter (rounds: A B A B) -> row (runs of a combination) -> result -> table, csv, html, suite
//!                             rigs, native: guest + adapter + disk, or the disk alone
//! ```

pub mod axes;
pub mod bed;
pub mod clock;
pub mod compare;
pub mod confidence;
pub mod creation;
pub mod csv;
mod grid;
pub mod html;
pub mod journal;
pub mod matrix;
mod memory;
pub mod meter;
pub mod mix;
pub mod native;
pub mod progress;
pub mod regression;
pub mod result;
pub mod rigs;
mod row;
pub mod stat;
pub mod suite;
mod svg;
mod system_tool;
pub mod table;
pub mod verify;

//! The cycles-per-I/O meter: runs loads over adapters and disks side by side and says what each access cost.
//!
//! [`meter::run`] takes the dimensions ([`matrix::Matrix`]), the disks ([`subject::Subject`]) and an engine that makes
//! guests ([`meter::Rigs`]), runs all combinations in rounds, and returns the results document ([`result::Document`]).
//! [`table`], [`csv`] and [`html`] show it.

pub mod axes;
pub mod bed;
pub mod clock;
pub mod csv;
pub mod host;
pub mod html;
pub mod matrix;
mod memory;
pub mod meter;
pub mod native;
pub mod result;
pub mod rigs;
mod row;
pub mod stat;
pub mod subject;
mod svg;
pub mod table;
pub mod verify;

//! The cycles-per-I/O meter: runs loads over adapters and disks side by side and says what each access cost.
//!
//! [`meter::run`] takes the dimensions ([`matrix::Matrix`]), the disks ([`subject::OpenDisk`]) and an engine that makes
//! guests ([`meter::Rigs`]), runs all combinations in rounds, and returns the results document ([`result::Document`]).
//! [`table`], [`csv`] and [`html`] show it. A [`suite::Suite`] is an experiment whose dimensions and disks are set, with tables
//! and plots of its own.

pub mod axes;
pub mod bed;
pub mod clock;
pub mod compare;
pub mod csv;
mod grid;
pub mod html;
pub mod matrix;
mod memory;
pub mod meter;
pub mod native;
pub mod progress;
pub mod result;
pub mod rigs;
mod row;
pub mod stat;
pub mod suite;
mod svg;
pub mod table;
pub mod verify;

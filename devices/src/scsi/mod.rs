//! The SCSI target of all SCSI adapters (SPC-4, SBC-3): it executes tasks as disk operations, and returns status and
//! sense data.
//!
//! ```text
//!   adapter --Task--> Bus (bus): address to unit, task table (tasks)
//!                      |
//!                LogicalUnit (unit): order of tasks (order), what follows a completion
//!                  |               |
//!             READ, WRITE      any other command
//!                  |               |
//!                  |     DeviceServer (server): CDB (cdb, opcodes) to command; identity, attention, reservations, modes
//!                  |         |                |
//!                  |       flush      commands of several disk requests, one at a time
//!                (block)  (block)           (slow)
//!                  |         |                |
//!                 Medium (medium): the disk's queue, block geometry, mode parameters
//! ```
//!
//! Only the file that defines a type changes its fields.

mod attention;
mod block;
mod bus;
mod cdb;
mod data;
pub(crate) mod gather;
mod inquiry;
mod limits;
mod log;
mod medium;
mod mode;
mod opcodes;
mod order;
mod reservations;
mod sense;
mod server;
mod slow;
mod spec;
mod steps;
mod task;
mod tasks;
mod unit;
mod well_known;

#[cfg(test)]
mod tests;

pub use bus::{AttachError, Bus};
pub use inquiry::Identity;
pub use sense::SenseData;
pub use task::{Address, Attribute, Direction, Status, Task, TaskEnd, single_level_lun};
pub use unit::LogicalUnit;

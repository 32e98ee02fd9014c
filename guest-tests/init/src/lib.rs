//! What the first process of a Linux test guest and the test around it share: the job on the kernel's command line, the
//! report on its console, and what is written to the disks.

pub mod cunit;
pub mod job;
pub mod pattern;
pub mod plan;
pub mod report;

pub use cunit::Tested;
pub use job::{Counted, Fio, Job, Rw};
pub use pattern::Pattern;
pub use plan::Plan;
pub use report::{Change, Channel, Checked, Disk, Done, Extent, FioDone, Line, Reset, ResetDone};

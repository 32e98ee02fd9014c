//! What runs inside a guest and what checks it: the rigs that join guest drivers, adapters and disks.

pub mod rig;

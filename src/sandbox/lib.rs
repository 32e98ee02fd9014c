//! The sandbox of `paradisk run` and `paradisk serve`: what the process may still do once its disks and sockets are open.
//!
//! ```text
//! open everything -> Sandbox::enter: capabilities, no_new_privs, rings, Landlock, the hook for threads
//!                 -> threads start: each installs the filter of its kind before it does anything
//!                 -> Sandbox::close: the filter of the main thread -> "serving ..."
//! ```
//!
//! - `confine`: these steps,
//! - `tables`: the system calls of each kind of thread, with reasons,
//! - `filters`, `bpf`: the tables as seccomp filters,
//! - `denied`: what happens at a call that no filter allows,
//! - `files`: Landlock,
//! - `lacking`: what the kernel lacks.
//!
//! All of it holds for a thread and the threads that it starts afterwards. So [`Sandbox::enter`] must come before the first thread.

// The program has its own way to print, which neither fails nor waits.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

mod bpf;
mod confine;
mod denied;
mod error;
mod files;
mod filters;
mod lacking;
mod mode;
mod tables;

pub use confine::Sandbox;
pub use error::Error;
pub use files::Grants;
pub use mode::{Mode, Program};

#[cfg(test)]
mod tests;

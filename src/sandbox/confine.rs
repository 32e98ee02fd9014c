//! The steps of the sandbox, in their order.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use crate::error::Error;
use crate::files::{self, Grants};
use crate::filters;
use crate::lacking::lacking;
use crate::mode::{Mode, Program};
use crate::tables::Kind;

/// A sandbox whose main thread has no filter yet.
#[must_use = "the main thread is not confined before `close`"]
#[derive(Debug)]
pub struct Sandbox {
    mode: Mode,
    program: Program,
}

impl Sandbox {
    /// Confine this thread, and prepare filters for the threads that it starts from now on. The caller has opened all files and sockets
    /// but those of `grants`, and has started no thread. `note` gets one line if the kernel lacks something.
    ///
    /// # Errors
    /// The kernel refuses something that it has, or has no filters of system calls.
    pub fn enter(mode: Mode, program: Program, grants: &Grants, note: impl Fn(&str)) -> Result<Self, Error> {
        read_ahead();
        match mode {
            Mode::Off => {}
            Mode::Log => {
                note(
                    "sandbox: log: system calls that are not allowed are reported here and made; files, capabilities and rings are not \
                     limited",
                );
                filters::prepare(mode)?;
                paradisk_disk_formats::start_ring_maker().map_err(Error::RingMaker)?;
            }
            Mode::On => {
                drop_privileges().map_err(Error::Privileges)?;
                let rings = paradisk_disk_formats::restrict_rings();
                if let Some(lacking) = lacking(&rings, files::restrict(grants)?) {
                    note(&format!("sandbox: {lacking}"));
                }
                filters::prepare(mode)?;
                paradisk_disk_formats::start_ring_maker().map_err(Error::RingMaker)?;
            }
        }
        Ok(Self { mode, program })
    }

    /// Confine the threads that are started by [`spawn`](paradisk_disk_formats::spawn) from now on by their filters, and nothing else: for
    /// tests, in which servers and their clients are one process. [`close`](Self::close) confines the thread that calls it.
    ///
    /// # Errors
    /// The kernel has no filters of system calls.
    pub fn of_threads(program: Program) -> Result<Self, Error> {
        read_ahead();
        filters::prepare(Mode::On)?;
        paradisk_disk_formats::start_ring_maker().map_err(Error::RingMaker)?;
        Ok(Self { mode: Mode::On, program })
    }

    /// Install the filter of the main thread: the start is over.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn close(self) -> Result<(), Error> {
        if self.mode == Mode::Off {
            return Ok(());
        }
        Ok(filters::install(Kind::Main(self.program))?)
    }
}

/// Have the crate rustix read what it otherwise reads at its first use, on whatever thread: the size of a page, which before Linux 6.4
/// (PR_GET_AUXV) is in a file of /proc.
fn read_ahead() {
    let _ = rustix::param::page_size();
}

/// Drop all capabilities, and leave no cores, which would contain guest memory and contents of disks. The process cannot regain
/// capabilities: no filter allows it to execute a program, and no_new_privs is set.
///
/// The limit for cores is 1 byte. A file would be larger, so none is written. A program to which the host pipes cores gets none with limit
/// 1, but would get one with limit 0 (fs/coredump.c).
fn drop_privileges() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) })?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(set_no_new_privs(true)?)
}

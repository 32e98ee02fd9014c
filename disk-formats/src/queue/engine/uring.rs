//! The io_uring engine: registered files, one io_uring_enter for each batch. The queue's thread sleeps on the ring's
//! descriptor.
//!
//! The ring is set up with COOP_TASKRUN (Linux 5.19), or without flags on older kernels. SINGLE_ISSUER with
//! DEFER_TASKRUN is not used: it saves nothing measurable here, ties the ring to one thread, and on Linux 6.18 deferred
//! work does not wake a poll of the ring's descriptor, so that a sleeping thread misses completions. If io_uring_enter
//! fails for good (in a sandbox, for example), the engine fails ([`Engine::lost`]): it tears the ring down, and the
//! requests in flight fail after the tear-down has completed.
#![allow(unsafe_code, reason = "hands buffers to the kernel by address")]

#[cfg(test)]
mod planned;
#[cfg(test)]
mod restricted;

use std::io::PipeReader;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::{Direction, Ended, Engine, EngineStats, MAX_BUFS, MAX_LEN, RESERVED, Signal, Transfer, rings};
use crate::contract::iobuf::IoBuf;
use crate::host::backing::BackingFile;
use crate::host::sys;

/// Maximum size of the submission ring. If it is full, the engine submits it before it adds an entry.
const MAX_ENTRIES: u32 = 4096;
/// The token of the poll of the signal.
const WATCH: u64 = RESERVED;

/// The io_uring engine.
pub(crate) struct Uring {
    /// `None` after the engine has failed.
    ring: Option<IoUring>,
    /// The ring has COOP_TASKRUN: completions may wait until this thread enters the kernel. The ring's TASKRUN flag
    /// says whether any do.
    cooperative: bool,
    /// Maximum number of transfers in flight, so that the completion ring cannot overflow: one entry is left for the poll of the signal.
    capacity: usize,
    in_flight: usize,
    /// Tokens of the entries in the submission ring.
    staged: Vec<u64>,
    /// Tokens of operations added after the engine failed.
    failed: Vec<u64>,
    watching: bool,
    signal: Arc<Signal>,
    /// The signal as a file of the ring.
    registered_signal: types::Fixed,
    /// The ring has the other end of this pipe as a registered file: this end reads end-of-file when the kernel has
    /// torn the ring down.
    alive: PipeReader,
    lost: Option<Errno>,
    stats: EngineStats,
    #[cfg(test)]
    planned: planned::Planned,
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Uring {
    /// A ring for `files`. Transfers name the files by index.
    pub(crate) fn new(files: &[Arc<BackingFile>], depth: u32) -> Result<Self, Errno> {
        let files = files.to_vec();
        rings::make_ring(move || Self::make(&files, depth))
    }

    fn make(files: &[Arc<BackingFile>], depth: u32) -> Result<Self, Errno> {
        let entries = depth.next_power_of_two().clamp(8, MAX_ENTRIES);
        let restricted = rings::rings_are_restricted();
        match Self::with_setup(files, entries, true, restricted) {
            Err(Errno::INVAL) => Self::with_setup(files, entries, false, restricted),
            result => result,
        }
    }

    fn with_setup(
        files: &[Arc<BackingFile>],
        entries: u32,
        cooperative: bool,
        restricted: bool,
    ) -> Result<Self, Errno> {
        let mut builder = IoUring::<squeue::Entry, io_uring::cqueue::Entry>::builder();
        if cooperative {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        if restricted {
            builder.setup_r_disabled();
        }
        let ring = builder.dontfork().build(entries).map_err(|error| errno(&error))?;
        let submitter = ring.submitter();
        let mut probe = Probe::new();
        submitter.register_probe(&mut probe).map_err(|error| errno(&error))?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Readv::CODE, opcode::Writev::CODE];
        if !needed.iter().chain(&[opcode::PollAdd::CODE]).all(|code| probe.is_supported(*code)) {
            return Err(Errno::OPNOTSUPP);
        }
        let (alive, held_by_ring) = std::io::pipe().map_err(|error| errno(&error))?;
        let mut fds: Vec<_> = files.iter().map(|file| file.file().as_raw_fd()).collect();
        fds.push(held_by_ring.as_raw_fd());
        let signal = Arc::new(Signal::new()?);
        let registered_signal = types::Fixed(fds.len() as u32);
        fds.push(signal.as_fd().as_raw_fd());
        submitter.register_files(&fds).map_err(|error| errno(&error))?;
        if restricted {
            rings::restrict(&submitter).map_err(|error| errno(&error))?;
        }
        let capacity = ring.params().cq_entries() as usize - 1;
        Ok(Self {
            ring: Some(ring),
            cooperative,
            capacity,
            in_flight: 0,
            staged: Vec::with_capacity(entries as usize),
            failed: Vec::new(),
            watching: false,
            signal,
            registered_signal,
            alive,
            lost: None,
            stats: EngineStats::default(),
            #[cfg(test)]
            planned: planned::Planned::new(files),
        })
    }

    /// Add an entry to the submission ring.
    ///
    /// # Safety
    /// What the entry points to must stay valid until `next` has returned its token. (`WATCH` entries point to
    /// nothing.)
    unsafe fn stage_entry(&mut self, entry: &squeue::Entry, token: u64) {
        if self.staged.len() == self.staged.capacity() {
            self.enter(0, EnterFlags::empty());
        }
        self.in_flight += usize::from(token != WATCH);
        // SAFETY: the promise of the caller.
        let pushed = self.ring.as_mut().is_some_and(|ring| unsafe { ring.submission().push(entry) }.is_ok());
        if pushed {
            self.staged.push(token);
        } else if token != WATCH {
            self.failed.push(token);
        }
    }

    /// Submit the staged entries, usually by one io_uring_enter. If the flags have GETEVENTS, wait for `wanted` completions.
    fn enter(&mut self, wanted: u32, flags: EnterFlags) {
        let before = sys::ticks();
        loop {
            let Some(ring) = &self.ring else { return };
            let count = self.staged.len() as u32;
            self.stats.submits += 1;
            // SAFETY: no argument structure is passed; what the staged entries point to is valid by the promise of `stage`.
            let entered =
                unsafe { ring.submitter().enter::<libc::sigset_t>(count, wanted, flags.bits(), None) };
            match entered {
                Ok(taken) if taken >= self.staged.len() => {
                    self.staged.clear();
                    break;
                }
                Ok(taken) => drop(self.staged.drain(..taken)),
                Err(error) => match errno(&error) {
                    Errno::INTR => {}
                    // The host is short of memory for operations. It frees some as operations end.
                    Errno::AGAIN | Errno::BUSY | Errno::NOMEM => std::thread::yield_now(),
                    fatal => {
                        self.abandon(fatal);
                        return;
                    }
                },
            }
        }
        self.stats.ticks += sys::ticks().wrapping_sub(before);
    }

    #[cold]
    fn next_failed(&mut self) -> Option<Ended> {
        let token = self.failed.pop()?;
        self.in_flight -= 1;
        Some((token, Err(Errno::CANCELED)))
    }

    /// The ring has failed: tear it down, and wait until the kernel has released all buffers.
    fn abandon(&mut self, cause: Errno) {
        if let Some(ring) = self.ring.take() {
            drop(ring);
            let mut byte = [0];
            while matches!(rustix::io::read(&self.alive, &mut byte), Err(Errno::INTR)) {}
        }
        self.staged.clear();
        self.in_flight = 0;
        self.watching = false;
        self.lost = Some(cause);
    }
}

fn rw_flags(dsync: bool) -> i32 {
    if dsync { libc::RWF_DSYNC } else { 0 }
}

impl Engine for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    #[inline]
    fn has_capacity(&self) -> bool {
        self.in_flight < self.capacity
    }

    #[inline]
    unsafe fn stage(&mut self, transfer: &Transfer<'_>) {
        debug_assert!(transfer.bufs.len() <= MAX_BUFS);
        #[cfg(test)]
        if self.planned.transfer(transfer) {
            // SAFETY: the entry points to nothing.
            return unsafe { self.stage_entry(&planned::nothing(transfer.token), transfer.token) };
        }
        let file = types::Fixed(transfer.file);
        let offset = transfer.offset;
        let entry = match (transfer.bufs, transfer.direction) {
            ([buf], Direction::Read) => {
                let len = buf.len().min(MAX_LEN as usize) as u32;
                opcode::Read::new(file, buf.addr(), len).offset(offset).build()
            }
            ([buf], Direction::Write { dsync }) => {
                let len = buf.len().min(MAX_LEN as usize) as u32;
                opcode::Write::new(file, buf.addr(), len).offset(offset).rw_flags(rw_flags(dsync)).build()
            }
            (bufs, Direction::Read) => {
                let iovecs = IoBuf::as_iovecs(bufs);
                opcode::Readv::new(file, iovecs.as_ptr(), iovecs.len() as u32).offset(offset).build()
            }
            (bufs, Direction::Write { dsync }) => {
                let iovecs = IoBuf::as_iovecs(bufs);
                opcode::Writev::new(file, iovecs.as_ptr(), iovecs.len() as u32)
                    .offset(offset)
                    .rw_flags(rw_flags(dsync))
                    .build()
            }
        };
        // SAFETY: the caller keeps the slice in place. The buffers are valid by the promise of `IoBuf::new`.
        unsafe { self.stage_entry(&entry.user_data(transfer.token), transfer.token) };
    }

    #[inline]
    fn submit(&mut self) {
        if !self.staged.is_empty() {
            self.enter(0, EnterFlags::empty());
        }
    }

    #[inline]
    fn next(&mut self) -> Option<Ended> {
        loop {
            let Some(ring) = &mut self.ring else { return self.next_failed() };
            let Some(entry) = ring.completion().next() else {
                // Completions may wait for this thread to enter the kernel.
                if !self.cooperative || !ring.submission().taskrun() {
                    return None;
                }
                self.enter(0, EnterFlags::GETEVENTS);
                if self.ring.as_mut().is_some_and(|ring| ring.completion().is_empty()) {
                    return None;
                }
                continue;
            };
            if entry.user_data() == WATCH {
                self.watching = false;
                self.signal.lower();
                continue;
            }
            self.in_flight -= 1;
            let result = match u32::try_from(entry.result()) {
                Ok(moved) => Ok(moved),
                Err(_) => Err(Errno::from_raw_os_error(entry.result().wrapping_neg())),
            };
            #[cfg(test)]
            let result = self.planned.ended(entry.user_data(), result);
            return Some((entry.user_data(), result));
        }
    }

    #[inline]
    fn lost(&mut self) -> Option<Errno> {
        self.lost.take()
    }

    fn wait(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        let ended = !ring.completion().is_empty();
        let nothing_can_end = self.in_flight == 0 && !self.watching;
        if ended || nothing_can_end {
            self.submit();
        } else {
            self.enter(1, EnterFlags::GETEVENTS);
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.ring.as_ref().map_or_else(|| self.signal.as_fd(), |ring| ring.as_fd())
    }

    /// The kernel signals it with each completion that it posts. The ring keeps its own reference to the eventfd.
    fn eventfd(&mut self) -> Result<OwnedFd, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        if let Some(ring) = &self.ring {
            ring.submitter().register_eventfd(fd.as_raw_fd()).map_err(|error| errno(&error))?;
        }
        Ok(fd)
    }

    fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    fn watch(&mut self) {
        if !self.watching && self.ring.is_some() {
            let entry =
                opcode::PollAdd::new(self.registered_signal, libc::POLLIN as u32).build().user_data(WATCH);
            self.watching = true;
            // SAFETY: the entry points to nothing.
            unsafe { self.stage_entry(&entry, WATCH) };
        }
    }

    fn stats(&self) -> EngineStats {
        self.stats
    }
}

impl Drop for Uring {
    /// Waits for the operations in the kernel, so that no buffer is accessed afterwards. Unregisters the files:
    /// otherwise the kernel would release them, and their locks, some time later.
    fn drop(&mut self) {
        if self.in_flight > 0 {
            self.abandon(Errno::CANCELED);
        }
        if let Some(ring) = &self.ring {
            // If this fails, the kernel releases the files with the ring.
            let _ = ring.submitter().unregister_files();
        }
    }
}

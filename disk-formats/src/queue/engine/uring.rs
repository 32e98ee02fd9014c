//! The io_uring engine: registered files, one io_uring_enter a batch, and the ring's own descriptor to sleep on.
//!
//! Set-up is COOP_TASKRUN (Linux 5.19), or plain on older kernels. SINGLE_ISSUER with DEFER_TASKRUN is not used: it
//! saves nothing measurable here, ties the ring to one thread, and on Linux 6.18 a poll of the ring's descriptor is not
//! woken when work is deferred, so that a sleeper misses completions. A host that refuses to let the ring be entered
//! later (a sandbox, say) makes the engine fail ([`Engine::lost`]): the ring is torn down, and the requests in flight
//! fail once that has completed.
#![allow(unsafe_code, reason = "hands buffers to the kernel by address")]

#[cfg(test)]
mod planned;

use std::io::PipeReader;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::{Direction, Ended, Engine, EngineStats, MAX_BUFS, MAX_LEN, RESERVED, Signal, Transfer};
use crate::host::backing::BackingFile;
use crate::host::iobuf::IoBuf;
use crate::host::tsc;

/// Submission entries at the most: an entry waits in the queue when more is in flight.
const MAX_ENTRIES: u32 = 4096;
/// The signal's poll.
const WATCH: u64 = RESERVED;

/// The engine.
pub(crate) struct Uring {
    /// `None` once it is lost.
    ring: Option<IoUring>,
    /// Completions may wait for this thread to enter the kernel; the ring says when.
    cooperative: bool,
    /// Operations in flight at the most, so that the completion ring cannot overflow.
    capacity: usize,
    in_flight: usize,
    /// Tokens in the submission ring that the kernel has not taken.
    staged: Vec<u64>,
    /// Tokens taken after the ring was lost.
    failed: Vec<u64>,
    watching: bool,
    signal: Arc<Signal>,
    /// Its other end is registered with the ring: it reads end-of-file when the kernel has torn the ring down.
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
    /// A ring for `files`; operations name them by index.
    pub(crate) fn new(files: &[Arc<BackingFile>], depth: u32) -> Result<Self, Errno> {
        let entries = depth.next_power_of_two().clamp(8, MAX_ENTRIES);
        match Self::with_setup(files, entries, true) {
            Err(Errno::INVAL) => Self::with_setup(files, entries, false),
            result => result,
        }
    }

    fn with_setup(files: &[Arc<BackingFile>], entries: u32, cooperative: bool) -> Result<Self, Errno> {
        let mut builder = IoUring::<squeue::Entry, io_uring::cqueue::Entry>::builder();
        if cooperative {
            builder.setup_coop_taskrun().setup_taskrun_flag();
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
        submitter.register_files(&fds).map_err(|error| errno(&error))?;
        let capacity = ring.params().cq_entries() as usize - 1;
        Ok(Self {
            ring: Some(ring),
            cooperative,
            capacity,
            in_flight: 0,
            staged: Vec::with_capacity(entries as usize),
            failed: Vec::new(),
            watching: false,
            signal: Arc::new(Signal::new()?),
            alive,
            lost: None,
            stats: EngineStats::default(),
            #[cfg(test)]
            planned: planned::Planned::new(files),
        })
    }

    /// Stage an operation.
    ///
    /// # Safety
    /// What the entry points to stays valid until its token has been handed out, but for the ring's own signal.
    unsafe fn stage(&mut self, entry: &squeue::Entry, token: u64) {
        if self.staged.len() == self.staged.capacity() {
            self.enter(0, EnterFlags::empty());
        }
        self.in_flight += usize::from(token != WATCH);
        // SAFETY: the promise of this function.
        let pushed = self.ring.as_mut().is_some_and(|ring| unsafe { ring.submission().push(entry) }.is_ok());
        if pushed {
            self.staged.push(token);
        } else if token != WATCH {
            self.failed.push(token);
        }
    }

    /// One io_uring_enter: submit what is staged, wait for `wanted` completions where the flags have GETEVENTS.
    fn enter(&mut self, wanted: u32, flags: EnterFlags) {
        let before = tsc::ticks();
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
                    // The host is short of memory for requests: it has more when some have ended.
                    Errno::AGAIN | Errno::BUSY | Errno::NOMEM => std::thread::yield_now(),
                    fatal => {
                        self.abandon(fatal);
                        return;
                    }
                },
            }
        }
        self.stats.ticks += tsc::ticks().wrapping_sub(before);
    }

    #[cold]
    fn next_failed(&mut self) -> Option<Ended> {
        let token = self.failed.pop()?;
        self.in_flight -= 1;
        Some((token, Err(Errno::CANCELED)))
    }

    /// The ring has failed: tear it down, and wait until the kernel has released every buffer.
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
    unsafe fn start(&mut self, transfer: &Transfer<'_>) {
        debug_assert!(transfer.bufs.len() <= MAX_BUFS);
        #[cfg(test)]
        if self.planned.transfer(transfer) {
            // SAFETY: the entry points to nothing.
            return unsafe { self.stage(&planned::nothing(transfer.token), transfer.token) };
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
        // SAFETY: the caller keeps the slice in place, and the buffers are valid by the promise of `IoBuf::new`.
        unsafe { self.stage(&entry.user_data(transfer.token), transfer.token) };
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

    /// The kernel writes to it with each completion that it posts; it keeps the file open by itself.
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
            let fd = types::Fd(self.signal.as_fd().as_raw_fd());
            let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(WATCH);
            self.watching = true;
            // SAFETY: the entry points to nothing.
            unsafe { self.stage(&entry, WATCH) };
        }
    }

    fn stats(&self) -> EngineStats {
        self.stats
    }
}

impl Drop for Uring {
    /// Waits for operations in the kernel, so that no buffer is accessed afterwards. Unregisters the files, which the
    /// kernel would otherwise do some time later, with their locks still held.
    fn drop(&mut self) {
        if self.in_flight > 0 {
            self.abandon(Errno::CANCELED);
        }
        if let Some(ring) = &self.ring {
            // Where this fails, the files go when the ring does.
            let _ = ring.submitter().unregister_files();
        }
    }
}

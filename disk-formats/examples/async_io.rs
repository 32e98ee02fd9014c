//! A disk behind the traits of Cloud Hypervisor's block devices: a disk file that creates an asynchronous I/O object for each
//! queue, an eventfd that signals completions, and completions that are fetched one by one. `docs/embedding.md` describes the
//! differences.
//!
//! `cargo run -p paradisk-disk-formats --example async_io` writes a raw disk and chains of VHDs and VHDX files through these
//! traits, and compares what it reads back.
#![allow(unsafe_code, reason = "the other side's buffers are addresses")]

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::path::Path;
use std::sync::Arc;

use paradisk_disk_formats::{
    Completion, Disk, DiskQueue, EngineKind, Image, IoBuf, Op, OpenOptions, QueueConfig, Raw, Repair,
    Request, vhd, vhdx,
};
use rustix::event::{PollFd, PollFlags, poll};
use vmm_sys_util::eventfd::EventFd;

/// A disk as a block device uses it: Cloud Hypervisor's trait `DiskFile`.
trait DiskFile: Send {
    /// Capacity in bytes.
    fn logical_size(&mut self) -> io::Result<u64>;
    /// Logical and physical sector size in bytes.
    fn topology(&mut self) -> (u64, u64);
    /// The I/O object of one queue, with at most `ring_depth` requests in flight.
    fn new_async_io(&self, ring_depth: u32) -> io::Result<Box<dyn AsyncIo>>;
}

/// The I/O of one queue: Cloud Hypervisor's trait `AsyncIo`. A result is the number of bytes moved, or a negative errno.
trait AsyncIo: Send {
    /// Readable when requests may have ended. The device reads it, then fetches all completions.
    fn notifier(&self) -> &EventFd;
    fn read_vectored(&mut self, offset: i64, iovecs: &[libc::iovec], user_data: u64) -> io::Result<()>;
    fn write_vectored(&mut self, offset: i64, iovecs: &[libc::iovec], user_data: u64) -> io::Result<()>;
    /// Without `user_data`, the flush posts no completion.
    fn fsync(&mut self, user_data: Option<u64>) -> io::Result<()>;
    fn punch_hole(&mut self, offset: u64, length: u64, user_data: u64) -> io::Result<()>;
    fn write_zeroes(&mut self, offset: u64, length: u64, user_data: u64) -> io::Result<()>;
    fn next_completed_request(&mut self) -> Option<(u64, i32)>;
    /// Whether a batch is one submission.
    fn batch_requests_enabled(&self) -> bool {
        false
    }
    fn submit_batch_requests(&mut self, _batch: &[BatchRequest]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Alignment in bytes that buffers must have; the device copies others.
    fn alignment(&self) -> u64;
}

/// A request of a batch.
struct BatchRequest {
    offset: i64,
    iovecs: Vec<libc::iovec>,
    user_data: u64,
    writes: bool,
}

/// Any disk of this crate as a disk file.
struct AnyDisk {
    disk: Arc<dyn Disk>,
    engine: EngineKind,
}

impl DiskFile for AnyDisk {
    fn logical_size(&mut self) -> io::Result<u64> {
        Ok(self.disk.info().capacity)
    }

    fn topology(&mut self) -> (u64, u64) {
        let info = self.disk.info();
        (info.logical_sector.bytes().into(), info.physical_sector.into())
    }

    fn new_async_io(&self, ring_depth: u32) -> io::Result<Box<dyn AsyncIo>> {
        let config = QueueConfig { depth: ring_depth, engine: self.engine };
        let mut queue = self.disk.queue(&config).map_err(io::Error::other)?;
        let eventfd = queue.eventfd()?.into_raw_fd();
        // SAFETY: the descriptor is an eventfd that nothing else owns.
        let notifier = unsafe { EventFd::from_raw_fd(eventfd) };
        // Buffers may have any address: the queue copies if the disk requires alignment.
        Ok(Box::new(QueueIo {
            queue,
            notifier,
            slots: Vec::new(),
            free: Vec::new(),
            ended: Vec::new(),
            done: VecDeque::new(),
        }))
    }
}

/// A queue as an asynchronous I/O object.
struct QueueIo {
    /// The first field, so dropped first: its drop waits for the requests in flight.
    queue: Box<dyn DiskQueue>,
    notifier: EventFd,
    /// By tag: the request's `user_data`, and the number of bytes that it moves.
    slots: Vec<(Option<u64>, u64)>,
    free: Vec<usize>,
    ended: Vec<Completion>,
    done: VecDeque<(u64, i32)>,
}

impl QueueIo {
    fn push(&mut self, op: Op, range: (u64, u64), bufs: &[IoBuf], user_data: Option<u64>) -> io::Result<()> {
        let (offset, len) = range;
        let slot = self.free.pop().unwrap_or(self.slots.len());
        let moved = if matches!(op, Op::Read | Op::Write { .. }) { len } else { 0 };
        match self.slots.get_mut(slot) {
            Some(entry) => *entry = (user_data, moved),
            None => self.slots.push((user_data, moved)),
        }
        self.queue.push(&Request { tag: slot as u64, op, offset, len, bufs }).map_err(|full| {
            self.free.push(slot);
            io::Error::new(io::ErrorKind::WouldBlock, full)
        })
    }

    fn push_vectored(
        &mut self,
        op: Op,
        offset: i64,
        iovecs: &[libc::iovec],
        user_data: u64,
    ) -> io::Result<()> {
        // SAFETY: the device keeps the buffers of a request mapped until it has ended.
        let bufs: Vec<_> =
            iovecs.iter().map(|iov| unsafe { IoBuf::new(iov.iov_base.cast(), iov.iov_len) }).collect();
        let len = paradisk_disk_formats::total_len(&bufs).ok_or(io::ErrorKind::InvalidInput)?;
        let offset = u64::try_from(offset).map_err(io::Error::other)?;
        self.push(op, (offset, len), &bufs, Some(user_data))
    }

    /// Submit the pushed requests. Requests that complete before `submit` returns do not make the notifier readable, so it is signalled for them.
    fn submit(&mut self) -> io::Result<()> {
        self.queue.submit();
        self.reap();
        if self.done.is_empty() { Ok(()) } else { self.notifier.write(1) }
    }

    fn reap(&mut self) {
        self.queue.reap(&mut self.ended);
        for Completion { tag, result } in self.ended.drain(..) {
            let Some((user_data, moved)) = self.slots.get(tag as usize).copied() else { continue };
            self.free.push(tag as usize);
            let result = match result {
                Ok(()) => i32::try_from(moved).unwrap_or(i32::MAX),
                Err(error) => -error.raw_os_error(),
            };
            self.done.extend(user_data.map(|user_data| (user_data, result)));
        }
    }
}

impl AsyncIo for QueueIo {
    fn notifier(&self) -> &EventFd {
        &self.notifier
    }

    fn read_vectored(&mut self, offset: i64, iovecs: &[libc::iovec], user_data: u64) -> io::Result<()> {
        self.push_vectored(Op::Read, offset, iovecs, user_data)?;
        self.submit()
    }

    fn write_vectored(&mut self, offset: i64, iovecs: &[libc::iovec], user_data: u64) -> io::Result<()> {
        self.push_vectored(Op::Write { fua: false }, offset, iovecs, user_data)?;
        self.submit()
    }

    fn fsync(&mut self, user_data: Option<u64>) -> io::Result<()> {
        self.push(Op::Flush, (0, 0), &[], user_data)?;
        self.submit()
    }

    fn punch_hole(&mut self, offset: u64, length: u64, user_data: u64) -> io::Result<()> {
        // A punched hole must read as zeros. A discard does not guarantee that.
        self.push(Op::WriteZeroes { may_unmap: true }, (offset, length), &[], Some(user_data))?;
        self.submit()
    }

    fn write_zeroes(&mut self, offset: u64, length: u64, user_data: u64) -> io::Result<()> {
        self.push(Op::WriteZeroes { may_unmap: false }, (offset, length), &[], Some(user_data))?;
        self.submit()
    }

    fn next_completed_request(&mut self) -> Option<(u64, i32)> {
        if self.done.is_empty() {
            self.reap();
        }
        self.done.pop_front()
    }

    fn batch_requests_enabled(&self) -> bool {
        true
    }

    fn submit_batch_requests(&mut self, batch: &[BatchRequest]) -> io::Result<()> {
        let pushed = batch.iter().try_for_each(|BatchRequest { offset, iovecs, user_data, writes }| {
            let op = if *writes { Op::Write { fua: false } } else { Op::Read };
            self.push_vectored(op, *offset, iovecs, *user_data)
        });
        // If a push failed, the requests before it are submitted all the same.
        self.submit().and(pushed)
    }

    fn alignment(&self) -> u64 {
        1
    }
}

const MIB: usize = 1 << 20;

/// The device's side: sleep on the notifier until `count` requests have ended. Each must have moved `expected` bytes.
fn wait(io: &mut dyn AsyncIo, mut count: usize, expected: usize) -> Result<(), Box<dyn Error>> {
    loop {
        while let Some((user_data, result)) = io.next_completed_request() {
            if usize::try_from(result) != Ok(expected) {
                return Err(format!("request {user_data}: {result}, expected {expected}").into());
            }
            count = count.checked_sub(1).ok_or("more requests ended than were made")?;
        }
        if count == 0 {
            return Ok(());
        }
        match poll(&mut [PollFd::from_borrowed_fd(borrowed(io.notifier()), PollFlags::IN)], None) {
            Ok(_) => drop(io.notifier().read()?),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn borrowed(eventfd: &EventFd) -> std::os::fd::BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as the eventfd that it is borrowed from.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(eventfd)) }
}

fn iovec(data: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() }
}

/// Write to the disk by every call, and check what is read back.
fn exercise(path: &Path, engine: EngineKind) -> Result<(), Box<dyn Error>> {
    let mut file = AnyDisk { disk: OpenOptions::new(path).open()?, engine };
    let (size, (sector, _)) = (file.logical_size()?, file.topology());
    let mut io = file.new_async_io(64)?;
    if !io.batch_requests_enabled() || io.alignment() != 1 {
        return Err("batches and buffers at any address are offered".into());
    }
    let mut expected: Vec<u8> = (0..4 * MIB).map(|at| (at / 512 * 7 + at) as u8).collect();
    let mut source = expected.clone();

    // Each request is 1 MiB in three unaligned buffers. The first is written alone, the others as one batch.
    let mut pieces = source.chunks_exact_mut(MIB).zip(0u32..).map(|(chunk, index)| {
        let (head, rest) = chunk.split_at_mut(513);
        let (middle, tail) = rest.split_at_mut(70_001);
        let iovecs = vec![iovec(head), iovec(middle), iovec(tail)];
        BatchRequest { offset: i64::from(index) << 20, iovecs, user_data: index.into(), writes: true }
    });
    let first = pieces.next().ok_or("a request")?;
    io.write_vectored(first.offset, &first.iovecs, first.user_data)?;
    let batch: Vec<_> = pieces.collect();
    io.submit_batch_requests(&batch)?;
    wait(&mut *io, 4, MIB)?;
    io.fsync(None)?;
    io.write_zeroes(sector, sector, 5)?;
    io.punch_hole(2 * MIB as u64, MIB as u64, 6)?;
    io.fsync(Some(7))?;
    wait(&mut *io, 3, 0)?;
    let sector = sector as usize;
    expected.get_mut(sector..2 * sector).ok_or("a sector")?.fill(0);
    expected.get_mut(2 * MIB..3 * MIB).ok_or("a hole")?.fill(0);

    let mut back = vec![0xa5; 4 * MIB];
    io.read_vectored(0, &[iovec(&mut back)], 8)?;
    wait(&mut *io, 1, 4 * MIB)?;
    if back != expected {
        return Err("what was read is not what was written".into());
    }
    // A read beyond the end of the disk fails with an errno.
    io.read_vectored(i64::try_from(size)?, &[iovec(&mut back)], 9)?;
    match wait(&mut *io, 1, 0) {
        Err(error) if error.to_string().contains("request 9: -22") => Ok(()),
        other => Err(format!("a read behind the end: {other:?}").into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let size = 16 * MIB as u64;
    Raw::create(&at("disk.raw"), size)?;
    vhd::create_dynamic(&at("base.vhd"), size, None)?;
    vhd::create_differencing(&at("middle.vhd"), &at("base.vhd"), None)?;
    vhd::create_differencing(&at("top.vhd"), &at("middle.vhd"), None)?;
    vhdx::create_dynamic(&at("base.vhdx"), size, vhdx::CreateOptions::default())?;
    vhdx::create_differencing(&at("middle.vhdx"), &at("base.vhdx"), None)?;
    vhdx::create_differencing(&at("top.vhdx"), &at("middle.vhdx"), None)?;
    for name in ["disk.raw", "top.vhd", "top.vhdx"] {
        for engine in [EngineKind::IoUring, EngineKind::Threads] {
            exercise(&at(name), engine).map_err(|error| format!("{name}, {engine:?}: {error}"))?;
        }
        println!("{name}: what was written is what is read");
    }
    for name in ["top.vhd", "top.vhdx"] {
        let report = Image::open(at(name))?.check(Repair::ReportOnly)?;
        if !report.findings.is_empty() {
            return Err(format!("a check found {:?}", report.findings).into());
        }
    }
    Ok(())
}

#[test]
fn a_disk_serves_a_device_that_knows_eventfds() {
    main().unwrap();
}

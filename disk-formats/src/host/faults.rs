//! Fault injection: counts the calls to files below one directory, makes one of them fail, and drops the data that a
//! real host would lose.
//!
//! The directory is on tmpfs, which never fails and where flushes cost nothing. The state of stable storage is tracked
//! separately: [`cache`] tracks for each file which data are on stable storage, and what remains after a power failure
//! or an eviction of pages; [`names`] tracks the same for the directory.
//!
//! The calls of all threads are serialized. io_uring operations run normally, unless they are to fail: then the ring
//! gets a no-op, and the result is replaced ([`Plan::stage`], [`Staged::finish`]).

mod cache;
mod call;
mod names;
mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::contract::iobuf::IoBuf;
use crate::host::sys;
use cache::{Cached, Captured};
use call::Verdict;
pub(crate) use call::{Call, Fault};
use names::Names;

#[allow(clippy::disallowed_types, reason = "a test's host")]
type Mutex<T> = std::sync::Mutex<T>;

/// An io_uring operation, from its submission to its completion.
pub(crate) enum Staged {
    /// The result is known. The ring gets a no-op.
    Answered(Result<u32, Errno>),
    /// A write that the ring executes.
    Write(Arc<Plan>, (u64, u64), Captured),
    /// An operation that changes nothing.
    Other,
}

/// The fault plan of the files in one directory.
pub(crate) struct Plan {
    folder: PathBuf,
    state: Mutex<State>,
}

struct State {
    calls: Vec<Call>,
    fault: Option<(usize, Fault)>,
    /// Calls are not counted, and none fails.
    idle: bool,
    hit: Option<Fault>,
    clones: bool,
    /// The error of taking a lock.
    lockless: Option<Errno>,
    files: HashMap<(u64, u64), Cached>,
    names: Names,
}

/// Number of plans. If it is 0, there is no look-up.
static PLANS: AtomicUsize = AtomicUsize::new(0);

#[derive(Default)]
struct Registry {
    folders: HashMap<PathBuf, Arc<Plan>>,
    /// Device and inode numbers of files that were looked up before.
    files: HashMap<(u64, u64), Arc<Plan>>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn identity(file: impl AsFd) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(file).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// The plan for a file, if any.
pub(crate) fn of_file(file: impl AsFd) -> Option<Arc<Plan>> {
    if PLANS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let id = identity(&file)?;
    let mut registry = registry();
    if let Some(plan) = registry.files.get(&id) {
        return Some(Arc::clone(plan));
    }
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())).ok()?;
    let plan = Arc::clone(registry.folders.get(path.parent()?)?);
    registry.files.insert(id, Arc::clone(&plan));
    Some(plan)
}

/// The plan for creating, renaming or removing a file at this path, if any.
pub(crate) fn of_path(path: &Path) -> Option<Arc<Plan>> {
    of_folder(path.parent()?)
}

/// The plan for a directory, if any.
pub(crate) fn of_folder(folder: &Path) -> Option<Arc<Plan>> {
    if PLANS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    registry().folders.get(folder).cloned()
}

/// A temporary directory with a fault plan.
pub(crate) struct Host {
    plan: Arc<Plan>,
    /// Removes the directory when it is dropped.
    _space: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new() -> Self {
        let shared = Path::new("/dev/shm");
        let space = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
        let space = space.expect("a directory for tests");
        let root = space.path().canonicalize().expect("a path");
        let (folder, removed) = (root.join("disks"), root.join("removed"));
        [&folder, &removed].into_iter().for_each(|folder| std::fs::create_dir(folder).expect("a directory"));
        let state = State {
            calls: Vec::new(),
            fault: None,
            idle: true,
            hit: None,
            clones: false,
            lockless: None,
            files: HashMap::new(),
            names: Names::new(removed),
        };
        let plan = Arc::new(Plan { folder: folder.clone(), state: Mutex::new(state) });
        registry().folders.insert(folder, Arc::clone(&plan));
        PLANS.fetch_add(1, Ordering::Relaxed);
        Self { plan, _space: space }
    }

    /// The directory.
    pub(crate) fn folder(&self) -> &Path {
        &self.plan.folder
    }

    /// Take the current state as the state of stable storage.
    pub(crate) fn settle(&self) {
        let mut state = self.plan.state();
        state.files.clear();
        state.names.sync();
        registry().files.retain(|_, plan| !Arc::ptr_eq(plan, &self.plan));
    }

    /// Count calls from 0 on, and make call number `fault.0` fail.
    pub(crate) fn arm(&self, fault: Option<(usize, Fault)>) {
        let mut state = self.plan.state();
        state.calls.clear();
        (state.fault, state.idle, state.hit) = (fault, false, None);
    }

    /// Stop counting and failing calls. Returns the calls since [`arm`](Self::arm).
    pub(crate) fn disarm(&self) -> Vec<Call> {
        let mut state = self.plan.state();
        state.idle = true;
        std::mem::take(&mut state.calls)
    }

    /// Whether the call that was to fail was made.
    pub(crate) fn hit(&self) -> bool {
        self.fault().is_some()
    }

    /// How that call failed.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.plan.state().hit
    }

    /// Whether the file system can clone ranges.
    pub(crate) fn allow_clones(&self, allowed: bool) {
        self.plan.state().clones = allowed;
    }

    /// The file system answers each lock with this error.
    pub(crate) fn refuse_locks(&self, error: Errno) {
        self.plan.state().lockless = Some(error);
    }

    /// Evict the clean pages of the cache. Returns whether the content of a file may have changed.
    pub(crate) fn evict(&self) -> bool {
        self.plan.state().files.values_mut().fold(false, |changed, file| file.evict() | changed)
    }

    /// Run `during` while all calls to the host are stalled. `during` must not make such a call.
    pub(crate) fn stalled(&self, during: impl FnOnce()) {
        let _state = self.plan.state();
        during();
    }

    /// Drop everything that was not flushed. Returns whether anything may have changed.
    pub(crate) fn power_loss(&self) -> bool {
        let mut state = self.plan.state();
        let changed = state.files.values_mut().fold(false, |changed, file| file.power_loss() | changed);
        state.names.power_loss() | changed
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let mut registry = registry();
        registry.folders.remove(&self.plan.folder);
        registry.files.retain(|_, plan| !Arc::ptr_eq(plan, &self.plan));
        PLANS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    /// Count a call, and decide its result.
    fn verdict(&mut self, call: Call) -> Verdict {
        if self.idle {
            return Verdict::Works;
        }
        let index = self.calls.len();
        self.calls.push(call);
        match self.fault {
            Some((at, wanted)) if at == index => {
                let fault = wanted.for_call(call);
                self.hit = Some(fault);
                fault.verdict()
            }
            _ => Verdict::Works,
        }
    }

    /// As [`verdict`](Self::verdict), for calls without partial results.
    fn attempt(&mut self, call: Call) -> Result<(), Errno> {
        match self.verdict(call) {
            Verdict::Works | Verdict::Short => Ok(()),
            Verdict::Fails(errno) | Verdict::Loses { errno, .. } => Err(errno),
        }
    }

    fn cached(&mut self, file: impl AsFd) -> Result<&mut Cached, Errno> {
        let id = identity(&file).ok_or(Errno::BADF)?;
        Ok(self.files.entry(id).or_insert_with(|| Cached::new(file)))
    }

    fn write(&mut self, file: impl AsFd, data: &[u8], offset: u64, through: bool) -> Result<usize, Errno> {
        let call = if through { Call::WriteThrough } else { Call::Write };
        let verdict = self.verdict(call);
        let cached = self.cached(file)?;
        let len = match verdict {
            Verdict::Fails(errno) => return Err(errno),
            Verdict::Short => data.len().div_ceil(2),
            Verdict::Works | Verdict::Loses { .. } => data.len(),
        };
        cached.write(&data[..len], offset);
        match verdict {
            Verdict::Loses { errno, at_once } => {
                cached.lose(offset, len as u64, at_once);
                return Err(errno);
            }
            _ if through => cached.sync_range(offset, len as u64),
            _ => {}
        }
        Ok(len)
    }

    fn sync(&mut self, file: impl AsFd) -> Result<(), Errno> {
        match self.verdict(Call::Sync) {
            Verdict::Works | Verdict::Short => self.cached(file)?.sync(),
            Verdict::Fails(errno) => return Err(errno),
            Verdict::Loses { errno, at_once } => {
                self.cached(file)?.lose(0, u64::MAX, at_once);
                return Err(errno);
            }
        }
        Ok(())
    }

    fn read(&mut self, file: impl AsFd, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let len = match self.verdict(Call::Read) {
            Verdict::Works => data.len(),
            Verdict::Fails(errno) | Verdict::Loses { errno, .. } => return Err(errno),
            Verdict::Short => data.len().div_ceil(2),
        };
        rustix::io::pread(file, data.get_mut(..len).unwrap_or_default(), offset)
    }
}

/// The concatenated content of buffers.
fn gather(bufs: &[IoBuf]) -> Vec<u8> {
    let mut data = vec![0; bufs.iter().map(IoBuf::len).sum()];
    let mut rest = data.as_mut_slice();
    for buf in bufs {
        let moved = buf.read(rest);
        rest = &mut rest[moved..];
    }
    data
}

fn scatter(mut data: &[u8], bufs: &[IoBuf]) {
    for buf in bufs {
        let moved = buf.write(data);
        data = &data[moved..];
    }
}

/// The calls of [`crate::host`].
impl Plan {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self, file: impl AsFd, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.state().read(file, data, offset)
    }

    pub(crate) fn write(
        &self,
        file: impl AsFd,
        data: &[u8],
        offset: u64,
        through: bool,
    ) -> Result<usize, Errno> {
        self.state().write(file, data, offset, through)
    }

    /// One read, or one write (`Some`: whether with RWF_DSYNC). Returns the number of bytes moved.
    pub(crate) fn transfer(
        &self,
        file: impl AsFd,
        bufs: &[IoBuf],
        offset: u64,
        write: Option<bool>,
    ) -> Result<usize, Errno> {
        let mut data = gather(bufs);
        match write {
            Some(through) => self.state().write(file, &data, offset, through),
            None => {
                let moved = self.state().read(file, &mut data, offset)?;
                scatter(&data[..moved], bufs);
                Ok(moved)
            }
        }
    }

    /// As [`transfer`](Self::transfer), for an operation that a ring is about to get.
    pub(crate) fn stage(
        self: &Arc<Self>,
        file: impl AsFd + Copy,
        bufs: &[IoBuf],
        offset: u64,
        write: Option<bool>,
    ) -> Staged {
        let mut state = self.state();
        let call = match write {
            None => Call::Read,
            Some(false) => Call::Write,
            Some(true) => Call::WriteThrough,
        };
        let fails = state.fault.is_some_and(|(at, _)| at == state.calls.len());
        if fails && !state.idle {
            drop(state);
            // The result of a completion has 32 bits.
            return Staged::Answered(self.transfer(file, bufs, offset, write).map(|moved| moved as u32));
        }
        let _ = state.verdict(call);
        let (Some(through), Some(id)) = (write, identity(file)) else { return Staged::Other };
        let len = bufs.iter().map(IoBuf::len).sum::<usize>() as u64;
        match state.cached(file) {
            Ok(cached) => Staged::Write(Arc::clone(self), id, cached.capture(offset, len, through)),
            Err(errno) => Staged::Answered(Err(errno)),
        }
    }

    pub(crate) fn sync(&self, file: impl AsFd) -> Result<(), Errno> {
        self.state().sync(file)
    }

    /// Dirty pages stay dirty: the started writeback has not completed.
    pub(crate) fn start_writeback(&self, file: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
        let mut state = self.state();
        match state.verdict(Call::Writeback) {
            Verdict::Works | Verdict::Short => Ok(()),
            Verdict::Fails(errno) => Err(errno),
            Verdict::Loses { errno, at_once } => {
                state.cached(file)?.lose(offset, len, at_once);
                Err(errno)
            }
        }
    }

    pub(crate) fn drop_cache(&self, file: impl AsFd) -> Result<(), Errno> {
        self.state().cached(file)?.evict();
        Ok(())
    }

    pub(crate) fn set_len(&self, file: &File, size: u64) -> Result<(), Errno> {
        let mut state = self.state();
        state.attempt(Call::Truncate)?;
        state.cached(file)?.set_len(size);
        Ok(())
    }

    pub(crate) fn lock(&self, file: &File, bytes: std::ops::Range<u64>) -> Result<(), Errno> {
        let refused = self.state().lockless;
        refused.map_or_else(|| sys::ofd_lock(file, sys::Lock::Shared, bytes), Err)
    }

    pub(crate) fn fallocate(
        &self,
        file: &File,
        flags: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let mut state = self.state();
        let call = match flags {
            flags if flags.contains(FallocateFlags::PUNCH_HOLE) => Call::Punch,
            flags if flags.contains(FallocateFlags::ZERO_RANGE) => Call::Zero,
            _ => Call::Allocate,
        };
        state.attempt(call)?;
        let cached = state.cached(file)?;
        match call {
            Call::Allocate => cached.allocate(offset, len),
            _ => cached.zero(offset, len),
        }
        Ok(())
    }

    pub(crate) fn clone_range(
        &self,
        from: &File,
        offset: u64,
        len: u64,
        to: &File,
        at: u64,
    ) -> Result<(), Errno> {
        let mut state = self.state();
        if !state.clones {
            return Err(Errno::OPNOTSUPP);
        }
        state.attempt(Call::Clone)?;
        let mut data = vec![0; len as usize];
        let moved = rustix::io::pread(from, &mut data, offset)?;
        state.cached(to)?.write(&data[..moved], at);
        Ok(())
    }

    pub(crate) fn copy_file_range(
        &self,
        from: &File,
        offset: &mut u64,
        to: &File,
        at: &mut u64,
        len: usize,
    ) -> Result<usize, Errno> {
        let mut state = self.state();
        let len = match state.verdict(Call::Copy) {
            Verdict::Works => len,
            Verdict::Fails(errno) | Verdict::Loses { errno, .. } => return Err(errno),
            Verdict::Short => len.div_ceil(2),
        };
        let mut data = vec![0; len.min(1 << 20)];
        let moved = rustix::io::pread(from, &mut data, *offset)?;
        state.cached(to)?.write(&data[..moved], *at);
        *offset += moved as u64;
        *at += moved as u64;
        Ok(moved)
    }

    pub(crate) fn create_new(&self, path: &Path) -> io::Result<File> {
        let mut state = self.state();
        state.attempt(Call::Create)?;
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        state.names.created(path);
        Ok(file)
    }

    pub(crate) fn rename_new(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        let mut state = self.state();
        state.attempt(Call::Rename)?;
        state.names.rename_new(from, to)
    }

    pub(crate) fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.attempt(Call::Link)?;
        std::fs::hard_link(from, to)?;
        state.names.created(to);
        Ok(())
    }

    pub(crate) fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.attempt(Call::Unlink)?;
        state.names.remove(path)
    }

    pub(crate) fn sync_folder(&self) -> Result<(), Errno> {
        let mut state = self.state();
        state.attempt(Call::SyncFolder)?;
        state.names.sync();
        Ok(())
    }
}

impl Staged {
    /// Whether the result is known, so that the ring gets a no-op.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self, Self::Answered(_))
    }

    /// The ring has completed the operation. Returns the result for the caller.
    pub(crate) fn finish(self, result: Result<u32, Errno>) -> Result<u32, Errno> {
        match self {
            Self::Answered(answer) => answer,
            Self::Other => result,
            Self::Write(plan, id, captured) => {
                let mut state = plan.state();
                if let (Some(cached), Ok(moved)) = (state.files.get_mut(&id), result) {
                    cached.landed(captured, u64::from(moved));
                }
                result
            }
        }
    }
}

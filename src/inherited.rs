//! Descriptors that this process was started with.
//!
//! Several of them, and descriptors of other processes, may be of one open file description. The locks of images belong to descriptions, so
//! they would not keep two writers of such descriptors apart. [`take_file`] therefore opens a file again, where this user may open it.
#![allow(unsafe_code, reason = "descriptors that the process was started with become owned once")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
#[expect(clippy::disallowed_types, reason = "used at the start only")]
use std::sync::Mutex;
use std::sync::PoisonError;

use rustix::fs::{Mode, OFlags, fcntl_getfl, open};
use rustix::io::{DupFlags, FdFlags, dup3, fcntl_setfd};

/// The first descriptor that is not standard input, output or error.
const FIRST: RawFd = 3;

/// Those that nobody has taken yet.
#[expect(clippy::disallowed_types, reason = "used at the start only")]
static UNCLAIMED: Mutex<BTreeMap<RawFd, OwnedFd>> = Mutex::new(BTreeMap::new());

/// Take ownership of all open descriptors but the first three. They are closed in programs that this process starts.
///
/// # Safety
/// Nothing in this process has opened a descriptor before.
pub(crate) unsafe fn claim() {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else { return };
    let names = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    // The folder itself is closed before any is looked at.
    let numbers: Vec<RawFd> = names.filter(|number| *number >= FIRST).collect();
    let mut unclaimed = UNCLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    for number in numbers {
        // SAFETY: `number` was open a moment ago, and by the contract nothing in this process owns it, but for the folder, which is
        // closed: the check below fails for it.
        let descriptor = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        if fcntl_setfd(&*descriptor, FdFlags::CLOEXEC).is_ok() {
            unclaimed.insert(number, std::mem::ManuallyDrop::into_inner(descriptor));
        }
    }
}

/// Whether the process was started with this descriptor, and nobody has taken it.
pub(crate) fn is_unclaimed(number: RawFd) -> bool {
    UNCLAIMED.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&number)
}

/// A descriptor that the process was started with. Each can be taken once.
pub(crate) fn take(number: RawFd) -> Result<OwnedFd, String> {
    let taken = UNCLAIMED.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    taken.ok_or_else(|| {
        format!("fd={number}: not a descriptor that this process was started with, or used twice")
    })
}

/// A file that was taken for a disk.
struct Taken {
    number: RawFd,
    /// Numbers of device and inode; of a block device, its own number.
    identity: (u64, u64),
    writes: bool,
    /// Nobody else has its open file description.
    own: bool,
}

#[expect(clippy::disallowed_types, reason = "disks come rarely")]
static FILES: Mutex<Vec<Taken>> = Mutex::new(Vec::new());

/// A file or block device that the process was started with, for a disk that is written or only read. Each can be taken once.
pub(crate) fn take_file(number: RawFd, writes: bool) -> Result<File, String> {
    let mut descriptor = take(number)?;
    let failed = |error| format!("fd={number}: {error}");
    let metadata = File::from(descriptor.try_clone().map_err(failed)?).metadata().map_err(failed)?;
    let is_device = metadata.file_type().is_block_device();
    // The number, which messages name, stays.
    let own = (is_device || metadata.is_file())
        && opened_again(&descriptor)
            .is_some_and(|again| dup3(&again, &mut descriptor, DupFlags::CLOEXEC).is_ok());
    let identity = if is_device { (metadata.rdev(), 0) } else { (metadata.dev(), metadata.ino()) };
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    // Where both descriptions are their owners' alone, the locks decide.
    let shares = |other: &&Taken| other.identity == identity && !(own && other.own);
    if let Some(other) = files.iter().filter(shares).find(|other| writes || other.writes) {
        return Err(format!(
            "fd={number}: the same file as fd={}, and one of the two is written",
            other.number
        ));
    }
    files.push(Taken { number, identity, writes, own });
    Ok(descriptor.into())
}

/// The same file with an open file description of its own; `None`: this user may not open it.
fn opened_again(descriptor: &OwnedFd) -> Option<OwnedFd> {
    let kept = OFlags::RWMODE | OFlags::APPEND | OFlags::DIRECT;
    let flags = fcntl_getfl(descriptor).ok()? & kept | OFlags::CLOEXEC;
    open(format!("/proc/self/fd/{}", descriptor.as_raw_fd()), flags, Mode::empty()).ok()
}

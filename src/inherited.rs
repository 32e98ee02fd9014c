//! Descriptors that this process was started with.
#![allow(unsafe_code, reason = "descriptors that the process was started with become owned once")]

use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
#[expect(clippy::disallowed_types, reason = "used at the start only")]
use std::sync::Mutex;
use std::sync::PoisonError;

use rustix::io::{FdFlags, fcntl_setfd};

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

//! Image locks: byte-range locks that decide which processes may use an image at the same time.
//!
//! The locks are compatible with QEMU's (`block/file-posix.c`, `raw_apply_lock_bytes` and `raw_check_lock_bytes`). Each
//! permission has two bytes. A shared lock on the first byte means that a process uses the permission. A shared lock on
//! the second byte means that a process does not allow others to use it. A process takes all its locks, then checks
//! whether another process holds a conflicting lock. If two processes open the image at the same time, both may be
//! refused.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::host;
use crate::host::sys;
use crate::host::sys::Lock;

/// Byte of permission 0 for "used" (`RAW_LOCK_PERM_BASE`).
const USED: u64 = 100;
/// Byte of permission 0 for "not shared" (`RAW_LOCK_SHARED_BASE`).
const UNSHARED: u64 = 200;
/// Bit number of `BLK_PERM_CONSISTENT_READ`.
const READ: u64 = 0;
/// Bit number of `BLK_PERM_WRITE`.
const WRITE: u64 = 1;
/// Bit number of `BLK_PERM_RESIZE`.
const RESIZE: u64 = 3;

/// Maximum number of processes that an error names.
const NAMED: usize = 3;

/// Whether a file is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locked {
    Yes,
    /// The file system has no locks.
    Unsupported,
}

/// The reason why a file could not be opened or locked.
#[derive(Debug)]
pub(super) enum Refused<E> {
    /// Others use the file. The text names the processes; `None`: no process is known to have it open but such as are ending.
    Busy(Option<String>),
    Other(E),
}

/// Lock the file for this open file description: readers share it, a writer has it alone. On file systems without locks
/// this succeeds without a lock: NFS without a lock service, FUSE file systems that lack the call.
pub(super) fn lock(file: &File, writes: bool) -> Result<Locked, Refused<Errno>> {
    let (used, unshared): (&[u64], &[u64]) =
        if writes { (&[READ, WRITE, RESIZE], &[WRITE, RESIZE, READ]) } else { (&[READ], &[WRITE, RESIZE]) };
    let conflict = take(file, used, unshared);
    if !matches!(conflict, Ok(None)) {
        // The locks of this open must not appear among the holders that are looked up below.
        unlock(file);
    }
    match conflict {
        Ok(None) => Ok(Locked::Yes),
        Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(Locked::Unsupported),
        Ok(Some(byte)) => {
            Err(Refused::Busy(file.metadata().ok().and_then(|metadata| holders(&metadata, byte))))
        }
        Err(errno) => Err(Refused::Other(errno)),
    }
}

/// Take the locks for these permissions. Returns the byte of a conflicting lock, if any.
fn take(file: &File, used: &[u64], unshared: &[u64]) -> Result<Option<u64>, Errno> {
    for byte in used.iter().map(|bit| USED + bit).chain(unshared.iter().map(|bit| UNSHARED + bit)) {
        match host::lock(file, byte..byte + 1) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => return Ok(Some(byte)),
            Err(errno) => return Err(errno),
        }
    }
    // Check for writers first, so that the error names them.
    for byte in unshared.iter().map(|bit| USED + bit).chain(used.iter().map(|bit| UNSHARED + bit)) {
        if sys::ofd_is_locked(file, byte..byte + 1)? {
            return Ok(Some(byte));
        }
    }
    Ok(None)
}

/// Release the locks of this open file description, even if a copy of the descriptor is still open.
pub(super) fn unlock(file: &File) {
    // An error means that the file system has no locks.
    let _ = sys::ofd_lock(file, Lock::None, 0..0);
}

/// Describe the processes that hold a lock on the byte.
fn holders(file: &Metadata, byte: u64) -> Option<String> {
    let how = if byte == USED + WRITE { "has it open for writing" } else { "has it open" };
    let found = processes(file, byte);
    (!found.is_empty()).then(|| format!("{} {how}", found.join(" and ")))
}

/// Describe the processes that have locked a block device for writing.
pub(super) fn writers(device: &Metadata) -> Option<String> {
    holders(device, USED + WRITE)
}

/// The processes that hold a lock on the byte of this file, as far as this user may read their entries in /proc.
fn processes(file: &Metadata, byte: u64) -> Vec<String> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holding = numbers.filter(|number| {
        let process = PathBuf::from(format!("/proc/{number}"));
        holds(&process, file, byte) && !is_ending(&process)
    });
    holding.take(NAMED).map(name).collect()
}

/// Whether the process was killed or ends by itself: the kernel is about to close its files, and releases their locks.
fn is_ending(process: &Path) -> bool {
    let read = |name| fs::read_to_string(process.join(name));
    // A process that has gone has no files.
    read("stat").map_or(true, |stat| exits(&stat))
        || read("status").map_or(true, |status| was_killed(&status))
}

/// Whether the line of proc_pid_stat(5) has PF_EXITING (include/linux/sched.h) in its flags, the seventh field after the name, which is in
/// parentheses and may have others.
fn exits(stat: &str) -> bool {
    const PF_EXITING: u32 = 4;
    let flags =
        stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(6)?.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

/// Whether SIGKILL is pending, by the masks of proc_pid_status(5).
fn was_killed(status: &str) -> bool {
    const SIGKILL: u64 = 1 << (9 - 1);
    let masks = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & SIGKILL != 0)
}

fn name(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let this = if process == std::process::id() { "this process, " } else { "process " };
    format!("{this}{process} ({})", name.trim_end())
}

/// Whether the process holds the lock. proc_pid_fdinfo(5) lists the locks of each open file description.
fn holds(process: &Path, file: &Metadata, byte: u64) -> bool {
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    open.into_iter().any(|entry| {
        // fdinfo first: unlike stat, it does not call the file system, which may hang.
        fs::read_to_string(process.join("fdinfo").join(entry.file_name()))
            .is_ok_and(|text| text.lines().any(|line| covers(line, byte)))
            && fs::metadata(entry.path())
                .is_ok_and(|other| other.dev() == file.dev() && other.ino() == file.ino())
    })
}

/// Whether a line of fdinfo describes a lock on the byte: `lock: 1: OFDLCK  ADVISORY  READ -1 fe:00:1234 100 101`. The
/// last field may be `EOF`.
fn covers(line: &str, byte: u64) -> bool {
    let Some(lock) = line.strip_prefix("lock:") else { return false };
    let mut range = lock.split_whitespace().skip(6);
    let first = range.next().and_then(|first| first.parse::<u64>().ok());
    let last = range.next().map(|last| last.parse::<u64>().unwrap_or(u64::MAX));
    first.zip(last).is_some_and(|(first, last)| (first..=last).contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_locks_are_read() {
        let line = "lock:\t1: OFDLCK  ADVISORY  READ -1 fe:00:1234 100 101";
        assert!(covers(line, 100) && covers(line, 101) && !covers(line, 99) && !covers(line, 102));
        let whole = "lock:\t2: POSIX  ADVISORY  WRITE 77 fe:00:1234 0 EOF";
        assert!(covers(whole, 0) && covers(whole, 201));
        for line in ["", "lock:", "lock: 1: FLOCK", "pos:\t0 1 2 3 4 5 0 EOF", "lock:\ta b c d e f g h"] {
            assert!(!covers(line, 100), "{line}");
        }
    }

    #[test]
    fn a_process_that_ends_is_told_by_its_flags_and_signals() {
        let stat = |flags: u32| format!("77 (a) b (c) S 1 77 77 0 -1 {flags} 100 0 0 0 4 5");
        assert!(exits(&stat(0x0040_0104)) && !exits(&stat(0x0040_0100)) && !exits("77 (a"));
        let status = |own: &str, shared: &str| {
            format!("Name:\ta\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t0000000000000100\n")
        };
        let (none, kill, others) = ("0000000000000000", "0000000000000100", "fffffffffffffeff");
        assert!(was_killed(&status(kill, none)) && was_killed(&status(others, kill)));
        assert!(!was_killed(&status(others, others)));
        // This process lives.
        assert!(!is_ending(Path::new("/proc/self")));
    }

    /// Single locks on single bytes, as QEMU takes them.
    #[test]
    fn locks_of_others_are_seen_byte_by_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, [0; 512]).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        // If another test is forking a child, that child has copies of all descriptors for a moment, as `inherited` has
        // here. So the locks are released explicitly, not by closing.
        let mut inherited = Vec::new();
        let mut allowed = |byte: u64| {
            let [other, reader, writer] = [(); 3].map(|()| open());
            inherited.extend([&other, &reader, &writer].map(|file| file.try_clone().unwrap()));
            sys::ofd_lock(&other, Lock::Shared, byte..byte + 1).unwrap();
            let reads = lock(&reader, false).is_ok();
            unlock(&reader);
            let writes = lock(&writer, true).is_ok();
            unlock(&writer);
            unlock(&other);
            [reads, writes]
        };
        // Another process reads, writes, resizes; then refuses to share reading, writing.
        assert_eq!(allowed(USED + READ), [true, false]);
        assert_eq!(allowed(USED + WRITE), [false, false]);
        assert_eq!(allowed(USED + RESIZE), [false, false]);
        assert_eq!(allowed(UNSHARED + READ), [false, false]);
        assert_eq!(allowed(UNSHARED + WRITE), [true, false]);
        assert_eq!(allowed(50), [true, true]);
        let writer = open();
        lock(&writer, true).unwrap();
        let Err(Refused::Busy(Some(holder))) = lock(&open(), false) else { panic!("two") };
        let this = format!("this process, {} (", std::process::id());
        // A forked child may be named, too.
        assert!(holder.contains(&this) && holder.ends_with(") has it open for writing"), "{holder}");
    }
}

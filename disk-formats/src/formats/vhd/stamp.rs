//! The time stamp of an image. Differencing disks detect by it that their parent has changed.
//!
//! A child records a time of its parent: this program the stamp in the parent's footer, other programs that stamp or the
//! modification time of the parent's file, in seconds. Before the first change of an image's content after an open, the
//! footer gets a new stamp, on stable storage: from then on the children that have recorded the stamp are refused. The
//! change itself gives the file a new modification time.
//!
//! Times have whole seconds. Before an image is changed, the session waits until the second of its last change is over
//! ([`renew`]). So one second never has both a state that a child has recorded and a later one: children that were made
//! before the change are refused, and children that any program makes after it are accepted ([`accepts`]).
//!
//! A merge changes the parent, and its child must be valid at every moment. First the parent gets a new stamp, and the
//! old stamp as an equivalent one in reserved bytes of its footer ([`announce`]). Then the child records the new stamp.
//! Then the parent drops the equivalent stamp ([`settle`]). So reserved bytes are only used while a merge begins: if that
//! is interrupted, the next merge or writing session clears them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use super::spec::{EPOCH, Footer};
use crate::host;
use crate::host::backing::BackingFile;
use crate::host::store::Store;

/// No time: recorded by programs that do not compare times.
pub(super) const NONE: u32 = 0;
/// Recorded by this program for a parent whose footer has no stamp (0). Such a parent may be copied, which changes its
/// modification time. No footer has this stamp: it is the first second of the year 2000.
const PARENT_HAS_NONE: u32 = 1;

/// Offset in [`Footer::reserved`] of the equivalent stamp, beyond the bytes that other programs are known to use: a tag
/// and the stamp.
const SECOND_AT: usize = 408;
const SECOND_TAG: [u8; 4] = *b"same";
/// What earlier versions of this program stored in reserved bytes of other programs' images: a tag, and five bytes.
const OLD_MARK_AT: usize = 416;
const OLD_MARK_TAG: [u8; 4] = *b"pdsk";

/// The current time in whole seconds, by the clock that the kernel uses for files.
fn now() -> SystemTime {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    UNIX_EPOCH + Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or(0))
}

/// The time of a new image: a second ago. With [`date`], the first session that changes it need not wait.
pub(super) fn of_new() -> SystemTime {
    now() - Duration::from_secs(1)
}

/// Give the file of a new image the modification time [`of_new`]. It is complete.
pub(super) fn date(file: &BackingFile) -> std::io::Result<()> {
    file.file().set_modified(of_new())
}

/// Seconds since 2000, clamped to the range.
pub(super) fn of_time(time: SystemTime) -> u32 {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()).saturating_sub(EPOCH);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// Modification time of a file.
pub(super) fn modified(file: &BackingFile) -> Option<u32> {
    // Not by statx, as the standard library has it: the call takes a path, too, so a sandbox refuses it to the threads that write.
    let stat = rustix::fs::fstat(file.file()).ok()?;
    Some(of_time(UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0))))
}

/// What a child records for a parent with this footer.
pub(super) fn to_note(footer: &Footer) -> u32 {
    match footer.time_stamp.get() {
        NONE => PARENT_HAS_NONE,
        stamp => stamp,
    }
}

/// The stamp after `old` for a file that was modified at `modified`: later than both, even if the clock was set back.
/// Never a value with a meaning of its own.
fn next(old: u32, now: u32, modified: Option<u32>) -> u32 {
    match old.max(modified.unwrap_or(0)).checked_add(1) {
        Some(least) => now.max(least).max(PARENT_HAS_NONE + 1),
        // The end of the range, in 2136: only a different stamp is possible.
        None if old == 2 => 3,
        None => 2,
    }
}

/// Whether `now` is the second in which the image was changed last. A later second, as of a clock that was set back, is not:
/// nobody waits until then.
fn is_second_of_change(now: u32, old: u32, modified: Option<u32>) -> bool {
    now == old || Some(now) == modified
}

/// Give the footer a new stamp, before the content of the image changes. The footer is sealed, but not written.
///
/// If the image was changed in the current second, waits for the next one. A time in the future, of a clock that was
/// set back or of another time zone, is not waited for.
pub(super) fn renew(footer: &mut Footer, store: &dyn Store) {
    let modified = store.backing().and_then(modified);
    let old = footer.time_stamp.get();
    let mut time = of_time(now());
    if let Some(file) = store.backing() {
        // The coarse clock advances every few milliseconds.
        while is_second_of_change(time, old, modified) && host::pause(file.file(), Duration::from_millis(5)) {
            time = of_time(now());
        }
    }
    footer.time_stamp = next(old, time, modified).into();
    settle(footer);
}

/// Remove what earlier versions of this program stored in reserved bytes, and seal the footer. Bytes of other programs
/// are kept.
pub(super) fn clean(footer: &mut Footer) {
    let mark = footer.reserved.get_mut(OLD_MARK_AT..OLD_MARK_AT + 9);
    if let Some(mark) = mark.filter(|mark| mark.starts_with(&OLD_MARK_TAG)) {
        mark.fill(0);
    }
    footer.seal();
}

/// Give the footer a new stamp while the content of the image is unchanged: children that have recorded `same` stay
/// valid.
pub(super) fn announce(footer: &mut Footer, store: &dyn Store, same: u32) {
    renew(footer, store);
    if let Some((tag, stamp)) = second_mut(footer) {
        *tag = SECOND_TAG;
        *stamp = same.to_be_bytes();
    }
    footer.seal();
}

/// Drop the equivalent stamp of [`announce`], before the content of the image changes.
pub(super) fn settle(footer: &mut Footer) {
    if let Some((tag, stamp)) = second_mut(footer)
        && *tag == SECOND_TAG
    {
        (*tag, *stamp) = ([0; 4], [0; 4]);
    }
    clean(footer);
}

/// Tag and value of the equivalent stamp.
fn second_mut(footer: &mut Footer) -> Option<(&mut [u8; 4], &mut [u8; 4])> {
    let (tag, rest) = footer.reserved.get_mut(SECOND_AT..)?.split_first_chunk_mut()?;
    Some((tag, rest.first_chunk_mut()?))
}

/// The stamp that is equivalent to the footer's.
fn second(footer: &Footer) -> Option<u32> {
    let stamp = footer.reserved.get(SECOND_AT..)?.strip_prefix(&SECOND_TAG)?;
    stamp.first_chunk().copied().map(u32::from_be_bytes)
}

/// Whether a child that has recorded `noted` accepts the image with this footer, in a file that was `modified` then.
pub(super) fn accepts(noted: u32, footer: &Footer, modified: Option<u32>) -> bool {
    let stamp = footer.time_stamp.get();
    noted == NONE
        || noted == stamp
        || second(footer) == Some(noted)
        || modified == Some(noted)
        || noted == PARENT_HAS_NONE && stamp == NONE
}

#[cfg(test)]
mod tests {
    use super::super::footer::{self, Subformat};
    use super::*;

    fn footer(stamp: u32) -> Footer {
        let mut footer = footer::new(Subformat::Fixed, 512, u64::MAX, [7; 16], now());
        footer.time_stamp = stamp.into();
        footer.seal();
        footer
    }

    #[test]
    fn a_new_stamp_is_later_whatever_the_clock_says() {
        // The clock has advanced, has not advanced, was set back.
        assert_eq!(next(100, 200, Some(150)), 200);
        assert_eq!(next(100, 100, Some(100)), 101);
        assert_eq!(next(100, 50, Some(100)), 101);
        // The file was modified after it was stamped, and a child may have recorded the modification time.
        assert_eq!(next(100, 120, Some(120)), 121);
        assert_eq!(next(100, 110, Some(u32::MAX - 1)), u32::MAX);
        for old in [0, 1, 2, 3, u32::MAX - 1, u32::MAX] {
            for modified in [None, Some(0), Some(u32::MAX)] {
                let new = next(old, 0, modified);
                assert!(new != old && new > PARENT_HAS_NONE, "{old} {modified:?}");
            }
        }
    }

    /// Clocks jump. Wherever stamp and file time lie, a wait ends with the current second at the latest, and the new stamp is later than both.
    #[test]
    fn a_time_in_the_future_is_not_waited_for() {
        for ahead in [1, 2, 3600, u32::MAX - 200] {
            for (old, modified) in
                [(100 + ahead, None), (50, Some(100 + ahead)), (100 + ahead, Some(100 + ahead))]
            {
                assert!(!is_second_of_change(100, old, modified), "{ahead}");
                assert!(next(old, 100, modified) > 100);
            }
        }
        // The clock goes back while a writer waits for the next second.
        assert!(is_second_of_change(100, 100, Some(99)) && !is_second_of_change(98, 100, Some(99)));
    }

    #[test]
    fn a_child_accepts_what_it_has_recorded() {
        assert!(accepts(100, &footer(100), Some(500)), "the footer's");
        assert!(accepts(500, &footer(100), Some(500)) && accepts(500, &footer(900), Some(500)), "the file's");
        assert!(accepts(NONE, &footer(100), None), "a program that compares no time");
        assert!(!accepts(99, &footer(100), Some(500)) && !accepts(400, &footer(900), Some(500)));
        // A parent without a stamp may be copied, but not changed.
        let noted = to_note(&footer(0));
        assert!([None, Some(77), Some(78)].iter().all(|modified| accepts(noted, &footer(0), *modified)));
        assert!(!accepts(noted, &footer(next(0, 0, None)), None) && to_note(&footer(5)) == 5);
    }

    /// The order of a child and a change of its parent is seen from the times, wherever in a second they happen.
    #[test]
    fn a_change_takes_place_in_a_second_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("parent.vhd");
        for wait in [0, 300, 600, 900] {
            std::fs::write(&path, [1; 512]).unwrap();
            let file = BackingFile::open(&path, crate::host::backing::Access::default()).unwrap();
            std::thread::sleep(Duration::from_millis(wait));
            let before = modified(&file).unwrap();
            let mut changed = footer(before);
            renew(&mut changed, &file);
            file.write_at(&[2; 512], 0).unwrap();
            let after = modified(&file).unwrap();
            assert!(!accepts(before, &changed, Some(after)), "made before: by stamp and by file");
            assert!(accepts(after, &changed, Some(after)) && accepts(to_note(&changed), &changed, None));
        }
    }

    #[test]
    fn marks_of_earlier_versions_are_removed_and_others_kept() {
        let mut old = footer(100);
        (old.reserved[0], old.reserved[426]) = (1, 2);
        old.reserved[408..416].copy_from_slice(b"same1234");
        old.reserved[416..425].copy_from_slice(b"pdsk12341");
        let mut foreign = old;
        foreign.reserved[408..416].copy_from_slice(b"some1234");
        renew(&mut old, &crate::host::crash::CrashFile::default());
        assert_eq!(old.checksum.get(), old.computed_checksum());
        assert!(old.reserved[1..426].iter().all(|byte| *byte == 0));
        assert!(old.reserved[0] == 1 && old.reserved[426] == 2);
        renew(&mut foreign, &crate::host::crash::CrashFile::default());
        assert_eq!(
            (&foreign.reserved[408..416], &foreign.reserved[416..425]),
            (&b"some1234"[..], &[0; 9][..])
        );
    }

    #[test]
    fn an_announced_stamp_says_the_same_until_it_is_settled() {
        let file = crate::host::crash::CrashFile::default();
        let mut changed = footer(100);
        changed.reserved[0] = 1;
        announce(&mut changed, &file, 100);
        let stamp = changed.time_stamp.get();
        assert!(stamp > 100 && accepts(100, &changed, None) && accepts(stamp, &changed, None));
        assert_eq!(changed.checksum.get(), changed.computed_checksum());
        settle(&mut changed);
        assert!(!accepts(100, &changed, None) && accepts(stamp, &changed, None));
        let zeros = |footer: &Footer| footer.reserved[1..].iter().all(|byte| *byte == 0);
        assert!(zeros(&changed) && changed.reserved[0] == 1, "nothing is left, and what others have stays");
        announce(&mut changed, &file, stamp);
        renew(&mut changed, &file);
        assert!(zeros(&changed) && !accepts(stamp, &changed, None), "a session that writes changes it");
    }
}

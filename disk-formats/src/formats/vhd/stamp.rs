//! The time stamp of an image. Differencing disks detect by it that their parent has changed.
//!
//! A child records the time stamp of its parent's footer, even if it is 0, as in images of some other programs. Before
//! the first change of an image's content after an open, the footer gets a new stamp, on stable storage: from then on
//! the children are refused. A new stamp is later than all earlier stamps of the image and later than the last
//! modification of its file, so no child can have recorded it before.
//!
//! Other programs rarely or never update the stamp of a parent, and some record the modification time of its file
//! ([`accepts`]). How reliable a stamp is depends on the program that wrote it. Images created by this program have it
//! as their creator. Images of other programs get a mark in reserved bytes of the footer with the first stamp by this
//! program ([`mark`]).
//!
//! A merge changes the parent, and its child must be valid at every moment. First the parent gets a new stamp, and the
//! old stamp as an equivalent one in reserved bytes of its footer ([`announce`]). Then the child records the new stamp.
//! Then the parent drops the equivalent stamp ([`settle`]). Other programs ignore the reserved bytes and see two
//! different stamps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use super::spec::{CREATOR, EPOCH, Footer};
use crate::host::backing::BackingFile;
use crate::host::store::Store;

/// Offset in [`Footer::reserved`] of the equivalent stamp, beyond the bytes that other programs are known to use.
const SECOND_AT: usize = 408;
/// The tag before the equivalent stamp.
const SECOND_TAG: [u8; 4] = *b"same";
/// Offset of the mark: a tag, the stamp that it belongs to, and [`WAS_ZERO`] or 0.
const MARK_AT: usize = 416;
const MARK_TAG: [u8; 4] = *b"pdsk";
/// The image had the stamp 0 before this program changed it.
const WAS_ZERO: u8 = 1;

/// The current time by the clock that the kernel uses for files: never later than the modification time of a file that
/// is written afterwards.
pub(super) fn now() -> SystemTime {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    UNIX_EPOCH + Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or(0))
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

/// The stamp after `old` for a file that was modified at `modified`: later than both, even if the clock has not advanced or
/// was set back. Never 0, which is the value of images without a stamp.
fn next(old: u32, now: u32, modified: Option<u32>) -> u32 {
    match old.max(modified.unwrap_or(0)).checked_add(1) {
        Some(least) => now.max(least),
        // The end of the range, in 2136: only a different stamp is possible.
        None if old == 1 => 2,
        None => 1,
    }
}

/// Give the footer a new stamp, before the content of the image changes. The footer is sealed, but not written.
pub(super) fn renew(footer: &mut Footer, store: &dyn Store) {
    let modified = store.backing().and_then(modified);
    let (old, marked) = (footer.time_stamp.get(), mark(footer));
    let stamp = next(old, of_time(now()), modified);
    footer.time_stamp = stamp.into();
    if marked.is_some() || old == 0 || footer.creator_application != CREATOR {
        let was_zero = old == 0 || marked == Some(WAS_ZERO);
        set_mark(footer, stamp, if was_zero { WAS_ZERO } else { 0 });
    }
    set_second(footer, None);
}

fn set_mark(footer: &mut Footer, stamp: u32, flag: u8) {
    let [a, b, c, d] = stamp.to_be_bytes();
    if let Some(bytes) = footer.reserved.get_mut(MARK_AT..MARK_AT + 9) {
        let (tag, rest) = bytes.split_at_mut(MARK_TAG.len());
        tag.copy_from_slice(&MARK_TAG);
        rest.copy_from_slice(&[a, b, c, d, flag]);
    }
}

/// The flag of the mark. `None` if there is no mark, or if its stamp differs from the footer's: another program has
/// changed that since.
fn mark(footer: &Footer) -> Option<u8> {
    let stamp = footer.reserved.get(MARK_AT..)?.strip_prefix(&MARK_TAG)?;
    let (stamp, flag) = stamp.split_first_chunk::<4>()?;
    (u32::from_be_bytes(*stamp) == footer.time_stamp.get()).then(|| flag.first().copied())?
}

/// Give the footer a new stamp while the content of the image is unchanged: children that have recorded `same` stay
/// valid.
pub(super) fn announce(footer: &mut Footer, store: &dyn Store, same: u32) {
    renew(footer, store);
    set_second(footer, Some(same));
}

/// Drop the equivalent stamp of [`announce`], before the content of the image changes.
pub(super) fn settle(footer: &mut Footer) {
    set_second(footer, None);
}

fn set_second(footer: &mut Footer, stamp: Option<u32>) {
    if let Some((tag, value)) =
        footer.reserved.get_mut(SECOND_AT..).and_then(|part| part.split_at_mut_checked(4))
        && let Some(value) = value.first_chunk_mut::<4>()
    {
        match stamp {
            Some(stamp) => {
                tag.copy_from_slice(&SECOND_TAG);
                *value = stamp.to_be_bytes();
            }
            // Bytes of other programs are kept.
            None if *tag == SECOND_TAG => {
                tag.fill(0);
                value.fill(0);
            }
            None => {}
        }
    }
    footer.seal();
}

/// The stamp that is equivalent to the footer's.
fn second(footer: &Footer) -> Option<u32> {
    let (tag, value) = footer.reserved.get(SECOND_AT..)?.split_at_checked(4)?;
    (*tag == SECOND_TAG).then(|| value.first_chunk().copied().map(u32::from_be_bytes))?
}

/// Whether a child that has recorded `noted` accepts the image as its parent.
///
/// - The footer's stamp is accepted, and the equivalent one.
/// - 0 is the stamp of an image without a stamp, or of a child whose program does not compare stamps. It is accepted
///   until this program gives an image with the stamp 0 another one.
/// - Other programs record the modification time of the file. It is accepted whatever the footer's stamp is, unless
///   this program wrote a later stamp, as it does before each change.
pub(super) fn accepts(noted: u32, footer: &Footer, modified: Option<u32>) -> bool {
    let (stamp, marked) = (footer.time_stamp.get(), mark(footer));
    let ours = marked.is_some() || footer.creator_application == CREATOR;
    noted == stamp
        || second(footer) == Some(noted)
        || noted == 0 && marked != Some(WAS_ZERO)
        || modified == Some(noted) && (stamp <= noted || !ours)
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
        assert_eq!(next(0, 0, None), 1);
        for old in [0, 1, 2, u32::MAX - 1, u32::MAX] {
            for modified in [None, Some(0), Some(u32::MAX)] {
                let new = next(old, 0, modified);
                assert!(new != old && new != 0, "{old} {modified:?}");
            }
        }
    }

    #[test]
    fn what_other_programs_note_counts_until_we_write() {
        assert!(accepts(100, &footer(100), Some(500)));
        assert!(accepts(0, &footer(100), None));
        assert!(!accepts(99, &footer(100), Some(500)));
        assert!(accepts(500, &footer(100), Some(500)), "the file's");
        // Stamped by this program in the same second in which another program had modified it.
        let stamp = next(100, 500, Some(500));
        assert!(!accepts(500, &footer(stamp), Some(500)));
        assert!(!accepts(100, &footer(next(100, 100, Some(100))), Some(100)), "all in one second");
    }

    /// A footer of another program.
    fn foreign(stamp: u32) -> Footer {
        let mut footer = footer(stamp);
        footer.creator_application = *b"win ";
        footer.seal();
        footer
    }

    /// A parent without a stamp may be copied, which changes the modification time. Changes by this program are
    /// detected.
    #[test]
    fn parents_without_a_stamp_may_be_copied_and_not_written() {
        for mut parent in [footer(0), foreign(0)] {
            for modified in [None, Some(77), Some(78)] {
                assert!(accepts(0, &parent, modified));
            }
            assert!(accepts(77, &parent, Some(77)) && !accepts(77, &parent, Some(78)), "the file's");
            let file = crate::host::crash::CrashFile::default();
            announce(&mut parent, &file, 0);
            assert!(accepts(0, &parent, None), "while a merge begins");
            settle(&mut parent);
            assert!(!accepts(0, &parent, None) && accepts(parent.time_stamp.get(), &parent, None));
            renew(&mut parent, &file);
            assert!(!accepts(0, &parent, None), "nor later");
            assert_eq!(parent.checksum.get(), parent.computed_checksum());
            // Another program stamps it: the mark does not apply any more.
            parent.time_stamp = 5.into();
            assert!(accepts(0, &parent, None));
        }
    }

    /// Some programs record the modification time, although the footer's stamp is later.
    #[test]
    fn a_stamp_of_another_program_is_no_reason_to_refuse() {
        let mut parent = foreign(900);
        assert!(accepts(500, &parent, Some(500)), "the file's");
        assert!(accepts(900, &parent, Some(500)), "the footer's");
        assert!(accepts(0, &parent, Some(500)), "none");
        assert!(!accepts(400, &parent, Some(500)));
        assert!(!accepts(500, &footer(900), Some(500)), "ours is later: it was written since");
        renew(&mut parent, &crate::host::crash::CrashFile::default());
        assert!(!accepts(500, &parent, Some(500)), "written here, in the same second");
        assert!(!accepts(900, &parent, Some(500)));
        assert!(accepts(0, &parent, Some(500)), "a program that compares no time sees no change");
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
        assert!(
            zeros(&changed) && changed.reserved[0] == 1,
            "nothing is left behind, and what others have stays"
        );
        announce(&mut changed, &file, stamp);
        renew(&mut changed, &file);
        assert!(zeros(&changed) && !accepts(stamp, &changed, None), "a session that writes changes it");
    }
}

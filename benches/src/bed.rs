//! Temporary disks of every kind, for runs without `--disk` and for suites.
//!
//! Files are unlinked and the loop device is detached as soon as the disks are open, and the kernel frees them with the last descriptor. So
//! nothing is left behind, however the process ends. A caller that signals can end must block them while disks are made.

mod beside;
mod chain;
mod error;
pub(crate) mod fill;
mod loop_device;
mod make;
mod study;
mod subject;

use std::path::Path;
use std::sync::Arc;

use chain::Chain;
use chain::chained::Chained;
use facts::disk::OpenDisk;
use paradisk_disk_formats::{Disk, NullDisk, OpenOptions, RamDisk, SectorSize, vhd};

pub use self::error::BedError;
pub(crate) use self::subject::subject;
pub use beside::{OpenMode, raw_files, read_through, unallocated, write_through};
pub(crate) use loop_device::LoopDevice;
pub(crate) use make::sized;
use make::{fill_error, filled};

/// Bytes of each disk.
pub const CAPACITY: u64 = 128 << 20;

/// Option of a chain that a naive walk reads, in its [facts](facts::disk::DiskFacts::options).
pub(crate) const NAIVE: &str = "naive";

/// Temporary disks, filled with data, their files in the page cache.
pub struct Bed {
    /// The disks.
    pub subjects: Vec<OpenDisk>,
    /// Disks that could not be created, and why: `SKIP: disk: reason`.
    pub notes: Vec<String>,
}

impl Bed {
    /// Make RAM, null, raw, pass-through (of a loop device), VHDs (fixed, dynamic, differencing with half of the data) and VHDX (dynamic,
    /// differencing).
    ///
    /// # Errors
    /// [`BedError`]; a loop device that may not be created is a note instead.
    pub fn make() -> Result<Self, BedError> {
        within(&std::env::temp_dir(), Self::make_in)
    }

    /// Make one disk of `capacity` bytes that is completely in the page cache and uses it (no direct I/O): pass-through of a loop device,
    /// or a raw file with a note if none may be created.
    ///
    /// # Errors
    /// [`BedError`].
    pub fn cached(capacity: u64) -> Result<Self, BedError> {
        within(&std::env::temp_dir(), |folder| Self::cached_in(folder, capacity))
    }

    /// Make chains of VHDs, then of VHDX files, of these depths, each of `capacity` bytes in the page cache: a full dynamic disk, and
    /// differencing disks over it. The last depth has a second chain, with half of the data spread over all disks. Then follow the same
    /// chains in the same order, read by a naive walk of their images.
    ///
    /// # Errors
    /// [`BedError`].
    pub fn chains(depths: &[usize], capacity: u64) -> Result<Self, BedError> {
        within(&std::env::temp_dir(), |folder| {
            let kinds =
                depths.iter().map(|depth| (*depth, false)).chain(depths.last().map(|depth| (*depth, true)));
            let kinds: Vec<(usize, bool)> = kinds.collect();
            let (mut subjects, mut naive) = (Vec::new(), Vec::new());
            for format in [Chained::Vhd, Chained::Vhdx] {
                for &(depth, spread) in &kinds {
                    let [mut flat, mut walk] = Chain { format, depth, spread, capacity }.pair(folder)?;
                    flat.options = vec![format!("depth {depth}{}", if spread { " spread" } else { "" })];
                    walk.options = flat.options.iter().cloned().chain([NAIVE.to_owned()]).collect();
                    subjects.push(flat);
                    naive.push(walk);
                }
            }
            subjects.extend(naive);
            Ok(Self { subjects, notes: Vec::new() })
        })
    }

    /// Make the disks of the Hyper-V comparison, each of `capacity` bytes and full: pass-through on a loop device (or a raw file with a
    /// note), then VHDs: fixed, dynamic, differencing over a fixed one, which holds half of its data.
    ///
    /// # Errors
    /// [`BedError`].
    pub fn hyperv(capacity: u64) -> Result<Self, BedError> {
        within(&std::env::temp_dir(), |folder| {
            let Self { mut subjects, notes } = Self::cached_in(folder, capacity)?;
            let (fixed, dynamic) = (folder.join("fixed.vhd"), folder.join("dynamic.vhd"));
            vhd::create_fixed(&fixed, capacity)?;
            vhd::create_dynamic(&dynamic, capacity, None)?;
            for path in [fixed, dynamic] {
                subjects.push(subject(OpenOptions::new(&path).open()?, Some(path)));
            }
            subjects.iter().skip(1).try_for_each(filled)?;
            subjects.push(chain::over_fixed(folder, capacity)?);
            for subject in &subjects {
                // Otherwise the kernel would write the data back while others are measured.
                fill::flush(subject.disk.as_ref()).map_err(|source| fill_error(subject, source))?;
            }
            Ok(Self { subjects, notes })
        })
    }

    /// Make the disks of the study of VHD performance, each of `capacity` bytes and full, on direct I/O: a loop device (or a raw file with
    /// a note), a raw file, and VHDs and VHDX files: fixed, dynamic, differencing over an empty dynamic one.
    ///
    /// # Errors
    /// [`BedError`].
    pub fn vhd_study(capacity: u64) -> Result<Self, BedError> {
        within(&std::env::temp_dir(), |folder| {
            let (subjects, notes) = study::disks(folder, capacity)?;
            Ok(Self { subjects, notes })
        })
    }

    fn make_in(folder: &Path) -> Result<Self, BedError> {
        let mut notes = Vec::new();
        let ram: Arc<dyn Disk> = Arc::new(RamDisk::new(CAPACITY, SectorSize::B512)?);
        let null: Arc<dyn Disk> = Arc::new(NullDisk::new(CAPACITY, SectorSize::B512)?);
        let mut subjects = vec![subject(ram, None), subject(null, None)];

        let raw = sized(folder.join("raw.img"), CAPACITY)?;
        subjects.push(subject(OpenOptions::new(&raw).open()?, Some(raw)));

        let backing = sized(folder.join("passthrough.img"), CAPACITY)?;
        match LoopDevice::attach(&backing) {
            Ok(device) => {
                let path = device.path().to_owned();
                // Detached when `device` is dropped; the kernel keeps it until the disk is closed.
                subjects.push(subject(OpenOptions::new(&path).open()?, Some(path)));
            }
            Err(reason) => notes.push(format!("SKIP: passthrough: no loop device: {reason}")),
        }

        let vhd = folder.join("fixed.vhd");
        paradisk_disk_formats::vhd::create_fixed(&vhd, CAPACITY)?;
        subjects.push(subject(OpenOptions::new(&vhd).open()?, Some(vhd)));

        let vhd = folder.join("dynamic.vhd");
        paradisk_disk_formats::vhd::create_dynamic(&vhd, CAPACITY, None)?;
        subjects.push(subject(OpenOptions::new(&vhd).open()?, Some(vhd)));

        let vhdx = folder.join("dynamic.vhdx");
        paradisk_disk_formats::vhdx::create_dynamic(
            &vhdx,
            CAPACITY,
            paradisk_disk_formats::vhdx::CreateOptions::default(),
        )?;
        subjects.push(subject(OpenOptions::new(&vhdx).open()?, Some(vhdx)));
        subjects.iter().try_for_each(filled)?;
        for format in [Chained::Vhd, Chained::Vhdx] {
            subjects.push(Chain { format, depth: 2, spread: true, capacity: CAPACITY }.subject(folder)?);
        }
        Ok(Self { subjects, notes })
    }

    fn cached_in(folder: &Path, capacity: u64) -> Result<Self, BedError> {
        let backing = sized(folder.join("cached.img"), capacity)?;
        let mut notes = Vec::new();
        let device = LoopDevice::attach(&backing)
            .map_err(|reason| {
                notes.push(format!("a raw file in place of a pass-through disk: no loop device: {reason}"));
            })
            .ok();
        let path = device.as_ref().map_or(backing, |device| device.path().to_owned());
        let disk = OpenOptions { direct: Some(false), ..OpenOptions::new(&path) }.open()?;
        let mut subject = subject(disk, Some(path));
        subject.options = vec!["cached".to_owned()];
        filled(&subject)?;
        // Otherwise the kernel would write the data back while others are measured.
        fill::flush(subject.disk.as_ref()).map_err(|source| fill_error(&subject, source))?;
        Ok(Self { subjects: vec![subject], notes })
    }
}

/// Run `make` with a temporary folder in `parent`, which is removed when the disks are open.
fn within<T>(parent: &Path, make: impl FnOnce(&Path) -> Result<T, BedError>) -> Result<T, BedError> {
    let os = |action| move |source| BedError::Os { path: parent.to_owned(), action, source };
    let temporary = tempfile::Builder::new()
        .prefix("paradisk-bench-")
        .tempdir_in(parent)
        .map_err(os("cannot create a folder"))?;
    let made = make(temporary.path());
    let removed = temporary.close().map_err(os("cannot remove the temporary folder"));
    removed.and(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cached_disk_is_one_and_filled() {
        let bed = Bed::cached(8 << 20).unwrap();
        let [subject] = &bed.subjects[..] else { panic!("one disk") };
        let expected = if bed.notes.is_empty() { "passthrough cached" } else { "raw cached" };
        assert_eq!((subject.facts().name().as_str(), subject.disk.info().capacity), (expected, 8 << 20));
        let start = fill::read(subject.disk.as_ref(), 0, 4096).unwrap();
        assert!(start.chunks(8).filter(|word| word.iter().all(|byte| *byte == 0)).count() < 2);
    }

    #[test]
    fn the_disks_of_the_hyper_v_comparison_are_full() {
        let bed = Bed::hyperv(4 << 20).unwrap();
        let kinds: Vec<_> = bed.subjects.iter().map(|subject| subject.facts().subformat).collect();
        let kinds: Vec<_> = kinds.iter().map(Option::as_deref).collect();
        assert_eq!(kinds, [None, Some("fixed"), Some("dynamic"), Some("differencing")]);
        for subject in &bed.subjects {
            for at in (0..4 << 20).step_by(32 << 10) {
                let data = fill::read(subject.disk.as_ref(), at, 4096).unwrap();
                assert!(data.iter().any(|byte| *byte != 0), "{} at {at}", subject.name());
            }
        }
    }

    #[test]
    fn disks_are_filled_and_leave_nothing_behind() {
        // A parent of its own: other tests may use the same loop device afterwards, with their files.
        let parent = tempfile::tempdir().unwrap();
        let bed = within(parent.path(), Bed::make_in).unwrap();
        assert!(std::fs::read_dir(parent.path()).unwrap().next().is_none());
        let kinds: Vec<_> = bed.subjects.iter().map(|subject| subject.disk.info().kind.format).collect();
        if bed.notes.is_empty() {
            assert_eq!(kinds, ["ram", "null", "raw", "passthrough", "vhd", "vhd", "vhdx", "vhd", "vhdx"]);
        } else {
            println!("{}", bed.notes[0]);
            assert_eq!(kinds, ["ram", "null", "raw", "vhd", "vhd", "vhdx", "vhd", "vhdx"]);
        }
        let mut devices = Vec::new();
        for subject in &bed.subjects {
            assert_eq!(subject.disk.info().capacity, CAPACITY);
            if subject.disk.info().kind.format != "null" {
                let tail = fill::read(subject.disk.as_ref(), CAPACITY - 4096, 4096).unwrap();
                assert!(tail.chunks(8).filter(|word| word.iter().all(|byte| *byte == 0)).count() < 2);
            }
            match &subject.path {
                Some(path) if path.starts_with("/dev") => devices.push(path.clone()),
                Some(path) => assert!(!path.exists(), "{}", path.display()),
                None => {}
            }
        }
        drop(bed);
        for device in devices {
            let backing = Path::new("/sys/block").join(device.file_name().unwrap()).join("loop/backing_file");
            let name = std::fs::read_to_string(backing).unwrap_or_default();
            assert!(!Path::new(&name).starts_with(parent.path()), "{name}");
        }
    }
}

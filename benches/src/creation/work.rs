//! One operation: the space that it needs, and its time.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use paradisk_disk_formats::image::{Content, Control, convert, default_workers};
use paradisk_disk_formats::{Image, OpenOptions, Siblings, vhd, vhdx};

use super::missing::Missing;
use crate::result::Timing;
use crate::stat::Stat;

/// Bytes of each write.
const PIECE: u64 = 1 << 20;

/// An operation on a format (`vhd`, `vhdx`).
pub(super) enum Work {
    /// Create a fixed disk.
    Fixed { format: &'static str, size: u64 },
    /// Create a dynamic disk.
    Dynamic { format: &'static str, size: u64 },
    /// Create a differencing disk over a dynamic one.
    Differencing { format: &'static str, size: u64 },
    /// Merge a differencing disk with `data` bytes of data into its parent.
    Merge { format: &'static str, data: u64 },
    /// Compact a dynamic disk with `data` bytes of data; half of its blocks are zeros.
    Compact { format: &'static str, data: u64 },
    /// Convert a dynamic VHD with `data` bytes of data to a dynamic VHDX.
    Convert { data: u64 },
    /// Write zeros to a raw file.
    ZeroFill { size: u64 },
}

impl Work {
    /// The name in progress and notes.
    pub(super) fn name(&self) -> String {
        self.timing("", Ok(Vec::new())).label()
    }

    /// The row, with the seconds of its runs, or the reason why there are none.
    pub(super) fn timing(&self, file_system: &str, times: Result<Vec<f64>, Missing>) -> Timing {
        let (values, missing) =
            times.map_or_else(|missing| (Vec::new(), Some(missing)), |values| (values, None));
        let (skipped, failed) = match missing {
            Some(missing) if missing.is_skip() => (Some(missing.to_string()), None),
            other => (None, other.map(|missing| missing.to_string())),
        };
        let (operation, format, subformat, size, data) = match *self {
            Self::Fixed { format, size } => ("create", format, Some("fixed"), size, 0),
            Self::Dynamic { format, size } => ("create", format, Some("dynamic"), size, 0),
            Self::Differencing { format, size } => ("create", format, Some("differencing"), size, 0),
            Self::Merge { format, data } => ("merge", format, Some("differencing"), data, data),
            Self::Compact { format, data } => ("compact", format, Some("dynamic"), data, data),
            Self::Convert { data } => ("convert", "vhd", Some("dynamic"), data, data),
            Self::ZeroFill { size } => ("zero-fill", "raw", None, size, size),
        };
        Timing {
            operation: operation.to_owned(),
            format: format.to_owned(),
            subformat: subformat.map(str::to_owned),
            size,
            data,
            file_system: file_system.to_owned(),
            seconds: Stat::of(values.iter().copied()),
            values,
            skipped,
            failed,
        }
    }

    /// Bytes that must be free.
    pub(super) fn needed(&self) -> u64 {
        const MORE: u64 = 64 << 20;
        match *self {
            Self::Fixed { size, .. } | Self::ZeroFill { size } => size + MORE,
            Self::Dynamic { size, .. } | Self::Differencing { size, .. } => MORE + size / (512 << 10) * 8,
            Self::Merge { data, .. } | Self::Compact { data, .. } | Self::Convert { data } => 2 * data + MORE,
        }
    }

    /// Bytes written, including the preparation.
    pub(super) fn written(&self) -> u64 {
        match *self {
            Self::Fixed { .. } | Self::Dynamic { .. } | Self::Differencing { .. } => 0,
            Self::ZeroFill { size } => size,
            Self::Merge { data, .. } | Self::Compact { data, .. } | Self::Convert { data } => 2 * data,
        }
    }

    /// Run the operation in this folder, and remove its files. Returns the time until the result is on stable storage.
    pub(super) fn run(&self, root: &Path) -> Result<Duration, String> {
        let folder = tempfile::tempdir_in(root).map_err(|error| format!("{}: {error}", root.display()))?;
        let time = self.run_in(folder.path()).map_err(|error| error.to_string())?;
        folder.close().map_err(|error| error.to_string())?;
        // Complete the removal before the next operation.
        let root = File::open(root).map_err(|error| error.to_string())?;
        rustix::fs::syncfs(root).map_err(|error| error.to_string())?;
        Ok(time)
    }

    fn run_in(&self, folder: &Path) -> Result<Duration, Box<dyn std::error::Error>> {
        let path = |name: &str| folder.join(name);
        match *self {
            Self::Fixed { format, size } => {
                timed(&path("disk"), || create(format, "fixed", &path("disk"), size))
            }
            Self::Dynamic { format, size } => {
                timed(&path("disk"), || create(format, "dynamic", &path("disk"), size))
            }
            Self::Differencing { format, size } => {
                let parent = path(&format!("parent.{format}"));
                create(format, "dynamic", &parent, size)?;
                timed(&path("disk"), || child(format, &path("disk"), &parent))
            }
            Self::Merge { format, data } => {
                let (parent, disk) = (path(&format!("parent.{format}")), path(&format!("disk.{format}")));
                create(format, "dynamic", &parent, data)?;
                child(format, &disk, &parent)?;
                fill(&disk, data, |_| true)?;
                settle(folder)?;
                timed(&parent, || {
                    Image::open(&disk)?.merge(Siblings::Refuse, |_, _| true).map(drop).map_err(Into::into)
                })
            }
            Self::Compact { format, data } => {
                let disk = path(&format!("disk.{format}"));
                create(format, "dynamic", &disk, data)?;
                // A block of a VHD has two pieces; a block of a VHDX has 32.
                let block = if format == "vhd" { 2 * PIECE } else { 32 * PIECE };
                fill(&disk, data, |at| at / block % 2 == 0)?;
                settle(folder)?;
                timed(&disk, || Image::open(&disk)?.compact(|_, _| true).map(drop).map_err(Into::into))
            }
            Self::Convert { data } => {
                let (from, to) = (path("from.vhd"), path("to.vhdx"));
                create("vhd", "dynamic", &from, data)?;
                fill(&from, data, |_| true)?;
                settle(folder)?;
                timed(&to, || {
                    create("vhdx", "dynamic", &to, data)?;
                    let [from, to] = [&from, &to].map(|path| OpenOptions::new(path).open_format());
                    let (from, to) = (from?, to?);
                    let cancel = AtomicBool::new(false);
                    let control =
                        Control { workers: default_workers(), cancel: &cancel, progress: &|_, _| {} };
                    convert(Content::new(&*from), Content::new(&*to), &control)?;
                    Ok(())
                })
            }
            Self::ZeroFill { size } => timed(&path("disk"), || {
                let mut file = File::create_new(path("disk"))?;
                let zeros = vec![0; PIECE as usize];
                for at in (0..size).step_by(PIECE as usize) {
                    file.write_all(&zeros[..PIECE.min(size - at) as usize])?;
                }
                Ok(())
            }),
        }
    }
}

/// Time of an operation until the file of its result, and its name, are on stable storage.
fn timed(
    result: &Path,
    operation: impl FnOnce() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let start = Instant::now();
    operation()?;
    File::open(result)?.sync_all()?;
    if let Some(folder) = result.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(start.elapsed())
}

fn create(format: &str, subformat: &str, path: &Path, size: u64) -> Result<(), Box<dyn std::error::Error>> {
    let options = vhdx::CreateOptions::default();
    match (format, subformat) {
        ("vhd", "fixed") => vhd::create_fixed(path, size)?,
        ("vhd", _) => vhd::create_dynamic(path, size, None)?,
        (_, "fixed") => vhdx::create_fixed(path, size, options)?,
        _ => vhdx::create_dynamic(path, size, options)?,
    }
    Ok(())
}

fn child(format: &str, path: &Path, parent: &Path) -> Result<(), Box<dyn std::error::Error>> {
    match format {
        "vhd" => vhd::create_differencing(path, parent, None)?,
        _ => vhdx::create_differencing(path, parent, None)?,
    }
    Ok(())
}

/// Write up to `data` bytes: pieces of random data where `random` returns true, else zeros.
fn fill(path: &Path, data: u64, random: impl Fn(u64) -> bool) -> Result<(), Box<dyn std::error::Error>> {
    let disk = OpenOptions::new(path).open_format()?;
    let mut piece = vec![0; PIECE as usize];
    fastrand::Rng::with_seed(1).fill(&mut piece);
    let zeros = vec![0; PIECE as usize];
    let content = Content::new(&*disk);
    for at in (0..data).step_by(PIECE as usize) {
        content.write_at(if random(at) { &piece } else { &zeros }, at)?;
    }
    disk.flush()?;
    Ok(())
}

/// Write everything back, so that no write-back of the preparation runs during the operation.
fn settle(folder: &Path) -> io::Result<()> {
    rustix::fs::syncfs(File::open(folder)?).map_err(Into::into)
}

//! File systems to work on: each on a loop device over a sparse file, or the existing one.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use facts::units::format_size;

use super::missing::Missing;
use crate::bed::{BedError, LoopDevice, sized};
use crate::system_tool::SystemTool;

/// The names of the file systems, and the options of mkfs and mount: journals are small, and tables of inodes are not
/// written.
pub(super) const NAMES: [&str; 3] = ["ext4", "xfs", "btrfs"];
const MOUNT: [&str; 3] = ["discard,noatime,noinit_itable", "discard,noatime", "discard,noatime"];
const OPTIONS: [&[&str]; 3] = [
    &["-q", "-F", "-m", "0", "-J", "size=64", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"],
    &["-q", "-f", "-K", "-l", "size=64m", "-m", "reflink=1"],
    &["-q", "-f", "-K"],
];

/// How long to wait for the space of deleted files.
const FREED_WITHIN: Duration = Duration::from_secs(3);

/// A file system.
pub(super) struct Place {
    /// Its name.
    pub(super) name: &'static str,
    root: Result<Root, String>,
}

/// Location of its files.
enum Root {
    Mounted(Mounted),
    /// A folder of the host, removed when this is dropped.
    Folder(tempfile::TempDir),
}

/// A mounted loop device; unmounted when this is dropped.
struct Mounted {
    point: tempfile::TempDir,
    _device: LoopDevice,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Unmount first; the loop device is detached after that.
        let unmounted = SystemTool::find("umount").and_then(|umount| umount.run(&[], self.point.path()));
        if let Err(reason) = unmounted {
            eprintln!("warning: {}: cannot unmount: {reason}", self.point.path().display());
        }
    }
}

impl Place {
    /// All file systems, of `size` bytes each. If no loop device can be mounted, only the file system of `folder`.
    pub(super) fn all(folder: &Path, size: u64) -> Result<Vec<Self>, BedError> {
        let make = |number: usize| Self {
            name: NAMES[number],
            root: Mounted::new(folder, number, size).map(Root::Mounted),
        };
        let mut all: Vec<Self> = (0..NAMES.len()).map(make).collect();
        if all.iter().all(|place| place.root.is_err()) {
            let own = tempfile::tempdir_in(folder).map_err(|source| BedError::Os {
                path: folder.to_owned(),
                action: "cannot create a folder",
                source,
            })?;
            all.push(Self { name: "host", root: Ok(Root::Folder(own)) });
        }
        Ok(all)
    }

    /// Its folder, if it has `needed` free bytes.
    pub(super) fn can_hold(&self, needed: u64) -> Result<&Path, Missing> {
        let path = match &self.root {
            Ok(Root::Mounted(mounted)) => mounted.point.path(),
            Ok(Root::Folder(folder)) => folder.path(),
            Err(reason) => return Err(Missing::FileSystem(reason.clone())),
        };
        let failed = |error| Missing::Failed(format!("{}: {error}", path.display()));
        let stat = || rustix::fs::statvfs(path).map_err(failed);
        let begin = Instant::now();
        loop {
            let stat = stat()?;
            let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
            let free = bytes(stat.f_bavail);
            if needed <= free {
                return Ok(path);
            }
            // XFS frees the space of deleted files in the background.
            if needed > bytes(stat.f_blocks) || begin.elapsed() > FREED_WITHIN {
                return Err(Missing::Space(format!("needs {}, {} are free", rough(needed), rough(free))));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whole GiB of a large size.
fn rough(bytes: u64) -> String {
    let shift = if bytes < 10 << 30 { 20 } else { 30 };
    format_size(bytes >> shift << shift)
}

impl Mounted {
    /// File system `number` of [`NAMES`].
    fn new(folder: &Path, number: usize, size: u64) -> Result<Self, String> {
        let name = NAMES[number];
        let [mkfs, mount] = [&format!("mkfs.{name}"), "mount"].map(SystemTool::find);
        let (mkfs, mount) = (mkfs?, mount?);
        let text = |error: std::io::Error| error.to_string();
        let backing: PathBuf = folder.join(format!(".paradisk-bench-{name}-{}", std::process::id()));
        sized(backing.clone(), size).map_err(|error| error.to_string())?;
        let device = LoopDevice::attach(&backing);
        // The loop device keeps the file open.
        fs::remove_file(&backing).map_err(text)?;
        let device = device.map_err(|reason| format!("no loop device: {reason}"))?;
        mkfs.run(OPTIONS[number], device.path())?;
        let point = tempfile::Builder::new().prefix("paradisk-bench-").tempdir_in(folder).map_err(text)?;
        // Deleted files also free space on the host.
        mount.run(&["-o", MOUNT[number], &device.path().display().to_string()], point.path())?;
        Ok(Self { point, _device: device })
    }
}

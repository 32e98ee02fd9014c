//! Block devices: their limits (ioctl and sysfs), and who uses a busy device.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{ioctl_blkpbszget, ioctl_blksszget, major, minor};
use rustix::io::Errno;

/// Limits of a block device, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceLimits {
    /// Logical block size in bytes.
    pub(crate) logical: u32,
    /// Physical block size in bytes.
    pub(crate) physical: u32,
    /// Discard granularity in bytes; `None` if the device does not support discards.
    pub(crate) discard: Option<u64>,
    /// Whether the device has a volatile write cache.
    pub(crate) write_back: bool,
}

impl DeviceLimits {
    pub(super) fn read(file: &File, metadata: &Metadata) -> Result<Self, Errno> {
        let logical = ioctl_blksszget(file)?;
        let physical = ioctl_blkpbszget(file)?.max(logical);
        let attribute = |name: &str| queue_attribute(metadata.rdev(), name);
        let number = |name: &str| attribute(name)?.parse::<u64>().ok();
        let discards = number("discard_max_bytes").is_some_and(|most| most > 0);
        let granularity = number("discard_granularity").unwrap_or(0).max(u64::from(logical));
        Ok(Self {
            logical,
            physical,
            discard: discards.then(|| granularity.checked_next_power_of_two()).flatten(),
            write_back: attribute("write_cache").is_none_or(|mode| mode != "write through"),
        })
    }
}

fn sysfs(rdev: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", major(rdev), minor(rdev)))
}

/// An attribute of the device's request queue. A partition has those of its disk.
fn queue_attribute(rdev: u64, name: &str) -> Option<String> {
    let device = sysfs(rdev);
    ["queue", "../queue"].iter().find_map(|queue| {
        let text = std::fs::read_to_string(device.join(queue).join(name)).ok()?;
        Some(text.trim().to_owned())
    })
}

/// Who uses a busy block device; `None`: the kernel does not report it.
pub(super) fn holder(path: &Path) -> Option<String> {
    let Ok(metadata) = std::fs::metadata(path) else { return Some("the device vanished".into()) };
    let rdev = metadata.rdev();
    mounted_at(rdev)
        .map(|point| format!("mounted at {point}"))
        .or_else(|| held_by(rdev).map(|name| format!("part of {name}")))
        .or_else(|| swap(rdev).then(|| "in use as swap".to_owned()))
        .or_else(|| super::lock::writers(&metadata))
}

/// Mount point of the device. In proc_pid_mountinfo(5), field 3 is major:minor and field 5 the mount point.
fn mounted_at(rdev: u64) -> Option<String> {
    let wanted = format!("{}:{}", major(rdev), minor(rdev));
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?;
        let point = fields.nth(1)?;
        (device == wanted).then(|| point.to_owned())
    })
}

fn held_by(rdev: u64) -> Option<String> {
    let entry = std::fs::read_dir(sysfs(rdev).join("holders")).ok()?.next()?.ok()?;
    Some(entry.file_name().to_string_lossy().into_owned())
}

fn swap(rdev: u64) -> bool {
    let table = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .any(|path| std::fs::metadata(path).is_ok_and(|metadata| metadata.rdev() == rdev))
}

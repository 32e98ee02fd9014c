//! Helpers of the tests: temporary images, loop devices and file systems.
#![allow(dead_code, reason = "each test uses its part")]

mod loop_device;

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use loop_device::LoopDevice;
use paradisk_disk_formats::ParentRules;
use paradisk_disk_formats::conformance::{Fresh, Suite};
use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::vhd::open;
use paradisk_disk_formats::vhdx::CreateOptions;
use paradisk_disk_formats::{
    Access, BackingFile, CheckReport, EngineKind, FormatName, Image, OpenError, Repair, SectorSize, Shrink,
};
use tempfile::TempDir;

/// The engines of disks in files, with their names.
const BOTH: [(EngineKind, &str); 2] = [(EngineKind::IoUring, "io_uring"), (EngineKind::Threads, "threads")];

/// The smallest blocks that a VHDX can have.
pub(crate) const SMALL: CreateOptions =
    CreateOptions { block_size: Some(1 << 20), logical_sector: None, physical_sector: None };
pub(crate) const LARGE_SECTORS: CreateOptions =
    CreateOptions { logical_sector: Some(SectorSize::B4096), ..SMALL };

/// Run the suite over a disk in a file, which `make` creates, read-only or not.
pub(crate) fn run_suite(name: &str, make: &dyn Fn(bool) -> Fresh) {
    Suite {
        name,
        make: &|| make(false),
        make_read_only: Some(&|| make(true)),
        engines: &BOTH,
        keeps_data: true,
    }
    .run();
}

/// An image with these rules for parents. Its format is that of the name's extension.
pub(crate) fn image_of(path: &Path, rules: &ParentRules) -> Image {
    Image::of_format(path, FormatName::claimed(path).expect("a format")).with_parents(rules.clone())
}

/// Check an image, with the format of its extension.
pub(crate) fn check(path: &Path, repair: bool) -> Result<CheckReport, OpenError> {
    image_of(path, &ParentRules::default()).check(if repair { Repair::Repair } else { Repair::ReportOnly })
}

/// Resize an image, with the format of its extension.
pub(crate) fn resize(path: &Path, size: u64, shrink: bool, rules: &ParentRules) -> Result<(), OpenError> {
    image_of(path, rules).resize(size, if shrink { Shrink::Allow } else { Shrink::Refuse })
}

/// A path for an image in a temporary directory, which is removed with the first value.
pub(crate) fn image(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    (folder, path)
}

/// Whether the temporary folder is on storage with direct I/O of 512 bytes.
pub(crate) fn can_direct() -> bool {
    let (_folder, path) = image("probe");
    std::fs::write(&path, [0; 4096]).expect("a file");
    BackingFile::open(&path, Access { read_only: true, direct: true })
        .is_ok_and(|file| file.direct().is_some_and(|direct| direct.offset <= 512))
}

/// A loop device of `size` bytes over a temporary file, which keeps its space until the device is detached. The error is the
/// reason why the host refuses.
pub(crate) fn loop_device(size: u64, sector: u32) -> Result<LoopDevice, String> {
    let (_folder, file) = image("medium");
    std::fs::File::create(&file).and_then(|file| file.set_len(size)).map_err(|error| error.to_string())?;
    LoopDevice::attach(&file, &["--sector-size", &sector.to_string()])
}

/// A mounted file system. Unmounted when dropped.
pub(crate) struct Mounted {
    point: PathBuf,
    _folder: TempDir,
}

impl Mounted {
    pub(crate) fn path(&self) -> &Path {
        &self.point
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.point).status();
    }
}

/// Create an ext4 file system on a device and mount it; `None` if this process may not.
pub(crate) fn mount_ext4(device: &LoopDevice) -> Option<Mounted> {
    mount(device, &["mkfs.ext4", "-q", "-F", "-m", "0"])
}

/// Create a file system by this command and mount it; `None` if this process may not.
pub(crate) fn mount(device: &LoopDevice, make: &[&str]) -> Option<Mounted> {
    let (program, arguments) = make.split_first()?;
    let (folder, point) = image("mounted");
    std::fs::create_dir(&point).ok()?;
    let run = |command: &mut Command| command.status().is_ok_and(|done| done.success());
    let made = run(Command::new(program).args(arguments).arg(device.path()))
        && run(Command::new("mount").arg(device.path()).arg(&point));
    made.then_some(Mounted { point, _folder: folder })
}

/// An XFS that can clone; `None` if this process may not create one.
pub(crate) fn mount_xfs() -> Option<(Mounted, LoopDevice)> {
    let device = loop_device(400 << 20, 512).ok()?;
    Some((mount(&device, &["mkfs.xfs", "-q", "-m", "reflink=1"])?, device))
}

/// Write to a VHD, and to a byte array that models it.
pub(crate) fn write(path: &Path, parts: &[(usize, Vec<u8>)], model: &mut [u8]) {
    let disk = open(path, Access::default(), &ParentRules::default()).expect("a good disk");
    for (at, data) in parts {
        Content::new(&*disk).write_at(data, *at as u64).expect("a good disk");
        model[*at..*at + data.len()].copy_from_slice(data);
    }
    disk.flush().expect("a good disk");
}

/// The whole content of a VHD.
pub(crate) fn content(path: &Path) -> Vec<u8> {
    let disk = open(path, Access::READ_ONLY, &ParentRules::default()).expect("a good disk");
    let mut data = vec![0; Content::new(&*disk).capacity() as usize];
    Content::new(&*disk).read_at(&mut data, 0).expect("a good disk");
    data
}

/// Data in which no two sectors are equal.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|at| (at << 8 | seed).to_le_bytes()).collect()
}

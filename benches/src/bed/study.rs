//! The disks of the study of VHD performance.

use std::path::{Path, PathBuf};

use facts::disk::{self, OpenDisk};
use paradisk_disk_formats::{EngineKind, OpenOptions, vhd, vhdx};

use super::error::BedError;
use super::loop_device::LoopDevice;
use super::make::{filled, sized};
use super::subject::subject as opened;

/// The disks, and notes. See [`Bed::vhd_study`](super::Bed::vhd_study).
pub(super) fn disks(folder: &Path, capacity: u64) -> Result<(Vec<OpenDisk>, Vec<String>), BedError> {
    let mut bed = Disks::default();
    let path = |name: &str| folder.join(name);
    let backing = sized(path("device.img"), capacity)?;
    match LoopDevice::attach_direct(&backing) {
        // Detached when `device` is dropped; the kernel keeps it until the disk is closed.
        Ok(device) => bed.add(device.path().to_owned())?,
        Err(reason) => bed.notes.push(format!("SKIP: raw device: no loop device: {reason}")),
    }
    bed.add(sized(path("raw.img"), capacity)?)?;

    vhd::create_fixed(&path("fixed.vhd"), capacity)?;
    vhd::create_dynamic(&path("dynamic.vhd"), capacity, None)?;
    vhd::create_dynamic(&path("parent.vhd"), capacity, None)?;
    vhd::create_differencing(&path("differencing.vhd"), &path("parent.vhd"), None)?;
    let options = vhdx::CreateOptions::default;
    vhdx::create_fixed(&path("fixed.vhdx"), capacity, options())?;
    vhdx::create_dynamic(&path("dynamic.vhdx"), capacity, options())?;
    vhdx::create_dynamic(&path("parent.vhdx"), capacity, options())?;
    vhdx::create_differencing(&path("differencing.vhdx"), &path("parent.vhdx"), None)?;
    for format in ["vhd", "vhdx"] {
        for kind in ["fixed", "dynamic", "differencing"] {
            bed.add(path(&format!("{kind}.{format}")))?;
        }
    }
    Ok((bed.subjects, bed.notes))
}

/// The disks made so far.
#[derive(Default)]
struct Disks {
    subjects: Vec<OpenDisk>,
    notes: Vec<String>,
}

impl Disks {
    /// Open a disk with direct I/O if the file system supports it, and fill it.
    fn add(&mut self, path: PathBuf) -> Result<(), BedError> {
        let options = |direct| OpenOptions { direct: Some(direct), ..OpenOptions::new(&path) };
        let (disk, direct) = match options(true).open() {
            Ok(disk) => (disk, true),
            Err(reason) => {
                self.notes.push(format!("no direct I/O: {reason}"));
                (options(false).open()?, false)
            }
        };
        let disk = OpenDisk {
            options: disk::options(Some(direct), EngineKind::default()).collect(),
            ..opened(disk, Some(path))
        };
        filled(&disk)?;
        self.subjects.push(disk);
        Ok(())
    }
}

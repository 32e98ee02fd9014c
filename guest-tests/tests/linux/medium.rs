//! A disk of each format: made and filled before the guest runs, looked at after.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use guest_init::Pattern;
use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::{
    Disk, FormatName, Image, OpenOptions, Raw, Repair, SectorSize, Severity, vhd, vhdx,
};
use vhdx::CreateOptions;

use crate::loop_device::LoopDevice;

/// A format, and how it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Raw,
    Passthrough,
    VhdFixed,
    VhdDynamic,
    VhdDifferencing,
    VhdxFixed,
    VhdxDynamic,
    VhdxDifferencing,
    /// A dynamic VHDX with logical sectors of 4,096 bytes.
    Vhdx4096,
    /// A dynamic VHDX with physical sectors of 512 bytes.
    Vhdx512,
}

impl Format {
    pub(crate) const ALL: [Self; 9] = [
        Self::Raw,
        Self::Passthrough,
        Self::VhdFixed,
        Self::VhdDynamic,
        Self::VhdDifferencing,
        Self::VhdxFixed,
        Self::VhdxDynamic,
        Self::VhdxDifferencing,
        Self::Vhdx4096,
    ];

    /// As the guest's serial number.
    pub(crate) const fn serial(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Passthrough => "passthrough",
            Self::VhdFixed => "vhd-fixed",
            Self::VhdDynamic => "vhd-dynamic",
            Self::VhdDifferencing => "vhd-differencing",
            Self::VhdxFixed => "vhdx-fixed",
            Self::VhdxDynamic => "vhdx-dynamic",
            Self::VhdxDifferencing => "vhdx-differencing",
            Self::Vhdx4096 => "vhdx-4096",
            Self::Vhdx512 => "vhdx-512",
        }
    }

    /// As `format=` of a disk on the command line.
    pub(crate) const fn option(self) -> &'static str {
        match self.name() {
            FormatName::Vhd => "vhd",
            FormatName::Vhdx => "vhdx",
            FormatName::Passthrough => "passthrough",
            _ => "raw",
        }
    }

    const fn name(self) -> FormatName {
        match self {
            Self::Raw => FormatName::Raw,
            Self::Passthrough => FormatName::Passthrough,
            Self::VhdFixed | Self::VhdDynamic | Self::VhdDifferencing => FormatName::Vhd,
            Self::VhdxFixed | Self::VhdxDynamic | Self::VhdxDifferencing | Self::Vhdx4096 | Self::Vhdx512 => {
                FormatName::Vhdx
            }
        }
    }
}

/// A disk on the host.
pub(crate) struct Medium {
    pub(crate) format: Format,
    pub(crate) size: u64,
    path: PathBuf,
    device: Option<LoopDevice>,
}

impl Medium {
    /// Make it in `folder` with a part of it filled, or say why that cannot be done here.
    pub(crate) fn new(folder: &Path, format: Format, size: u64) -> Result<Self, String> {
        let path = folder.join(format.serial());
        let parent = folder.join(format!("{}-parent", format.serial()));
        let options = CreateOptions { block_size: Some(1 << 20), ..CreateOptions::default() };
        let below = match format {
            Format::VhdDifferencing | Format::VhdxDifferencing => &parent,
            _ => &path,
        };
        match format {
            Format::Raw | Format::Passthrough => Raw::create(below, size),
            Format::VhdFixed => vhd::create_fixed(below, size),
            Format::VhdDynamic | Format::VhdDifferencing => vhd::create_dynamic(below, size, Some(512 << 10)),
            Format::VhdxFixed => vhdx::create_fixed(below, size, options),
            Format::VhdxDynamic | Format::VhdxDifferencing => vhdx::create_dynamic(below, size, options),
            Format::Vhdx4096 => {
                let logical_sector = Some(SectorSize::B4096);
                vhdx::create_dynamic(below, size, CreateOptions { logical_sector, ..options })
            }
            Format::Vhdx512 => {
                let physical_sector = Some(SectorSize::B512);
                vhdx::create_dynamic(below, size, CreateOptions { physical_sector, ..options })
            }
        }
        .unwrap();
        let name = if format == Format::Passthrough { FormatName::Raw } else { format.name() };
        let filled = OpenOptions { format: Some(name), ..OpenOptions::new(below) }.open_format().unwrap();
        Content::new(&*filled).write_at(&initial(size), 0).unwrap();
        drop(filled);
        match format {
            Format::VhdDifferencing => vhd::create_differencing(&path, &parent, Some(512 << 10)).unwrap(),
            Format::VhdxDifferencing => vhdx::create_differencing(&path, &parent, None).unwrap(),
            _ => {}
        }
        let device = (format == Format::Passthrough).then(|| LoopDevice::attach(&path, &[])).transpose()?;
        Ok(Self { format, size, path, device })
    }

    /// Open it for the guest.
    pub(crate) fn open(&self) -> Arc<dyn Disk> {
        self.options().open().unwrap()
    }

    /// As `--disk` of a command takes it, with a serial number that tells its format.
    pub(crate) fn spec(&self) -> String {
        let (path, format, serial) = (self.options().path, self.format.option(), self.format.serial());
        format!("path={},format={format},serial={serial}", path.display())
    }

    /// All of it.
    pub(crate) fn content(&self) -> Vec<u8> {
        let mut content = vec![0; self.size as usize];
        let format = OpenOptions { read_only: true, ..self.options() }.open_format().unwrap();
        Content::new(&*format).read_at(&mut content, 0).unwrap();
        content
    }

    /// Put something on it, by the format alone.
    pub(crate) fn write(&self, data: &[u8], offset: u64) {
        let format = self.options().open_format().unwrap();
        Content::new(&*format).write_at(data, offset).unwrap();
    }

    /// That the image has no fault. A block that was discarded may leave space that nothing uses.
    pub(crate) fn check(&self) {
        if !self.format.name().has_blocks() {
            return;
        }
        let report = Image::of_format(&self.path, self.format.name()).check(Repair::ReportOnly).unwrap();
        let fine = report.worst().is_none_or(|worst| worst == Severity::Leak);
        assert!(fine, "{}: {:?}", self.format.serial(), report.findings);
    }

    fn options(&self) -> OpenOptions {
        let path = self.device.as_ref().map_or(&*self.path, LoopDevice::path);
        OpenOptions { format: Some(self.format.name()), ..OpenOptions::new(path) }
    }
}

/// What a disk holds before the guest writes: something in its first mebibyte, in its third, and at its end; else zeros.
pub(crate) fn initial(size: u64) -> Vec<u8> {
    let mut content = vec![0; size as usize];
    let pattern = Pattern { seed: size, generation: 0 };
    for range in [0..(1 << 20) + 512, (2 << 20)..(5 << 19), size - 8192..size] {
        pattern.fill(range.start, &mut content[range.start as usize..range.end as usize]);
    }
    content
}

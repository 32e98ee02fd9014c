//! The images of the scenarios, and their copies.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::crash::stamped;
use super::super::faults::Host;
use super::oracle::{Places, UNIT};
use crate::contract::error::OpenError;
use crate::disk::image::{Image, Repair};
use crate::formats::copy::content::Content;
use crate::formats::findings::CheckReport;
use crate::formats::flat::raw::Raw;
use crate::formats::name::FormatName;
use crate::formats::open::OpenOptions;
use crate::formats::vhdx::CreateOptions;
use crate::formats::{vhd, vhdx};
use crate::map::format::Format;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Base of the sector values of parents; the sector's number is added.
const PARENT: u64 = 1 << 40;
const GRANDPARENT: u64 = 1 << 41;
/// Base of the sector values of the image itself.
const OWN: u64 = 1 << 42;

/// The argument of a check.
pub(super) const fn mode(repair: bool) -> Repair {
    if repair { Repair::Repair } else { Repair::ReportOnly }
}

/// Kind of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Raw,
    VhdFixed,
    VhdDynamic,
    VhdDifferencing,
    VhdxFixed,
    VhdxDynamic,
    VhdxDifferencing,
    /// A dynamic VHD in a dynamic VHDX.
    VhdInVhdx,
    /// A dynamic VHDX in a dynamic VHD.
    VhdxInVhd,
}

impl Kind {
    /// Virtual size and block size in bytes.
    pub(super) fn sizes(self) -> (u64, u64) {
        match self {
            Self::Raw | Self::VhdFixed => (96 * KIB, 96 * KIB),
            Self::VhdDynamic | Self::VhdDifferencing | Self::VhdInVhdx => (96 * KIB, 8 * KIB),
            Self::VhdxFixed | Self::VhdxInVhd => (2 * MIB, MIB),
            Self::VhdxDynamic | Self::VhdxDifferencing => (3 * MIB, MIB),
        }
    }

    pub(super) fn places(self) -> Places {
        let (size, block) = self.sizes();
        Places::new(size, block)
    }

    /// Path of the image in use.
    pub(super) fn path(self, folder: &Path) -> PathBuf {
        folder.join(match self {
            Self::Raw => "disk.raw",
            Self::VhdFixed | Self::VhdDynamic | Self::VhdDifferencing => "disk.vhd",
            Self::VhdxFixed | Self::VhdxDynamic | Self::VhdxDifferencing => "disk.vhdx",
            Self::VhdInVhdx => "outer.vhdx//",
            Self::VhdxInVhd => "outer.vhd//",
        })
    }

    /// The results of checking the image and its parents.
    pub(super) fn check(self, folder: &Path, repair: bool) -> Result<Vec<CheckReport>, OpenError> {
        let path = self.path(folder);
        let beside = |name: &str| folder.join(name);
        let (vhd, vhdx) = (FormatName::Vhd, FormatName::Vhdx);
        let images = match self {
            Self::Raw => Vec::new(),
            Self::VhdFixed | Self::VhdDynamic => vec![(path, vhd)],
            Self::VhdDifferencing => vec![(path, vhd), (beside("parent.vhd"), vhd)],
            Self::VhdxFixed | Self::VhdxDynamic => vec![(path, vhdx)],
            Self::VhdxDifferencing => vec![(path, vhdx), (beside("parent.vhdx"), vhdx)],
            Self::VhdInVhdx => vec![(beside("outer.vhdx"), vhdx), (path, vhd)],
            Self::VhdxInVhd => vec![(beside("outer.vhd"), vhd), (path, vhdx)],
        };
        images.into_iter().map(|(path, format)| Image::of_format(path, format).check(mode(repair))).collect()
    }

    /// Create the images in an empty directory. Returns the values of the sectors of `Places`.
    pub(super) fn make(self, folder: &Path) -> Vec<u64> {
        let ((size, block), places, path) = (self.sizes(), self.places(), self.path(folder));
        let options = options(block as u32);
        match self {
            Self::Raw => Raw::create(&path, size).unwrap(),
            Self::VhdFixed => vhd::create_fixed(&path, size).unwrap(),
            Self::VhdDynamic => vhd::create_dynamic(&path, size, Some(block as u32)).unwrap(),
            Self::VhdDifferencing => {
                let [parent, below] = ["parent.vhd", "below.vhd"].map(|name| folder.join(name));
                vhd::create_dynamic(&below, size, Some(4096)).unwrap();
                fill(&below, &places, GRANDPARENT, 2);
                vhd::create_differencing(&parent, &below, Some(16384)).unwrap();
                fill(&parent, &places, PARENT, 3);
                vhd::create_differencing(&path, &parent, Some(block as u32)).unwrap();
            }
            Self::VhdxFixed => vhdx::create_fixed(&path, size, options).unwrap(),
            Self::VhdxDynamic => vhdx::create_dynamic(&path, size, options).unwrap(),
            Self::VhdxDifferencing => {
                let parent = folder.join("parent.vhdx");
                vhdx::create_dynamic(&parent, size, options).unwrap();
                fill(&parent, &places, PARENT, 3);
                vhdx::create_differencing(&path, &parent, Some(block as u32)).unwrap();
            }
            Self::VhdInVhdx => {
                let (outer, inner) = (folder.join("outer.vhdx"), folder.join("inner"));
                vhdx::create_dynamic(&outer, 2 * MIB, self::options(MIB as u32)).unwrap();
                vhd::create_dynamic(&inner, size, Some(block as u32)).unwrap();
                put_inside(&inner, &outer);
            }
            Self::VhdxInVhd => {
                let (outer, inner) = (folder.join("outer.vhd"), folder.join("inner"));
                vhd::create_dynamic(&outer, 8 * MIB, Some(64 << 10)).unwrap();
                vhdx::create_dynamic(&inner, size, options).unwrap();
                put_inside(&inner, &outer);
            }
        }
        fill(&path, &places, OWN, 5);
        values(&path, &places).unwrap()
    }
}

pub(super) fn options(block: u32) -> CreateOptions {
    CreateOptions { block_size: Some(block), ..CreateOptions::default() }
}

/// Write some runs of sectors: those with (number / 8) % `every` = 0.
pub(super) fn fill(path: &Path, places: &Places, value: u64, every: u64) {
    let format = OpenOptions::new(path).open_format().unwrap();
    for (number, at) in (0..).zip(&places.units) {
        if number / 8 % every == 0 {
            Content::new(&*format).write_at(&stamped(value + at / UNIT), *at).unwrap();
        }
    }
    format.flush().unwrap();
}

/// Make the file `inner` the content of a disk in `outer`.
fn put_inside(inner: &Path, outer: &Path) {
    let data = fs::read(inner).unwrap();
    let format = OpenOptions::new(outer).open_format().unwrap();
    let content = Content::new(&*format);
    for (number, part) in data.chunks(4096).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            content.write_at(part, number as u64 * 4096).unwrap();
        }
    }
    format.flush().unwrap();
    fs::remove_file(inner).unwrap();
}

/// Open an image for reading.
pub(super) fn look(path: &Path) -> Result<Arc<dyn Format>, String> {
    OpenOptions { read_only: true, ..OpenOptions::new(path) }.open_format().map_err(|error| error.to_string())
}

/// The values of the sectors of an image.
pub(super) fn values(path: &Path, places: &Places) -> Result<Vec<u64>, String> {
    let format = look(path)?;
    let content = Content::new(&*format);
    places.values(|at, bytes| content.read_at(bytes, at).map_err(|error| error.to_string()))
}

/// Pages that are not all zeros, with their offsets.
type Pages = Vec<(u64, Vec<u8>)>;

/// The files of a directory: path, length and content of each.
pub(super) struct Template {
    files: Vec<(PathBuf, u64, Pages)>,
}

impl Template {
    /// The current files.
    pub(super) fn of(host: &Host) -> Self {
        let entries = fs::read_dir(host.folder()).unwrap().map(|entry| entry.unwrap().path());
        let file = |path: PathBuf| {
            let data = fs::read(&path).unwrap();
            let parts = data.chunks(4096).zip((0..).step_by(4096));
            let parts = parts.filter(|(part, _)| part.iter().any(|byte| *byte != 0));
            let parts = parts.map(|(part, at)| (at, part.to_vec())).collect();
            (path, data.len() as u64, parts)
        };
        Self { files: entries.map(file).collect() }
    }

    /// Restore exactly these files, all on stable storage.
    pub(super) fn restore(&self, host: &Host) {
        for entry in fs::read_dir(host.folder()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for (path, len, parts) in &self.files {
            let file = File::create_new(path).unwrap();
            file.set_len(*len).unwrap();
            parts.iter().for_each(|(at, data)| file.write_all_at(data, *at).unwrap());
        }
        host.settle();
    }
}

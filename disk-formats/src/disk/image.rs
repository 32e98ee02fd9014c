//! Tools for an image file of any format. Tools that write need an image that is not in use.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::contract::error::OpenError;
use crate::formats::chain::{Member, children, inspect, refuse_size_below_parent};
use crate::formats::findings::{CheckReport, Compacted, End};
use crate::formats::flat::raw::Raw;
use crate::formats::info::{ImageInfo, Scope};
use crate::formats::merge::{ChainTools, MergeError, Merged, RebaseError, merge, rebase_copying};
use crate::formats::name::FormatName;
use crate::formats::nested;
use crate::formats::open::OpenOptions;
use crate::formats::parents::ParentRules;
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;

/// Evaluates `$call` with `$module` as the module of the image's format.
macro_rules! dispatch {
    ($image:expr, $module:ident => $call:expr) => {
        match $image.format {
            #[cfg(feature = "vhd")]
            FormatName::Vhd => {
                use crate::formats::vhd as $module;
                $call
            }
            #[cfg(feature = "vhdx")]
            FormatName::Vhdx => {
                use crate::formats::vhdx as $module;
                $call
            }
            _ => Err($image.without_blocks().into()),
        }
    };
}

/// Whether a check repairs the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repair {
    /// Only report; write nothing.
    ReportOnly,
    /// Repair what can be repaired. Blocks whose table entries are invalid lose their data.
    Repair,
}

/// Whether a resize may shrink the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shrink {
    /// A size below the current one is an error.
    Refuse,
    /// The tail is cut off. The tail of a VHD or VHDX must read as zeros.
    Allow,
}

/// What a merge does if the parent has other children in the same directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Siblings {
    /// Refuse the merge.
    Refuse,
    /// Merge. The other children can no longer be opened.
    Orphan,
}

/// What a rebase does about data that differ between the old parent and the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RebaseData {
    /// Copy nothing. The caller guarantees that the new parent has the data of the old one (after a move or a merge),
    /// or that the child may read other data.
    Assume,
    /// First copy the data that differ from the old parent to the child. The old parent must still exist.
    Copy,
}

/// An image file: its path, its format, and the rules for locating its parents. Each method opens the file and closes
/// it again. While a method writes, nobody else may use the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    path: PathBuf,
    format: FormatName,
    parents: ParentRules,
}

impl Image {
    /// The image at `path`. Its format is probed.
    ///
    /// # Errors
    /// As [`FormatName::probe`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, OpenError> {
        let path = path.into();
        let format = FormatName::probe(&path)?;
        Ok(Self::of_format(path, format))
    }

    /// The image at `path` with a given format, for damaged images that probing may not recognize.
    #[must_use]
    pub fn of_format(path: impl Into<PathBuf>, format: FormatName) -> Self {
        Self { path: path.into(), format, parents: ParentRules::default() }
    }

    /// The same image with these rules for locating parents.
    #[must_use]
    pub fn with_parents(self, parents: ParentRules) -> Self {
        Self { parents, ..self }
    }

    /// Path of the image.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Format of the image.
    #[must_use]
    pub const fn format(&self) -> FormatName {
        self.format
    }

    /// Describe the image, or all images of its chain.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] if the disk is neither VHD nor VHDX; errors of opening the image and, with
    /// [`Scope::Chain`], its parents.
    pub fn info(&self, scope: Scope) -> Result<Vec<ImageInfo>, OpenError> {
        dispatch!(self, format => inspect::<format::Image>(&self.path, scope, &self.parents))
    }

    /// Check the image alone, without its parents, and report all defects. For formats other than VHD and VHDX, only
    /// opens the image.
    ///
    /// # Errors
    /// Errors of the host while opening and reading. Defects of the image are in the report.
    pub fn check(&self, repair: Repair) -> Result<CheckReport, OpenError> {
        if self.format.has_blocks() {
            let (path, repair) = (&*self.path, repair == Repair::Repair);
            let (store, end): (Arc<dyn Store>, _) = match nested::open_store(path, !repair) {
                Some(inside) => (inside?, End::Stays),
                None => {
                    let access = Access { read_only: !repair, direct: false };
                    (Arc::new(BackingFile::open(path, access)?), End::MayBeCut)
                }
            };
            let checked: Result<io::Result<CheckReport>, OpenError> =
                dispatch!(self, format => Ok(format::check(store, repair, end)));
            let os = OpenError::os(path, "cannot check");
            let report = checked?.map_err(os)?;
            return Ok(match end {
                End::MayBeCut => report,
                // Space that the inner image does not use belongs to the outer disk, so it is no leak.
                End::Stays => report.without_leaks(),
            });
        }
        let options =
            OpenOptions { format: Some(self.format), read_only: true, ..OpenOptions::new(&self.path) };
        options.open_format().map(|_| CheckReport::default())
    }

    /// Differencing disks in the image's directory that have it as their parent. If the image's data or size change,
    /// the children read other data or are refused. Files in the directory that cannot be opened are skipped. Empty for
    /// formats other than VHD and VHDX.
    ///
    /// # Errors
    /// Errors of opening the image.
    pub fn children(&self) -> Result<Vec<PathBuf>, OpenError> {
        match self.format.has_blocks() {
            true => dispatch!(self, format => children::<format::Image>(&self.path)),
            false => Ok(Vec::new()),
        }
    }

    /// Change the virtual size to `size` bytes. Growing adds zeros. Shrinking must be allowed, and the tail of a VHD or
    /// VHDX must read as zeros, so the guest must discard it first. The tail of a raw image is cut off with its data.
    ///
    /// A differencing disk cannot be resized to, or from, a size below its parent's. After a power failure the disk has
    /// either the old size or the new one.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] for sizes that the kind of disk cannot have, and if the tail holds data;
    /// [`OpenError::Unsupported`] if shrinking is not allowed, and for block devices; the host's error.
    pub fn resize(&self, size: u64, shrink: Shrink) -> Result<(), OpenError> {
        let shrink = shrink == Shrink::Allow;
        match self.format {
            FormatName::Raw => Raw::resize(&self.path, size, shrink),
            _ => {
                self.check_size(size)?;
                dispatch!(self, format => format::resize(self.open_file()?, size, shrink))
            }
        }
    }

    /// Move the backup GPT, if the disk has one, to where the disk ends when it has `size` bytes: before a
    /// [`resize`](Self::resize) that makes it smaller. The protective MBR gets that size. Returns whether anything was changed. After a power
    /// failure the primary GPT is valid, and so is its backup, unless the new one had to overwrite the old one.
    ///
    /// Everything that the resize would refuse is refused before the first change.
    ///
    /// # Errors
    /// Those of [`resize`](Self::resize) with [`Shrink::Allow`]; [`OpenError::Invalid`] for a damaged GPT, and for a partition that does not
    /// fit; those of opening and writing the disk.
    pub fn move_gpt_backup(&self, size: u64) -> Result<bool, OpenError> {
        let options = OpenOptions {
            format: Some(self.format),
            parents: self.parents.clone(),
            ..OpenOptions::new(&self.path)
        };
        nested::move_gpt_backup(&options, size, |zeroed| match self.format {
            FormatName::Raw => Raw::open_to_resize(&self.path, size, true).map(drop),
            _ => {
                self.check_size(size)?;
                dispatch!(self, format => format::check_resize(self.open_file()?, size, true, zeroed))
            }
        })
    }

    /// Refuse a size for which the parent must not be hidden or exposed, and a disk that its host resizes.
    fn check_size(&self, size: u64) -> Result<(), OpenError> {
        if self.format == FormatName::Passthrough {
            return Err(self.unsupported("a block device has the size that its host gives it".to_owned()));
        }
        dispatch!(self, format => {
            let image = format::Image::open(&self.path, Access::READ_ONLY)?;
            refuse_size_below_parent(&image, size, &self.parents)
        })
    }

    /// Make the file as small as its content allows: free blocks that read as zeros, move other blocks into the gaps,
    /// and truncate the file. `progress` is called with the number of blocks examined and the total number, and returns
    /// whether to continue. The image is consistent after a power failure and if `progress` stops the call.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] for formats without blocks; [`OpenError::Invalid`] for a damaged image; the host's.
    pub fn compact(&self, progress: impl FnMut(u64, u64) -> bool) -> Result<Compacted, OpenError> {
        dispatch!(self, format => format::compact(self.open_file()?, progress))
    }

    /// Write the image's data into its parent, and delete the image. Its children must be rebased to the parent
    /// afterwards. `progress` is called with the number of bytes processed and the total number, and returns whether to
    /// continue. Whole blocks are cloned instead of copied if the file system supports that.
    ///
    /// After a power failure, or if `progress` stops the call, the image's data are unchanged, and another merge
    /// continues. Other children of this parent are refused as soon as data were copied.
    ///
    /// # Errors
    /// [`MergeError`].
    pub fn merge(
        &self,
        siblings: Siblings,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Merged, MergeError> {
        let force = siblings == Siblings::Orphan;
        dispatch!(self, format => merge::<format::Image>(&self.path, &self.parents, force, progress))
    }

    /// Make the image at `parent` the parent of this image. Returns the number of bytes copied. `progress` is called
    /// with the number of bytes processed and the total number, and returns whether to continue; with
    /// [`RebaseData::Assume`] it is not called.
    ///
    /// The copies are flushed before the parent is switched: after a power failure, or if `progress` stops the call,
    /// the image has either the old parent or the new one.
    ///
    /// # Errors
    /// [`RebaseError`].
    pub fn rebase(
        &self,
        parent: &Path,
        data: RebaseData,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<u64, RebaseError> {
        let (path, rules) = (&*self.path, &self.parents);
        match data {
            RebaseData::Assume => {
                let noted: Result<(), OpenError> =
                    dispatch!(self, format => format::Image::note_parent(path, parent, rules));
                Ok(noted.map(|()| 0)?)
            }
            RebaseData::Copy => {
                dispatch!(self, format => rebase_copying::<format::Image>(path, parent, rules, progress))
            }
        }
    }

    /// Open the file for writing.
    fn open_file(&self) -> Result<Arc<BackingFile>, OpenError> {
        Ok(Arc::new(BackingFile::open(&self.path, Access::default())?))
    }

    /// The error for formats that lack the tool.
    fn without_blocks(&self) -> OpenError {
        #[cfg(not(all(feature = "vhd", feature = "vhdx")))]
        if self.format.has_blocks() {
            return self.format.not_built(&self.path);
        }
        self.unsupported(format!("a {} disk has no blocks and no parents", self.format))
    }

    fn unsupported(&self, reason: String) -> OpenError {
        OpenError::unsupported(&self.path, reason)
    }
}

#[cfg(all(test, feature = "vhd", feature = "vhdx"))]
mod tests {
    use super::*;
    use crate::formats::copy::content::Content;
    use crate::formats::vhd;
    use crate::formats::vhdx::{self, CreateOptions};

    #[test]
    fn each_format_has_its_tools() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (size, go_on) = (4 << 20, |_, _| true);
        vhd::create_dynamic(&path("a.vhd"), size, None).unwrap();
        vhd::create_differencing(&path("b.vhd"), &path("a.vhd"), None).unwrap();
        vhdx::create_dynamic(&path("a.vhdx"), size, CreateOptions::default()).unwrap();
        vhdx::create_differencing(&path("b.vhdx"), &path("a.vhdx"), None).unwrap();
        for format in ["vhd", "vhdx"] {
            let [parent, child] = ["a", "b"].map(|name| path(name).with_extension(format));
            let image = Image::open(&child).unwrap();
            assert_eq!((image.format().as_str(), image.path()), (format, child.as_path()));
            let paths = |scope| -> Vec<PathBuf> {
                image.info(scope).unwrap().into_iter().map(|image| image.path).collect()
            };
            assert_eq!(paths(Scope::Image), std::slice::from_ref(&child));
            assert_eq!(paths(Scope::Chain), [child.clone(), parent.clone()]);
            let base = Image::open(&parent).unwrap();
            assert_eq!(base.children().unwrap(), [child.canonicalize().unwrap()]);
            assert_eq!(image.check(Repair::ReportOnly).unwrap().findings, []);
            assert_eq!(image.rebase(&parent, RebaseData::Assume, go_on).unwrap(), 0);
            assert_eq!(image.rebase(&parent, RebaseData::Copy, go_on).unwrap(), 0);
            image.compact(go_on).unwrap();
            assert_eq!(image.merge(Siblings::Refuse, go_on).unwrap().parent, parent);
            base.resize(2 * size, Shrink::Refuse).unwrap();
            assert!(base.resize(size, Shrink::Refuse).unwrap_err().to_string().contains("allow it"));
            base.resize(size, Shrink::Allow).unwrap();
            assert_eq!(base.info(Scope::Image).unwrap().remove(0).size, size);
        }
    }

    /// The images of a chain are named by links: the merge changes and deletes what they lead to. Other names of the child, and a copy of it that
    /// is not complete, are no children of the parent.
    #[test]
    fn a_merge_follows_links() {
        let size = 4 << 20;
        for format in ["vhd", "vhdx"] {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name).with_extension(format);
            match format {
                "vhd" => vhd::create_dynamic(&path("a"), size, None).unwrap(),
                _ => vhdx::create_dynamic(&path("a"), size, CreateOptions::default()).unwrap(),
            }
            std::os::unix::fs::symlink(path("a"), path("parent")).unwrap();
            match format {
                "vhd" => vhd::create_differencing(&path("b"), &path("parent"), None).unwrap(),
                _ => vhdx::create_differencing(&path("b"), &path("parent"), None).unwrap(),
            }
            std::os::unix::fs::symlink(path("b"), path("child")).unwrap();
            std::fs::copy(path("b"), folder.path().join(format!(".c.{format}.part-1-0"))).unwrap();
            let child = OpenOptions::new(path("child")).open_format().unwrap();
            Content::new(&*child).write_at(&[7; 512], 512).unwrap();
            child.flush().unwrap();
            drop(child);
            std::fs::hard_link(path("b"), path("other")).unwrap();
            assert_eq!(Image::open(path("parent")).unwrap().children().unwrap().len(), 1, "{format}");
            Image::open(path("child")).unwrap().merge(Siblings::Refuse, |_, _| true).unwrap();
            assert!(!path("b").exists() && path("child").symlink_metadata().is_err(), "{format}");
            assert!(path("parent").symlink_metadata().unwrap().is_symlink() && path("other").exists());
            let merged =
                OpenOptions { read_only: true, ..OpenOptions::new(path("a")) }.open_format().unwrap();
            let mut data = [0; 512];
            Content::new(&*merged).read_at(&mut data, 512).unwrap();
            assert_eq!(data, [7; 512]);
        }
    }

    #[test]
    fn a_raw_image_has_a_size_and_no_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.raw");
        Raw::create(&path, 1 << 20).unwrap();
        let image = Image::open(&path).unwrap();
        image.resize(2 << 20, Shrink::Refuse).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 2 << 20);
        assert!(image.check(Repair::ReportOnly).unwrap().findings.is_empty());
        assert_eq!(image.children().unwrap(), [] as [PathBuf; 0]);
        let why = "disk.raw: a raw disk has no blocks and no parents";
        assert!(image.info(Scope::Image).unwrap_err().to_string().ends_with(why));
        assert!(image.compact(|_, _| true).unwrap_err().to_string().ends_with(why));
        assert!(image.merge(Siblings::Refuse, |_, _| true).unwrap_err().to_string().ends_with(why));
    }
}

//! Images inside disks: a path `OUTER//` is the image that is the content of the disk in OUTER, `OUTER//N` the one in partition
//! N of it. Twice is as deep as it goes: `OUTER////`, `OUTER//1//`.
//!
//! Nothing is copied: the inner format keeps its metadata in a [`Container`], the content of the outer disk, and the places that
//! it maps are mapped again ([`composed`]), so that queues move bytes between the caller and the outer disk's files.

mod composed;
mod container;
mod part;
pub(crate) mod path;
mod table;

use std::path::Path;
use std::sync::Arc;

use composed::{LEVELS, Nested};
use container::Container;
use part::Part;
use path::{Nesting, Step, split};
use table::TableError;

use crate::disk::info::Kind;
use crate::error::OpenError;
use crate::formats::format::Format;
use crate::formats::name::FormatName;
use crate::formats::open::{OpenOptions, open_file};
use crate::formats::signature::{has_footer, has_identifier, has_trailing_footer};
#[cfg(feature = "vhd")]
use crate::formats::vhd;
#[cfg(feature = "vhdx")]
use crate::formats::vhdx;
use crate::host::store::Store;
use crate::image::{Content, ImageError};

/// A VHDX is made of these.
#[cfg(feature = "vhdx")]
const MIB: u64 = 1 << 20;

/// Open the disk that `options.path` leads to, where it leads into another disk. The requested format is that of the
/// image inside; without one, the content decides.
///
/// # Errors
/// Those of the outer disk; [`OpenError::Invalid`] names the field of a partition table or of the image;
/// [`OpenError::Unsupported`] where there is no image, and for what cannot be nested.
pub(crate) fn open(options: &OpenOptions) -> Option<Result<Arc<dyn Format>, OpenError>> {
    split(&options.path).map(|nesting| nesting.open(options))
}

/// The image that `path` leads to, for a look at its metadata, where it leads into another disk.
pub(crate) fn open_store(path: &Path, read_only: bool) -> Option<Result<Arc<dyn Store>, OpenError>> {
    let nesting = split(path)?;
    let options = OpenOptions { read_only, ..OpenOptions::new(path) };
    Some(nesting.open_content(&options).and_then(|(content, _)| {
        let store = Container::new(path, content);
        settle_end(&store).map_err(|source| cannot_read(path, source))?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    }))
}

impl Nesting {
    fn open(&self, options: &OpenOptions) -> Result<Arc<dyn Format>, OpenError> {
        let (content, path) = self.open_content(options)?;
        let whole = matches!(self.steps.last(), Some((Step::Whole, _)));
        enter(Container::new(path, content), options.format, whole, self.steps.len() - 1)
    }

    /// The content of the disk, or partition, that holds the image.
    fn open_content(&self, options: &OpenOptions) -> Result<(Arc<dyn Format>, &Path), OpenError> {
        if self.steps.len() > LEVELS {
            let reason = format!("leads through {} disks, expected at most {LEVELS}", self.steps.len());
            return Err(OpenError::Unsupported { path: options.path.clone(), reason });
        }
        let outer = OpenOptions { path: self.outer.clone(), format: None, ..options.clone() };
        let mut disk = open_file(&outer)?;
        let mut path = self.outer.as_path();
        for (level, (step, next)) in self.steps.iter().enumerate() {
            if let Some((before, _)) = level.checked_sub(1).and_then(|before| self.steps.get(before)) {
                let store = Container::new(path, disk);
                disk = enter(store, None, *before == Step::Whole, level - 1)?;
            }
            if let Step::Partition(number) = step {
                disk = partition(disk, number, next)?;
            }
            path = next;
        }
        Ok((disk, path))
    }
}

fn cannot_read(path: &Path, source: std::io::Error) -> OpenError {
    OpenError::Os { path: path.into(), action: "cannot read", source }
}

/// A partition as a disk.
fn partition(disk: Arc<dyn Format>, number: &str, path: &Path) -> Result<Arc<dyn Format>, OpenError> {
    // More digits than a number can have mean a partition that is not there, too.
    let found = table::find(Content::new(&*disk), number.parse().unwrap_or(u32::MAX));
    let run = found.map_err(|error| match error {
        TableError::Bad(bad) => bad.of(path),
        TableError::Image(ImageError::Io { source, .. }) => cannot_read(path, std::io::Error::other(source)),
        TableError::Image(error) => cannot_read(path, std::io::Error::other(error)),
    })?;
    let kind = Kind { format: FormatName::Raw.as_str(), subformat: None };
    Ok(Arc::new(Part::new(disk, run.start, run.end - run.start, kind)))
}

/// Open the image that is the content of a disk. A partition may be a raw disk; the `whole` content of a disk may
/// not, as it is that disk.
fn enter(
    store: Container,
    format: Option<FormatName>,
    whole: bool,
    level: usize,
) -> Result<Arc<dyn Format>, OpenError> {
    let (path, outer) = (store.path().to_path_buf(), Arc::clone(store.outer()));
    let refused = |reason: &str| OpenError::Unsupported { path: path.clone(), reason: reason.into() };
    let name = match format {
        Some(FormatName::Vhd) => {
            settle_end(&store).map_err(|source| cannot_read(&path, source))?;
            FormatName::Vhd
        }
        Some(name) => name,
        None => match settle_end(&store).map_err(|source| cannot_read(&path, source))? {
            FormatName::Raw if whole => return Err(refused("the disk holds no image: neither VHD nor VHDX")),
            name => name,
        },
    };
    let inner: Box<dyn Format> = match name {
        FormatName::Raw => return Ok(outer),
        FormatName::Passthrough => {
            return Err(refused("format passthrough is for block devices of the host"));
        }
        #[cfg(feature = "vhd")]
        FormatName::Vhd => match vhd::open_inside(Arc::new(store), outer.info())? {
            vhd::Inside::Fixed(size) => {
                let kind = Kind { format: name.as_str(), subformat: Some("fixed") };
                return Ok(Arc::new(Part::new(outer, 0, size, kind).keeping_space()));
            }
            vhd::Inside::Dynamic(disk) => disk,
        },
        #[cfg(feature = "vhdx")]
        FormatName::Vhdx => {
            if !outer.info().read_only {
                store.set_len(outer.info().capacity / MIB * MIB);
            }
            vhdx::open_inside(Arc::new(store), outer.info(), outer.epochs())?
        }
        #[cfg(not(all(feature = "vhd", feature = "vhdx")))]
        left_out => return Err(left_out.left_out(&path)),
    };
    Ok(Arc::new(Nested::new(inner, outer, level)))
}

/// What the content of a disk is. Where the disk is larger than an image in it, a VHD's footer is not at the end of the disk,
/// but it is the last of the data: then the image ends there.
fn settle_end(store: &Container) -> std::io::Result<FormatName> {
    if has_identifier(store)? {
        return Ok(FormatName::Vhdx);
    }
    if has_trailing_footer(store)? {
        return Ok(FormatName::Vhd);
    }
    let copy = has_footer(store)?;
    let capacity = store.len()?;
    if let Some(end) = store.data_end()? {
        store.set_len(end);
        if has_trailing_footer(store)? {
            return Ok(FormatName::Vhd);
        }
        store.set_len(capacity);
    }
    Ok(if copy { FormatName::Vhd } else { FormatName::Raw })
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod tests;

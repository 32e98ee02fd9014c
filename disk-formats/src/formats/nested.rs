//! Nested images: the path `OUTER//` is the image that is the content of the disk in OUTER, `OUTER//N` the image in its
//! partition N. Two levels are supported: `OUTER////`, `OUTER//1//`.
//!
//! Nothing is copied. The inner format stores its metadata in a [`Container`], which is the content of the outer disk.
//! The extents of the inner format are mapped again by the outer disk ([`composed`]), so that queues transfer directly
//! between the caller's buffers and the outer disk's files.

mod composed;
mod container;
mod gpt_backup;
mod part;
pub(crate) mod path;
mod table;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use composed::{LEVELS, Nested};
use container::Container;
use gpt_backup::Move;
use part::Part;
use path::{Nesting, Step, split};
use table::TableError;

use crate::contract::error::{BadField, OpenError};
use crate::contract::info::Kind;
use crate::formats::copy::content::{Content, ImageError};
use crate::formats::name::FormatName;
use crate::formats::open::{OpenOptions, RAW, open_file, refuse_foreign};
use crate::formats::signature::{has_footer, has_identifier, has_trailing_footer};
#[cfg(feature = "vhd")]
use crate::formats::vhd;
#[cfg(feature = "vhdx")]
use crate::formats::vhdx;
use crate::host::store::Store;
use crate::map::format::Format;

/// Unit of the file size of a VHDX.
#[cfg(feature = "vhdx")]
const MIB: u64 = 1 << 20;

/// Open the nested image that `options.path` leads to; `None` if the path is not nested. `options.format` is the format
/// of the inner image; without it, the content decides.
///
/// # Errors
/// Errors of the outer disk; [`OpenError::Invalid`] names the field of a partition table or of the image;
/// [`OpenError::Unsupported`] if there is no image, or if it cannot be nested.
pub(crate) fn open(options: &OpenOptions) -> Option<Result<Arc<dyn Format>, OpenError>> {
    split(&options.path).map(|nesting| nesting.open(options))
}

/// Open the nested image at `path` as a store, to access its metadata; `None` if the path is not nested.
pub(crate) fn open_store(path: &Path, read_only: bool) -> Option<Result<Arc<dyn Store>, OpenError>> {
    let nesting = split(path)?;
    let options = OpenOptions { read_only, ..OpenOptions::new(path) };
    Some(nesting.open_content(&options).and_then(|(content, _)| {
        let store = Container::new(path, content);
        settle_end(&store).map_err(OpenError::os(path, "cannot read"))?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    }))
}

impl Nesting {
    fn open(&self, options: &OpenOptions) -> Result<Arc<dyn Format>, OpenError> {
        let (content, path) = self.open_content(options)?;
        let whole = matches!(self.steps.last(), Some((Step::Whole, _)));
        enter(Container::new(path, content), options.format, whole, self.steps.len() - 1)
    }

    /// Open the disk or partition that contains the image.
    fn open_content(&self, options: &OpenOptions) -> Result<(Arc<dyn Format>, &Path), OpenError> {
        if self.steps.len() > LEVELS {
            let reason = format!("leads through {} disks, expected at most {LEVELS}", self.steps.len());
            return Err(OpenError::unsupported(&options.path, reason));
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

fn table_error(path: &Path, action: &'static str, error: TableError) -> OpenError {
    let source = match error {
        TableError::Bad(bad) => return bad.of(path),
        TableError::Image(ImageError::Io { source, .. }) => std::io::Error::other(source),
        TableError::Image(error) => std::io::Error::other(error),
    };
    OpenError::os(path, action)(source)
}

/// Move the backup GPT of the disk at `options` to where it ends when it has `size` bytes; `false` if it has no GPT, or a backup there. `check`
/// gets the ranges of the disk, in bytes, that the move zeroes, and refuses the move before anything is changed.
///
/// # Errors
/// Those of `check`, of opening the disk, and of its GPT; [`OpenError::Invalid`] for a partition that does not fit.
pub(crate) fn move_gpt_backup(
    options: &OpenOptions,
    size: u64,
    check: impl FnOnce(&[Range<u64>]) -> Result<(), OpenError>,
) -> Result<bool, OpenError> {
    let failed = |error| table_error(&options.path, "cannot move the backup GPT", error);
    let disk = open_file(&OpenOptions { read_only: true, ..options.clone() })?;
    let Some(zeroed) = Move::plan(Content::new(&*disk), size).map_err(failed)?.map(|plan| plan.zeroed())
    else {
        return Ok(false);
    };
    // Its lock would refuse the check.
    drop(disk);
    check(&zeroed)?;
    let disk = open_file(options)?;
    match Move::plan(Content::new(&*disk), size).map_err(failed)? {
        Some(plan) => plan.run().map_err(failed).map(|()| true),
        None => Ok(false),
    }
}

/// Open a partition as a disk.
fn partition(disk: Arc<dyn Format>, number: &str, path: &Path) -> Result<Arc<dyn Format>, OpenError> {
    // A number that does not fit u32 is a partition that does not exist.
    let found = table::find(Content::new(&*disk), number.parse().unwrap_or(u32::MAX));
    let run = found.map_err(|error| table_error(path, "cannot read", error))?;
    let sector = u64::from(disk.info().logical_sector.bytes());
    if !run.start.is_multiple_of(sector) || !run.end.is_multiple_of(sector) {
        let value = format!("{} to {} in bytes", run.start, run.end);
        return Err(BadField::new("partition", value, format!("whole sectors of {sector}")).of(path));
    }
    let kind = Kind { format: FormatName::Raw.as_str(), subformat: None };
    Ok(Arc::new(Part::new(disk, run.start, run.end - run.start, kind)))
}

/// Open the image that is the content of `store`. If `format` is `None`, it is probed. A partition may be a raw disk, but not the `whole`
/// content of a disk, because that would be the outer disk itself.
fn enter(
    store: Container,
    format: Option<FormatName>,
    whole: bool,
    level: usize,
) -> Result<Arc<dyn Format>, OpenError> {
    let (path, outer) = (store.path().to_path_buf(), Arc::clone(store.outer()));
    let refused = |reason: &str| OpenError::unsupported(&path, reason);
    let name = match format {
        Some(FormatName::Vhd) => {
            settle_end(&store).map_err(OpenError::os(&path, "cannot read"))?;
            FormatName::Vhd
        }
        Some(FormatName::Raw) if whole => {
            return Err(refused("as raw it is the outer disk itself: name that, without the last `//`"));
        }
        Some(name) => name,
        None => match settle_end(&store).map_err(OpenError::os(&path, "cannot read"))? {
            FormatName::Raw if whole => return Err(refused("the disk holds no image: neither VHD nor VHDX")),
            name => name,
        },
    };
    let inner: Box<dyn Format> = match name {
        FormatName::Raw => {
            if format.is_none() {
                refuse_foreign(&path, &store, RAW)?;
            }
            return Ok(outer);
        }
        FormatName::Passthrough => {
            return Err(refused("format passthrough is for block devices of the host"));
        }
        #[cfg(feature = "vhd")]
        FormatName::Vhd => match vhd::open_inside(Arc::new(store), outer.info())? {
            vhd::NestedVhd::Fixed(size) => {
                let kind = Kind { format: name.as_str(), subformat: Some("fixed") };
                return Ok(Arc::new(Part::new(outer, 0, size, kind).keeping_space()));
            }
            vhd::NestedVhd::Dynamic(disk) => disk,
        },
        #[cfg(feature = "vhdx")]
        FormatName::Vhdx => {
            if !outer.info().read_only {
                store.set_len(outer.info().capacity / MIB * MIB);
            }
            vhdx::open_inside(Arc::new(store), outer.info(), outer.epochs())?
        }
        #[cfg(not(all(feature = "vhd", feature = "vhdx")))]
        name => return Err(name.not_built(&path)),
    };
    Ok(Arc::new(Nested::new(inner, outer, level)))
}

/// Probe the format of the content, and find its end. If the disk is larger than a VHD in it, the VHD's footer is not
/// at the end of the disk, but at the end of the data: the image then ends there.
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

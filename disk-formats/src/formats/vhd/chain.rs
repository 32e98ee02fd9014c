//! Opening a VHD of any kind, and the parents of a differencing disk down to the root.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, UNIX_EPOCH};

use super::alloc::Allocator;
use super::blocks::{SparseVhd, VhdBlocks};
use super::fixed::FixedVhd;
use super::footer::{self, Found, Subformat};
use super::layer::{Layer, Shape};
use super::layout::{self, Layout};
use super::locator;
use super::spec::{DynamicHeader, EPOCH};
use super::stamp;
use crate::disk::info::{DiscardLimits, DiskInfo, Kind, SectorSize};
use crate::error::OpenError;
use crate::escaped::escaped;
use crate::formats::chain::{Member, buffer_alignment, open_parents, require_differencing};
use crate::formats::field::BadField;
use crate::formats::file_info::file_info;
use crate::formats::format::Format;
use crate::formats::parents::ParentRules;
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;
use crate::map::block_map::DEFAULT_MEMORY;

/// One image of a chain.
#[derive(Clone)]
pub(crate) struct Image {
    pub(super) file: Arc<BackingFile>,
    pub(super) found: Found,
    /// The dynamic header and layout, for dynamic and differencing disks.
    pub(super) sparse: Option<(DynamicHeader, Layout)>,
}

impl Image {
    /// The image in an open file.
    pub(super) fn of(file: Arc<BackingFile>) -> Result<Self, OpenError> {
        let path = file.path();
        let os =
            |source| OpenError::Os { path: path.into(), action: "cannot read the VHD's metadata", source };
        let found = footer::find(&*file).map_err(os)?.map_err(|bad| bad.of(path))?;
        let sparse = match found.subformat {
            Subformat::Fixed => None,
            Subformat::Dynamic | Subformat::Differencing => {
                let at = found.footer.data_offset.get();
                Some(layout::read(&*file, at, found.size).map_err(os)?.map_err(|bad| bad.of(path))?)
            }
        };
        Ok(Self { file, found, sparse })
    }

    fn shape(&self) -> Shape {
        self.sparse.map_or(Shape::Flat, |(_, layout)| Shape::Sparse(layout))
    }

    /// The time stamp that a child records.
    pub(super) fn stamp_to_note(&self) -> u32 {
        self.found.footer.time_stamp.get()
    }

    /// The header with the parent's identity and locators, if the image is a differencing disk.
    pub(super) fn child_header(&self) -> Option<&DynamicHeader> {
        match (&self.sparse, self.found.subformat) {
            (Some((header, _)), Subformat::Differencing) => Some(header),
            _ => None,
        }
    }
}

impl Member for Image {
    /// Without limit: the metadata of an image are its header alone.
    const MEMORY: u64 = u64::MAX;

    fn open_within(path: &Path, access: Access, _memory: u64) -> Result<Self, OpenError> {
        let mut file = BackingFile::open(path, access)?;
        if file.units().is_some() {
            // Bitmaps and footers are sectors of 512 bytes: no block begins at a unit.
            file.use_page_cache()?;
        }
        Self::of(Arc::new(file))
    }

    fn file(&self) -> &Arc<BackingFile> {
        &self.file
    }

    fn subformat(&self) -> &'static str {
        self.found.subformat.as_str()
    }

    fn size(&self) -> u64 {
        self.found.size
    }

    fn is_child(&self) -> bool {
        self.child_header().is_some()
    }

    fn candidates(&self) -> Result<Vec<PathBuf>, OpenError> {
        let Some(header) = self.child_header() else { return Ok(Vec::new()) };
        locator::candidates(&*self.file, header).map_err(|source| OpenError::Os {
            path: self.file.path().into(),
            action: "cannot read the parent locators",
            source,
        })
    }

    /// Compares Unique Id and time stamp of the parent with those that the child has recorded.
    fn check_parent(&self, parent: &Self, rules: &ParentRules) -> Result<(), BadField> {
        let Some(header) = self.child_header() else { return Ok(()) };
        let (noted, id) = (header.parent_unique_id, parent.found.footer.unique_id);
        let place = escaped(parent.file.path());
        if noted != id {
            let value = format!("{} ({place})", hex(&id));
            let expected = format!("{}, as noted in the child (another parent: `image rebase`)", hex(&noted));
            return Err(BadField::new("parent unique id", value, expected));
        }
        let noted = header.parent_time_stamp.get();
        let footer = &parent.found.footer;
        if rules.any_time || stamp::accepts(noted, footer, stamp::modified(&parent.file)) {
            return Ok(());
        }
        let expected = format!(
            "{}, as noted in the child: it was changed since (accept it with `image rebase` or --any-parent-time)",
            date(noted)
        );
        Err(BadField::new(
            "parent time stamp",
            format!("{} ({place})", date(footer.time_stamp.get())),
            expected,
        ))
    }

    fn has_parent_id(&self, parent: &Self) -> bool {
        self.child_header().is_some_and(|header| header.parent_unique_id == parent.found.footer.unique_id)
    }
}

/// Open a VHD of any kind, with its parents.
///
/// # Errors
/// [`OpenError::Invalid`] names the invalid field, or lists the parents that were tried; else as [`BackingFile::open`].
pub fn open(path: &Path, access: Access, parents: &ParentRules) -> Result<Arc<dyn Format>, OpenError> {
    open_with(path, access, parents, DEFAULT_MEMORY)
}

/// As [`open`]. `map_memory` is the memory budget of the map in bytes (approximate).
pub(crate) fn open_with(
    path: &Path,
    access: Access,
    parents: &ParentRules,
    map_memory: u64,
) -> Result<Arc<dyn Format>, OpenError> {
    let image = Image::open(path, access)?;
    match image.sparse {
        None => Ok(Arc::new(open_fixed(image))),
        Some(_) => Ok(Arc::new(open_sparse(image, access, parents, map_memory)?)),
    }
}

/// Open an image that has its new time stamp already, and its parents.
pub(super) fn open_stamped(image: Image, parents: &ParentRules) -> Result<Arc<dyn Format>, OpenError> {
    match image.sparse {
        None => Ok(Arc::new(open_fixed(image).without_stamp())),
        Some(_) => Ok(Arc::new(open_sparse(image, Access::default(), parents, DEFAULT_MEMORY)?.begun())),
    }
}

fn open_fixed(image: Image) -> FixedVhd {
    let kind = Kind { format: "vhd", subformat: Some("fixed") };
    let info = file_info(&image.file, kind, image.found.size, SectorSize::B512);
    let store: Arc<dyn Store> = Arc::<BackingFile>::clone(&image.file);
    FixedVhd::new(info, store, vec![image.file], &image.found)
}

/// The chain of a dynamic or differencing disk.
pub(super) fn open_sparse(
    image: Image,
    access: Access,
    parents: &ParentRules,
    map_memory: u64,
) -> Result<SparseVhd, OpenError> {
    let mut images = vec![image];
    open_parents(&mut images, access, parents)?;
    assemble(images, access, map_memory)
}

/// A nested image.
pub(crate) enum NestedVhd {
    /// A fixed disk: the first bytes of the outer disk; their number.
    Fixed(u64),
    /// A dynamic disk.
    Dynamic(Box<dyn Format>),
}

/// Open the image in `store`, which is the content of the disk `host`.
///
/// # Errors
/// As [`open`]; [`OpenError::Unsupported`] for a differencing disk, and if the sectors of `host` are not 512 bytes.
pub(crate) fn open_inside(store: Arc<dyn Store>, host: &DiskInfo) -> Result<NestedVhd, OpenError> {
    let path = store.path().to_path_buf();
    let os = |source| OpenError::Os { path: path.clone(), action: "cannot read the VHD's metadata", source };
    let refused = |reason: &str| OpenError::Unsupported { path: path.clone(), reason: reason.into() };
    let found = footer::find(&*store).map_err(os)?.map_err(|bad| bad.of(&path))?;
    if host.logical_sector != SectorSize::B512 {
        return Err(refused("a VHD has sectors of 512 bytes, but the outer disk has sectors of 4096"));
    }
    match found.subformat {
        Subformat::Fixed => return Ok(NestedVhd::Fixed(found.size)),
        Subformat::Dynamic => {}
        Subformat::Differencing => {
            return Err(refused("a differencing disk inside another disk: its parent lies in no directory"));
        }
    }
    let at = found.footer.data_offset.get();
    let (header, layout) = layout::read(&*store, at, found.size).map_err(os)?.map_err(|bad| bad.of(&path))?;
    let allocator = Allocator::open(&*store, &found, &header, layout, !host.read_only)?;
    let kind = Kind { format: "vhd", subformat: Some(found.subformat.as_str()) };
    let discard = host.discard.map(|discard| DiscardLimits { reads_zero: true, ..discard });
    let info = DiskInfo { kind, capacity: found.size, physical_sector: 4096, discard, ..host.clone() };
    let len = AtomicU64::new(store.len().map_err(os)?);
    let layer = Layer { store, shape: Shape::Sparse(layout), size: found.size, len };
    let disk = SparseVhd::new(
        info,
        VhdBlocks::new(layout, false),
        vec![layer],
        Vec::new(),
        allocator,
        DEFAULT_MEMORY,
    );
    Ok(NestedVhd::Dynamic(Box::new(disk.inside())))
}

/// Open a differencing disk without its parents. Sectors that it does not have read as zeros. For tools that read or
/// fill a single image of a chain.
///
/// # Errors
/// As for [`open`]; [`OpenError::Unsupported`] if it is not a differencing disk.
pub fn open_alone(path: &Path, access: Access) -> Result<Arc<dyn Format>, OpenError> {
    let image = Image::open(path, access)?;
    require_differencing(&image)?;
    Ok(Arc::new(assemble(vec![image], access, DEFAULT_MEMORY)?))
}

/// A disk of the sectors that a differencing disk has itself; others read as zeros. Its file must not change in the
/// meantime.
pub(super) fn alone(image: Image) -> Result<SparseVhd, OpenError> {
    assemble(vec![image], Access::READ_ONLY, DEFAULT_MEMORY)
}

/// The disk of a chain of images, from the top down. The top must have blocks.
fn assemble(images: Vec<Image>, access: Access, map_memory: u64) -> Result<SparseVhd, OpenError> {
    let path = images.first().map(|image| image.file.path().to_path_buf()).unwrap_or_default();
    let Some((top, (header, layout))) = images.first().and_then(|top| Some((top, top.sparse?))) else {
        return Err(lost(&path));
    };
    let allocator = Allocator::open(&*top.file, &top.found, &header, layout, !access.read_only)?;
    let kind = Kind { format: "vhd", subformat: Some(top.found.subformat.as_str()) };
    let mut info = file_info(&top.file, kind, top.found.size, SectorSize::B512);
    let differencing = top.found.subformat == Subformat::Differencing;
    let limits = |granularity| DiscardLimits { granularity, reads_zero: !differencing };
    info.discard = info.discard.map(|discard| limits(discard.granularity));
    info.buffer_alignment = buffer_alignment(&images);
    let files: Vec<Arc<BackingFile>> = images.iter().map(|image| Arc::clone(&image.file)).collect();
    let id = top.found.footer.unique_id;
    let mut visible = top.found.size;
    let layers = images
        .into_iter()
        .enumerate()
        .map(|(number, image)| {
            visible = visible.min(image.found.size);
            let len = if number == 0 { allocator.len() } else { image.file.size() };
            let (shape, len) = (image.shape(), AtomicU64::new(len));
            Layer { store: image.file, shape, size: visible, len }
        })
        .collect();
    let blocks = VhdBlocks::new(layout, differencing);
    Ok(SparseVhd::new(info, blocks, layers, files, allocator, map_memory).with_id(id))
}

/// Unreachable: the caller has checked that there is a top with blocks.
fn lost(path: &Path) -> OpenError {
    OpenError::Unsupported { path: path.into(), reason: "not a chain of blocks".into() }
}

pub(super) fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Format seconds since 2000 as seconds since 1970, as `date -d @N` accepts them.
fn date(stamp: u32) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(EPOCH + u64::from(stamp));
    format!("@{}", time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
}

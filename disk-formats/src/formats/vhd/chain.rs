//! Opening a VHD of any kind, and the parents of a differencing disk down to the last.

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
use super::spec::{DynamicHeader, EPOCH, SECTOR};
use super::stamp;
use crate::disk::info::{DiscardLimits, DiskInfo, Kind, SectorSize};
use crate::error::OpenError;
use crate::formats::chain::{Member, buffer_alignment, open_parents, refuse_no_child};
use crate::formats::field::BadField;
use crate::formats::file_info::file_info;
use crate::formats::format::Format;
use crate::formats::parents::ParentRules;
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;
use crate::map::block_map::DEFAULT_MEMORY;

/// An image by itself.
#[derive(Clone)]
pub(crate) struct Image {
    pub(super) file: Arc<BackingFile>,
    pub(super) found: Found,
    /// Of dynamic and differencing disks.
    pub(super) sparse: Option<(DynamicHeader, Layout)>,
}

impl Image {
    /// The image in a file that is open.
    pub(super) fn of(file: Arc<BackingFile>) -> Result<Self, OpenError> {
        let path = file.path();
        let os =
            |source| OpenError::Os { path: path.into(), action: "cannot read the VHD's metadata", source };
        let found = footer::find(&*file).map_err(os)?.map_err(|bad| bad.of(path))?;
        if let Some(direct) = file.direct().filter(|direct| u64::from(direct.offset) > SECTOR) {
            let reason = format!(
                "direct I/O moves {} bytes at the least here, and a VHD has sectors of 512: open it with direct=off",
                direct.offset
            );
            return Err(OpenError::Unsupported { path: path.into(), reason });
        }
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

    /// What a child notes of it.
    pub(super) fn stamp_to_note(&self) -> u32 {
        self.found.footer.time_stamp.get()
    }

    /// The header that names a parent.
    pub(super) fn child_header(&self) -> Option<&DynamicHeader> {
        match (&self.sparse, self.found.subformat) {
            (Some((header, _)), Subformat::Differencing) => Some(header),
            _ => None,
        }
    }
}

impl Member for Image {
    /// It takes no more than its header.
    const MEMORY: u64 = u64::MAX;

    fn open_within(path: &Path, access: Access, _memory: u64) -> Result<Self, OpenError> {
        Self::of(Arc::new(BackingFile::open(path, access)?))
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

    /// Its Unique Id and its time stamp are those that the child has noted.
    fn check_parent(&self, parent: &Self, rules: &ParentRules) -> Result<(), BadField> {
        let Some(header) = self.child_header() else { return Ok(()) };
        let (noted, id) = (header.parent_unique_id, parent.found.footer.unique_id);
        let place = parent.file.path().display();
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

    fn names(&self, parent: &Self) -> bool {
        self.child_header().is_some_and(|header| header.parent_unique_id == parent.found.footer.unique_id)
    }
}

/// Open a VHD of any kind, with its parents.
///
/// # Errors
/// [`OpenError::Invalid`] names the field that is wrong, or the parents that were tried; else as [`BackingFile::open`].
pub fn open(path: &Path, access: Access, parents: &ParentRules) -> Result<Arc<dyn Format>, OpenError> {
    open_with(path, access, parents, DEFAULT_MEMORY)
}

/// As [`open`]; the map takes about `map_memory` bytes at the most.
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

/// Open an image whose new time stamp is written already, and its parents.
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

/// An image that is the content of another disk.
pub(crate) enum Inside {
    /// The first bytes of it, this many.
    Fixed(u64),
    /// Blocks in it.
    Dynamic(Box<dyn Format>),
}

/// A disk whose image is the content of the disk `host`, in `store`.
///
/// # Errors
/// As [`open`]; [`OpenError::Unsupported`] for a differencing disk, and where the host does not have sectors of 512
/// bytes.
pub(crate) fn open_inside(store: Arc<dyn Store>, host: &DiskInfo) -> Result<Inside, OpenError> {
    let path = store.path().to_path_buf();
    let os = |source| OpenError::Os { path: path.clone(), action: "cannot read the VHD's metadata", source };
    let refused = |reason: &str| OpenError::Unsupported { path: path.clone(), reason: reason.into() };
    let found = footer::find(&*store).map_err(os)?.map_err(|bad| bad.of(&path))?;
    if host.logical_sector != SectorSize::B512 {
        return Err(refused("a VHD has sectors of 512 bytes, and the disk around it of 4096"));
    }
    match found.subformat {
        Subformat::Fixed => return Ok(Inside::Fixed(found.size)),
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
    Ok(Inside::Dynamic(Box::new(disk.inside())))
}

/// Open a differencing disk without its parents: sectors that it does not hold read as zeros. For tools that read, or
/// fill, one image of a chain.
///
/// # Errors
/// As for [`open`]; [`OpenError::Unsupported`] for a disk of another kind.
pub fn open_alone(path: &Path, access: Access) -> Result<Arc<dyn Format>, OpenError> {
    let image = Image::open(path, access)?;
    refuse_no_child(&image)?;
    Ok(Arc::new(assemble(vec![image], access, DEFAULT_MEMORY)?))
}

/// The sectors that a differencing disk holds itself; the rest reads as zeros. Its file must not change meanwhile.
pub(super) fn alone(image: Image) -> Result<SparseVhd, OpenError> {
    assemble(vec![image], Access::READ_ONLY, DEFAULT_MEMORY)
}

/// The chain of these images, from the top down; the top has blocks.
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

/// Not reached: the caller has checked.
fn lost(path: &Path) -> OpenError {
    OpenError::Unsupported { path: path.into(), reason: "not a chain of blocks".into() }
}

pub(super) fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Seconds since 2000 as seconds since 1970: what `date -d @N` takes.
fn date(stamp: u32) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(EPOCH + u64::from(stamp));
    format!("@{}", time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
}

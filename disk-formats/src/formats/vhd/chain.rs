//! Opening a VHD of any kind, and the parents of a differencing disk down to the root.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, UNIX_EPOCH};

use super::alloc::Allocator;
use super::blocks::{SparseVhd, VhdBlocks};
use super::fixed::FixedVhd;
use super::footer::{self, Found, Source, Subformat};
use super::layer::{Layer, Shape, read_bat};
use super::layout::{self, Layout};
use super::spec::{DynamicHeader, EPOCH, NO_DATA_OFFSET, SECTOR, UNALLOCATED};
use super::{locator, stamp};
use crate::contract::error::{BadField, OpenError, ReadError, escaped};
use crate::contract::info::{DiscardLimits, DiskInfo, Kind, SectorSize};
use crate::formats::chain::{Member, buffer_alignment, open_parents, require_differencing};
use crate::formats::info::{FormatInfo, ImageInfo, ParentInfo, file_info};
use crate::formats::name::FormatName;
use crate::formats::parents::ParentRules;
use crate::formats::signature::{has_footer, has_identifier};
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;
use crate::map::block_map::DEFAULT_MEMORY;
use crate::map::format::Format;

/// The identity that a child records for a raw parent.
const NO_ID: [u8; 16] = [0; 16];

/// One image of a chain.
#[derive(Clone)]
pub(crate) struct Image {
    pub(super) file: Arc<BackingFile>,
    pub(super) found: Found,
    /// The dynamic header and layout, for dynamic and differencing disks.
    pub(super) sparse: Option<(DynamicHeader, Layout)>,
    /// A raw disk, which has no footer: `found` describes it as a fixed disk without identity and time stamp.
    pub(super) raw: bool,
}

impl Image {
    /// The image in an open file.
    pub(super) fn of(file: Arc<BackingFile>) -> Result<Self, OpenError> {
        let path = file.path();
        let failed = |error: ReadError| error.of(path, "cannot read the VHD's metadata");
        let found = footer::find(&*file).map_err(failed)?;
        let sparse = match found.subformat {
            Subformat::Fixed => None,
            Subformat::Dynamic | Subformat::Differencing => {
                let at = found.footer.data_offset.get();
                Some(layout::read(&*file, at, found.size).map_err(failed)?)
            }
        };
        Ok(Self { file, found, sparse, raw: false })
    }

    /// The raw disk in an open file or device, as a parent.
    fn of_raw(file: Arc<BackingFile>) -> Result<Self, OpenError> {
        let size = file.size();
        if size == 0 || !size.is_multiple_of(SECTOR) {
            let value = format!("{size} bytes");
            return Err(BadField::new("size", value, "whole sectors of 512 bytes").of(file.path()));
        }
        let footer = footer::new(Subformat::Fixed, size, NO_DATA_OFFSET, NO_ID, UNIX_EPOCH);
        let found = Found { footer, source: Source::Trailing(size), subformat: Subformat::Fixed, size };
        Ok(Self { file, found, sparse: None, raw: true })
    }

    /// Whether the parent has no identity, as XenServer's raw disks.
    fn is_over_raw(&self) -> bool {
        self.child_header().is_some_and(|header| header.parent_unique_id == NO_ID)
    }

    fn shape(&self) -> Shape {
        self.sparse.map_or(Shape::Flat, |(_, layout)| Shape::Sparse(layout))
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
        if self.raw { "raw" } else { self.found.subformat.as_str() }
    }

    /// A child whose parent has no identity accepts a raw disk. As for every other disk, name and content of a file must
    /// agree: a guest can write a footer into its raw disk.
    fn open_named_parent(&self, path: &Path, access: Access, memory: u64) -> Result<Self, OpenError> {
        if !self.is_over_raw() || FormatName::claimed(path) == Some(FormatName::Vhd) {
            return Self::open_within(path, access, memory);
        }
        let file = Arc::new(BackingFile::open(path, access)?);
        let os = OpenError::os(path, "cannot read");
        let refused = |reason: &str| OpenError::unsupported(path, reason);
        if has_identifier(&*file).map_err(os)? {
            return Err(refused("begins as a VHDX, and the parent of a VHD must be a VHD or a raw disk"));
        }
        if has_footer(&*file).map_err(os)? {
            return Err(refused(
                "has a VHD footer, but is not named as a VHD: rename it to *.vhd if it is one",
            ));
        }
        Self::of_raw(file)
    }

    fn is_parent_nameless(&self) -> bool {
        self.is_over_raw()
    }

    fn size(&self) -> u64 {
        self.found.size
    }

    fn is_child(&self) -> bool {
        self.child_header().is_some()
    }

    fn candidates(&self) -> Result<Vec<PathBuf>, OpenError> {
        let Some(header) = self.child_header() else { return Ok(Vec::new()) };
        locator::candidates(&*self.file, header)
            .map_err(OpenError::os(self.file.path(), "cannot read the parent locators"))
    }

    /// Compares Unique Id and time stamp of the parent with those that the child has recorded.
    fn check_parent(&self, parent: &Self, rules: &ParentRules) -> Result<(), OpenError> {
        let Some(header) = self.child_header() else { return Ok(()) };
        if parent.raw {
            // It has neither identity nor time stamp: the caller has named it.
            return Ok(());
        }
        let (noted, id) = (header.parent_unique_id, parent.found.footer.unique_id);
        if noted != id {
            let value = format!("{} ({})", hex(&id), escaped(parent.file.path()));
            let expected = format!("{}, as noted in the child (another parent: `image rebase`)", hex(&noted));
            return Err(BadField::new("parent unique id", value, expected).of(self.file.path()));
        }
        let noted = header.parent_time_stamp.get();
        let footer = &parent.found.footer;
        if rules.any_time || stamp::accepts(noted, footer, stamp::modified(&parent.file)) {
            return Ok(());
        }
        Err(OpenError::ParentChanged {
            path: self.file.path().into(),
            parent: parent.file.path().into(),
            field: "parent time stamp",
            value: date(footer.time_stamp.get()),
            expected: date(noted),
        })
    }

    fn has_parent_id(&self, parent: &Self) -> bool {
        self.child_header().is_some_and(|header| header.parent_unique_id == parent.found.footer.unique_id)
    }

    fn describe(&self) -> Result<ImageInfo, OpenError> {
        let path = self.file.path();
        let os = OpenError::os(path, "cannot read the VHD's metadata");
        let footer = &self.found.footer;
        let blocks = match &self.sparse {
            None => None,
            // If the file is too short for a block, the table need not be read.
            Some((_, layout)) if self.file.size() < layout.metadata_bytes() + layout.block_size() => {
                Some((0, u64::from(layout.used_entries())))
            }
            Some((_, layout)) => {
                let table = read_bat(&*self.file, layout, 0, u64::from(layout.used_entries())).map_err(os)?;
                Some((table.iter().filter(|entry| **entry != UNALLOCATED).count() as u64, table.len() as u64))
            }
        };
        let parent = match self.child_header() {
            None => None,
            Some(header) => {
                let candidates = locator::candidates(&*self.file, header).map_err(os)?;
                Some(ParentInfo { id: hex(&header.parent_unique_id), candidates })
            }
        };
        let printable =
            |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
        Ok(ImageInfo {
            path: path.into(),
            subformat: self.subformat(),
            size: self.found.size,
            file_size: self.file.size(),
            block_size: self.sparse.map(|(_, layout)| layout.block_size()),
            blocks,
            logical_sector: SectorSize::B512,
            physical_sector: 4096,
            id: hex(&footer.unique_id),
            creator: match self.raw {
                true => String::new(),
                false => footer.creator_application.iter().map(printable).collect(),
            },
            parent,
            format: FormatInfo::Vhd {
                time_stamp: EPOCH + u64::from(footer.time_stamp.get()),
                footer_from_copy: self.found.source == Source::Copy,
            },
        })
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
    let mut image = Image::open(path, access)?;
    if !access.read_only {
        image
            .found
            .cut_zeros(&*image.file)
            .map_err(OpenError::os(path, "cannot cut the zeros behind its footer"))?;
    }
    match image.sparse {
        None => Ok(Arc::new(open_fixed(image))),
        Some(_) => Ok(Arc::new(open_sparse(image, access, parents, map_memory)?)),
    }
}

/// Open an image that has its new time stamp already, and its parents.
pub(super) fn open_stamped(image: Image, parents: &ParentRules) -> Result<Arc<dyn Format>, OpenError> {
    match image.sparse {
        None => Ok(Arc::new(open_fixed(image).without_stamp())),
        Some(_) => Ok(Arc::new(open_sparse(image, Access::default(), parents, DEFAULT_MEMORY)?.prepared())),
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
    let failed = |error: ReadError| error.of(&path, "cannot read the VHD's metadata");
    let refused = |reason: &str| OpenError::unsupported(&path, reason);
    let found = footer::find(&*store).map_err(failed)?;
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
    let (header, layout) = layout::read(&*store, at, found.size).map_err(failed)?;
    let allocator = Allocator::open(&*store, &found, &header, layout, !host.read_only)?;
    let kind = Kind { format: "vhd", subformat: Some(found.subformat.as_str()) };
    let discard = host.discard.map(|discard| DiscardLimits { reads_zero: true, ..discard });
    let info = DiskInfo { kind, capacity: found.size, physical_sector: 4096, discard, ..host.clone() };
    let len = AtomicU64::new(store.len().map_err(|error| failed(error.into()))?);
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
    OpenError::unsupported(path, "not a chain of blocks")
}

pub(super) fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Format seconds since 2000 as seconds since 1970, as `date -d @N` accepts them.
fn date(stamp: u32) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(EPOCH + u64::from(stamp));
    format!("@{}", time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::super::create::create_differencing;
    use super::*;
    use crate::formats::copy::content::Content;
    use crate::formats::open::OpenOptions;

    /// Give a child the parent identity zero, as XenServer does over a raw disk.
    fn over_raw(child: &Path) {
        let mut bytes = std::fs::read(child).unwrap();
        bytes[512 + 40..512 + 56].fill(0);
        bytes[512 + 36..512 + 40].fill(0);
        let sum: u32 = bytes[512..1536].iter().map(|byte| u32::from(*byte)).sum();
        bytes[512 + 36..512 + 40].copy_from_slice(&(!sum).to_be_bytes());
        std::fs::write(child, bytes).unwrap();
    }

    #[test]
    fn a_child_over_a_raw_disk_is_read_if_the_parent_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (raw, child) = (path("disk.raw"), path("child.vhd"));
        super::super::create::create_fixed(&path("twin.vhd"), 1 << 20).unwrap();
        create_differencing(&child, &path("twin.vhd"), None).unwrap();
        over_raw(&child);
        let data: Vec<u8> = (0..1u32 << 18).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&raw, &data).unwrap();
        let open = |parent: &Path| OpenOptions::new(&child).parent(parent).open_format();
        let error = OpenOptions::new(&child).open().err().unwrap().to_string();
        assert!(error.contains("has no identity (a raw disk, as XenServer uses): name it"), "{error}");
        let disk = open(&raw).unwrap();
        let mut found = vec![0; data.len()];
        Content::new(&*disk).read_at(&mut found, 0).unwrap();
        assert!(found == data);
        Content::new(&*disk).write_at(&[7; 512], 4096).unwrap();
        disk.flush().unwrap();
        drop(disk);
        assert!(std::fs::read(&raw).unwrap() == data, "the parent is not written");
        let disk = open(&raw).unwrap();
        Content::new(&*disk).read_at(&mut found, 0).unwrap();
        assert!(found[4096..4608] == [7; 512] && found[4608..] == data[4608..]);
        drop(disk);
        let refused = |parent: &Path| open(parent).err().unwrap().to_string();
        // A guest has written a footer into its raw disk; a VHD with an identity; a size that is no disk's.
        std::fs::copy(path("twin.vhd"), path("guest.raw")).unwrap();
        assert!(refused(&path("guest.raw")).contains("not named as a VHD"));
        assert!(refused(&path("twin.vhd")).contains("parent unique id"));
        std::fs::write(path("odd.raw"), [1; 1000]).unwrap();
        assert!(refused(&path("odd.raw")).contains("whole sectors"));
        // With an identity, only that parent is accepted.
        create_differencing(&path("other.vhd"), &path("twin.vhd"), None).unwrap();
        let error = OpenOptions::new(path("other.vhd")).parent(&raw).open().err().unwrap().to_string();
        assert!(error.contains("disk.raw: VHD footer"), "{error}");
        let image = crate::Image::open(&child).unwrap();
        let rules = ParentRules { parent: Some(raw.clone()), ..ParentRules::default() };
        let image = image.with_parents(rules);
        assert_eq!(image.info(crate::Scope::Chain).unwrap()[1].subformat, "raw");
        let merged = image.merge(crate::Siblings::Refuse, |_, _| true).unwrap_err().to_string();
        assert!(merged.contains("raw disk cannot be merged into"), "{merged}");
    }
}

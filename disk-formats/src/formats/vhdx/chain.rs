//! Opening a VHDX of any kind, and the parents of a differencing disk down to the root.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use uuid::Uuid;

use super::alloc::Allocator;
use super::blocks::VhdxDisk;
use super::journal::Journal;
use super::layer::Layer;
use super::layout::Slot;
use super::opened::{MEMORY, Opened, Replaying};
use super::scan::scan;
use super::spec::{FILE_SIGNATURE, MIB};
use crate::contract::error::{BadField, OpenError, ReadError, escaped};
use crate::contract::info::{DiscardLimits, DiskInfo, Kind, SectorSize};
use crate::formats::chain::{Member, buffer_alignment, open_parents, require_differencing};
use crate::formats::info::{FormatInfo, ImageInfo, ParentInfo, file_info};
use crate::formats::parents::ParentRules;
use crate::formats::signature::has_footer;
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;
use crate::map::block_map::DEFAULT_MEMORY;
use crate::map::epochs::Epochs;
use crate::map::format::Format;

/// One image of a chain.
pub(crate) struct Image {
    pub(super) file: Arc<BackingFile>,
    pub(super) opened: Opened,
}

impl Image {
    /// The data write GUID, which a child records.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] for a parent without one: its child could not detect that it has changed.
    pub(super) fn linkage(&self) -> Result<Uuid, OpenError> {
        let guid = self.opened.headers.data_write_guid();
        match guid.is_nil() {
            false => Ok(guid),
            true => {
                let expected =
                    "one that is not zero, so that a child can tell whether its parent has changed";
                Err(BadField::new("data write GUID", guid.to_string(), expected).of(self.file.path()))
            }
        }
    }
}

impl Member for Image {
    const MEMORY: u64 = MEMORY;

    /// Replays a log in the file, or in memory if the image is opened read-only.
    fn open_within(path: &Path, access: Access, memory: u64) -> Result<Self, OpenError> {
        let file = Arc::new(BackingFile::open(path, access)?);
        let store: Arc<dyn Store> = Arc::<BackingFile>::clone(&file);
        let replaying = if access.read_only { Replaying::InMemory(memory) } else { Replaying::InFile };
        let opened = Opened::read_with(store, replaying)
            .map_err(|error| error.of(path, "cannot read the VHDX's metadata"))?;
        Ok(Self { file, opened })
    }

    /// A VHD cannot be the parent of a VHDX: the error says so, instead of naming an invalid field.
    fn as_parent(path: &Path, error: OpenError) -> OpenError {
        let vhd =
            BackingFile::open(path, Access::READ_ONLY).is_ok_and(|file| has_footer(&file).unwrap_or(false));
        match error {
            OpenError::Invalid { .. } if vhd => {
                let reason =
                    "it is a VHD, and the parent of a VHDX must be a VHDX: convert it (`image convert`)";
                OpenError::unsupported(path, reason)
            }
            error => error,
        }
    }

    fn file(&self) -> &Arc<BackingFile> {
        &self.file
    }

    fn subformat(&self) -> &'static str {
        self.opened.metadata.parameters.subformat()
    }

    fn size(&self) -> u64 {
        self.opened.layout.size
    }

    fn memory(&self) -> u64 {
        self.opened.memory()
    }

    fn is_child(&self) -> bool {
        self.opened.metadata.locator.is_some()
    }

    fn candidates(&self) -> Result<Vec<PathBuf>, OpenError> {
        let locator = self.opened.metadata.locator.as_ref();
        Ok(locator.map(|locator| locator.candidates(self.file.path())).unwrap_or_default())
    }

    /// Compares sector size and data write GUID of the parent with those that the child has recorded.
    fn check_parent(&self, parent: &Self, rules: &ParentRules) -> Result<(), OpenError> {
        check_sectors(self, parent).map_err(|bad| bad.of(self.file.path()))?;
        let Some(locator) = &self.opened.metadata.locator else { return Ok(()) };
        let found = parent.opened.headers.data_write_guid();
        if rules.any_time || locator.accepts(found) {
            return Ok(());
        }
        let (linkage, _) = locator.linkages();
        Err(OpenError::ParentChanged {
            path: self.file.path().into(),
            parent: parent.file.path().into(),
            field: "parent data write GUID",
            value: found.to_string(),
            expected: linkage.to_string(),
        })
    }

    fn has_parent_id(&self, parent: &Self) -> bool {
        let locator = self.opened.metadata.locator.as_ref();
        locator.is_some_and(|locator| locator.accepts(parent.opened.headers.data_write_guid()))
    }

    fn describe(&self) -> Result<ImageInfo, OpenError> {
        let path = self.file.path();
        let os = OpenError::os(path, "cannot read the VHDX's metadata");
        let (opened, parameters) = (&self.opened, &self.opened.metadata.parameters);
        let mut allocated = 0;
        scan(&*opened.store, &opened.layout, |index, entry| {
            allocated += u64::from(matches!(opened.layout.slot(index), Slot::Payload(_)) && entry.present());
        })
        .map_err(os)?;
        let parent = opened.metadata.locator.as_ref().map(|locator| ParentInfo {
            id: locator.linkages().0.to_string(),
            candidates: locator.candidates(path),
        });
        Ok(ImageInfo {
            path: path.into(),
            subformat: parameters.subformat(),
            size: parameters.size,
            file_size: self.file.size(),
            block_size: Some(u64::from(parameters.block_size)),
            blocks: Some((allocated, opened.layout.blocks())),
            logical_sector: parameters.logical,
            physical_sector: parameters.physical,
            id: parameters.disk_id.to_string(),
            creator: creator(&*opened.store).map_err(os)?,
            parent,
            format: FormatInfo::Vhdx {
                data_write_guid: opened.headers.data_write_guid().to_string(),
                log_entries: opened.replayed,
            },
        })
    }
}

/// The creator that the file names. The text is arbitrary.
fn creator(store: &dyn Store) -> std::io::Result<String> {
    let mut bytes = [0; 512];
    store.read_at(&mut bytes, FILE_SIGNATURE.len() as u64)?;
    let units = bytes.chunks_exact(2).map(|unit| unit.try_into().map_or(0, u16::from_le_bytes));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    let text = String::from_utf16_lossy(&units);
    Ok(text.chars().map(|letter| if letter.is_control() { '.' } else { letter }).collect())
}

/// Open a VHDX of any kind, with its parents.
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
    Ok(Arc::new(open_chain(Image::open(path, access)?, access, parents, map_memory)?))
}

/// Open the chain of an image.
pub(super) fn open_chain(
    image: Image,
    access: Access,
    parents: &ParentRules,
    map_memory: u64,
) -> Result<VhdxDisk, OpenError> {
    let mut images = vec![image];
    open_parents(&mut images, access, parents)?;
    assemble(images, access, map_memory)
}

/// Open a differencing disk without its parents. Sectors that it does not have read as zeros. For tools that read or
/// fill a single image of a chain.
///
/// # Errors
/// As for [`open`]; [`OpenError::Unsupported`] if it is not a differencing disk.
pub fn open_alone(path: &Path, access: Access) -> Result<Arc<dyn Format>, OpenError> {
    Ok(Arc::new(alone(path, access)?))
}

/// As [`open_alone`].
pub(super) fn alone(path: &Path, access: Access) -> Result<VhdxDisk, OpenError> {
    let image = Image::open(path, access)?;
    require_differencing(&image)?;
    assemble(vec![image], access, DEFAULT_MEMORY)
}

/// Open the image in `store`, which is the content of the disk `host`. The image shares the `epochs` of that disk.
///
/// # Errors
/// As [`open`]; [`OpenError::Unsupported`] for a differencing disk, and for sectors smaller than those of `host`.
pub(crate) fn open_inside(
    store: Arc<dyn Store>,
    host: &DiskInfo,
    epochs: Option<&Epochs>,
) -> Result<Box<dyn Format>, OpenError> {
    let path = store.path().to_path_buf();
    let refused = |reason: String| OpenError::unsupported(&path, reason);
    let disk = open_store(store, host)?;
    if disk.blocks.has_parent() {
        return Err(refused(
            "a differencing disk inside another disk: its parent lies in no directory".into(),
        ));
    }
    let (own, around) = (disk.info().logical_sector.bytes(), host.logical_sector.bytes());
    if own < around {
        return Err(refused(format!(
            "it has sectors of {own} bytes, but the outer disk has sectors of {around}"
        )));
    }
    Ok(Box::new(disk.with_epochs(epochs).inside()))
}

fn open_store(store: Arc<dyn Store>, host: &DiskInfo) -> Result<VhdxDisk, OpenError> {
    let path = store.path().to_path_buf();
    let failed = |error: ReadError| error.of(&path, "cannot read the VHDX's metadata");
    let opened = Opened::read(store, !host.read_only).map_err(failed)?;
    let (parameters, layout) = (opened.metadata.parameters, opened.layout);
    let granularity = host.discard.map_or(4096, |discard| discard.granularity);
    let granularity = granularity.max(u64::from(parameters.logical.bytes()));
    let info = DiskInfo {
        kind: Kind { format: "vhdx", subformat: Some(parameters.subformat()) },
        capacity: parameters.size,
        logical_sector: parameters.logical,
        physical_sector: parameters.physical.max(parameters.logical.bytes()),
        discard: (!parameters.leave_allocated && !host.read_only)
            .then_some(DiscardLimits { granularity, reads_zero: !parameters.has_parent }),
        ..host.clone()
    };
    let writer = if host.read_only { None } else { Some(writer(&opened, &path)?) };
    let layers = layers(std::iter::once(opened)).map_err(|error| failed(error.into()))?;
    Ok(VhdxDisk::of_layers(info, layout, layers, Vec::new(), writer, DEFAULT_MEMORY))
}

/// The disk of a chain of images, from the top down.
fn assemble(images: Vec<Image>, access: Access, map_memory: u64) -> Result<VhdxDisk, OpenError> {
    let empty = || OpenError::unsupported("", "no images");
    let top = images.first().ok_or_else(empty)?;
    let (path, layout) = (top.file.path().to_path_buf(), top.opened.layout);
    let id = top.opened.metadata.parameters.disk_id;
    let info = info(&top.file, &images);
    let os = OpenError::os(&path, "cannot read the BAT");
    let writer = if access.read_only { None } else { Some(writer(&top.opened, &path)?) };
    let files: Vec<Arc<BackingFile>> = images.iter().map(|image| Arc::clone(&image.file)).collect();
    let layers = layers(images.into_iter().map(|image| image.opened)).map_err(os)?;
    Ok(VhdxDisk::of_layers(info, layout, layers, files, writer, map_memory).with_id(id.into_bytes()))
}

/// What changes the metadata of the image at `path`.
fn writer(opened: &Opened, path: &Path) -> Result<(Allocator, Journal), OpenError> {
    let allocator = Allocator::open(opened).map_err(|error| error.of(path, "cannot read the BAT"))?;
    Ok((allocator, Journal::new(Arc::clone(&opened.store), opened.headers)))
}

/// The layers of images, from the top down.
pub(super) fn layers(images: impl Iterator<Item = Opened>) -> io::Result<Vec<Layer>> {
    let mut visible = u64::MAX;
    images
        .map(|image| {
            visible = visible.min(image.layout.size);
            let len = image.store.len()?;
            Ok(Layer {
                len: AtomicU64::new(len.next_multiple_of(MIB)),
                ragged: !len.is_multiple_of(MIB),
                replayed: image.replayed,
                store: image.store,
                overlay: image.overlay,
                layout: image.layout,
                size: visible,
            })
        })
        .collect()
}

fn info(file: &BackingFile, images: &[Image]) -> DiskInfo {
    let Some(parameters) = images.first().map(|image| image.opened.metadata.parameters) else {
        return file_info(file, Kind { format: "vhdx", subformat: None }, 0, SectorSize::B512);
    };
    let kind = Kind { format: "vhdx", subformat: Some(parameters.subformat()) };
    let mut info = file_info(file, kind, parameters.size, parameters.logical);
    info.physical_sector = parameters.physical.max(parameters.logical.bytes());
    let limits = |granularity| DiscardLimits { granularity, reads_zero: !parameters.has_parent };
    // The space of a fixed disk stays allocated.
    info.discard =
        info.discard.filter(|_| !parameters.leave_allocated).map(|discard| limits(discard.granularity));
    info.buffer_alignment = buffer_alignment(images);
    info
}

/// Child and parent must have the same logical sector size.
pub(super) fn check_sectors(child: &Image, parent: &Image) -> Result<(), BadField> {
    let [own, other] = [child, parent].map(|image| image.opened.layout.sector.bytes());
    if own == other {
        return Ok(());
    }
    let value = format!("{other} ({})", escaped(parent.file.path()));
    Err(BadField::new("parent logical sector size", value, format!("{own}, as that of the child")))
}

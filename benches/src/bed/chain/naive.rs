//! A chain without a block map, for comparison: each access searches the images from the newest to the oldest, until one has the data.
//!
//! Each image is opened separately and has its own tables in memory, so that look-ups read no file. The only difference to the block map is
//! the number of look-ups. Zeros in an image (VHDX's state "zero") count as no data there: the compared chains have no zeros over data.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use paradisk_disk_formats::{
    Access, BackingFile, DiskInfo, Extent, Extents, Format, IoError, Mapping, OpenError, OpenOptions, Place,
};

use super::chained::Chained;

/// The images of a chain, for reading.
pub(super) struct NaiveChain {
    info: DiskInfo,
    /// From the newest to the oldest.
    images: Vec<Image>,
    /// The files of all images.
    files: Vec<Arc<BackingFile>>,
}

struct Image {
    format: Arc<dyn Format>,
    /// Index of its first file among those of the chain.
    first_file: u32,
}

thread_local! {
    /// The result of a look-up. Reused, because allocating it is not part of the walk's cost.
    static ANSWER: RefCell<Extents> = const { RefCell::new(Extents::new()) };
}

impl NaiveChain {
    /// `images`: from the oldest, which has no parent, to the newest.
    pub(super) fn open(format: Chained, images: &[PathBuf]) -> Result<Self, OpenError> {
        let (mut opened, mut files) = (Vec::with_capacity(images.len()), Vec::new());
        for (number, path) in images.iter().enumerate().rev() {
            let format = match number {
                0 => OpenOptions { read_only: true, ..OpenOptions::new(path) }.open_format()?,
                _ => format.open_alone(path, Access::READ_ONLY)?,
            };
            let first_file = u32::try_from(files.len()).unwrap_or(u32::MAX);
            files.extend(format.files().iter().cloned());
            opened.push(Image { format, first_file });
        }
        let newest = opened.first().ok_or_else(|| OpenError::Unsupported {
            path: PathBuf::new(),
            reason: "a chain has at least one image".to_owned(),
        })?;
        Ok(Self { info: newest.format.info().clone(), images: opened, files })
    }

    /// The first extent of a range. `None`: an image has not read its tables there yet.
    fn first_piece(&self, offset: u64, len: u64, answer: &mut Extents) -> Result<Option<Extent>, IoError> {
        let mut len = len;
        for Image { format, first_file } in &self.images {
            answer.clear();
            if format.map_read(offset, len, answer)? == Mapping::Blocked {
                return Ok(None);
            }
            let first = answer.as_slice().first().ok_or(IoError::Damaged("the mapping is empty"))?;
            len = len.min(first.len);
            if let Place::File { file, offset } = first.place {
                return Ok(Some(Extent { len, place: Place::File { file: first_file + file, offset } }));
            }
        }
        Ok(Some(Extent { len, place: Place::Zeros }))
    }
}

impl Format for NaiveChain {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        &self.files
    }

    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        ANSWER.with_borrow_mut(|answer| {
            let mut done = 0;
            while done < len {
                let Some(piece) = self.first_piece(offset + done, len - done, answer)? else {
                    return Ok(Mapping::Blocked);
                };
                extents.push(piece.len, piece.place);
                done += piece.len;
            }
            Ok(Mapping::Ready)
        })
    }

    fn map_write(&self, _offset: u64, _len: u64, _extents: &mut Extents) -> Result<Mapping, IoError> {
        Err(IoError::ReadOnly)
    }

    fn prepare_read(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.images.iter().try_for_each(|image| image.format.prepare_read(offset, len))
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
        Err(IoError::ReadOnly)
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _may_unmap: bool) -> Result<(), IoError> {
        Err(IoError::ReadOnly)
    }
}

#[cfg(test)]
mod tests {
    use paradisk_disk_formats::image::Content;
    use paradisk_disk_formats::{FileDisk, OpenOptions};

    use super::*;
    use crate::bed::fill;

    const CAPACITY: usize = 4 << 20;
    const SECTOR: usize = 512;
    const IMAGES: usize = 6;
    /// No divisor of the block sizes, so that pieces cross blocks.
    const STRIDE: usize = 7 * SECTOR;

    /// Each image overwrites a part of the images below, at any sector, with data of its own.
    #[test]
    fn a_naive_walk_reads_what_the_flat_map_reads() {
        for format in [Chained::Vhd, Chained::Vhdx] {
            let folder = tempfile::tempdir().unwrap();
            let paths: Vec<_> = (0..IMAGES).map(|number| folder.path().join(format!("{number}"))).collect();
            let paths: Vec<_> = paths.iter().map(|path| path.with_extension(format.extension())).collect();
            let mut expected = vec![0; CAPACITY];
            for (number, path) in paths.iter().enumerate() {
                let image = if number == 0 {
                    format.base(path, CAPACITY as u64).unwrap();
                    OpenOptions::new(path).open_format().unwrap()
                } else {
                    format.child(path, &paths[number - 1]).unwrap();
                    format.open_alone(path, Access::default()).unwrap()
                };
                let content = Content::new(&*image);
                let pieces = (0..CAPACITY / STRIDE).filter(|piece| piece % (2 + 3 * number) == number);
                for at in pieces.map(|piece| piece * STRIDE) {
                    let len = (number + 1) * SECTOR;
                    let data: Vec<u8> =
                        (at..at + len).map(|byte| (byte / SECTOR + 31 * number) as u8 | 1).collect();
                    content.write_at(&data, at as u64).unwrap();
                    expected[at..at + len].copy_from_slice(&data);
                }
                image.flush().unwrap();
            }
            let flat =
                OpenOptions { read_only: true, ..OpenOptions::new(&paths[IMAGES - 1]) }.open().unwrap();
            let naive = FileDisk::new(Arc::new(NaiveChain::open(format, &paths).unwrap()));
            // In the second round, all tables are in memory.
            for _ in 0..2 {
                for (at, len) in [(0, 1 << 20), (SECTOR, 3 * SECTOR), (CAPACITY - (1 << 20), 1 << 20)] {
                    let read = |disk| fill::read(disk, at as u64, len).unwrap();
                    assert!(read(flat.as_ref()) == expected[at..at + len], "{format:?}, flat, at {at}");
                    assert!(read(&naive) == expected[at..at + len], "{format:?}, naive, at {at}");
                }
            }
        }
    }
}

//! A test format that uses all that the contract of a format allows: two files, sectors in descending order and
//! alternating between the files, each sector mappable only after it was prepared, and only for a short time, new
//! sectors filled with 0xEE, sectors of zeros beyond the end of a file.
#![expect(clippy::disallowed_types, reason = "a test reads what was recorded")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::contract::error::IoError;
use crate::contract::info::{DiskInfo, Kind, SectorSize};
use crate::formats::info::file_info;
use crate::formats::parents::ParentRules;
use crate::host::backing::{Access, BackingFile};
use crate::map::extent::{Extents, Place};
use crate::map::format::{Format, Mapping};
use crate::queue::conformance::Random;

const SECTOR: u64 = 512;

pub(crate) struct Scattered {
    info: DiskInfo,
    files: [Arc<BackingFile>; 2],
    state: Mutex<State>,
}

struct State {
    sectors: Vec<Sector>,
    /// Sectors that were prepared and can be mapped.
    warm: BTreeSet<usize>,
    allocated: u64,
    flushes: u32,
}

#[derive(Clone, Copy, Default)]
struct Sector {
    place: Option<(u32, u64)>,
    present: bool,
}

impl Scattered {
    /// A disk of `sectors` sectors in two new files. Every seventh sector is mapped beyond the end of the second file.
    pub(crate) fn create(folder: &Path, sectors: u64) -> Self {
        let open = |name: &str, content: &[u8]| {
            std::fs::write(folder.join(name), content).unwrap();
            Arc::new(BackingFile::open(&folder.join(name), Access::default()).unwrap())
        };
        let rubbish = vec![0xEE; (sectors * SECTOR) as usize];
        let files = [open("scattered.0", &rubbish), open("scattered.1", &[])];
        let kind = Kind { format: "scattered", subformat: None };
        let info = file_info(&files[0], kind, sectors * SECTOR, SectorSize::B512);
        let sector = |number: u64| match number % 7 {
            3 => Sector { place: Some((1, (sectors + number) * SECTOR)), present: true },
            _ => Sector::default(),
        };
        let sectors = (0..sectors).map(sector).collect();
        let state = State { sectors, warm: BTreeSet::new(), allocated: 0, flushes: 0 };
        Self { info, files, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn flushes(&self) -> u32 {
        self.state().flushes
    }

    fn map(&self, offset: u64, len: u64, extents: &mut Extents, write: bool) -> Mapping {
        let state = self.state();
        for number in numbers(offset, len) {
            let sector = state.sectors[number];
            let place = match sector.place {
                _ if !state.warm.contains(&number) => return Mapping::Blocked,
                Some((file, offset)) if write || sector.present => Place::File { file, offset },
                None if write => return Mapping::Blocked,
                _ => Place::Zeros,
            };
            extents.push(SECTOR, place);
        }
        Mapping::Ready
    }
}

fn numbers(offset: u64, len: u64) -> std::ops::Range<usize> {
    assert!(offset.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR));
    (offset / SECTOR) as usize..((offset + len) / SECTOR) as usize
}

impl Format for Scattered {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        &self.files
    }

    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        Ok(self.map(offset, len, extents, false))
    }

    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        Ok(self.map(offset, len, extents, true))
    }

    fn zeros_past_end(&self) -> bool {
        true
    }

    fn prepare_read(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.state().warm = numbers(offset, len).collect();
        Ok(())
    }

    fn prepare_write(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.prepare_read(offset, len)?;
        let mut state = self.state();
        let count = state.sectors.len() as u64;
        for number in numbers(offset, len) {
            if state.sectors[number].place.is_none() {
                let slot = state.allocated;
                state.sectors[number].place = Some(((slot % 2) as u32, (count - 1 - slot) * SECTOR));
                state.allocated += 1;
            }
        }
        Ok(())
    }

    fn written(&self, offset: u64, len: u64) {
        let mut state = self.state();
        numbers(offset, len).for_each(|number| state.sectors[number].present = true);
    }

    fn flush(&self) -> Result<(), IoError> {
        self.state().flushes += 1;
        self.files.iter().try_for_each(|file| file.sync())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
        Err(IoError::Unsupported)
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _may_unmap: bool) -> Result<(), IoError> {
        Err(IoError::Unsupported)
    }
}

/// Open a VHD.
pub(crate) fn vhd(path: &Path, access: Access) -> Arc<dyn Format> {
    crate::formats::vhd::open(path, access, &ParentRules::default()).unwrap()
}

/// Data, zeros and holes of various lengths; the same for the same seed.
pub(crate) fn sample(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    let mut data = vec![0; len];
    let mut at = 0;
    while at < len {
        let unit = [1, 511, 512, 4096, 4097, 65536, 300_000][random.below(7) as usize];
        let run = unit * (1 + random.below(4)) as usize;
        let end = (at + run).min(len);
        if random.below(3) != 0 {
            data[at..end].copy_from_slice(&random.bytes(end - at));
        }
        at = end;
    }
    data
}

/// Write a file with holes where `data` has whole blocks of zeros.
pub(crate) fn sparse(path: &Path, data: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).unwrap();
    file.set_len(data.len() as u64).unwrap();
    for part in super::holes::filled(data, 4096) {
        file.write_all_at(&data[part.clone()], part.start as u64).unwrap();
    }
}

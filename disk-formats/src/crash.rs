//! A file whose every change is on record: it can be cut anywhere, with any of the changes that were not durable lost.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use crate::IoError;
use crate::store::Store;

#[allow(clippy::disallowed_types, reason = "a test's file")]
type Mutex<T> = std::sync::Mutex<T>;

/// What is written at once by a medium.
const SECTOR: usize = 512;

/// Bytes that there is room for.
const CAPACITY: u64 = 64 << 20;

/// A change, as small as a medium does it.
#[derive(Clone, Debug)]
enum Change {
    Sector(u64, Box<[u8; SECTOR]>),
    Size(u64),
    /// Everything before is durable.
    Sync,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    log: Vec<Change>,
    /// Operations to do before all fail, where that is wanted.
    fuse: Option<u64>,
    /// The same of those that make the file longer: the host has no room.
    growth: Option<u64>,
}

/// The file.
#[derive(Clone, Default)]
pub(crate) struct CrashFile(Arc<Mutex<State>>);

impl CrashFile {
    /// With this content, all durable.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(State { bytes, ..State::default() })))
    }

    /// What it holds now.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no panic").bytes.clone()
    }

    /// Changes on record.
    pub(crate) fn len_of_log(&self) -> usize {
        self.0.lock().expect("no panic").log.len()
    }

    /// Fail every change from the `after`th on; `None`: none.
    pub(crate) fn fail(&self, after: Option<u64>) {
        self.0.lock().expect("no panic").fuse = after;
    }

    /// Fail every change that makes the file longer from the `after`th on; `None`: none.
    pub(crate) fn fail_growth(&self, after: Option<u64>) {
        self.0.lock().expect("no panic").growth = after;
    }

    /// The states that a power failure after the first `cut` changes may leave, begun from `base` (the content at first):
    /// those of `pick` subsets of the changes that were not durable. `pick` gets their number and says which survive.
    pub(crate) fn after_crash(
        &self,
        base: &[u8],
        cut: usize,
        mut pick: impl FnMut(usize) -> Option<Vec<bool>>,
        mut visit: impl FnMut(Vec<u8>),
    ) {
        let log = self.0.lock().expect("no panic").log.get(..cut).expect("a cut inside").to_vec();
        let durable = log.iter().rposition(|change| matches!(change, Change::Sync)).map_or(0, |at| at + 1);
        let mut settled = base.to_vec();
        log.iter().take(durable).for_each(|change| apply(&mut settled, change));
        let open = &log[durable..];
        while let Some(survives) = pick(open.len()) {
            let mut image = settled.clone();
            for (change, _) in open.iter().zip(survives).filter(|(_, survives)| *survives) {
                apply(&mut image, change);
            }
            visit(image);
        }
    }

    /// Changes after the last durable one at this cut.
    pub(crate) fn open_changes(&self, cut: usize) -> usize {
        let state = self.0.lock().expect("no panic");
        cut - state.log[..cut]
            .iter()
            .rposition(|change| matches!(change, Change::Sync))
            .map_or(0, |at| at + 1)
    }
}

fn apply(image: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Sector(offset, data) => {
            let at = *offset as usize;
            if image.len() < at + SECTOR {
                set_len(image, at + SECTOR);
            }
            image[at..at + SECTOR].copy_from_slice(&data[..]);
        }
        Change::Size(size) => set_len(image, *size as usize),
        Change::Sync => {}
    }
}

/// Cut, or grow with zeros; a copy of many is done faster than `resize` does each.
fn set_len(image: &mut Vec<u8>, len: usize) {
    image.truncate(len);
    image.extend_from_slice(&vec![0; len - image.len()]);
}

impl State {
    fn change(&mut self, change: Change) -> io::Result<()> {
        if let Some(left) = &mut self.fuse {
            if *left == 0 {
                return Err(io::Error::from_raw_os_error(28));
            }
            *left -= 1;
        }
        let end = match &change {
            Change::Sector(offset, _) => *offset + SECTOR as u64,
            Change::Size(size) => *size,
            Change::Sync => 0,
        };
        if end > self.bytes.len() as u64
            && let Some(left) = &mut self.growth
        {
            if *left == 0 {
                return Err(io::Error::from_raw_os_error(28));
            }
            *left -= 1;
        }
        if end > CAPACITY {
            return Err(io::Error::from_raw_os_error(28));
        }
        apply(&mut self.bytes, &change);
        self.log.push(change);
        Ok(())
    }

    fn write(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        assert!(data.len().is_multiple_of(SECTOR) && offset.is_multiple_of(SECTOR as u64), "whole sectors");
        for (number, sector) in data.chunks_exact(SECTOR).enumerate() {
            let sector: [u8; SECTOR] = sector.try_into().expect("a sector");
            self.change(Change::Sector(offset + (number * SECTOR) as u64, Box::new(sector)))?;
        }
        Ok(())
    }
}

impl Store for CrashFile {
    fn path(&self) -> &Path {
        Path::new("crash")
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().expect("no panic").bytes.len() as u64)
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.0.lock().expect("no panic");
        let from = state.bytes.get(offset as usize..).and_then(|rest| rest.get(..data.len()));
        data.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.lock().expect("no panic").write(data, offset)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.0.lock().expect("no panic").change(Change::Size(size))
    }

    fn reserve(&self, _start: u64, end: u64) -> io::Result<()> {
        let mut state = self.0.lock().expect("no panic");
        if (state.bytes.len() as u64) < end { state.change(Change::Size(end)) } else { Ok(()) }
    }

    fn write_zeroes(&self, offset: u64, len: u64, _may_unmap: bool) -> Result<(), IoError> {
        let zeros = vec![0; len as usize];
        self.0.lock().expect("no panic").write(&zeros, offset).map_err(|error| crate::store::io_error(&error))
    }

    /// Not as one change: a clone may be durable in part, as any write.
    fn share(&self, source: &dyn Store, from: u64, to: u64, len: u64) -> Result<(), Errno> {
        let mut data = vec![0; len as usize];
        source.read_at(&mut data, from).and_then(|()| self.write_at(&data, to)).map_err(|_| Errno::IO)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.lock().expect("no panic").change(Change::Sync)
    }
}

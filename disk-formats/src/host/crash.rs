//! A file for crash tests. It records every change. A test can cut the record after any change, and drop any subset of
//! the unflushed changes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use crate::contract::error::IoError;
use crate::host::store::Store;

#[allow(clippy::disallowed_types, reason = "a test's file")]
type Mutex<T> = std::sync::Mutex<T>;

/// Bytes that a medium writes atomically.
const SECTOR: usize = 512;

/// Unit of copy-on-write of an [`Image`].
const PAGE: usize = 4096;

/// Capacity in bytes.
const CAPACITY: u64 = 1 << 30;

/// A sector that repeats this value, so that a torn one is recognized.
pub(crate) fn stamped(value: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    bytes.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&value.to_le_bytes()));
    bytes
}

/// The value of a [`stamped`] sector; `None` if it is torn.
pub(crate) fn value_of(bytes: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(*bytes.first_chunk()?);
    bytes.chunks_exact(8).all(|part| part == value.to_le_bytes()).then_some(value)
}

/// The files of a format.
pub(crate) fn stores<'a>(files: impl IntoIterator<Item = &'a CrashFile>) -> Vec<Arc<dyn Store>> {
    files.into_iter().map(|file| Arc::new(file.clone()) as Arc<dyn Store>).collect()
}

/// A change that a medium makes atomically.
#[derive(Clone, Debug)]
enum Change {
    Sector(u64, Arc<[u8; SECTOR]>),
    /// Zeros in an existing range: offset and length.
    Zeros(u64, u64),
    /// Also recorded before a sector that makes the file longer: some file systems keep the new size and lose the data.
    Size(u64),
    /// A flush: all earlier changes are on stable storage.
    Sync,
}

/// Content of a file. Clones share unchanged pages.
#[derive(Clone, Default)]
pub(crate) struct Image {
    /// Pages by number. Missing pages are zeros, as is everything beyond `len`.
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
    len: u64,
}

impl Image {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let pages = bytes.chunks(PAGE).zip(0..).filter(|(page, _)| page.iter().any(|byte| *byte != 0));
        let page = |page: &[u8]| {
            let mut whole = [0; PAGE];
            whole[..page.len()].copy_from_slice(page);
            Arc::new(whole)
        };
        Self { pages: pages.map(|(bytes, at)| (at, page(bytes))).collect(), len: bytes.len() as u64 }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.read(&mut bytes, 0);
        bytes
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fill `data` from `offset`; zeros beyond the end.
    pub(crate) fn read(&self, data: &mut [u8], offset: u64) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let within = (at % PAGE as u64) as usize;
            let (part, behind) = rest.split_at_mut(rest.len().min(PAGE - within));
            match self.pages.get(&(at / PAGE as u64)) {
                Some(page) => part.copy_from_slice(&page[within..within + part.len()]),
                None => part.fill(0),
            }
            at += part.len() as u64;
            rest = behind;
        }
    }

    /// Write `data` at `offset`. The file grows as needed.
    pub(crate) fn write(&mut self, data: &[u8], offset: u64) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let within = (at % PAGE as u64) as usize;
            let (part, behind) = rest.split_at(rest.len().min(PAGE - within));
            let page = self.pages.entry(at / PAGE as u64).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within..within + part.len()].copy_from_slice(part);
            at += part.len() as u64;
            rest = behind;
        }
        self.len = self.len.max(at);
    }

    /// Zero a range, up to the end of the file.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        let (mut at, end) = (offset, offset.saturating_add(len).min(self.len));
        while at < end {
            let (number, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let part = (end - at).min((PAGE - within) as u64) as usize;
            if part == PAGE {
                // Remove all whole pages of the range.
                let inside: Vec<u64> =
                    self.pages.range(number..end / PAGE as u64).map(|(number, _)| *number).collect();
                inside.iter().for_each(|number| drop(self.pages.remove(number)));
                at = end / PAGE as u64 * PAGE as u64;
                continue;
            }
            if let Some(page) = self.pages.get_mut(&number) {
                Arc::make_mut(page)[within..within + part].fill(0);
            }
            at += part as u64;
        }
    }

    pub(crate) fn resize(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len - len);
        }
        self.len = len;
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Sector(offset, data) => self.write(&data[..], *offset),
            Change::Zeros(offset, len) => self.zero(*offset, *len),
            Change::Size(size) => self.resize(*size),
            Change::Sync => {}
        }
    }
}

#[derive(Default)]
struct State {
    image: Image,
    log: Vec<Change>,
    /// Time of each change, by a clock that the files of one machine share.
    times: Vec<u64>,
    clock: Arc<AtomicU64>,
    /// Number of changes until all later changes fail; `None`: no failure.
    fuse: Option<u64>,
    /// The same for changes that make the file longer (no space on the host).
    growth: Option<u64>,
}

/// A file that records its changes.
#[derive(Clone, Default)]
pub(crate) struct CrashFile(Arc<Mutex<State>>);

impl CrashFile {
    /// A file with this content, all flushed.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self::of(Image::new(&bytes))
    }

    /// A file with this content, all flushed.
    pub(crate) fn of(image: Image) -> Self {
        Self(Arc::new(Mutex::new(State { image, ..State::default() })))
    }

    /// Files with these contents, all flushed, that share a clock, so that their changes are ordered.
    pub(crate) fn together<'a>(images: impl IntoIterator<Item = &'a Image>) -> Vec<Self> {
        let clock = Arc::new(AtomicU64::new(0));
        let file =
            |image: &Image| State { image: image.clone(), clock: Arc::clone(&clock), ..State::default() };
        images.into_iter().map(|image| Self(Arc::new(Mutex::new(file(image))))).collect()
    }

    /// Number of changes of this file and of the files created [`together`](Self::together) with it.
    pub(crate) fn time(&self) -> u64 {
        self.state().clock.load(Ordering::Relaxed)
    }

    /// The content after a crash at `time` of a file that began as `base`. `survives` decides for each unflushed change
    /// whether it survives.
    pub(crate) fn left_at(&self, base: &Image, time: u64, mut survives: impl FnMut() -> bool) -> Image {
        let cut = self.state().times.partition_point(|at| *at < time);
        let (mut left, mut once) = (base.clone(), true);
        let pick = |open| std::mem::take(&mut once).then(|| (0..open).map(|_| survives()).collect());
        self.states(base, cut, pick, |image| left = image);
        left
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }

    /// Current content.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.image().bytes()
    }

    /// Current content.
    pub(crate) fn image(&self) -> Image {
        self.state().image.clone()
    }

    /// Bytes that a host would store: all but holes.
    pub(crate) fn stored(&self) -> u64 {
        (self.state().image.pages.len() * PAGE) as u64
    }

    /// Number of recorded changes.
    pub(crate) fn len_of_log(&self) -> usize {
        self.state().log.len()
    }

    /// Fail every change from number `after` on; `None`: no failure.
    pub(crate) fn fail(&self, after: Option<u64>) {
        self.state().fuse = after;
    }

    /// Fail every change that makes the file longer, from number `after` on; `None`: no failure.
    pub(crate) fn fail_growth(&self, after: Option<u64>) {
        self.state().growth = after;
    }

    /// As [`states`](Self::states), with byte vectors.
    pub(crate) fn after_crash(
        &self,
        base: &[u8],
        cut: usize,
        pick: impl FnMut(usize) -> Option<Vec<bool>>,
        mut visit: impl FnMut(Vec<u8>),
    ) {
        self.states(&Image::new(base), cut, pick, |image| visit(image.bytes()));
    }

    /// The possible states after a crash that follows the first `cut` changes, starting from `base`. `pick` gets the
    /// number of unflushed changes and returns which of them survive; it is called until it returns `None`.
    pub(crate) fn states(
        &self,
        base: &Image,
        cut: usize,
        pick: impl FnMut(usize) -> Option<Vec<bool>>,
        visit: impl FnMut(Image),
    ) {
        let log = self.state().log.get(..cut).expect("a cut inside").to_vec();
        let flushed = log.iter().rposition(|change| matches!(change, Change::Sync)).map_or(0, |at| at + 1);
        let mut settled = base.clone();
        log.iter().take(flushed).for_each(|change| settled.apply(change));
        subsets(&settled, &log[flushed..], pick, visit);
    }

    /// As [`states`](Self::states) for every cut in turn. `pick` and `visit` get the cut, too.
    pub(crate) fn all_states(
        &self,
        base: &Image,
        mut pick: impl FnMut(usize, usize) -> Option<Vec<bool>>,
        mut visit: impl FnMut(usize, Image),
    ) {
        let log = self.state().log.clone();
        let (mut settled, mut flushed) = (base.clone(), 0);
        for cut in 0..=log.len() {
            subsets(&settled, &log[flushed..cut], |open| pick(cut, open), |image| visit(cut, image));
            if matches!(log.get(cut), Some(Change::Sync)) {
                log[flushed..cut].iter().for_each(|change| settled.apply(change));
                flushed = cut + 1;
            }
        }
    }

    /// Number of unflushed changes at this cut.
    pub(crate) fn open_changes(&self, cut: usize) -> usize {
        let state = self.state();
        cut - state.log[..cut]
            .iter()
            .rposition(|change| matches!(change, Change::Sync))
            .map_or(0, |at| at + 1)
    }
}

/// Visit `settled` with subsets of the `open` changes applied.
fn subsets(
    settled: &Image,
    open: &[Change],
    mut pick: impl FnMut(usize) -> Option<Vec<bool>>,
    mut visit: impl FnMut(Image),
) {
    while let Some(survives) = pick(open.len()) {
        let mut image = settled.clone();
        for (change, _) in open.iter().zip(survives).filter(|(_, survives)| *survives) {
            image.apply(change);
        }
        visit(image);
    }
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
            Change::Zeros(offset, len) => *offset + *len,
            Change::Size(size) => *size,
            Change::Sync => 0,
        };
        if end > self.image.len()
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
        if matches!(change, Change::Sector(..)) && end > self.image.len() {
            self.record(Change::Size(end));
        }
        self.record(change);
        Ok(())
    }

    fn record(&mut self, change: Change) {
        self.image.apply(&change);
        self.log.push(change);
        self.times.push(self.clock.fetch_add(1, Ordering::Relaxed));
    }

    fn write(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        assert!(data.len().is_multiple_of(SECTOR) && offset.is_multiple_of(SECTOR as u64), "whole sectors");
        for (number, sector) in data.chunks_exact(SECTOR).enumerate() {
            let sector: [u8; SECTOR] = sector.try_into().expect("a sector");
            self.change(Change::Sector(offset + (number * SECTOR) as u64, Arc::new(sector)))?;
        }
        Ok(())
    }
}

impl Store for CrashFile {
    fn path(&self) -> &Path {
        Path::new("crash")
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state().image.len())
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.state();
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > state.image.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.image.read(data, offset);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.state().write(data, offset)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.state().change(Change::Size(size))
    }

    fn reserve(&self, _start: u64, end: u64) -> io::Result<()> {
        let mut state = self.state();
        if state.image.len() < end { state.change(Change::Size(end)) } else { Ok(()) }
    }

    fn write_zeroes(&self, offset: u64, len: u64, _may_unmap: bool) -> Result<(), IoError> {
        let change = Change::Zeros(offset, len);
        self.state().change(change).map_err(crate::host::store::io_error)
    }

    /// Recorded as single writes: after a crash a part of a clone may survive, as of any write.
    fn clone_range(&self, source: &dyn Store, from: u64, to: u64, len: u64) -> Result<(), Errno> {
        let mut data = vec![0; len as usize];
        source.read_at(&mut data, from).and_then(|()| self.write_at(&data, to)).map_err(|_| Errno::IO)
    }

    fn sync(&self) -> io::Result<()> {
        self.state().change(Change::Sync)
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        let state = self.state();
        let page = state.image.pages.range(offset / PAGE as u64..).next();
        Ok(page.map_or(u64::MAX, |(number, _)| (number * PAGE as u64).max(offset)))
    }
}

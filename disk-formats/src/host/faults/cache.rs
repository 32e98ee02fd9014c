//! A file in the page cache, and its content on stable storage.
//!
//! The file itself has the content that reads return. `Cached` has the pages that may differ from stable storage.
//! Sizes, holes and zeros by fallocate are file-system metadata: the next successful flush writes them, and a failed
//! flush does not undo them. Written pages are data: a failed flush marks them clean although the medium does not have
//! them.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

const PAGE: u64 = 4096;
const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

/// Content of a page; `None`: zeros.
type Content = Option<Arc<[u8; PAGE as usize]>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No dirty data; only metadata may differ.
    Clean,
    /// Written, and not yet written back.
    Dirty,
    /// Writeback failed: the cache has the data until the page is evicted.
    Lost,
}

struct Page {
    state: State,
    /// Content after a power failure.
    stable: Content,
    /// Content after an eviction of the page.
    below: Content,
}

/// The previous content of the pages of a write that is in flight.
pub(crate) struct Captured {
    offset: u64,
    through: bool,
    pages: Vec<(u64, Content)>,
}

pub(super) struct Cached {
    file: File,
    /// Size after a power failure.
    stable_len: u64,
    pages: BTreeMap<u64, Page>,
}

fn pages(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / PAGE..offset.saturating_add(len).div_ceil(PAGE)
}

impl Cached {
    /// A file that is entirely on stable storage.
    pub(super) fn new(file: impl AsFd) -> Self {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let file = File::options().read(true).write(true).open(path).expect("a file of the test");
        let stable_len = file.metadata().expect("its size").len();
        Self { file, stable_len, pages: BTreeMap::new() }
    }

    fn len(&self) -> u64 {
        self.file.metadata().expect("its size").len()
    }

    /// Current content of pages; zeros beyond the end.
    fn contents(&self, pages: std::ops::Range<u64>) -> Vec<(u64, Content)> {
        let mut bytes = vec![0; ((pages.end - pages.start) * PAGE) as usize];
        let mut have = 0;
        while have < bytes.len() {
            match self.file.read_at(&mut bytes[have..], pages.start * PAGE + have as u64).expect("a read") {
                0 => break,
                moved => have += moved,
            }
        }
        let content =
            |bytes: &[u8]| (bytes != &ZEROS[..]).then(|| Arc::new(bytes.try_into().expect("a page")));
        pages.zip(bytes.chunks_exact(PAGE as usize).map(content)).collect()
    }

    fn put(&self, page: u64, content: &Content) {
        let inside = self.len().saturating_sub(page * PAGE).min(PAGE) as usize;
        let bytes = content.as_ref().map_or(&ZEROS[..], |bytes| &bytes[..]);
        self.file.write_all_at(&bytes[..inside], page * PAGE).expect("a write");
    }

    /// A page with the content `before` is about to be written.
    fn dirty(&mut self, page: u64, before: Content) {
        let known = self.pages.entry(page).or_insert_with(|| Page {
            state: State::Clean,
            stable: before.clone(),
            below: before.clone(),
        });
        if known.state == State::Clean {
            known.below = before;
        }
        known.state = State::Dirty;
    }

    fn dirty_range(&mut self, offset: u64, len: u64) {
        for (page, before) in self.contents(pages(offset, len)) {
            self.dirty(page, before);
        }
    }

    pub(super) fn write(&mut self, data: &[u8], offset: u64) {
        self.dirty_range(offset, data.len() as u64);
        self.file.write_all_at(data, offset).expect("a write");
    }

    /// Capture the pages that a write is about to change.
    pub(super) fn capture(&self, offset: u64, len: u64, through: bool) -> Captured {
        Captured { offset, through, pages: self.contents(pages(offset, len)) }
    }

    /// The write has completed.
    pub(super) fn landed(&mut self, captured: Captured, moved: u64) {
        for (page, before) in captured.pages {
            self.dirty(page, before);
        }
        if captured.through {
            self.sync_range(captured.offset, moved);
        }
    }

    /// Zero a range by a metadata change. Partial pages are written instead.
    pub(super) fn zero(&mut self, offset: u64, len: u64) {
        let end = (offset + len).min(self.len());
        if end <= offset {
            return;
        }
        let (first, last) = (offset.next_multiple_of(PAGE).min(end), (end / PAGE * PAGE).max(offset));
        if first >= last {
            return self.write(&vec![0; (end - offset) as usize], offset);
        }
        self.write(&vec![0; (first - offset) as usize], offset);
        self.write(&vec![0; (end - last) as usize], last);
        self.forget(first / PAGE..last / PAGE);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, hole, first, last - first).expect("a hole");
    }

    /// Whole pages become holes by a metadata change.
    fn forget(&mut self, range: std::ops::Range<u64>) {
        for (page, before) in self.contents(range) {
            let known = self.pages.entry(page).or_insert_with(|| Page {
                state: State::Clean,
                stable: before.clone(),
                below: before,
            });
            (known.state, known.below) = (State::Clean, None);
        }
    }

    pub(super) fn set_len(&mut self, size: u64) {
        let len = self.len();
        if size < len {
            if !size.is_multiple_of(PAGE) {
                let end = size.next_multiple_of(PAGE).min(len);
                self.write(&vec![0; (end - size) as usize], size);
            }
            self.forget(size.div_ceil(PAGE)..len.div_ceil(PAGE));
        }
        self.file.set_len(size).expect("a size");
    }

    pub(super) fn allocate(&mut self, offset: u64, len: u64) {
        if self.len() < offset + len {
            self.file.set_len(offset + len).expect("a size");
        }
    }

    /// A successful flush: all pages reach stable storage, except those that were lost.
    pub(super) fn sync(&mut self) {
        self.stable_len = self.len();
        self.settle(|_| true);
    }

    /// A successful flush of a range, and of the size as far as the range reaches.
    pub(super) fn sync_range(&mut self, offset: u64, len: u64) {
        self.stable_len = self.stable_len.max(offset + len);
        let range = pages(offset, len);
        self.settle(|page| range.contains(&page));
    }

    fn settle(&mut self, within: impl Fn(u64) -> bool) {
        self.pages.retain(|number, page| {
            if !within(*number) {
                return true;
            }
            if page.state == State::Lost {
                page.stable = page.below.clone();
            }
            page.state == State::Lost
        });
    }

    /// A failed flush of a range.
    pub(super) fn lose(&mut self, offset: u64, len: u64, at_once: bool) {
        let range = pages(offset, len);
        for (_, page) in self.pages.range_mut(range).filter(|(_, page)| page.state == State::Dirty) {
            page.state = State::Lost;
        }
        if at_once {
            self.evict();
        }
    }

    /// Evict the clean pages. Returns whether the content may have changed.
    pub(super) fn evict(&mut self) -> bool {
        let mut lost = std::mem::take(&mut self.pages);
        let mut changed = false;
        for (number, page) in lost.iter_mut().filter(|(_, page)| page.state == State::Lost) {
            self.put(*number, &page.below);
            (page.state, changed) = (State::Clean, true);
        }
        self.pages = lost;
        changed
    }

    /// Drop everything that was not flushed. Returns whether the content may have changed.
    pub(super) fn power_loss(&mut self) -> bool {
        let changed = !self.pages.is_empty() || self.len() != self.stable_len;
        if changed {
            self.file.set_len(self.stable_len).expect("a size");
            for (number, page) in std::mem::take(&mut self.pages) {
                self.put(number, &page.stable);
            }
        }
        changed
    }
}

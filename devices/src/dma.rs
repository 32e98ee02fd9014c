//! A device's accesses to guest memory: typed accesses, scatter lists for disk I/O, and ring pages at a fixed address.
//!
//! # Why this is sound
//! Guest memory is shared with virtual CPUs and with the kernel. The only Rust references to it here are to atomics. All other data are
//! copied through raw pointers, and each value is read once.
//!
//! Each host address comes from a `vm_memory` snapshot, and the snapshot is kept:
//! - a [`GuestPage`] carries a clone of it, so its address stays mapped as long as the page lives;
//! - the addresses that [`Dma::translate`] returns stay mapped until [`Dma::release`]. A device calls `release` only when none of its
//!   requests is in flight ([`quiesce`](crate::IoDevice::quiesce), reset), so the kernel never writes to unmapped memory;
//! - [`Dma::replaced`] drops old snapshots while requests are in flight, if the new snapshot maps each region that they use at the same
//!   address. The [`Footprint`] of a request has the regions that it uses.
//!
//! So an owner that *unmaps* memory must first let the device end the requests that use it ([`uses_memory`](crate::IoDevice::uses_memory));
//! until then the device's snapshots keep it mapped. A range that is added later needs no call. Writes are not recorded in vm-memory's
//! dirty bitmaps.
#![allow(unsafe_code, reason = "host addresses of guest memory")]

mod footprint;
mod page;
mod view;
mod window;

use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use paradisk_disk_formats::IoBuf;
use vm_memory::{GuestAddress, GuestAddressSpace, GuestMemory, Permissions};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

pub(crate) use footprint::Footprint;
use footprint::Regions;
pub(crate) use page::GuestPage;
pub(crate) use view::{Span, Spans, View};
use window::{NO_WINDOW, Window, window};
pub(crate) use window::{PAGE_SIZE, overlap};

/// A guest-physical range that is not memory, or does not permit the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len:#x} bytes at guest-physical {address:#x} are not guest memory")]
pub(crate) struct DmaError {
    /// First byte.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) len: u64,
}

/// Direction of the device's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The device reads it.
    Read,
    /// The device writes it.
    Write,
}

impl Access {
    const fn permissions(self) -> Permissions {
        match self {
            Self::Read => Permissions::Read,
            Self::Write => Permissions::Write,
        }
    }
}

/// A device's view of guest memory.
pub struct Dma<A: GuestAddressSpace> {
    space: A,
    memory: A::T,
    window: Window,
    /// Snapshots that were replaced while requests could still point into them.
    retired: Vec<A::T>,
    /// Regions that requests may point into.
    regions: Regions,
    /// The footprint of the window's region.
    window_mark: Footprint,
    /// What was translated since the last [`next_request`](Self::next_request).
    touched: Footprint,
    /// Memory that is about to be unmapped: [`translate`](Self::translate) refuses it.
    refused: Vec<Range<u64>>,
}

// SAFETY: the only member that is not `Send` by its type is the host address in `window`. It points into the mapping
// that `memory` keeps and is not tied to a thread.
unsafe impl<A: GuestAddressSpace + Send> Send for Dma<A> where A::T: Send {}

impl<A: GuestAddressSpace> Dma<A> {
    /// A view of `space`, including memory that is added later.
    pub(crate) fn new(space: A) -> Self {
        let memory = space.memory();
        Self {
            space,
            memory,
            window: NO_WINDOW,
            retired: Vec::new(),
            regions: Regions::default(),
            window_mark: Footprint::NONE,
            touched: Footprint::NONE,
            refused: Vec::new(),
        }
    }

    /// The current snapshot of the guest's memory. Do not keep it after the device's call returns to the owner.
    pub(crate) fn memory(&self) -> A::T {
        self.space.memory()
    }

    /// The current snapshot, for many small accesses.
    pub(crate) fn view(&self) -> View<A::T> {
        View::new(self.memory())
    }

    /// Release memory that the owner has removed. No request may be in flight.
    pub(crate) fn release(&mut self) {
        self.retired.clear();
        self.memory = self.space.memory();
        self.window = NO_WINDOW;
        self.regions = Regions::default();
        self.refused.clear();
    }

    /// The translations after this call belong to a new request.
    #[inline]
    pub(crate) const fn next_request(&mut self) {
        self.touched = Footprint::NONE;
    }

    /// The regions that the request uses.
    #[inline]
    pub(crate) const fn footprint(&self) -> Footprint {
        self.touched
    }

    /// The region around this address.
    pub(crate) fn region_of(&mut self, address: u64) -> Footprint {
        window(&*self.memory, address).map_or(Footprint::NONE, |region| self.regions.mark(region))
    }

    /// The regions in these guest-physical ranges that requests may use, and [`Footprint::OTHER`].
    pub(crate) fn users_of(&self, ranges: &[Range<u64>]) -> Footprint {
        self.regions.inside(ranges)
    }

    /// Refuse translations into these ranges until memory is [replaced](Self::replaced) or [released](Self::release).
    pub(crate) fn refuse(&mut self, ranges: &[Range<u64>]) {
        self.refused.extend_from_slice(ranges);
        self.window = NO_WINDOW;
    }

    /// The owner has replaced the memory. Release the memory that it has removed. Requests in flight use at most `in_use`. If the new
    /// memory does not have all of `in_use`, the old snapshots are kept.
    pub(crate) fn replaced(&mut self, in_use: Footprint) {
        self.refused.clear();
        self.window = NO_WINDOW;
        let fresh = self.space.memory();
        let old = std::mem::replace(&mut self.memory, fresh);
        let kept = |region: &Window| window(&*self.memory, region.start).is_some_and(|now| now == *region);
        let lost = self.regions.without(kept);
        if in_use.meets(lost) {
            self.retired.push(old);
        } else {
            self.retired.clear();
            self.regions.forget(lost);
        }
    }

    /// Append the host memory of `len` bytes at `address`, in one piece or several. After an error, `bufs` is unchanged.
    ///
    /// # Errors
    /// [`DmaError`] if part of the range is not memory, or does not permit the access.
    #[inline]
    pub(crate) fn translate(
        &mut self,
        address: u64,
        len: u64,
        access: Access,
        bufs: &mut Vec<IoBuf>,
    ) -> Result<(), DmaError> {
        if self.translate_in_window(address, len, bufs) {
            return Ok(());
        }
        self.translate_slowly(address, len, access, bufs)
    }

    /// The host memory of a range of at least one byte, if the range is inside the window: the region of the last translation. Most
    /// requests need only this, and no list. `None`: call [`translate`](Self::translate). The direction of the access does not matter,
    /// because the device may read and write every region that becomes the window.
    #[inline(always)]
    pub(crate) fn piece(&mut self, address: u64, len: u64) -> Option<IoBuf> {
        let offset = address.wrapping_sub(self.window.start);
        if len == 0 || offset >= self.window.len || len > self.window.len - offset {
            return None;
        }
        self.touched |= self.window_mark;
        // SAFETY: `[offset, offset + len)` lies inside the window, which is mapped as long as `memory` or `retired` keeps its snapshot:
        // until `release`, called with no request in flight, or `replaced`, which checks the region marked here.
        Some(unsafe { IoBuf::new(self.window.host.add(offset as usize), len as usize) })
    }

    /// Append the host memory of the range, if it is inside the window.
    #[inline]
    fn translate_in_window(&mut self, address: u64, len: u64, bufs: &mut Vec<IoBuf>) -> bool {
        if let Some(piece) = self.piece(address, len) {
            bufs.push(piece);
            return true;
        }
        len == 0 && address.wrapping_sub(self.window.start) < self.window.len
    }

    #[cold]
    fn translate_slowly(
        &mut self,
        address: u64,
        len: u64,
        access: Access,
        bufs: &mut Vec<IoBuf>,
    ) -> Result<(), DmaError> {
        let before = bufs.len();
        // Most of the time the range is inside another region.
        self.move_near(address);
        if self.translate_in_window(address, len, bufs) {
            return Ok(());
        }
        if self.is_refused(address, len) {
            return Err(DmaError { address, len });
        }
        if push_slices(&*self.memory, address, len, access, bufs).is_err() {
            // Memory may have been added since the snapshot was taken.
            bufs.truncate(before);
            let fresh = self.space.memory();
            if let Err(error) = push_slices(&*fresh, address, len, access, bufs) {
                bufs.truncate(before);
                return Err(error);
            }
            self.retired.push(std::mem::replace(&mut self.memory, fresh));
            self.window = NO_WINDOW;
        }
        let mut at = address;
        for piece in bufs.get(before..).unwrap_or_default() {
            self.touched |= match window(&*self.memory, at) {
                Some(region) => self.regions.mark(region),
                None => Footprint::OTHER,
            };
            at += piece.len() as u64;
        }
        self.move_near(address);
        Ok(())
    }

    fn is_refused(&self, address: u64, len: u64) -> bool {
        self.refused.iter().any(|range| overlap(range, address, len))
    }

    /// Move the window to the region around an address, if there is one and no part of it is refused.
    #[inline]
    fn move_near(&mut self, address: u64) {
        if address.wrapping_sub(self.window.start) >= self.window.len {
            self.move_window(address);
        }
    }

    #[cold]
    fn move_window(&mut self, address: u64) {
        if let Some(region) = window(&*self.memory, address)
            && !self.is_refused(region.start, region.len)
        {
            self.window_mark = self.regions.mark(region);
            self.window = region;
        }
    }

    /// The host address of a range inside one region.
    #[inline(always)]
    fn near(&mut self, address: u64, len: usize) -> Option<*mut u8> {
        self.move_near(address);
        let offset = address.wrapping_sub(self.window.start);
        let inside = offset < self.window.len && len as u64 <= self.window.len - offset;
        // SAFETY: inside the window, which is mapped as in `piece`; not used after the caller returns.
        inside.then(|| unsafe { self.window.host.add(offset as usize) })
    }

    /// Read a structure.
    ///
    /// # Errors
    /// [`DmaError`] where part of it is outside memory.
    #[inline(always)]
    pub(crate) fn read<T: FromBytes + IntoBytes>(&mut self, address: u64) -> Result<T, DmaError> {
        let mut value = T::new_zeroed();
        self.copy(address, size_of::<T>(), Access::Read, |at, piece| {
            piece.read(&mut value.as_mut_bytes()[at..]);
        })?;
        Ok(value)
    }

    /// Read little-endian qwords. If they are aligned inside one region, each is loaded into a register: with a copy in memory, loads of
    /// its parts would wait for its stores.
    ///
    /// # Errors
    /// [`DmaError`] where part of them is outside memory.
    #[inline(always)]
    pub(crate) fn read_qwords<const N: usize>(&mut self, address: u64) -> Result<[u64; N], DmaError> {
        match self.near(address, 8 * N).map(<*mut u8>::cast::<u64>).filter(|at| at.is_aligned()) {
            Some(at) => {
                // SAFETY: inside guest memory by `near`, and aligned. Each is read once.
                let load = |index| unsafe { at.wrapping_add(index).read_volatile() };
                Ok(std::array::from_fn(|index| u64::from_le(load(index))))
            }
            None => self.read_qwords_slowly(address),
        }
    }

    #[cold]
    fn read_qwords_slowly<const N: usize>(&mut self, address: u64) -> Result<[u64; N], DmaError> {
        let qwords: [U64; N] = self.read(address)?;
        Ok(qwords.map(U64::get))
    }

    /// Write a little-endian qword and then a dword.
    ///
    /// # Errors
    /// [`DmaError`] where part of them is outside memory.
    #[inline(always)]
    pub(crate) fn write_words(&mut self, address: u64, first: u64, second: u32) -> Result<(), DmaError> {
        match self.near(address, 12) {
            Some(at) => {
                // SAFETY: inside guest memory by `near`.
                unsafe { at.cast::<u64>().write_unaligned(first.to_le()) };
                // SAFETY: as above.
                unsafe { at.wrapping_add(8).cast::<u32>().write_unaligned(second.to_le()) };
                Ok(())
            }
            None => self.write_words_slowly(address, first, second),
        }
    }

    #[cold]
    fn write_words_slowly(&mut self, address: u64, first: u64, second: u32) -> Result<(), DmaError> {
        let mut bytes = [0; 12];
        let (low, high) = bytes.split_at_mut(8);
        low.copy_from_slice(&first.to_le_bytes());
        high.copy_from_slice(&second.to_le_bytes());
        self.write_bytes(address, &bytes)
    }

    /// Write a byte.
    ///
    /// # Errors
    /// [`DmaError`] where it is outside memory.
    #[inline(always)]
    pub(crate) fn write_byte(&mut self, address: u64, value: u8) -> Result<(), DmaError> {
        match self.near(address, 1) {
            Some(at) => {
                // SAFETY: inside guest memory by `near`.
                unsafe { at.write_volatile(value) };
                Ok(())
            }
            None => self.write_bytes(address, &[value]),
        }
    }

    /// Read bytes.
    ///
    /// # Errors
    /// [`DmaError`] where part of them is outside memory.
    #[inline(always)]
    pub(crate) fn read_bytes(&mut self, address: u64, data: &mut [u8]) -> Result<(), DmaError> {
        self.copy(address, data.len(), Access::Read, |at, piece| {
            piece.read(&mut data[at..]);
        })
    }

    /// Write bytes.
    ///
    /// # Errors
    /// [`DmaError`] if part of them is outside memory; then nothing was written.
    #[inline(always)]
    pub(crate) fn write_bytes(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        self.copy(address, data.len(), Access::Write, |at, piece| {
            piece.write(&data[at..]);
        })
    }

    /// Call `each` with the offset and the host memory of every piece of the range, if all of it is memory. Always inlined: most callers
    /// pass a constant length, and a copy of a constant length is a few moves.
    #[inline(always)]
    fn copy(
        &mut self,
        address: u64,
        len: usize,
        access: Access,
        mut each: impl FnMut(usize, &IoBuf),
    ) -> Result<(), DmaError> {
        match self.near(address, len) {
            Some(host) => {
                // SAFETY: inside guest memory by `near`; not used after this returns.
                each(0, &unsafe { IoBuf::new(host, len) });
                // Without this fence, the compiler may read guest memory again instead of the copy.
                compiler_fence(Ordering::SeqCst);
            }
            None => {
                let mut at = 0;
                for piece in &self.pieces(address, len as u64, access)? {
                    each(at, piece);
                    at += piece.len();
                }
            }
        }
        Ok(())
    }

    /// The pieces of a range that crosses regions, or is in a region with refused memory.
    #[cold]
    fn pieces(&mut self, address: u64, len: u64, access: Access) -> Result<Vec<IoBuf>, DmaError> {
        // A copy ends in this call. So it belongs to no request, and may access refused memory, which is mapped until it is replaced.
        let (touched, refused) = (self.touched, std::mem::take(&mut self.refused));
        let mut bufs = Vec::new();
        let translated = self.translate_slowly(address, len, access, &mut bufs);
        (self.touched, self.refused) = (touched, refused);
        if !self.refused.is_empty() {
            self.window = NO_WINDOW;
        }
        translated.map(|()| bufs)
    }

    /// The page with this number. Its host address stays valid as long as the page lives.
    ///
    /// # Errors
    /// [`DmaError`] if part of the page is not memory, or if it is not in one piece.
    pub(crate) fn page(&mut self, number: u64) -> Result<GuestPage<A::T>, DmaError> {
        let error = DmaError { address: number.saturating_mul(PAGE_SIZE), len: PAGE_SIZE };
        let address = number.checked_mul(PAGE_SIZE).ok_or(error)?;
        let mut bufs = Vec::new();
        self.translate(address, PAGE_SIZE, Access::Write, &mut bufs)?;
        let [piece] = bufs.as_slice() else { return Err(error) };
        // SAFETY: the piece is as long as a page, and mapped as long as the snapshot lives.
        unsafe { GuestPage::new(piece.addr(), self.memory.clone()) }.ok_or(error)
    }
}

/// The pieces of any range (slow).
fn push_slices<M: GuestMemory + ?Sized>(
    memory: &M,
    address: u64,
    len: u64,
    access: Access,
    bufs: &mut Vec<IoBuf>,
) -> Result<(), DmaError> {
    let error = DmaError { address, len };
    // Without this check, a length beyond all memory would be walked piece by piece up to the first hole.
    if address.checked_add(len).is_none() {
        return Err(error);
    }
    let count = usize::try_from(len).map_err(|_| error)?;
    let slices = memory.get_slices(GuestAddress(address), count, access.permissions()).map_err(|_| error)?;
    for slice in slices {
        let slice = slice.map_err(|_| error)?;
        // SAFETY: the slice is mapped memory of that length; the caller keeps `memory` until `release` or `replaced`, as in `piece`.
        bufs.push(unsafe { IoBuf::new(slice.ptr_guard_mut().as_ptr(), slice.len()) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vm_memory::{Bytes, GuestMemoryAtomic, GuestMemoryMmap};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(ranges: &[(u64, u64)]) -> GuestMemoryMmap {
        let ranges: Vec<_> = ranges.iter().map(|&(start, len)| (GuestAddress(start), len as usize)).collect();
        GuestMemoryMmap::from_ranges(&ranges).unwrap()
    }

    #[test]
    fn ranges_inside_memory_translate_and_others_do_not() {
        // Two adjacent regions, and one after a hole.
        let memory = Arc::new(memory(&[(0, MIB), (MIB, MIB), (4 * MIB, MIB)]));
        let mut dma = Dma::new(memory.clone());
        let mut bufs = Vec::new();
        for (address, len, pieces) in [
            (0, 1, 1),
            (MIB - 1, 1, 1),
            (MIB - 512, 1024, 2),
            (0, 2 * MIB, 2),
            (5 * MIB - 4096, 4096, 1),
            (0, 0, 0),
        ] {
            bufs.clear();
            dma.translate(address, len, Access::Read, &mut bufs).unwrap();
            assert_eq!(bufs.len(), pieces, "{address:#x}+{len:#x}");
            assert_eq!(paradisk_disk_formats::total_len(&bufs), Some(len));
        }
        for (address, len) in [
            (2 * MIB, 1),
            (2 * MIB - 1, 2),
            (5 * MIB, 1),
            (5 * MIB - 1, 2),
            (4 * MIB - 1, 2),
            (u64::MAX, 1),
            (u64::MAX, u64::MAX),
            (0, u64::MAX),
            (MIB, u64::MAX - MIB + 1),
        ] {
            let before = bufs.len();
            assert_eq!(
                dma.translate(address, len, Access::Read, &mut bufs),
                Err(DmaError { address, len }),
                "{address:#x}+{len:#x}"
            );
            assert_eq!(bufs.len(), before);
        }
    }

    #[test]
    fn structures_cross_regions() {
        let memory = Arc::new(memory(&[(0, MIB), (MIB, MIB)]));
        let mut dma = Dma::new(memory.clone());
        dma.write_bytes(MIB - 3, &[1u8, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!(dma.read::<[u8; 8]>(MIB - 3).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(memory.read_obj::<u32>(GuestAddress(MIB)).unwrap(), u32::from_le_bytes([4, 5, 6, 7]));
        assert!(dma.write_bytes(2 * MIB - 4, &0u64.to_le_bytes()).is_err());
        assert!(dma.read::<[u8; 8]>(2 * MIB - 4).is_err());
    }

    #[test]
    fn memory_added_later_is_found_and_old_pages_stay_mapped() {
        let space = GuestMemoryAtomic::new(memory(&[(0, MIB)]));
        let mut dma = Dma::new(space.clone());
        let page = dma.page(255).unwrap();
        assert!(dma.page(256).is_err());
        let more = memory(&[(MIB, MIB)]);
        space.lock().unwrap().replace(more);
        assert!(dma.page(256).is_ok());
        // The first region is no longer in the map, but this page keeps its mapping.
        page.store(4092, 7, Ordering::Relaxed);
        assert_eq!(page.load(4092, Ordering::Relaxed), 7);
        dma.release();
        assert!(dma.page(255).is_err());
    }

    #[test]
    fn pages_end_with_memory() {
        let memory = Arc::new(memory(&[(0, MIB + 512)]));
        let mut dma = Dma::new(memory);
        assert!(dma.page(255).is_ok());
        for number in [256, 1 << 51, 1 << 52, u64::MAX] {
            assert!(dma.page(number).is_err(), "{number:#x}");
        }
    }

    #[test]
    #[should_panic(expected = "outside a guest page")]
    fn a_page_has_an_end() {
        let page = Dma::new(Arc::new(memory(&[(0, MIB)]))).page(0).unwrap();
        let _ = page.load(4096, Ordering::Relaxed);
    }
}

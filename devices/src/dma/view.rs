//! Guest memory for many small accesses.

use std::cell::Cell;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use vm_memory::bitmap::{BS, BitmapSlice};
use vm_memory::guest_memory::{GuestMemorySliceIterator, Result};
use vm_memory::{GuestAddress, GuestMemory, Permissions, VolatileSlice};

use super::window::{NO_WINDOW, Window, window};

/// A snapshot of guest memory that caches the region of the last access: most accesses of a batch are to one region. Writes are not
/// recorded in dirty bitmaps.
pub(crate) struct View<T> {
    memory: T,
    window: Cell<Window>,
}

/// Guest memory with a host address for a range.
pub trait Spans: GuestMemory {
    /// The range, if it is inside one region and not empty.
    fn span(&self, address: u64, len: u64) -> Option<Span<'_>>;
}

/// A range of guest memory with one host address, valid as long as the memory is borrowed. Accesses outside the range, and unaligned ones,
/// are not made. Each load reads memory once.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    host: *mut u8,
    len: usize,
    _memory: PhantomData<&'a ()>,
}

impl Span<'_> {
    /// The address of a value of this type at `offset`, if it is inside the range and aligned.
    #[inline(always)]
    fn at<V>(&self, offset: usize) -> Option<*mut V> {
        let size = size_of::<V>();
        // The first comparison rules out an underflow in the second.
        if offset >= self.len || self.len - offset < size {
            return None;
        }
        // SAFETY: inside the span by the check above.
        let at = unsafe { self.host.add(offset) }.cast::<V>();
        at.is_aligned().then_some(at)
    }

    /// Load a little-endian word.
    #[inline(always)]
    pub(crate) fn load_u16(&self, offset: usize, ordering: Ordering) -> Option<u16> {
        // SAFETY: `at` has checked bounds and alignment; the memory is borrowed. The guest's accesses to it are outside Rust's
        // memory model and, on this architecture, atomic.
        let word = self.at(offset).map(|at| unsafe { AtomicU16::from_ptr(at) });
        word.map(|word| u16::from_le(word.load(ordering)))
    }

    /// Store a little-endian word. `None`: it was not stored.
    #[inline(always)]
    pub(crate) fn store_u16(&self, offset: usize, value: u16, ordering: Ordering) -> Option<()> {
        // SAFETY: as in `load_u16`.
        let word = self.at(offset).map(|at| unsafe { AtomicU16::from_ptr(at) });
        word.map(|word| word.store(value.to_le(), ordering))
    }

    /// Store two adjacent little-endian dwords. `None`: they were not stored.
    #[inline(always)]
    pub(crate) fn store_u32s(&self, offset: usize, values: [u32; 2]) -> Option<()> {
        // SAFETY: as in `load_u16`.
        let dwords = self.at::<[u32; 2]>(offset).map(|at| unsafe {
            (AtomicU32::from_ptr(at.cast()), AtomicU32::from_ptr(at.cast::<u32>().wrapping_add(1)))
        });
        dwords.map(|(first, second)| {
            first.store(values[0].to_le(), Ordering::Relaxed);
            second.store(values[1].to_le(), Ordering::Relaxed);
        })
    }

    /// Load two adjacent little-endian qwords.
    #[inline(always)]
    pub(crate) fn load_u64s(&self, offset: usize) -> Option<[u64; 2]> {
        // SAFETY: as in `load_u16`.
        let qwords = self.at::<[u64; 2]>(offset).map(|at| unsafe {
            [AtomicU64::from_ptr(at.cast()), AtomicU64::from_ptr(at.cast::<u64>().wrapping_add(1))]
        });
        qwords.map(|qwords| qwords.map(|qword| u64::from_le(qword.load(Ordering::Relaxed))))
    }
}

impl<T> View<T>
where
    T: Deref,
    T::Target: GuestMemory,
{
    pub(crate) const fn new(memory: T) -> Self {
        Self { memory, window: Cell::new(NO_WINDOW) }
    }

    /// The range, if it is inside one region.
    #[inline]
    fn near(&self, address: u64, count: usize) -> Option<VolatileSlice<'_>> {
        self.inside(address, count).or_else(|| self.moved_near(address, count))
    }

    #[inline]
    fn inside(&self, address: u64, count: usize) -> Option<VolatileSlice<'_>> {
        let Span { host, len, .. } = self.span_inside(address, count as u64)?;
        // SAFETY: the span is mapped memory for as long as this borrow of `self`.
        Some(unsafe { VolatileSlice::new(host, len) })
    }

    #[inline(always)]
    fn span_inside(&self, address: u64, count: u64) -> Option<Span<'_>> {
        let Window { start, len, host } = self.window.get();
        let offset = address.wrapping_sub(start);
        if count == 0 || offset >= len || count > len - offset {
            return None;
        }
        // SAFETY: `[offset, offset + count)` is inside the window, which is mapped as long as `memory` lives: at least as long as this
        // borrow of `self`.
        Some(Span { host: unsafe { host.add(offset as usize) }, len: count as usize, _memory: PhantomData })
    }

    #[cold]
    fn moved_span(&self, address: u64, count: u64) -> Option<Span<'_>> {
        self.window.set(window(&*self.memory, address)?);
        self.span_inside(address, count)
    }

    #[cold]
    fn moved_near(&self, address: u64, count: usize) -> Option<VolatileSlice<'_>> {
        self.window.set(window(&*self.memory, address)?);
        self.inside(address, count)
    }
}

impl<T> Spans for View<T>
where
    T: Deref,
    T::Target: GuestMemory,
{
    #[inline(always)]
    fn span(&self, address: u64, len: u64) -> Option<Span<'_>> {
        self.span_inside(address, len).or_else(|| self.moved_span(address, len))
    }
}

impl<T> GuestMemory for View<T>
where
    T: Deref,
    T::Target: GuestMemory,
{
    type PhysicalMemory = <T::Target as GuestMemory>::PhysicalMemory;
    type Bitmap = ();

    fn check_range(&self, address: GuestAddress, count: usize, access: Permissions) -> bool {
        self.memory.check_range(address, count, access)
    }

    #[inline]
    fn get_slices<'a>(
        &'a self,
        address: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'a, BS<'a, ()>>> {
        let near = self.near(address.0, count);
        let far = match near {
            Some(_) => None,
            None => Some(self.memory.get_slices(address, count, access)?),
        };
        Ok(Slices { near, far })
    }

    fn physical_memory(&self) -> Option<&Self::PhysicalMemory> {
        self.memory.physical_memory()
    }
}

/// The one slice inside the cached region, or slices of any regions.
struct Slices<'a, I> {
    near: Option<VolatileSlice<'a>>,
    far: Option<I>,
}

impl<'a, B, I> Iterator for Slices<'a, I>
where
    B: BitmapSlice + 'a,
    I: Iterator<Item = Result<VolatileSlice<'a, B>>> + FusedIterator,
{
    type Item = Result<VolatileSlice<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if let Some(near) = self.near.take() {
            return Some(Ok(near));
        }
        let slice = self.far.as_mut()?.next()?;
        // SAFETY: the same memory for the same lifetime, without its bitmap.
        Some(slice.map(|slice| unsafe { VolatileSlice::new(slice.ptr_guard_mut().as_ptr(), slice.len()) }))
    }
}

impl<'a, B, I> FusedIterator for Slices<'a, I>
where
    B: BitmapSlice + 'a,
    I: Iterator<Item = Result<VolatileSlice<'a, B>>> + FusedIterator,
{
}

impl<'a, B, I> GuestMemorySliceIterator<'a, BS<'a, ()>> for Slices<'a, I>
where
    B: BitmapSlice + 'a,
    I: Iterator<Item = Result<VolatileSlice<'a, B>>> + FusedIterator,
{
    #[inline]
    fn stop_on_error(mut self) -> Result<impl Iterator<Item = VolatileSlice<'a>>> {
        let first = self.next().transpose()?;
        Ok(UntilError { first, rest: self })
    }
}

/// Slices up to the first error.
struct UntilError<'a, I> {
    first: Option<VolatileSlice<'a>>,
    rest: I,
}

impl<'a, I: Iterator<Item = Result<VolatileSlice<'a>>>> Iterator for UntilError<'a, I> {
    type Item = VolatileSlice<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self.first.take() {
            Some(first) => Some(first),
            None => self.rest.next()?.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use vm_memory::{Bytes, GuestMemoryMmap};

    use super::*;

    /// Accesses through a view and without it have the same results.
    #[test]
    fn a_view_is_the_memory() {
        // Two adjacent regions, and one after a hole.
        let ranges =
            [(0, 0x1000), (0x1000, 0x1000), (0x4000, 0x1000)].map(|(at, len)| (GuestAddress(at), len));
        let memory = GuestMemoryMmap::<()>::from_ranges(&ranges).unwrap();
        let view = View::new(&memory);
        for (n, address) in
            [0, 0xff0, 0xfff, 0xffc, 0x1ffc, 0x1fff, 0x2000, 0x3ffe, 0x4000, 0x4ff8, 0x4ffe, 0x5000, u64::MAX]
                .into_iter()
                .enumerate()
        {
            let at = GuestAddress(address);
            let data = [n as u8 + 1; 8];
            for len in [0, 1, 4, 8] {
                assert_eq!(
                    view.write(&data[..len], at).ok(),
                    memory.write(&data[..len], at).ok(),
                    "{address:#x} {len}"
                );
                let (mut one, mut other) = ([0; 8], [0; 8]);
                let read = view.read(&mut one[..len], at).ok();
                assert_eq!(read, memory.read(&mut other[..len], at).ok(), "{address:#x} {len}");
                assert_eq!(one, other);
                assert_eq!(read.is_some_and(|read| read == len), view.write_slice(&one[..len], at).is_ok());
            }
            let stored = view.store(0x1234u16, at, Ordering::Relaxed).is_ok();
            assert_eq!(stored, memory.load::<u16>(at, Ordering::Relaxed).is_ok_and(|value| value == 0x1234));
            for len in [0, 1, 2, 8, 16, u64::MAX] {
                let inside = ranges.iter().any(|(start, size)| {
                    let offset = address.wrapping_sub(start.0);
                    offset < *size as u64 && len <= *size as u64 - offset
                });
                let span = view.span(address, len);
                assert_eq!(span.is_some(), inside && len > 0, "{address:#x} {len}");
                let Some(span) = span else { continue };
                let aligned = |to: u64| address.is_multiple_of(to);
                assert_eq!(span.load_u16(0, Ordering::Relaxed).is_some(), len >= 2 && aligned(2));
                assert_eq!(span.load_u64s(0).is_some(), len >= 16 && aligned(8));
                assert_eq!(span.store_u32s(0, [1, 2]).is_some(), len >= 8 && aligned(4));
                for outside in [len as usize, len as usize + 1, usize::MAX] {
                    assert_eq!(span.load_u16(outside, Ordering::Relaxed), None);
                    assert_eq!(span.store_u16(outside, 7, Ordering::Relaxed), None);
                }
            }
        }
    }
}

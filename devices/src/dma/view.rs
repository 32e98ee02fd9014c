//! Guest memory for many small accesses.

use std::cell::Cell;
use std::iter::FusedIterator;
use std::ops::Deref;

use vm_memory::bitmap::{BS, BitmapSlice};
use vm_memory::guest_memory::{GuestMemorySliceIterator, Result};
use vm_memory::{GuestAddress, GuestMemory, Permissions, VolatileSlice};

use super::{NO_WINDOW, Window, window};

/// A snapshot of guest memory that remembers the region of the last access, as most accesses of a batch are to one region.
/// Writes are not recorded in dirty bitmaps.
pub(crate) struct View<T> {
    memory: T,
    window: Cell<Window>,
}

impl<T> View<T>
where
    T: Deref,
    T::Target: GuestMemory,
{
    pub(crate) const fn new(memory: T) -> Self {
        Self { memory, window: Cell::new(NO_WINDOW) }
    }

    /// The range, where it lies wholly inside one region.
    #[inline]
    fn near(&self, address: u64, count: usize) -> Option<VolatileSlice<'_>> {
        self.inside(address, count).or_else(|| self.look(address, count))
    }

    #[inline]
    fn inside(&self, address: u64, count: usize) -> Option<VolatileSlice<'_>> {
        let Window { start, len, host } = self.window.get();
        let offset = address.wrapping_sub(start);
        if count == 0 || offset >= len || count as u64 > len - offset {
            return None;
        }
        // SAFETY: `[offset, offset + count)` lies inside the window, which is mapped as long as `memory` is there: at
        // least as long as this borrow of `self`.
        Some(unsafe { VolatileSlice::new(host.add(offset as usize), count) })
    }

    #[cold]
    fn look(&self, address: u64, count: usize) -> Option<VolatileSlice<'_>> {
        self.window.set(window(&*self.memory, address)?);
        self.inside(address, count)
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

/// The one slice that is near, or slices found the general way.
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
        // SAFETY: the same memory, for as long as the slice was good for, without its bitmap.
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

/// Slices up to the first that is none.
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

    /// Whatever is done through a view, or without it, has the same outcome.
    #[test]
    fn a_view_is_the_memory() {
        // Two regions that touch, and one behind a hole.
        let ranges =
            [(0, 0x1000), (0x1000, 0x1000), (0x4000, 0x1000)].map(|(at, len)| (GuestAddress(at), len));
        let memory = GuestMemoryMmap::<()>::from_ranges(&ranges).unwrap();
        let view = View::new(&memory);
        for (n, address) in
            [0, 0xfff, 0xffc, 0x1ffc, 0x1fff, 0x2000, 0x3ffe, 0x4000, 0x4ffe, 0x5000, u64::MAX]
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
        }
    }
}

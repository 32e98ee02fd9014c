//! What a driver needs of the machine it runs on.
#![allow(unsafe_code, reason = "DMA memory is shared with a device: volatile accesses through raw pointers")]

use core::marker::PhantomData;

/// The machine under a driver: one PCI function, DMA memory, interrupts and a clock.
pub trait Platform {
    /// Read a dword of the function's configuration space.
    fn config_read(&mut self, offset: u16) -> u32;
    /// Write a dword of the function's configuration space.
    fn config_write(&mut self, offset: u16, value: u32);
    /// Read a register of 1, 2 or 4 bytes.
    fn read(&mut self, bar: u8, offset: u64, len: usize) -> u32;
    /// Write a register of 1, 2 or 4 bytes.
    fn write(&mut self, bar: u8, offset: u64, len: usize, value: u32);
    /// Zeroed memory that the device can reach; `None` when there is no more. Alignment is a power of two, at least 8.
    /// Never freed: a driver allocates at start only.
    fn dma(&mut self, len: usize, align: usize) -> Option<DmaRegion>;
    /// Memory from [`dma`](Self::dma) by its bus address, a multiple of 8: for drivers that move data themselves. `None` where it is none,
    /// or where the machine does not offer it.
    fn region(&mut self, _address: u64, _len: usize) -> Option<DmaRegion> {
        None
    }
    /// Message address and data that make a vector arrive at this processor.
    fn msi_message(&self) -> (u64, u32);
    /// Write a model-specific register of the hypervisor, where there is one that has such registers.
    fn msr_write(&mut self, _msr: u32, _value: u64) {}
    /// Call the hypervisor by the page of code that it has put in (Top-Level Functional Specification, chapter 3): its status. A platform
    /// without one knows no call.
    fn hypercall(&mut self, _control: u64, _input: u64, _output: u64) -> u64 {
        const HV_STATUS_INVALID_HYPERCALL_CODE: u64 = 2;
        HV_STATUS_INVALID_HYPERCALL_CODE
    }
    /// Interrupts taken so far, wrapping.
    fn interrupts(&self) -> u32;
    /// Sleep until [`interrupts`](Self::interrupts) is no longer `seen`; may return early, and returns within seconds.
    fn wait_interrupt(&mut self, seen: u32);
    /// Time-stamp counter.
    fn ticks(&self) -> u64;
    /// Let so many ticks pass with nothing in flight. A guest has no timer: it spins.
    fn idle(&mut self, ticks: u64) {
        let start = self.ticks();
        while self.ticks().wrapping_sub(start) < ticks {
            core::hint::spin_loop();
        }
    }
    /// Read a dword register.
    #[inline]
    fn read32(&mut self, bar: u8, offset: u64) -> u32 {
        self.read(bar, offset, 4)
    }
    /// Write a dword register.
    #[inline]
    fn write32(&mut self, bar: u8, offset: u64, value: u32) {
        self.write(bar, offset, 4, value);
    }
    /// Ticks without any completion after which a driver gives up.
    fn timeout_ticks(&self) -> u64 {
        30_000_000_000
    }
    /// Call `poll` until it returns a value, and wait for an interrupt in between; `None`: there was none within the timeout.
    fn wait_for<T>(&mut self, mut poll: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        let start = self.ticks();
        loop {
            let seen = self.interrupts();
            let found = poll(self);
            if found.is_some() || self.ticks().wrapping_sub(start) > self.timeout_ticks() {
                return found;
            }
            self.wait_interrupt(seen);
        }
    }
}

/// Memory shared with the device. Accesses are volatile and bounds-checked.
#[derive(Debug)]
pub struct DmaRegion {
    base: *mut u8,
    address: u64,
    len: usize,
}

impl DmaRegion {
    /// Memory at `base` that the device knows as bus address `address`.
    ///
    /// # Safety
    /// `base` must be valid for reads and writes of `len` bytes for as long as the region is used, aligned to 8, and no
    /// Rust reference to it may exist.
    #[must_use]
    pub const unsafe fn new(base: *mut u8, address: u64, len: usize) -> Self {
        Self { base, address, len }
    }

    /// Bus address of the first byte.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes of it from `offset`; `None` where they are not all inside or `offset` is not a multiple of 8.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Option<Self> {
        if !offset.is_multiple_of(8) || offset > self.len || self.len - offset < len {
            return None;
        }
        // SAFETY: inside the memory that the maker of `self` vouched for, by the check above; aligned to 8 as it is.
        Some(unsafe { Self::new(self.base.add(offset), self.address + offset as u64, len) })
    }

    /// The `N` bytes from `offset` as a structure, with one check of the bounds for all its fields.
    ///
    /// # Panics
    /// Outside the region, or where `offset` is not a multiple of 8: a bug of the driver.
    #[inline(always)]
    #[must_use]
    pub fn fields<const N: usize>(&self, offset: usize) -> Fields<'_, N> {
        assert!(
            offset.is_multiple_of(8) && offset < self.len && self.len - offset >= N,
            "DMA structure outside its region"
        );
        // SAFETY: inside the region by the check above.
        Fields { base: unsafe { self.base.add(offset) }, _region: PhantomData }
    }

    /// Load a little-endian value.
    ///
    /// # Panics
    /// Outside the region or unaligned: a bug of the driver.
    #[inline(always)]
    #[must_use]
    pub fn read<T: Word>(&self, offset: usize) -> T {
        // SAFETY: `at` checked bounds and alignment; `new` promised validity.
        unsafe { self.at::<T>(offset).read_volatile() }
    }

    /// Store a little-endian value.
    ///
    /// # Panics
    /// Outside the region or unaligned: a bug of the driver.
    #[inline(always)]
    pub fn write<T: Word>(&self, offset: usize, value: T) {
        // SAFETY: `at` checked bounds and alignment; `new` promised validity.
        unsafe { self.at::<T>(offset).write_volatile(value) }
    }

    #[inline(always)]
    fn at<T: Word>(&self, offset: usize) -> *mut T {
        let size = size_of::<T>();
        assert!(
            offset.is_multiple_of(size) && offset < self.len && self.len - offset >= size,
            "DMA access outside its region"
        );
        // SAFETY: inside the region by the check above.
        unsafe { self.base.add(offset).cast() }
    }
}

/// A structure of `N` bytes in memory shared with the device. The compiler checks that its fields are inside.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a, const N: usize> {
    base: *mut u8,
    _region: PhantomData<&'a DmaRegion>,
}

impl<const N: usize> Fields<'_, N> {
    /// Load the little-endian value at offset `AT`.
    #[inline(always)]
    #[must_use]
    pub fn read<const AT: usize, T: Word>(self) -> T {
        const { assert!(AT.is_multiple_of(size_of::<T>()) && AT + size_of::<T>() <= N) };
        // SAFETY: inside the structure, which is inside its region and aligned to 8, and aligned by the check above.
        unsafe { self.base.add(AT).cast::<T>().read_volatile() }
    }

    /// Store the little-endian value at offset `AT`.
    #[inline(always)]
    pub fn write<const AT: usize, T: Word>(self, value: T) {
        const { assert!(AT.is_multiple_of(size_of::<T>()) && AT + size_of::<T>() <= N) };
        // SAFETY: as in `read`.
        unsafe { self.base.add(AT).cast::<T>().write_volatile(value) }
    }
}

/// Integers that are loaded and stored whole.
pub trait Word: Copy + sealed::Sealed {}

mod sealed {
    /// Keeps [`Word`](super::Word) to integers, for which every bit pattern is a value.
    pub trait Sealed {}
}

macro_rules! words {
    ($($t:ty)*) => { $(impl sealed::Sealed for $t {} impl Word for $t {})* };
}
words!(u8 u16 u32 u64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::tests::Host;

    #[test]
    fn fields_are_words_of_the_region() {
        let region = Host::new().dma(40, 8).unwrap();
        let fields = region.fields::<16>(24);
        fields.write::<0, _>(0x0102_0304_0506_0708u64);
        fields.write::<14, _>(0xabcdu16);
        assert_eq!((region.read::<u32>(28), region.read::<u16>(38)), (0x0102_0304, 0xabcd));
        region.write(32, 7u8);
        assert_eq!((fields.read::<8, u8>(), fields.read::<7, u8>()), (7, 1));
    }

    #[test]
    #[should_panic(expected = "outside its region")]
    fn fields_end_with_the_region() {
        let _ = Host::new().dma(40, 8).unwrap().fields::<16>(32);
    }

    #[test]
    #[should_panic(expected = "outside its region")]
    fn fields_are_aligned() {
        let _ = Host::new().dma(40, 8).unwrap().fields::<8>(4);
    }
}

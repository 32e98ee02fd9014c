//! What a driver needs of the machine it runs on.
#![allow(unsafe_code, reason = "DMA memory is shared with a device: volatile accesses through raw pointers")]

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
    /// Message address and data that make a vector arrive at this processor.
    fn msi_message(&self) -> (u64, u32);
    /// Interrupts taken so far, wrapping.
    fn interrupts(&self) -> u32;
    /// Sleep until [`interrupts`](Self::interrupts) is no longer `seen`; may return early, and returns within seconds.
    fn wait_interrupt(&mut self, seen: u32);
    /// Time-stamp counter.
    fn ticks(&self) -> u64;
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

    /// Load a little-endian value.
    ///
    /// # Panics
    /// Outside the region or unaligned: a bug of the driver.
    #[must_use]
    pub fn read<T: Word>(&self, offset: usize) -> T {
        // SAFETY: `at` checked bounds and alignment; `new` promised validity.
        unsafe { self.at::<T>(offset).read_volatile() }
    }

    /// Store a little-endian value.
    ///
    /// # Panics
    /// Outside the region or unaligned: a bug of the driver.
    pub fn write<T: Word>(&self, offset: usize, value: T) {
        // SAFETY: `at` checked bounds and alignment; `new` promised validity.
        unsafe { self.at::<T>(offset).write_volatile(value) }
    }

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

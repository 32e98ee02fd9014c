//! Random numbers, and what the random guests of all adapters do with them.

use super::{MEMORY_END, MIB};
use crate::device::PciDevice;
use crate::moderation::Policy;

/// A generator whose seed identifies a run.
pub(crate) struct Random(fastrand::Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0.u64(..limit)
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.0.usize(..of.len())]
    }

    /// A random number, often an edge case.
    pub(crate) fn value(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(40),
            1 => u64::MAX - self.below(5),
            2 => MEMORY_END.wrapping_add(self.below(64)).wrapping_sub(32),
            3 => self.below(MEMORY_END),
            4 => 1 << self.below(64),
            _ => self.next(),
        }
    }

    pub(crate) fn policy(&mut self) -> Policy {
        self.pick(&[Policy::Off, Policy::Batch, Policy::Oio, Policy::OioIops])
    }

    /// An address in the second region of guest memory with at least 64 KiB behind it.
    pub(crate) fn data_address(&mut self) -> u64 {
        MIB + self.below(MIB - 0x1_0000)
    }

    /// Write anything to a register in the first `size` bytes of configuration space.
    pub(crate) fn write_config(&mut self, device: &mut impl PciDevice, size: u64) {
        let len = self.pick(&[1, 2, 4]);
        let offset = self.below(size / len as u64) * len as u64;
        device.config_write(offset as u16, &self.next().to_le_bytes()[..len]);
    }
}

/// Factor for what tests try that have no end of their own: `PARADISK_TEST_EFFORT`, which `cargo xtask test --all` sets to 8, or 1.
pub(crate) fn effort() -> u64 {
    let text = std::env::var("PARADISK_TEST_EFFORT").ok();
    text.and_then(|text| text.parse().ok()).filter(|effort| *effort > 0).unwrap_or(1)
}

/// Seeds for runs, with the number of requests that the adapter may have in flight: `many`, and few.
pub(crate) fn seeds(many: u32) -> impl Iterator<Item = (u64, u32)> {
    let tasks = [many, 1, 3, many, 2, many, 4].into_iter().cycle();
    (1..=3 * effort()).zip(tasks)
}

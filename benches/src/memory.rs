//! Host memory for payloads.
#![allow(unsafe_code, reason = "payload memory is written by the kernel while requests are in flight")]

use std::io;

use paradisk_disk_formats::{HostMemory, IoBuf};

/// Page-aligned memory, split into buffers of one size. It must outlive the requests with its buffers: drop it after
/// the queue.
#[derive(Debug)]
pub(crate) struct Buffers {
    memory: HostMemory,
    count: usize,
    size: usize,
}

impl Buffers {
    /// `count` buffers of `size` bytes, each page touched, so that no page fault occurs in a measurement.
    pub(crate) fn new(count: usize, size: usize) -> io::Result<Self> {
        let len = count.checked_mul(size).filter(|len| *len > 0).ok_or(io::ErrorKind::InvalidInput)?;
        let buffers = Self { memory: HostMemory::new(len)?, count, size };
        (0..count).for_each(|index| buffers.get(index).zero());
        Ok(buffers)
    }

    /// As [`new`](Self::new), filled with random data that differ between the buffers: each has its own part of one
    /// sequence.
    pub(crate) fn random(count: usize, size: usize) -> io::Result<Self> {
        let buffers = Self::new(count, size)?;
        let mut rng = fastrand::Rng::with_seed(1);
        // One sequence for all: generating data for 256 buffers of 1 MiB would take longer than the measurement.
        let mut data = vec![0; size + count * 8];
        rng.fill(&mut data);
        for index in 0..count {
            buffers.get(index).write(&data[index * 8..index * 8 + size]);
        }
        Ok(buffers)
    }

    /// Buffer `index` modulo their number.
    pub(crate) fn get(&self, index: usize) -> IoBuf {
        // SAFETY: the memory lives until `self` is dropped, which the owner does after the queue.
        unsafe { self.memory.piece(index % self.count * self.size, self.size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_buffers_differ() {
        let buffers = Buffers::random(2, 4096).unwrap();
        let mut data = [[0; 4096]; 2];
        for (index, data) in data.iter_mut().enumerate() {
            buffers.get(index).read(data);
        }
        let zeros = |data: &[u8]| data.chunks(8).filter(|word| word.iter().all(|byte| *byte == 0)).count();
        assert!(data[0] != data[1] && zeros(&data[0]) < 2 && zeros(&data[1]) < 2);
    }

    #[test]
    fn buffers_are_apart_and_usable() {
        let buffers = Buffers::new(3, 4096).unwrap();
        let addresses: Vec<_> = (0..3).map(|index| buffers.get(index).addr() as usize).collect();
        assert_eq!(addresses[1] - addresses[0], 4096);
        assert_eq!(addresses[2] - addresses[1], 4096);
        assert_eq!(addresses[0] % 4096, 0);
        assert_eq!(buffers.get(3).addr() as usize, addresses[0]);
        buffers.get(2).write(&[7; 4096]);
        let mut back = [0; 4096];
        buffers.get(2).read(&mut back);
        assert_eq!(back, [7; 4096]);
        assert!(Buffers::new(0, 4096).is_err() && Buffers::new(usize::MAX, 2).is_err());
    }
}

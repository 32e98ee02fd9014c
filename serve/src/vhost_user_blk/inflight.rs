//! A record of the requests in flight in memory that the client keeps after the server has ended (vhost-user, "Inflight I/O tracking",
//! split virtqueues).
//!
//! Whenever the server is killed, the order of the stores guarantees:
//! - Every request that was submitted to the disk is marked until its completion is posted. A request without a mark and without a
//!   completion is still in the available ring.
//! - At most one request is marked although its completion is posted: the one at `LAST_BATCH_HEAD`, if the used index in guest memory is
//!   ahead of the recorded one (`USED_IDX`).

mod mapping;
mod record;

use std::fs::File;
use std::sync::Arc;

use crate::client_region::ClientRegion;
use paradisk_devices::virtio::blk::MAX_QUEUE_SIZE;
use rustix::fs::{MemfdFlags, SealFlags};
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Error, Result};

use mapping::Mapping;
pub(super) use record::InflightRecord;
use record::{DESC, DESC_SIZE};

/// The size of a queue's region is a multiple of this: a cache line, so that the threads of two queues do not share one.
const ALIGNMENT: usize = 64;

/// The records of all queues.
#[derive(Clone, Debug)]
pub(super) struct Inflight {
    mapping: Arc<Mapping>,
    queues: u16,
    queue_size: u16,
}

/// Bytes of a queue's region.
const fn queue_bytes(queue_size: u16) -> usize {
    (DESC + DESC_SIZE * queue_size as usize).next_multiple_of(ALIGNMENT)
}

impl Inflight {
    /// New memory for the client to keep, zeroed: no request is in flight.
    ///
    /// # Errors
    /// Invalid numbers of queues or entries, or a failed system call.
    pub(super) fn create(requested: &VhostUserInflight, queues: u16) -> Result<(VhostUserInflight, File)> {
        check(requested, queues)?;
        let size = usize::from(requested.num_queues) * queue_bytes(requested.queue_size);
        let make = || -> rustix::io::Result<File> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("vhost-user-inflight", flags)?;
            rustix::fs::ftruncate(&file, size as u64)?;
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(file.into())
        };
        let file = make().map_err(|errno| Error::ReqHandlerError(errno.into()))?;
        Ok((VhostUserInflight::new(size as u64, 0, requested.num_queues, requested.queue_size), file))
    }

    /// Map the memory that the client has kept or was just given.
    ///
    /// # Errors
    /// It is too small for its queues or too large for its file.
    pub(super) fn map(described: &VhostUserInflight, file: File, queues: u16) -> Result<Self> {
        check(described, queues)?;
        let size = usize::from(described.num_queues) * queue_bytes(described.queue_size);
        if described.mmap_size < size as u64 {
            return Err(Error::InvalidParam);
        }
        let region = ClientRegion::map(file, described.mmap_offset, size as u64, 0, true);
        let region = region.map_err(|error| Error::ReqHandlerError(error.into()))?;
        Ok(Self {
            mapping: Arc::new(Mapping::new(region)),
            queues: described.num_queues,
            queue_size: described.queue_size,
        })
    }

    /// The record of queue `index`, which has `size` entries. `None`: the memory has no record for such a queue.
    pub(super) fn queue(&self, index: usize, size: u16) -> Option<InflightRecord> {
        let fits = index < usize::from(self.queues) && size <= self.queue_size;
        fits.then(|| InflightRecord::new(&self.mapping, index * queue_bytes(self.queue_size), size))
    }
}

fn check(described: &VhostUserInflight, queues: u16) -> Result<()> {
    let possible =
        (1..=queues).contains(&described.num_queues) && (1..=MAX_QUEUE_SIZE).contains(&described.queue_size);
    if possible { Ok(()) } else { Err(Error::InvalidParam) }
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests {
    use super::record::Left;
    use super::*;

    const SIZE: u16 = 8;

    fn notes() -> (VhostUserInflight, File) {
        Inflight::create(&VhostUserInflight::new(0, 0, 2, SIZE), 2).unwrap()
    }

    fn queue((described, file): &(VhostUserInflight, File)) -> InflightRecord {
        let file = file.try_clone().unwrap();
        Inflight::map(described, file, 2).unwrap().queue(1, SIZE).unwrap()
    }

    /// A server is killed after any of its steps; the next one finds the requests that were taken and not completed, in the order
    /// in which they were taken.
    #[test]
    fn the_next_server_finds_the_requests_in_flight() {
        let mut seed = 0x9e37_79b9u32;
        let mut below = |limit: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 17;
            seed ^= seed << 5;
            seed as usize % limit
        };
        let kept = notes();
        let mut used = 0xfffau16;
        let mut in_flight: Vec<u16> = Vec::new();
        assert_eq!(queue(&kept).open(used), None, "nobody has used it");
        for _ in 0..5000 {
            let mut server = queue(&kept);
            let expected =
                Left { heads: in_flight.clone(), next_avail: used.wrapping_add(in_flight.len() as u16) };
            assert_eq!(server.open(used), Some(expected));
            let mut steps = below(20);
            let mut step = || steps.checked_sub(1).map(|left| steps = left).is_some();
            while step() {
                let head = below(SIZE.into()) as u16;
                match in_flight.iter().position(|other| *other == head) {
                    None => {
                        server.taken(head);
                        in_flight.push(head);
                    }
                    Some(index) => {
                        server.posting(head);
                        if step() {
                            used = used.wrapping_add(1);
                            in_flight.remove(index);
                            if step() {
                                server.posted(head, used);
                            } else {
                                break;
                            }
                        } else {
                            break;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn corrupt_records_name_only_heads_of_the_queue() {
        let kept = notes();
        let length = kept.1.metadata().unwrap().len() as usize;
        let file = &kept.1;
        std::os::unix::fs::FileExt::write_all_at(file, &vec![1; length], 0).unwrap();
        let left = queue(&kept).open(3).unwrap();
        assert!(
            left.heads.len() <= usize::from(SIZE) && left.heads.iter().all(|head| *head < SIZE),
            "{left:?}"
        );
        std::os::unix::fs::FileExt::write_all_at(file, &vec![0xff; length], 0).unwrap();
        assert!(queue(&kept).open(3).unwrap().heads.is_empty(), "only 1 is in flight");
        queue(&kept).taken(SIZE);
        queue(&kept).posted(u16::MAX, 4);
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for (queues, size) in [(0, 8), (3, 8), (1, 0), (1, MAX_QUEUE_SIZE + 1)] {
            assert!(Inflight::create(&VhostUserInflight::new(0, 0, queues, size), 2).is_err());
        }
        let (described, file) = notes();
        for (size, offset) in
            [(described.mmap_size - 1, 0), (described.mmap_size, 4096), (u64::MAX, u64::MAX)]
        {
            let wrong = VhostUserInflight::new(size, offset, 2, SIZE);
            assert!(Inflight::map(&wrong, file.try_clone().unwrap(), 2).is_err(), "{size} {offset}");
        }
        assert!(Inflight::map(&described, file, 2).unwrap().queue(1, 2 * SIZE).is_none());
    }
}

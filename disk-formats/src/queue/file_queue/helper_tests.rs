use std::sync::Arc;

use super::Signal;
use super::helper::{Helper, Job, JobKind};
use crate::contract::disk::Disk;
use crate::contract::error::IoError;
use crate::contract::info::{DiskInfo, SectorSize};
use crate::disk::memory::NullDisk;
use crate::host::backing::BackingFile;
use crate::map::extent::Extents;
use crate::map::format::{Format, Mapping};

/// A format whose panic's payload panics when it is dropped: outside of `catch_unwind`.
struct Fatal(DiskInfo);

struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        panic!("in the drop of a panic's payload");
    }
}

impl Format for Fatal {
    fn info(&self) -> &DiskInfo {
        &self.0
    }
    fn files(&self) -> &[Arc<BackingFile>] {
        &[]
    }
    fn map_read(&self, _offset: u64, _len: u64, _extents: &mut Extents) -> Result<Mapping, IoError> {
        Ok(Mapping::Blocked)
    }
    fn map_write(&self, _offset: u64, _len: u64, _extents: &mut Extents) -> Result<Mapping, IoError> {
        Ok(Mapping::Blocked)
    }
    fn prepare_write(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
        std::panic::panic_any(Payload)
    }
    fn discard(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
        Ok(())
    }
    fn write_zeroes(&self, _offset: u64, _len: u64, _may_unmap: bool) -> Result<(), IoError> {
        Ok(())
    }
}

#[test]
fn jobs_of_a_thread_that_unwinds_end() {
    let info = NullDisk::new(1 << 20, SectorSize::B512).unwrap().info().clone();
    let signal = Arc::new(Signal::new().unwrap());
    let mut helper = Helper::start("helper", Arc::new(Fatal(info)), Arc::clone(&signal)).unwrap();
    let job = |slot, kind| Job { slot, kind, offset: 0, len: 512 };
    assert!(helper.send(job(0, JobKind::Discard)));
    assert!(helper.send(job(1, JobKind::Map { writes: true })));
    // The thread may have died before these are sent.
    let taken = (2..5).filter(|slot| helper.send(job(*slot, JobKind::Discard))).count();
    let mut ended = Vec::new();
    while helper.outstanding() > 0 {
        // Sleep as the queue's thread does.
        let mut fds = [rustix::event::PollFd::new(&signal, rustix::event::PollFlags::IN)];
        let limit = rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "nothing wakes the queue");
        signal.lower();
        ended.extend(std::iter::from_fn(|| helper.next()).map(|(job, result)| (job.slot, result.map(drop))));
    }
    let lost = Err(IoError::Damaged("the helper thread panicked"));
    let wanted: Vec<_> =
        (0..2 + taken as u32).map(|slot| (slot, if slot == 0 { Ok(()) } else { lost })).collect();
    assert_eq!(ended, wanted);
    assert!(!helper.send(job(9, JobKind::Discard)));
}

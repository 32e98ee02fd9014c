//! Writes to a disk, reads back, compares: past the page cache and through it, then zeros, discards and a small workload.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Instant;

use guest_init::plan::{self, Plan};
use guest_init::{Checked, Disk, Extent, Job};
use rustix::fs::{FallocateFlags, OFlags, fallocate};

use crate::ioctl::discard;

/// Alignment that any sector size is content with.
const ALIGNMENT: usize = 4096;
const LONGEST: usize = plan::LONGEST as usize;
/// Bytes of one read of the workload.
const WORKLOAD_READ: u64 = 4096;

/// Memory for direct I/O, [`plan::LONGEST`] bytes.
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
}

impl Buffer {
    pub(crate) fn new() -> Self {
        let memory = vec![0; LONGEST + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start }
    }

    fn part(&mut self, len: u64) -> &mut [u8] {
        &mut self.memory[self.start..][..len as usize]
    }
}

/// A disk under test.
struct Target<'a> {
    disk: &'a Disk,
    direct: File,
    plan: &'a Plan,
    buffer: &'a mut Buffer,
    checked: Checked,
}

/// Verify a disk; what was done, or what went wrong where.
pub(crate) fn verify(disk: &Disk, job: &Job, buffer: &mut Buffer) -> Result<Checked, String> {
    let plan = Plan::new(job.seed, disk.size, disk.logical_sector);
    let mut target = Target::new(disk, &plan, buffer)?;
    target.checked.before = target.checksum()?;
    if !disk.read_only {
        target.direct_writes()?;
        target.buffered_writes(&open(disk, OFlags::empty())?)?;
        target.zeros()?;
        target.discards()?;
    }
    target.checked.after = target.checksum()?;
    target.workload(job.reads)?;
    Ok(target.checked)
}

/// CRC-32C of a whole disk.
pub(crate) fn checksum(disk: &Disk, buffer: &mut Buffer) -> Result<u32, String> {
    let plan = Plan::new(0, disk.size, disk.logical_sector);
    Target::new(disk, &plan, buffer)?.checksum()
}

fn open(disk: &Disk, flags: OFlags) -> Result<File, String> {
    let path = format!("/dev/{}", disk.name);
    let mut options = OpenOptions::new();
    options.read(true).write(!disk.read_only).custom_flags(flags.bits().cast_signed());
    options.open(&path).map_err(|error| format!("{path}: {error}"))
}

impl<'a> Target<'a> {
    fn new(disk: &'a Disk, plan: &'a Plan, buffer: &'a mut Buffer) -> Result<Self, String> {
        let direct = open(disk, OFlags::DIRECT)?;
        Ok(Self { disk, direct, plan, buffer, checked: Checked::default() })
    }

    /// CRC-32C of the whole disk.
    fn checksum(&mut self) -> Result<u32, String> {
        let mut checksum = 0;
        self.each(Extent { offset: 0, len: self.disk.size }, |part| {
            checksum = crc32c::crc32c_append(checksum, part);
        })?;
        Ok(checksum)
    }

    /// Write past the page cache, flush, compare; then some of it again with other content.
    fn direct_writes(&mut self) -> Result<(), String> {
        for (extents, generation) in [(&self.plan.direct, Plan::DIRECT), (&self.plan.again, Plan::AGAIN)] {
            for extent in extents {
                self.write(*extent, generation)?;
            }
            self.direct.sync_all().map_err(|error| format!("flush: {error}"))?;
            self.compare(extents, generation)?;
        }
        Ok(())
    }

    /// Write through the page cache, flush, compare past it.
    fn buffered_writes(&mut self, cached: &File) -> Result<(), String> {
        for extent in &self.plan.buffered {
            let page = self.buffer.part(extent.len);
            self.plan.pattern(Plan::BUFFERED).fill(extent.offset, page);
            cached.write_all_at(page, extent.offset).map_err(failed("buffered write", *extent))?;
            self.checked.writes += 1;
        }
        cached.sync_all().map_err(|error| format!("flush of buffered writes: {error}"))?;
        let plan = self.plan;
        let [first, .., last] = &*plan.buffered else { return Ok(()) };
        // One read for all of them.
        let pattern = plan.pattern(Plan::BUFFERED);
        let start = first.offset;
        let all = self.read(Extent { offset: start, len: last.offset + last.len - start })?;
        let differs = |extent: &Extent| {
            let page = &all[(extent.offset - start) as usize..][..extent.len as usize];
            pattern.difference(extent.offset, page)
        };
        match plan.buffered.iter().find_map(differs) {
            None => Ok(()),
            Some(at) => Err(format!("other content than written through the page cache at byte {at}")),
        }
    }

    /// The kernel asks the disk for zeros, or writes them where the disk cannot.
    fn zeros(&mut self) -> Result<(), String> {
        for extent in &self.plan.zeroed {
            self.zero(*extent).map_err(failed("zeros", *extent))?;
            if !self.is_zero(*extent)? {
                return Err(format!("no zeros at {extent:?}"));
            }
        }
        Ok(())
    }

    /// Discard where the disk can. The format decides what the range holds then, so the report only says whether it reads as zeros.
    fn discards(&mut self) -> Result<(), String> {
        if self.disk.discard_max == 0 {
            return Ok(());
        }
        let mut zero = true;
        for extent in &self.plan.discarded {
            discard(&self.direct, *extent).map_err(failed("discard", *extent))?;
            zero &= self.is_zero(*extent)?;
        }
        self.checked.discarded_zero = Some(zero);
        Ok(())
    }

    /// Random reads, one at a time.
    fn workload(&mut self, reads: u32) -> Result<(), String> {
        let slots = self.disk.size / WORKLOAD_READ;
        if slots == 0 {
            return Ok(());
        }
        let (mut random, start) = (self.plan.seed, Instant::now());
        for _ in 0..reads {
            let offset = plan::next(&mut random) % slots * WORKLOAD_READ;
            self.read(Extent { offset, len: WORKLOAD_READ })?;
        }
        self.checked.reads = reads;
        self.checked.reads_us = start.elapsed().as_micros() as u64;
        Ok(())
    }

    fn write(&mut self, extent: Extent, generation: u64) -> Result<(), String> {
        let bytes = self.buffer.part(extent.len);
        self.plan.pattern(generation).fill(extent.offset, bytes);
        self.direct.write_all_at(bytes, extent.offset).map_err(failed("write", extent))?;
        self.checked.writes += 1;
        Ok(())
    }

    fn read(&mut self, extent: Extent) -> Result<&[u8], String> {
        let bytes = self.buffer.part(extent.len);
        self.direct.read_exact_at(bytes, extent.offset).map_err(failed("read", extent))?;
        Ok(bytes)
    }

    /// Ranges that overlap were written with the same, for it depends on the offset alone.
    fn compare(&mut self, extents: &[Extent], generation: u64) -> Result<(), String> {
        for extent in extents {
            let pattern = self.plan.pattern(generation);
            if let Some(at) = pattern.difference(extent.offset, self.read(*extent)?) {
                return Err(format!("generation {generation}, {extent:?}: other content at byte {at}"));
            }
        }
        Ok(())
    }

    fn is_zero(&mut self, extent: Extent) -> Result<bool, String> {
        let mut zero = true;
        self.each(extent, |part| zero &= part.iter().all(|byte| *byte == 0))?;
        Ok(zero)
    }

    /// Read a range of any length and look at its parts in turn.
    fn each(&mut self, extent: Extent, mut look: impl FnMut(&[u8])) -> Result<(), String> {
        let (mut offset, end) = (extent.offset, extent.offset + extent.len);
        while offset < end {
            let len = plan::LONGEST.min(end - offset);
            look(self.read(Extent { offset, len })?);
            offset += len;
        }
        Ok(())
    }

    /// On a block device this is the ioctl BLKZEROOUT.
    fn zero(&self, extent: Extent) -> io::Result<()> {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.direct, flags, extent.offset, extent.len)?)
    }
}

fn failed(what: &'static str, extent: Extent) -> impl Fn(io::Error) -> String {
    move |error| format!("{what} of {} bytes at {}: {error}", extent.len, extent.offset)
}

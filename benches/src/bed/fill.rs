//! Filling and reading a disk through its own queue.

use std::io;

use paradisk_disk_formats::{Completion, Disk, DiskQueue, IoBuf, Op, QueueConfig, Request};

use crate::memory::Buffers;

/// Bytes of an access.
const CHUNK: usize = 1 << 20;
/// Accesses in flight.
const DEPTH: u64 = 4;

/// Write every byte of the disk with random data, then read it all.
pub(super) fn fill(disk: &dyn Disk) -> io::Result<()> {
    write(disk, disk.info().capacity)?;
    read_all(disk, disk.info().capacity)
}

/// Write the first `span` bytes with random data.
pub(super) fn write(disk: &dyn Disk, span: u64) -> io::Result<()> {
    let buffers = Buffers::random(DEPTH as usize, CHUNK)?;
    // Declared after the buffers, so that it is dropped before them.
    let mut queue = queue(disk)?;
    pass(queue.as_mut(), &buffers, Op::Write { fua: false }, span.min(disk.info().capacity))
}

/// Read the first `span` bytes.
pub(super) fn read_all(disk: &dyn Disk, span: u64) -> io::Result<()> {
    let buffers = Buffers::new(DEPTH as usize, CHUNK)?;
    let mut queue = queue(disk)?;
    pass(queue.as_mut(), &buffers, Op::Read, span.min(disk.info().capacity))
}

/// Flush the disk.
pub(crate) fn flush(disk: &dyn Disk) -> io::Result<()> {
    let mut queue = queue(disk)?;
    queue.push(&Request { tag: 0, op: Op::Flush, offset: 0, len: 0, bufs: &[] }).map_err(io::Error::other)?;
    let mut ended: Vec<Completion> = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait();
        queue.reap(&mut ended);
    }
    ended.iter().try_for_each(|completion| completion.result.map_err(io::Error::other))
}

fn queue(disk: &dyn Disk) -> io::Result<Box<dyn DiskQueue>> {
    let config = QueueConfig { depth: DEPTH as u32, ..QueueConfig::default() };
    disk.queue(&config).map_err(io::Error::other)
}

/// Access all bytes once, in order.
fn pass(queue: &mut dyn DiskQueue, buffers: &Buffers, op: Op, capacity: u64) -> io::Result<()> {
    let mut ended: Vec<Completion> = Vec::new();
    // Free tags; a tag is the index of its buffer.
    let mut free: Vec<u64> = (0..DEPTH).collect();
    let mut offset = 0;
    while offset < capacity || queue.in_flight() > 0 {
        while offset < capacity
            && let Some(tag) = free.pop()
        {
            let len = (capacity - offset).min(CHUNK as u64);
            let bufs: [IoBuf; 1] = [buffers.get(tag as usize).slice(0, len as usize)];
            queue.push(&Request { tag, op, offset, len, bufs: &bufs }).map_err(io::Error::other)?;
            offset += len;
        }
        queue.wait();
        queue.reap(&mut ended);
        for completion in ended.drain(..) {
            completion.result.map_err(io::Error::other)?;
            free.push(completion.tag);
        }
    }
    Ok(())
}

/// Bytes at an offset, at most [`CHUNK`].
#[cfg(test)]
pub(super) fn read(disk: &dyn Disk, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let buffers = Buffers::new(1, CHUNK)?;
    let mut queue = disk.queue(&QueueConfig::default()).map_err(io::Error::other)?;
    let buf = buffers.get(0).slice(0, len);
    queue
        .push(&Request { tag: 0, op: Op::Read, offset, len: len as u64, bufs: &[buf] })
        .map_err(io::Error::other)?;
    let mut ended = Vec::new();
    while ended.is_empty() {
        queue.wait();
        queue.reap(&mut ended);
    }
    ended.iter().try_for_each(|completion| completion.result.map_err(io::Error::other))?;
    let mut data = vec![0; len];
    buf.read(&mut data);
    Ok(data)
}

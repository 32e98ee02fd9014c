//! The ioctl BLKDISCARD (`linux/fs.h`), which `fallocate` cannot stand in for.
#![allow(unsafe_code, reason = "an ioctl says by its number alone what it takes")]

use std::io;
use std::os::fd::AsFd;

use guest_init::Extent;
use rustix::ioctl::{Setter, ioctl, opcode};

/// Offset and length in bytes.
type Range = [u64; 2];
const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);

/// Discard a range of a block device.
pub(crate) fn discard(device: impl AsFd, extent: Extent) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two words of 8 bytes where its argument points.
    let request = unsafe { Setter::<BLKDISCARD, Range>::new([extent.offset, extent.len]) };
    // SAFETY: as above; what it does to the device's content is not memory of this process.
    Ok(unsafe { ioctl(device, request) }?)
}

//! Calls that have no other way to the kernel than an ioctl: BLKDISCARD (`linux/fs.h`), which `fallocate` cannot stand in for, and
//! SG_SCSI_RESET (`scsi/sg.h`), as sg3-utils' `sg_reset` calls it.
#![allow(unsafe_code, reason = "an ioctl says by its number alone what it takes")]

use std::ffi::c_int;
use std::io;
use std::os::fd::AsFd;

use guest_init::{Extent, Reset};
use rustix::ioctl::{Setter, ioctl, opcode};

/// Offset and length in bytes.
type Range = [u64; 2];
const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);
const SG_SCSI_RESET: rustix::ioctl::Opcode = 0x2284;
/// The kernel tries nothing stronger where this one fails.
const NO_ESCALATE: c_int = 0x100;

/// Discard a range of a block device.
pub(crate) fn discard(device: impl AsFd, extent: Extent) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two words of 8 bytes where its argument points.
    let request = unsafe { Setter::<BLKDISCARD, Range>::new([extent.offset, extent.len]) };
    // SAFETY: as above; what it does to the device's content is not memory of this process.
    Ok(unsafe { ioctl(device, request) }?)
}

/// Have the kernel's SCSI error handling reset something; it returns when that is done.
pub(crate) fn reset(device: impl AsFd, what: Reset) -> io::Result<()> {
    let number: c_int = match what {
        Reset::Device => 1,
        Reset::Bus => 2,
        Reset::Host => 3,
    };
    // SAFETY: SG_SCSI_RESET reads an int where its argument points.
    let request = unsafe { Setter::<SG_SCSI_RESET, c_int>::new(number | NO_ESCALATE) };
    // SAFETY: as above; it reaches no memory of this process.
    Ok(unsafe { ioctl(device, request) }?)
}

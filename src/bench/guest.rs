//! Requirements of the guests of all measurements.

use crate::failure::Failure;

/// Guest memory in bytes for the largest job: its buffers, those of earlier jobs (a driver never frees memory), and
/// rings.
pub(super) fn guest_memory(in_flight: u32, block_size: u32) -> u64 {
    let jobs = u64::from(in_flight) * u64::from(block_size).next_multiple_of(4096);
    (64 << 20) + 2 * jobs.next_multiple_of(1 << 20)
}

/// The error if KVM was requested and is not available.
pub(super) fn no_kvm(error: &impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("{error} (--engine harness needs no KVM)"))
}

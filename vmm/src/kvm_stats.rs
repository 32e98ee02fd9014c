//! KVM's counters of a virtual CPU by `KVM_GET_STATS_FD` (Linux `Documentation/virt/kvm/api.rst`, section 4.133), if
//! the kernel has them.
#![allow(unsafe_code, reason = "an ioctl that kvm-ioctls does not wrap")]

use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::ioctl;
use vmm_sys_util::ioctl_io_nr;
use zerocopy::native_endian::{I16, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

ioctl_io_nr!(KVM_GET_STATS_FD, 0xae, 0xce);

/// `struct kvm_stats_header`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    flags: U32,
    name_size: U32,
    num_desc: U32,
    id_offset: U32,
    desc_offset: U32,
    data_offset: U32,
}

/// `struct kvm_stats_desc`, without the name that follows it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Descriptor {
    flags: U32,
    exponent: I16,
    size: U16,
    offset: U32,
    bucket_size: U32,
}

const _: () = assert!(size_of::<Header>() == 24 && size_of::<Descriptor>() == 16);

/// Larger sizes are not supported.
const MAX_NAME: usize = 256;
const MAX_DESCRIPTORS: u32 = 1024;

/// Reads a virtual CPU's number of exits.
pub(crate) struct KvmStats {
    file: File,
    exits: u64,
}

impl KvmStats {
    /// `None` if the kernel has no statistics or no value named `exits`.
    pub(crate) fn of_vcpu(vcpu: &VcpuFd) -> Option<Self> {
        // SAFETY: the ioctl takes no argument.
        let fd = unsafe { ioctl(vcpu, KVM_GET_STATS_FD()) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a new descriptor that no one else owns.
        let file = unsafe { File::from_raw_fd(fd) };
        let exits = find(&file, b"exits")?;
        Some(Self { file, exits })
    }

    /// Number of exits, including those that KVM handles itself.
    pub(crate) fn exits(&self) -> Option<u64> {
        let mut value = U64::new(0);
        self.file.read_exact_at(value.as_mut_bytes(), self.exits).ok()?;
        Some(value.get())
    }
}

/// Offset in the file of the value with this name.
fn find(file: &File, wanted: &[u8]) -> Option<u64> {
    let mut header = Header::new_zeroed();
    file.read_exact_at(header.as_mut_bytes(), 0).ok()?;
    let name_size = usize::try_from(header.name_size.get()).ok().filter(|size| *size <= MAX_NAME)?;
    let entry = size_of::<Descriptor>() + name_size;
    let mut bytes = vec![0; entry];
    for index in 0..header.num_desc.get().min(MAX_DESCRIPTORS) {
        let at = u64::from(header.desc_offset.get()) + u64::from(index) * entry as u64;
        file.read_exact_at(&mut bytes, at).ok()?;
        let (descriptor, name) = Descriptor::read_from_prefix(&bytes).ok()?;
        if name.split(|byte| *byte == 0).next() == Some(wanted) {
            return Some(u64::from(header.data_offset.get()) + u64::from(descriptor.offset.get()));
        }
    }
    None
}

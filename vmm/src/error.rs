//! Why a machine could not be made or run.

use std::io;
use std::path::PathBuf;

/// Why a machine could not be made or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The KVM device does not exist.
    #[error("{}: not there; is the kvm module loaded and the device passed to this machine or container?", .0.display())]
    KvmAbsent(PathBuf),
    /// This user may not open the KVM device.
    #[error("{}: permission denied; it has to be readable and writable, usually by group kvm", .0.display())]
    KvmDenied(PathBuf),
    /// The KVM device does not open, or is not a KVM device.
    #[error("{}: {source}", path.display())]
    KvmOpen {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A feature that KVM lacks.
    #[error("KVM offers no {0}, which this machine needs")]
    KvmLacks(&'static str),
    /// A failed ioctl.
    #[error("{what}: {source}")]
    Kvm {
        /// The ioctl.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// An invalid memory size.
    #[error("guest memory of {0} bytes, expected whole pages of 4096 bytes, at least one")]
    MemorySize(u64),
    /// The host cannot provide the guest memory.
    #[error("guest memory of {size} bytes: {source}")]
    Memory {
        /// Requested bytes.
        size: u64,
        /// The cause.
        source: io::Error,
    },
    /// An address outside guest memory.
    #[error("{what} at {address:#x}, {len} bytes: not in guest memory")]
    OutsideMemory {
        /// What.
        what: &'static str,
        /// Guest-physical address.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// No free slot on the bus.
    #[error("device {0}: bus 0 has slots for 31 devices")]
    NoSlot(usize),
    /// The machine already has a VMBus.
    #[error("a machine has one VMBus at the most")]
    SecondVmbus,
    /// A VMBus was added to a running machine.
    #[error("the machine has started: a VMBus must be added before")]
    Started,
    /// No space for a base address register.
    #[error("device in slot {slot}: no space for base address register {bar} of {size} bytes")]
    NoRoom {
        /// Slot of the device.
        slot: u8,
        /// Register number.
        bar: u8,
        /// Bytes.
        size: u64,
    },
    /// Another function has the same ports. All IDE functions have the same.
    #[error(
        "device in slot {slot}: its I/O ports are fixed, and the device in slot {taken} has them (a machine has one IDE adapter, of four disks)"
    )]
    FixedPorts {
        /// Slot of the device.
        slot: u8,
        /// Slot of the other one.
        taken: u8,
    },
    /// The user's closure failed to make a device.
    #[error("device: {0}")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A call for a device whose thread has ended.
    #[error("device in slot {0}: its thread has ended")]
    DeviceGone(u8),
    /// The host cannot provide a thread or descriptor.
    #[error("{what}: {source}")]
    Os {
        /// The attempted operation.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    /// An ioctl that failed.
    pub(crate) fn kvm(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Self {
        move |error| Self::Kvm { what, source: io::Error::from_raw_os_error(error.errno()) }
    }

    /// A system call that failed.
    pub(crate) fn os<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Os { what, source: error.into() }
    }
}

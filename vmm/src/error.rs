//! Why a machine could not be made or run.

use std::io;
use std::path::PathBuf;

/// Why a machine could not be made or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No KVM device.
    #[error("{}: not there; is the kvm module loaded and the device passed to this machine or container?", .0.display())]
    KvmAbsent(PathBuf),
    /// KVM device that this user may not open.
    #[error("{}: permission denied; it has to be readable and writable, usually by group kvm", .0.display())]
    KvmDenied(PathBuf),
    /// KVM device that does not open, or is none.
    #[error("{}: {source}", path.display())]
    KvmOpen {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Something that KVM lacks.
    #[error("KVM offers no {0}, which this machine needs")]
    KvmLacks(&'static str),
    /// An ioctl that KVM refused.
    #[error("{what}: {source}")]
    Kvm {
        /// The ioctl.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// Memory size that cannot be.
    #[error("guest memory of {0} bytes, expected whole pages of 4096 bytes, at least one")]
    MemorySize(u64),
    /// Guest memory that the host does not give.
    #[error("guest memory of {size} bytes: {source}")]
    Memory {
        /// Bytes asked for.
        size: u64,
        /// The cause.
        source: io::Error,
    },
    /// Something outside guest memory.
    #[error("{what} at {address:#x}, {len} bytes: not in guest memory")]
    OutsideMemory {
        /// What.
        what: &'static str,
        /// Guest-physical address.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// No slot left on the bus.
    #[error("device {0}: bus 0 has slots for 31 devices")]
    NoSlot(usize),
    /// A VMBus for a machine that has one.
    #[error("a machine has one VMBus at the most")]
    SecondVmbus,
    /// A VMBus for a machine that runs.
    #[error("the machine has started: a VMBus has to be there before")]
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
    /// Ports of a function that another function has: those of IDE are the same for each.
    #[error(
        "device in slot {slot}: its I/O ports are fixed, and the device in slot {taken} has them (a machine has one IDE adapter, of four disks)"
    )]
    FixedPorts {
        /// Slot of the device.
        slot: u8,
        /// Slot of the other one.
        taken: u8,
    },
    /// The user's closure did not make a device.
    #[error("device: {0}")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A call for a device whose thread has ended.
    #[error("device in slot {0}: its thread has ended")]
    DeviceGone(u8),
    /// A thread or descriptor that the host does not give.
    #[error("{what}: {source}")]
    Os {
        /// What was attempted.
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

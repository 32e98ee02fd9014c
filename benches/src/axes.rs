//! The dimensions of a measurement, by the names that the command line uses.

use facts::names;

names! {
    /// How the guest runs.
    Engine, "engine" {
        /// A virtual machine.
        Kvm = "kvm",
        /// The guest's drivers call the device on a host thread: no virtual CPU, no exits.
        Harness = "harness",
    }
}

names! {
    /// An access pattern.
    Access, "access pattern" {
        /// Random reads.
        RandRead = "randread",
        /// Random writes.
        RandWrite = "randwrite",
        /// Sequential reads.
        Read = "read",
        /// Sequential writes.
        Write = "write",
        /// Random reads and writes.
        RandRw = "randrw",
        /// Reads and writes; a share of the offsets is random, the others continue the previous access.
        Mix = "mix",
    }
}

impl Access {
    /// Percentage of random offsets; `mixed` is the requested value for [`Mix`](Self::Mix).
    #[must_use]
    pub const fn random_percent(self, mixed: u32) -> u32 {
        match self {
            Self::RandRead | Self::RandWrite | Self::RandRw => 100,
            Self::Read | Self::Write => 0,
            Self::Mix => mixed,
        }
    }

    /// Percentage of reads; `mixed` is the requested value for mixed patterns.
    #[must_use]
    pub const fn read_percent(self, mixed: u32) -> u32 {
        match self {
            Self::RandRead | Self::Read => 100,
            Self::RandWrite | Self::Write => 0,
            Self::RandRw | Self::Mix => mixed,
        }
    }

    /// The pattern with these percentages.
    #[must_use]
    pub const fn of(read_percent: u32, random_percent: u32) -> Self {
        match (read_percent, random_percent) {
            (100, 100) => Self::RandRead,
            (0, 100) => Self::RandWrite,
            (_, 100) => Self::RandRw,
            (100, 0) => Self::Read,
            (0, 0) => Self::Write,
            _ => Self::Mix,
        }
    }

    /// Whether the disk's content is overwritten.
    #[must_use]
    pub const fn writes(self) -> bool {
        !matches!(self, Self::RandRead | Self::Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert_eq!(Access::RandRw.read_percent(70), 70);
        assert_eq!(Access::Read.read_percent(70), 100);
        let random = [Access::RandRw, Access::Write, Access::Mix].map(|access| access.random_percent(30));
        assert_eq!(random, [100, 0, 30]);
        assert!(Access::RandRw.writes() && !Access::RandRead.writes() && Access::Mix.writes());
        for access in [Access::RandRead, Access::RandWrite, Access::Read, Access::Write] {
            assert_eq!(Access::of(access.read_percent(1), access.random_percent(1)), access);
        }
        assert_eq!((Access::of(70, 100), Access::of(70, 0)), (Access::RandRw, Access::Mix));
        assert!("KVM".parse::<Engine>().is_err());
    }
}

//! The dimensions of a measurement, by the names that the command line uses.

use facts::names;

names! {
    /// What a guest is run by.
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
    }
}

impl Access {
    /// Whether offsets are random.
    #[must_use]
    pub const fn random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandRw)
    }

    /// Reads among 100 accesses; `mixed` is what was asked for mixed patterns.
    #[must_use]
    pub const fn read_percent(self, mixed: u32) -> u32 {
        match self {
            Self::RandRead | Self::Read => 100,
            Self::RandWrite | Self::Write => 0,
            Self::RandRw => mixed,
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
        assert!(Access::RandRw.random() && !Access::Write.random());
        assert!(Access::RandRw.writes() && !Access::RandRead.writes());
        assert!("KVM".parse::<Engine>().is_err());
    }
}

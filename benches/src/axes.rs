//! The dimensions of a measurement, by the names that the command line uses.

use std::fmt;
use std::str::FromStr;

use devices::AdapterKind;

/// A word that is not one of those allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{word}` is not one of: {}", allowed.join(", "))]
pub struct UnknownWord {
    /// What was to be named.
    pub what: &'static str,
    /// The word given.
    pub word: String,
    /// The words allowed.
    pub allowed: Vec<&'static str>,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The word for it.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                Self::ALL.iter().copied().find(|each| each.word() == word).ok_or_else(|| UnknownWord {
                    what: $what,
                    word: word.to_owned(),
                    allowed: Self::ALL.iter().map(|each| each.word()).collect(),
                })
            }
        }
    };
}

pub(crate) use words;

words! {
    /// What a guest is run by.
    Engine, "engine" {
        /// A virtual machine.
        Kvm = "kvm",
        /// The guest's drivers call the device on a host thread: no virtual CPU, no exits.
        Harness = "harness",
    }
}

words! {
    /// A storage adapter.
    Adapter, "adapter" {
        /// VMware's paravirtual SCSI adapter.
        Pvscsi = "pvscsi",
        /// LSI Logic LSI53C1030, parallel SCSI.
        Lsi = "lsi",
        /// The same, with requests posted: they do not leave the guest while that is worth it (KVM).
        LsiPosted = "lsi-posted",
        /// LSI Logic SAS1068.
        LsiSas = "lsi-sas",
        /// Virtio block device.
        VirtioBlk = "virtio-blk",
        /// Virtio SCSI host device.
        VirtioScsi = "virtio-scsi",
    }
}

words! {
    /// When completions are signalled.
    Coalescing, "coalescing" {
        /// Each completion signals.
        Off = "off",
        /// One signal for the completions reaped together.
        Batch = "batch",
        /// By outstanding I/Os alone.
        Oio = "oio",
        /// By outstanding I/Os and the rate of completions.
        OioIops = "oio-iops",
    }
}

words! {
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

impl Adapter {
    /// The device that is made for it.
    #[must_use]
    pub const fn kind(self) -> AdapterKind {
        match self {
            Self::Pvscsi => AdapterKind::Pvscsi,
            Self::Lsi | Self::LsiPosted => AdapterKind::Lsi,
            Self::LsiSas => AdapterKind::LsiSas,
            Self::VirtioBlk => AdapterKind::VirtioBlk,
            Self::VirtioScsi => AdapterKind::VirtioScsi,
        }
    }
}

impl From<Coalescing> for devices::Policy {
    fn from(coalescing: Coalescing) -> Self {
        match coalescing {
            Coalescing::Off => Self::Off,
            Coalescing::Batch => Self::Batch,
            Coalescing::Oio => Self::Oio,
            Coalescing::OioIops => Self::OioIops,
        }
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
    fn words_are_read_and_others_are_refused_with_what_is_allowed() {
        for coalescing in Coalescing::ALL {
            assert_eq!(coalescing.word().parse(), Ok(*coalescing));
        }
        let error = "floppy".parse::<Adapter>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "adapter `floppy` is not one of: pvscsi, lsi, lsi-posted, lsi-sas, virtio-blk, virtio-scsi"
        );
        assert!("KVM".parse::<Engine>().is_err());
    }

    #[test]
    fn patterns() {
        assert_eq!(Access::RandRw.read_percent(70), 70);
        assert_eq!(Access::Read.read_percent(70), 100);
        assert!(Access::RandRw.random() && !Access::Write.random());
        assert!(Access::RandRw.writes() && !Access::RandRead.writes());
    }
}

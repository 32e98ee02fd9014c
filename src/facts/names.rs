//! Names of adapters and of coalescing policies in arguments and documents, and [`names!`](crate::names!), which defines such enums.

use paradisk_devices::AdapterKind;

/// A name that is not one of those allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{name}` is not one of: {}", allowed.join(", "))]
pub struct UnknownName {
    /// What was to be named.
    pub what: &'static str,
    /// The name given.
    pub name: String,
    /// The names allowed.
    pub allowed: Vec<&'static str>,
}

/// An enum whose variants have names: with `ALL`, `as_str`, `Display`, and `FromStr` whose error lists the names.
#[macro_export]
macro_rules! names {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::names::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().copied().find(|each| each.as_str() == name);
                found.ok_or_else(|| $crate::names::UnknownName {
                    what: $what,
                    name: name.to_owned(),
                    allowed: Self::ALL.iter().map(|each| each.as_str()).collect(),
                })
            }
        }
    };
}

names! {
    /// A storage adapter.
    Adapter, "adapter" {
        /// VMware's paravirtual SCSI adapter.
        Pvscsi = "pvscsi",
        /// LSI Logic LSI53C1030, parallel SCSI.
        Lsi = "lsi",
        /// LSI Logic SAS1068.
        LsiSas = "lsi-sas",
        /// BusLogic BT-958.
        BusLogic = "buslogic",
        /// IDE function of the PIIX4 at the ports of a PC/AT.
        Ide = "ide",
        /// The same in native mode.
        IdeNative = "ide-native",
        /// Virtio block device.
        VirtioBlk = "virtio-blk",
        /// Virtio SCSI host device.
        VirtioScsi = "virtio-scsi",
        /// Hyper-V's synthetic SCSI controller.
        Storvsc = "storvsc",
    }
}

names! {
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

impl Adapter {
    /// The device that is made for it.
    #[must_use]
    pub const fn kind(self) -> AdapterKind {
        match self {
            Self::Pvscsi => AdapterKind::Pvscsi,
            Self::Lsi => AdapterKind::Lsi,
            Self::LsiSas => AdapterKind::LsiSas,
            Self::BusLogic => AdapterKind::BusLogic,
            Self::Ide => AdapterKind::Ide,
            Self::IdeNative => AdapterKind::IdeNative,
            Self::VirtioBlk => AdapterKind::VirtioBlk,
            Self::VirtioScsi => AdapterKind::VirtioScsi,
            Self::Storvsc => AdapterKind::Storvsc,
        }
    }
}

impl From<Coalescing> for paradisk_devices::Policy {
    fn from(coalescing: Coalescing) -> Self {
        match coalescing {
            Coalescing::Off => Self::Off,
            Coalescing::Batch => Self::Batch,
            Coalescing::Oio => Self::Oio,
            Coalescing::OioIops => Self::OioIops,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_others_are_refused_with_those_allowed() {
        for coalescing in Coalescing::ALL {
            assert_eq!(coalescing.as_str().parse(), Ok(*coalescing));
        }
        let error = "floppy".parse::<Adapter>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "adapter `floppy` is not one of: pvscsi, lsi, lsi-sas, buslogic, ide, ide-native, virtio-blk, virtio-scsi, storvsc"
        );
        assert!("PVSCSI".parse::<Adapter>().is_err());
    }
}

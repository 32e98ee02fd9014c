//! Images of each format and kind.

use crate::server::Place;

/// A kind of image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Raw,
    Vhd,
    VhdFixed,
    /// Two differencing disks above a dynamic one.
    VhdChain,
    Vhdx,
    VhdxFixed,
    /// As `VhdChain`.
    VhdxChain,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] =
        [Self::Raw, Self::Vhd, Self::VhdFixed, Self::VhdChain, Self::Vhdx, Self::VhdxFixed, Self::VhdxChain];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Vhd => "vhd",
            Self::VhdFixed => "vhd-fixed",
            Self::VhdChain => "vhd-chain",
            Self::Vhdx => "vhdx",
            Self::VhdxFixed => "vhdx-fixed",
            Self::VhdxChain => "vhdx-chain",
        }
    }

    const fn format(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Vhd | Self::VhdFixed | Self::VhdChain => "vhd",
            Self::Vhdx | Self::VhdxFixed | Self::VhdxChain => "vhdx",
        }
    }

    /// Files of the chain.
    pub(crate) const fn levels(self) -> u32 {
        if matches!(self, Self::VhdChain | Self::VhdxChain) { 3 } else { 1 }
    }

    /// `image check` knows the format.
    pub(crate) const fn is_checked(self) -> bool {
        !matches!(self, Self::Raw)
    }
}

impl Place {
    /// Create a disk of so many bytes; its path. `fill` is called with each file of a chain that gets a child, before it gets it.
    pub(crate) fn image(&self, kind: Kind, size: u64, mut fill: impl FnMut(&str)) -> String {
        let path = |level: u32| self.file(&format!("{}-{level}", kind.name())).with_extension(kind.format());
        let path = |level| path(level).display().to_string();
        let (size, top) = (size.to_string(), kind.levels() - 1);
        let mut args = vec!["--size", &size];
        if kind != Kind::Raw {
            let fixed = matches!(kind, Kind::VhdFixed | Kind::VhdxFixed);
            args.extend(["--subformat", if fixed { "fixed" } else { "dynamic" }]);
        }
        self.create(kind, &path(0), &args);
        for level in 0..top {
            fill(&path(level));
            self.create(kind, &path(level + 1), &["--parent", &path(level)]);
        }
        path(top)
    }

    fn create(&self, kind: Kind, path: &str, args: &[&str]) {
        self.run(&[&["image", "create", path, "--format", kind.format()][..], args].concat());
    }

    /// Repair the image after its server was killed. At most space is leaked, and the repair succeeds.
    pub(crate) fn check(&self, kind: Kind, path: &str) {
        if kind.is_checked() {
            self.run(&["image", "check", "--repair", path]);
        }
    }
}

//! What the package is called.

pub(super) const NAME: &str = "paradisk";
pub(super) const ARCHITECTURE: &str = "amd64";
/// Debian's version: that of the crates, and which package of it this is.
pub(super) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");

//! How the tools open images, and the errors that several of them have.

use std::path::Path;
use std::sync::Arc;

use paradisk_disk_formats::{Format, FormatName, Image, OpenError, OpenOptions, ParentRules, refuse_nested};

use crate::failure::{Failure, Options};

/// Open a disk for reading, for a command that has the options `names`.
pub(super) fn source(options: &OpenOptions, names: &Options) -> Result<Arc<dyn Format>, Failure> {
    let options = OpenOptions { read_only: true, ..options.clone() };
    let format = options.open_format().map_err(|error| Failure::opening(&error, names))?;
    if let Some(remark) = format.remark() {
        tell!("note: {remark}");
    }
    Ok(format)
}

/// The format of an image: `requested`, else probed.
pub(super) fn format_of(path: &Path, requested: Option<FormatName>) -> Result<FormatName, Failure> {
    let probed = || FormatName::probe(path).map_err(failed);
    requested.map_or_else(probed, Ok)
}

/// Refuse an image inside another disk, because `what` needs a file.
pub(super) fn on_its_own(path: &Path, what: &str) -> Result<(), Failure> {
    refuse_nested(path, what).map_err(|error| Failure::Usage(error.to_string()))
}

/// An image of a format with blocks and parents.
pub(super) fn with_blocks(
    path: &Path,
    format: Option<FormatName>,
    parents: ParentRules,
) -> Result<Image, Failure> {
    let image = Image::of_format(path, format_of(path, format)?).with_parents(parents);
    if image.format().has_blocks() {
        return Ok(image);
    }
    let name = image.format();
    Err(Failure::Usage(format!("a {name} disk has no blocks and no parents: expected a vhd or vhdx image")))
}

/// An image that could not be opened or changed, by a command with the options of most tools.
pub(super) fn failed(error: OpenError) -> Failure {
    Failure::opening(&error, &Options::IMAGE)
}

/// The error of a tool that was stopped while it created an image.
pub(super) fn not_created() -> Failure {
    Failure::Failed("stopped: nothing was created".to_owned())
}

/// The error of a tool that was stopped while it changed an image.
pub(super) fn stopped() -> Failure {
    Failure::Failed("stopped: the image is valid".to_owned())
}

//! Naming another parent for a differencing disk.

use std::path::Path;

use super::chain::{self, Image, ParentRules};
use super::create::locators;
use super::edit::Editor;
use super::footer::Subformat;
use crate::field::BadField;
use crate::{Access, OpenError};

/// Make `parent` the parent of `child`: its identity, its time stamp and the paths to it are noted in the child. No data is
/// compared or copied: the parent must hold what the old one held, as after a move, a merge, or a change that the child can
/// live with.
///
/// After a power failure the child has the old parent or the new one.
///
/// # Errors
/// [`OpenError::Unsupported`] where the child is no differencing disk; [`OpenError::Invalid`] where the parent is the child
/// itself or stands on it; those of opening either.
pub fn rebase(child: &Path, parent: &Path, rules: &ParentRules) -> Result<(), OpenError> {
    let base = Image::open(parent, Access { read_only: true, direct: false })?;
    let (id, stamp) = (base.found.footer.unique_id, base.found.footer.time_stamp);
    refuse_loop(child, base, rules)?;
    let os = |source| OpenError::Os { path: child.into(), action: "cannot write the parent's place", source };
    let (locators, name) = locators(child, parent).map_err(os)?;
    let image = Image::open(child, Access::default())?;
    let mut editor = Editor::open(&*image.file)?;
    let Some(sparse) = editor.sparse.as_ref().filter(|_| editor.subformat == Subformat::Differencing) else {
        let reason = format!("a {} disk has no parent", editor.subformat.as_str());
        return Err(OpenError::Unsupported { path: child.into(), reason });
    };
    let mut header = sparse.header;
    header.parent_unique_id = id;
    header.parent_time_stamp = stamp;
    header.parent_unicode_name = name;
    editor.switch(header, None, Some(&locators)).map_err(os)
}

/// The child may not be among what it is to stand on.
fn refuse_loop(child: &Path, base: Image, rules: &ParentRules) -> Result<(), OpenError> {
    let os = |source| OpenError::Os { path: child.into(), action: "cannot open", source };
    let own = chain::identity(child, &std::fs::File::open(child).map_err(os)?)?;
    let mut images = vec![base];
    let access = Access { read_only: true, direct: false };
    let opened = chain::open_parents(&mut images, access, rules);
    for image in &images {
        if chain::identity(image.file.path(), image.file.file())? == own {
            let value = image.file.path().display().to_string();
            return Err(BadField::new("parent", value, "an image that is not in the chain already").of(child));
        }
    }
    opened
}

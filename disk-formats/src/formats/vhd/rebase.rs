//! Rebase: changes the parent of a differencing disk.

use std::path::Path;
use std::sync::Arc;

use super::chain::{self, Image};
use super::create::locators;
use super::edit::Editor;
use super::stamp;
use crate::contract::error::OpenError;
use crate::formats::chain::{Member, refuse_loop, require_differencing};
use crate::formats::parents::ParentRules;
use crate::formats::rebase::Rebase;
use crate::formats::sparse::{Blocks, SparseDisk};
use crate::host::backing::Access;
use crate::map::block_map::DEFAULT_MEMORY;
use crate::map::format::Format;

impl Rebase for Image {
    fn open_unchanged(self, rules: &ParentRules) -> Result<SparseDisk<impl Blocks>, OpenError> {
        Ok(chain::open_sparse(self, Access::default(), rules, DEFAULT_MEMORY)?.begun())
    }

    fn open_to_read(path: &Path, rules: &ParentRules) -> Result<Arc<dyn Format>, OpenError> {
        chain::open(path, Access::READ_ONLY, rules)
    }

    /// Records the parent's identity, time stamp and paths.
    fn note_parent(child: &Path, parent: &Path, rules: &ParentRules) -> Result<(), OpenError> {
        let base = Self::open(parent, Access::READ_ONLY)?;
        let (id, stamp) = (base.found.footer.unique_id, stamp::to_note(&base.found.footer));
        refuse_loop(child, base, rules)?;
        let os = OpenError::os(child, "cannot write the parent's location");
        let (locators, name) = locators(child, parent).map_err(os)?;
        let image = Self::open(child, Access::default())?;
        let mut editor = Editor::open(&*image.file)?;
        require_differencing(&image)?;
        let Some(mut header) = editor.sparse.as_ref().map(|sparse| sparse.header) else {
            let reason = "is no differencing disk any more".to_owned();
            return Err(OpenError::unsupported(child, reason));
        };
        header.parent_unique_id = id;
        header.parent_time_stamp = stamp.into();
        header.parent_unicode_name = name;
        editor.switch(header, None, Some(&locators)).map_err(os)
    }
}

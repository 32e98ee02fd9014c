//! Rebase: changes the parent of a differencing disk.

use std::path::Path;
use std::sync::Arc;

use super::chain::{self, Image, check_sectors};
use super::create::locator;
use super::edit::Editor;
use super::journal::DataGuid;
use super::sectors::Sectors;
use super::spec::item;
use crate::contract::error::OpenError;
use crate::formats::chain::{Member, refuse_loop, require_differencing};
use crate::formats::parents::ParentRules;
use crate::formats::rebase::Rebase;
use crate::formats::sparse::{Blocks, SparseDisk};
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;
use crate::map::block_map::DEFAULT_MEMORY;
use crate::map::format::Format;

impl Rebase for Image {
    fn open_unchanged(self, rules: &ParentRules) -> Result<SparseDisk<impl Blocks>, OpenError> {
        let known = self.opened.headers.data_write_guid();
        Ok(chain::open_chain(self, Access::default(), rules, DEFAULT_MEMORY)?.with_identity(known))
    }

    fn open_to_read(path: &Path, rules: &ParentRules) -> Result<Arc<dyn Format>, OpenError> {
        chain::open(path, Access::READ_ONLY, rules)
    }

    /// Records the parent's data write GUID and paths.
    fn note_parent(child: &Path, parent: &Path, rules: &ParentRules) -> Result<(), OpenError> {
        let base = Self::open(parent, Access::READ_ONLY).map_err(|error| Self::as_parent(parent, error))?;
        let linkage = base.linkage()?;
        {
            let image = Self::open(child, Access::READ_ONLY)?;
            require_differencing(&image)?;
            check_sectors(&image, &base).map_err(|bad| bad.of(child))?;
        }
        refuse_loop(child, base, rules)?;
        let os = OpenError::os(child, "cannot write the parent's location");
        let locator = locator(child, parent, linkage).and_then(|locator| locator.encode()).map_err(os)?;
        let store: Arc<dyn Store> = Arc::new(BackingFile::open(child, Access::default())?);
        let editor = Editor::open(store)?;
        let mut sectors = Sectors::default();
        let metadata = &editor.opened.metadata;
        metadata.change(&*editor.store, &mut sectors, item::PARENT_LOCATOR, &locator).map_err(os)?;
        editor.commit_alone(sectors, DataGuid::Unchanged).map_err(os)
    }
}

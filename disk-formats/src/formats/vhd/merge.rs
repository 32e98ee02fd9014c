//! Merging a differencing disk into its parent, and changing its parent.
//!
//! After a power failure, or if the caller stops the merge, the child's data are unchanged, and another merge
//! continues. Before data are copied, the parent gets a new time stamp that only this child has recorded: other
//! children are refused from then on.

use std::path::Path;
use std::sync::Arc;

use super::chain::{self, Image};
use super::create::locators;
use super::edit::Editor;
use super::stamp;
use crate::contract::error::OpenError;
use crate::formats::chain::{Member, refuse_loop, require_differencing};
use crate::formats::copy::overlay::Overlaid;
use crate::formats::merge::{ChainTools, MergeError, commit_into_parent};
use crate::formats::parents::ParentRules;
use crate::formats::sparse::{Blocks, SparseDisk};
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;
use crate::map::block_map::DEFAULT_MEMORY;
use crate::map::format::Format;

impl ChainTools for Image {
    fn open_to_merge(path: &Path) -> Result<Self, OpenError> {
        let image = Self::open(path, Access::default())?;
        Editor::open(&*image.file)?;
        Ok(image)
    }

    fn locked(&self) -> Option<Arc<BackingFile>> {
        Some(Arc::clone(&self.file))
    }

    fn commit(
        self,
        parent: Self,
        rules: &ParentRules,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Overlaid, MergeError> {
        let path = parent.file.path().to_path_buf();
        if parent.raw {
            let reason =
                "a raw disk cannot be merged into: copy the contents into a new image (`image merge --to`)";
            return Err(OpenError::unsupported(&path, reason).into());
        }
        drop(parent);
        let base = Self::open(&path, Access::default())?;
        if let Some(header) = self.child_header() {
            // The file is locked now: no other process changes it any more.
            self.check_parent(&base, rules)?;
            let noted = header.parent_time_stamp.get();
            let accepted = stamp::accepts(noted, &base.found.footer, stamp::modified(&base.file));
            announce(&*self.file, &*base.file, accepted)?;
        }
        // Read the images again, with their new time stamps.
        let (image, base) = (Self::of(self.file)?, Self::of(base.file)?);
        let below = chain::open_stamped(base, &rules.below(image.file.path()))?;
        let alone = || Ok(chain::alone(image.clone())?);
        commit_into_parent(&image.file, image.found.size, alone, std::iter::empty(), &*below, progress)
    }

    fn open_unchanged(self, rules: &ParentRules) -> Result<SparseDisk<impl Blocks>, OpenError> {
        Ok(chain::open_sparse(self, Access::default(), rules, DEFAULT_MEMORY)?.prepared())
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

/// Give the parent a new time stamp, and record it in the child, so that the child can be opened at any moment, and
/// other children are refused as soon as data were copied. `accepted`: the child accepts the parent as it is, without
/// `any_time`.
pub(super) fn announce(child: &dyn Store, parent: &dyn Store, accepted: bool) -> Result<(), OpenError> {
    let os = |path| OpenError::os(path, "cannot write its time stamp");
    let (mut above, mut below) = (Editor::open(child)?, Editor::open(parent)?);
    let Some(mut header) = above.sparse.as_ref().map(|sparse| sparse.header) else { return Ok(()) };
    // Children that have recorded this stamp stay valid until data are copied.
    let same = match header.parent_time_stamp.get() {
        noted if accepted && noted != 0 => noted,
        _ => below.footer.time_stamp.get(),
    };
    let end = below.end().map_err(os(parent.path()))?;
    stamp::announce(&mut below.footer, parent, same);
    below.put_footer(end).map_err(os(parent.path()))?;
    header.parent_time_stamp = below.footer.time_stamp;
    above.switch(header, None, None).map_err(os(child.path()))?;
    stamp::settle(&mut below.footer);
    below.put_footer(end).map_err(os(parent.path()))
}

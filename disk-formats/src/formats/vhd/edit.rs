//! Metadata changes by tools. A power failure leaves either the old or the new metadata.
//!
//! The commit point is a single sector, the trailing footer, which has the virtual size and the offset of the dynamic
//! header. A changed header, table or locator is written to unused space and flushed; then the footer is switched to
//! it. At the end the header is moved back to its usual offset in the same way, because other programs may expect it
//! there.

use std::io;

use zerocopy::IntoBytes;

use super::alloc::end_of;
use super::batmap::Batmap;
use super::footer::{self, Found, Subformat};
use super::layer::read_bat;
use super::layout::{self, Layout};
use super::locator::NewLocator;
use super::spec::{DynamicHeader, FOOTER_SIZE, Footer, HEADER_SIZE, ParentLocator, SECTOR};
use super::stamp;
use crate::contract::error::{BadField, OpenError, ReadError, or_bad};
use crate::formats::findings::Severity;
use crate::host::store::Store;

/// The parts of a dynamic or differencing disk that can be changed.
pub(super) struct Sparse {
    pub(super) header: DynamicHeader,
    pub(super) layout: Layout,
    /// BAT entries of the blocks of the virtual size.
    pub(super) table: Vec<u32>,
}

/// An image that is being changed.
pub(super) struct Editor<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) footer: Footer,
    pub(super) subformat: Subformat,
    pub(super) size: u64,
    pub(super) sparse: Option<Sparse>,
    /// Where the footer was when the image was opened, or after the last [`switch`](Self::switch); `None`: it was missing.
    pub(super) trailing: Option<u64>,
    /// [`Layout::aligns_footer`], when the image was opened.
    pub(super) aligns_footer: bool,
}

impl<'a> Editor<'a> {
    /// Read an image's metadata, and refuse a damaged image. A bad copy of the footer is repaired, because the trailing
    /// footer will not always be at the end of the file.
    pub(super) fn open(store: &'a dyn Store) -> Result<Self, OpenError> {
        let path = store.path();
        let failed = |error: ReadError| error.of(path, "cannot read the VHD's metadata");
        let os = |error: io::Error| failed(error.into());
        let report = super::check::check_in(store, false).map_err(os)?;
        if let Some(finding) = report.findings.iter().find(|finding| finding.severity == Severity::Damage) {
            return Err(BadField::new(
                finding.field,
                finding.value.clone(),
                format!("{} (run `image check --repair`)", finding.expected),
            )
            .of(path));
        }
        let mut found = footer::find(store).map_err(failed)?;
        let Found { footer, subformat, size, .. } = found;
        if footer.saved_state != 0 {
            let reason = "a saved state of a machine belongs to the disk: discard it first";
            return Err(OpenError::unsupported(path, reason));
        }
        let sparse = match subformat {
            Subformat::Fixed => None,
            Subformat::Dynamic | Subformat::Differencing => {
                let at = footer.data_offset.get();
                let (header, layout) = layout::read(store, at, size).map_err(failed)?;
                let table = read_bat(store, &layout, 0, u64::from(layout.used_entries())).map_err(os)?;
                Some(Sparse { header, layout, table })
            }
        };
        found.cut_zeros(store).map_err(OpenError::os(path, "cannot cut the zeros behind its footer"))?;
        if report.findings.iter().any(|finding| finding.field == "copy of the footer") {
            let written = store.write_at(footer.as_bytes(), 0).and_then(|()| store.sync());
            written.map_err(OpenError::os(path, "cannot write the copy of its footer"))?;
        }
        let trailing = found.source.trailing();
        let mut editor = Self { store, footer, subformat, size, sparse, trailing, aligns_footer: false };
        if let Some((layout, end)) = editor.used().map_err(os)? {
            editor.aligns_footer = layout.aligns_footer(end, trailing);
        }
        editor.move_footer().map_err(OpenError::os(path, "cannot move its footer behind the last block"))?;
        stamp::clean(&mut editor.footer);
        Ok(editor)
    }

    /// Move a footer that lies inside the last block, because some programs store less of that block. Its sectors from there on were never
    /// written.
    fn move_footer(&mut self) -> io::Result<()> {
        let end = self.end()?;
        if let Some(at) = self.trailing.filter(|at| *at < end && self.sparse.is_some()) {
            self.put_footer(end)?;
            footer::erase(self.store, at, end)?;
            self.trailing = Some(end);
        }
        Ok(())
    }

    /// The place of the trailing footer, behind everything else.
    pub(super) fn end(&self) -> io::Result<u64> {
        if let Some((layout, end)) = self.used()? {
            return Ok(layout.footer_place(end, self.trailing, self.aligns_footer));
        }
        // A fixed disk may have bytes beyond its size: Virtual PC derives the size from the geometry.
        let trailing = footer::trailing(self.store, self.store.len()?)?;
        Ok(trailing.map_or(self.size, |(_, at)| at.max(self.size)))
    }

    /// Where everything but the trailing footer ends; `None`: a fixed disk.
    fn used(&self) -> io::Result<Option<(Layout, u64)>> {
        let Some(Sparse { header, layout, table }) = &self.sparse else { return Ok(None) };
        let len = self.store.len()?;
        let batmap = Batmap::find(self.store, layout, len)?;
        Ok(Some((*layout, end_of(table, (self.subformat, header), layout, batmap.as_ref(), len))))
    }

    /// Write the current footer at `end`, truncate the file after it, and update the copy.
    pub(super) fn put_footer(&mut self, end: u64) -> io::Result<()> {
        self.footer.seal();
        self.store.write_at(self.footer.as_bytes(), end)?;
        self.store.sync()?;
        if self.store.len()? != end + FOOTER_SIZE as u64 {
            self.store.set_size(end + FOOTER_SIZE as u64)?;
            self.store.sync()?;
        }
        if self.sparse.is_some() {
            self.store.write_at(self.footer.as_bytes(), 0)?;
            self.store.sync()?;
        }
        Ok(())
    }

    /// Switch the image to another dynamic header, with another table or other locators, and to the current footer.
    pub(super) fn switch(
        &mut self,
        header: DynamicHeader,
        table: Option<Vec<u32>>,
        locators: Option<&[NewLocator]>,
    ) -> io::Result<()> {
        let aside = self.store.len()?.next_multiple_of(SECTOR);
        self.switch_by(aside, header, table, locators)
    }

    /// As [`switch`](Self::switch), with the new structures from `aside` on, where nothing else is but the footer behind them.
    pub(super) fn switch_by(
        &mut self,
        aside: u64,
        mut header: DynamicHeader,
        table: Option<Vec<u32>>,
        locators: Option<&[NewLocator]>,
    ) -> io::Result<()> {
        let home = self.footer.data_offset.get();
        let len = self.store.len()?;
        let (header_at, at) = match self.put_aside(&mut header, table, locators, aside) {
            Ok(places) => places,
            Err(error) => {
                // Nothing refers to the new metadata yet. Make the old footer the end of the file again.
                let _ = self.store.undo_growth(len);
                return Err(error);
            }
        };
        self.footer.data_offset = header_at.into();
        self.put_footer(at)?;
        self.store.write_at(header.as_bytes(), home)?;
        self.store.sync()?;
        self.footer.data_offset = home.into();
        self.put_footer(at)?;
        self.reload()?;
        let end = self.end()?.min(at);
        if end < at {
            self.put_footer(end)?;
        }
        self.trailing = Some(end);
        Ok(())
    }

    /// Write the new table or locators at `aside`, after them a dynamic header, and space for the footer. The header comes last, so that the
    /// footer takes its place when it has moved back. Returns the offsets of header and footer.
    fn put_aside(
        &self,
        header: &mut DynamicHeader,
        table: Option<Vec<u32>>,
        locators: Option<&[NewLocator]>,
        aside: u64,
    ) -> io::Result<(u64, u64)> {
        let mut at = aside;
        if let Some(locators) = locators {
            header.parent_locators = [ParentLocator::default(); 8];
            for (slot, locator) in header.parent_locators.iter_mut().zip(locators) {
                *slot = locator.at(at);
                locator.write(self.store, at)?;
                at += locator.space();
            }
        }
        if let Some(table) = &table {
            let mut bytes: Vec<u8> = table.iter().flat_map(|entry| entry.to_be_bytes()).collect();
            bytes.resize(bytes.len().next_multiple_of(SECTOR as usize), 0xFF);
            self.store.write_at(&bytes, at)?;
            header.table_offset = at.into();
            header.max_table_entries = (table.len() as u32).into();
            at += bytes.len() as u64;
        }
        header.seal();
        self.store.write_at(header.as_bytes(), at)?;
        let footer = at + HEADER_SIZE as u64;
        self.store.reserve(footer, footer + FOOTER_SIZE as u64)?;
        self.store.sync()?;
        Ok((at, footer))
    }

    fn reload(&mut self) -> io::Result<()> {
        if let Ok(found) = or_bad(footer::find(self.store))? {
            self.size = found.size;
        }
        let read = layout::read(self.store, self.footer.data_offset.get(), self.size);
        if let Ok((header, layout)) = or_bad(read)? {
            let table = read_bat(self.store, &layout, 0, u64::from(layout.used_entries()))?;
            self.sparse = Some(Sparse { header, layout, table });
        }
        Ok(())
    }
}

impl Sparse {
    /// Write the sectors of the BAT that have the entries of `blocks`.
    pub(super) fn write_entries(&self, store: &dyn Store, blocks: &[usize]) -> io::Result<()> {
        let per_sector = SECTOR as usize / 4;
        let mut sectors: Vec<usize> = blocks.iter().map(|block| block / per_sector).collect();
        sectors.sort_unstable();
        sectors.dedup();
        for sector in sectors {
            let first = sector * per_sector;
            let mut bytes = [0xFF; SECTOR as usize];
            let entries = self.table.get(first..).unwrap_or_default();
            for (slot, entry) in bytes.chunks_exact_mut(4).zip(entries) {
                slot.copy_from_slice(&entry.to_be_bytes());
            }
            store.write_at(&bytes, self.layout.bat + sector as u64 * SECTOR)?;
        }
        Ok(())
    }
}

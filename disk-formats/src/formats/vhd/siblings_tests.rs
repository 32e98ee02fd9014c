//! Families of VHDs: see [`siblings`](crate::formats::siblings).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use zerocopy::IntoBytes;

use super::alloc::Allocator;
use super::blocks::{SparseVhd, VhdBlocks};
use super::check::check_in;
use super::compact::compact_in;
use super::edit::Editor;
use super::fixed::FixedVhd;
use super::footer::{self, Subformat};
use super::layer::{Layer, Shape};
use super::merge::announce;
use super::resize::resize_in;
use super::spec::SECTOR;
use super::testing::{SECTORS, SIZE, disk_info};
use super::{create, layout, stamp};
use crate::formats::copy::content::Content;
use crate::formats::copy::overlay::Overlay;
use crate::formats::siblings::{Tools, families};
use crate::host::crash::{CrashFile, Image, stamped, stores, value_of};
use crate::host::effort::effort;
use crate::host::store::Store;
use crate::map::format::Format;

/// The tools. The root is fixed, or has blocks of this size.
struct Vhd {
    fixed: bool,
    block_size: u32,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn found(file: &CrashFile) -> Result<footer::Found, String> {
    footer::find(file).map_err(|error| format!("{error:?}"))
}

fn header_of(file: &CrashFile) -> Result<(super::spec::DynamicHeader, layout::Layout), String> {
    let found = found(file)?;
    layout::read(file, found.footer.data_offset.get(), found.size).map_err(|error| format!("{error:?}"))
}

/// Open a chain as `chain.rs` does for files: each parent must be the one that its child has recorded.
fn open(chain: &[CrashFile], read_only: bool, stamped: bool) -> Result<Box<dyn Format>, String> {
    let top = chain.first().ok_or("no images")?;
    let image = found(top)?;
    if image.subformat == Subformat::Fixed {
        let disk = FixedVhd::new(disk_info(&image, read_only), Arc::new(top.clone()), Vec::new(), &image);
        return Ok(Box::new(if stamped { disk.without_stamp() } else { disk }));
    }
    let (mut layers, mut visible) = (Vec::new(), u64::MAX);
    for (number, file) in chain.iter().enumerate() {
        let image = found(file)?;
        visible = visible.min(image.size);
        let shape = match image.subformat {
            Subformat::Fixed => Shape::Flat,
            _ => Shape::Sparse(header_of(file)?.1),
        };
        let len = AtomicU64::new(file.len().map_err(text)?);
        layers.push(Layer { store: Arc::new(file.clone()), shape, size: visible, len });
        if image.subformat != Subformat::Differencing {
            break;
        }
        let header = header_of(file)?.0;
        let parent = found(chain.get(number + 1).ok_or("no parent")?)?.footer;
        if header.parent_unique_id != parent.unique_id {
            return Err("another parent".to_owned());
        }
        if !stamp::accepts(header.parent_time_stamp.get(), &parent, None) {
            return Err(format!("the parent of image {number} was changed"));
        }
    }
    let (header, layout) = header_of(top)?;
    let allocator = Allocator::open(top, &image, &header, layout, !read_only).map_err(text)?;
    let differencing = image.subformat == Subformat::Differencing;
    let disk = SparseVhd::new(
        disk_info(&image, read_only),
        VhdBlocks::new(layout, differencing),
        layers,
        Vec::new(),
        allocator,
        crate::map::block_map::DEFAULT_MEMORY,
    );
    Ok(Box::new(if stamped { disk.prepared() } else { disk }))
}

impl Tools for Vhd {
    fn create(&self, number: u64, below: &[CrashFile]) -> Image {
        let file = CrashFile::default();
        let id = [[0x77; 8], number.to_be_bytes()].concat().try_into().expect("16 bytes");
        let kind = match below {
            [] if self.fixed => Subformat::Fixed,
            [] => Subformat::Dynamic,
            _ => Subformat::Differencing,
        };
        let at = if kind == Subformat::Fixed { u64::MAX } else { 512 };
        let footer = footer::new(kind, SIZE, at, id, std::time::SystemTime::now());
        if kind == Subformat::Fixed {
            file.write_at(footer.as_bytes(), SIZE).expect("space");
            return file.image();
        }
        let mut header = create::header(SIZE, self.block_size);
        if let Some(parent) = below.first() {
            let parent = found(parent).expect("a parent").footer;
            header.parent_unique_id = parent.unique_id;
            header.parent_time_stamp = parent.time_stamp;
        }
        create::write_sparse(&file, footer.as_bytes(), header, &[]).expect("space");
        file.image()
    }

    fn read(&self, chain: &[CrashFile]) -> Result<Vec<u64>, String> {
        let disk = open(chain, true, false)?;
        let stores = stores(chain);
        let mut data = vec![0; SIZE as usize];
        Content::over(&*disk, &stores).read_at(&mut data, 0).map_err(text)?;
        Ok(data.chunks_exact(SECTOR as usize).map(|sector| value_of(sector).unwrap_or(u64::MAX)).collect())
    }

    fn write(&self, chain: &[CrashFile], values: &[(u64, u64)], flush: bool) -> Result<(), String> {
        let disk = open(chain, false, false)?;
        let stores = stores(chain);
        let content = Content::over(&*disk, &stores);
        for (sector, value) in values {
            match value % 5 {
                0 => disk.write_zeroes(sector * SECTOR, SECTOR, true).map_err(text)?,
                _ => content.write_at(&stamped(*value), sector * SECTOR).map_err(text)?,
            }
        }
        match flush {
            true => disk.flush().map_err(text),
            false => Ok(()),
        }
    }

    fn merge(&self, chain: &[CrashFile]) -> Result<(), String> {
        let [child, below @ ..] = chain else { return Err("no parent".to_owned()) };
        let parent = below.first().ok_or("no parent")?;
        announce(child, parent, true).map_err(text)?;
        let (header, layout) = header_of(child)?;
        let image = found(child)?;
        let allocator = Allocator::open(child, &image, &header, layout, false).map_err(text)?;
        let len = AtomicU64::new(child.len().map_err(text)?);
        let layer =
            Layer { store: Arc::new(child.clone()), shape: Shape::Sparse(layout), size: image.size, len };
        let above = SparseVhd::new(
            disk_info(&image, true),
            VhdBlocks::new(layout, true),
            vec![layer],
            Vec::new(),
            allocator,
            crate::map::block_map::DEFAULT_MEMORY,
        );
        let under = open(below, false, true)?;
        let [over, to] = [stores([child]), stores(below)];
        let mut overlay =
            Overlay::new(Content::over(&above, &over), Content::over(&*under, &to), !self.fixed);
        overlay.write(0..image.size.min(under.info().capacity), |_| true).map_err(text)?;
        under.flush().map_err(text)?;
        // A fixed disk has no files in these tests.
        parent.sync().map_err(text)
    }

    fn rebase(&self, chain: &[CrashFile]) -> Result<(), String> {
        let [child, parent, ..] = chain else { return Err("no parent".to_owned()) };
        let mut editor = Editor::open(child).map_err(text)?;
        let mut header = editor.sparse.as_ref().ok_or("no header")?.header;
        let parent = found(parent)?.footer;
        header.parent_unique_id = parent.unique_id;
        header.parent_time_stamp = parent.time_stamp;
        editor.switch(header, None, None).map_err(text)
    }

    fn maintain(&self, chain: &[CrashFile], what: u64) -> Result<(), String> {
        let top = chain.first().ok_or("no images")?;
        match what {
            0 => resize_in(top, 2 * SIZE, false).map_err(text),
            1 => resize_in(top, SIZE, true).map_err(text),
            2 => compact_in(top, |_, _| true).map(drop).map_err(text),
            _ => check_in(top, true).map(drop).map_err(text),
        }
    }

    fn places(&self) -> u64 {
        SECTORS
    }
}

#[test]
fn each_image_reads_as_before_or_is_refused() {
    for (fixed, block_size) in [(true, 4096), (false, 8192), (false, 32 << 10)] {
        let seen = families(&Vhd { fixed, block_size }, 0..12 * effort(), 12);
        println!("fixed: {fixed}, blocks of {block_size}: {seen:?}");
        assert!(
            seen.good > 1_200 * effort() && seen.refused > 500 * effort() && seen.merged > effort(),
            "{seen:?}"
        );
    }
}

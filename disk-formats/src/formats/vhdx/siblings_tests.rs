//! Families of VHDXs: see [`siblings`](crate::formats::siblings).

use std::sync::Arc;

use uuid::Uuid;

use super::compact::compact;
use super::edit::Editor;
use super::journal::{DataGuid, Sectors};
use super::merge::zeros;
use super::resize::resize;
use super::spec::item;
use super::testing::{Shape, UNIT, check_in, new_image, open, opened, read};
use crate::contract::info::SectorSize;
use crate::formats::copy::content::Content;
use crate::formats::copy::overlay::Overlay;
use crate::formats::guid;
use crate::formats::siblings::{Tools, families};
use crate::host::crash::{CrashFile, Image, stamped, stores, value_of};
use crate::host::effort::effort;
use crate::host::store::Store;
use crate::map::format::Format;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;
/// Distance in bytes of the places that are checked.
const PITCH: u64 = 256 << 10;

/// The tools; whether the root is fixed.
struct Vhdx {
    fixed: bool,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn identity(file: &CrashFile) -> Result<Uuid, String> {
    Ok(opened(file, false)?.headers.data_write_guid())
}

/// Refuse a chain as `chain.rs` does: each parent must be the one that its child has recorded.
fn check(chain: &[CrashFile]) -> Result<(), String> {
    for pair in chain.windows(2) {
        let [child, parent] = pair else { break };
        let child = opened(child, false)?;
        let locator = child.metadata.locator.as_ref().ok_or("no locator")?;
        if !locator.accepts(identity(parent)?) {
            return Err("a parent that was changed".to_owned());
        }
    }
    Ok(())
}

/// Record in the child the current data write GUID of its parent (`now`) and the next one.
fn link(child: &CrashFile, now: Uuid, next: Option<Uuid>) -> Result<(), String> {
    let editor = Editor::open(Arc::new(child.clone())).map_err(text)?;
    let metadata = &editor.opened.metadata;
    let locator = metadata.locator.as_ref().ok_or("no locator")?.linked(now, next).encode().map_err(text)?;
    let mut sectors = Sectors::default();
    metadata.change(&*editor.store, &mut sectors, item::PARENT_LOCATOR, &locator).map_err(text)?;
    editor.commit_alone(sectors, DataGuid::Unchanged).map_err(text)
}

impl Tools for Vhdx {
    fn create(&self, _number: u64, below: &[CrashFile]) -> Image {
        let fixed = self.fixed && below.is_empty();
        let shape = Shape { size: SIZE, block_size: MIB as u32, sector: SectorSize::B512, fixed };
        new_image(shape, below.first().map(CrashFile::image).as_ref())
    }

    fn read(&self, chain: &[CrashFile]) -> Result<Vec<u64>, String> {
        check(chain)?;
        let disk = open(chain, true)?;
        let value = |place| {
            let mut unit = [0; UNIT as usize];
            read(&disk, chain, &mut unit, place * PITCH).map_err(text)?;
            Ok(value_of(&unit).unwrap_or(u64::MAX))
        };
        (0..self.places()).map(value).collect()
    }

    fn write(&self, chain: &[CrashFile], values: &[(u64, u64)], flush: bool) -> Result<(), String> {
        let disk = open(chain, false)?;
        for (place, value) in values {
            match value % 5 {
                0 => disk.write_zeroes(place * PITCH, UNIT, true).map_err(text)?,
                _ => disk.write_now(place * PITCH, &stamped(*value)).map_err(text)?,
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
        let next = guid::random().map_err(text)?;
        link(child, identity(parent)?, Some(next))?;
        let disk = open(below, false)?.with_identity(next);
        let above = open(std::slice::from_ref(child), true)?;
        let [over, under] = [stores([child]), stores(below)];
        let mut overlay = Overlay::new(Content::over(&above, &over), Content::over(&disk, &under), true);
        overlay.write(0..SIZE, |_| true).map_err(text)?;
        let image = opened(child, false)?;
        for run in zeros(&image).collect::<Result<Vec<_>, _>>().map_err(text)?.concat() {
            disk.write_zeroes(run.start, run.end.min(SIZE) - run.start, true).map_err(text)?;
        }
        disk.close().map_err(text)
    }

    fn rebase(&self, chain: &[CrashFile]) -> Result<(), String> {
        let [child, parent, ..] = chain else { return Err("no parent".to_owned()) };
        link(child, identity(parent)?, None)
    }

    fn maintain(&self, chain: &[CrashFile], what: u64) -> Result<(), String> {
        let top: Arc<dyn Store> = Arc::new(chain.first().ok_or("no images")?.clone());
        match what {
            0 => resize(top, SIZE + 2 * MIB, false).map_err(text),
            1 => resize(top, SIZE, true).map_err(text),
            2 => compact(top, |_, _| true).map(drop).map_err(text),
            _ => check_in(top, true).map(drop).map_err(text),
        }
    }

    fn places(&self) -> u64 {
        SIZE / PITCH
    }
}

#[test]
fn each_image_reads_as_before_or_is_refused() {
    for fixed in [true, false] {
        let seen = families(&Vhdx { fixed }, 0..8 * effort(), 12);
        println!("fixed: {fixed}: {seen:?}");
        assert!(
            seen.good > 800 * effort() && seen.refused > 400 * effort() && seen.merged > effort(),
            "{seen:?}"
        );
    }
}

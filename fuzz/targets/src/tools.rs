//! The tools of `paradisk image` on any VHD or VHDX with a parent: info, check, repair, resize, compact, merge, rebase, compare,
//! convert.
//!
//! The first three bytes say which format, tool and size. Then records change bytes of the child, its parent and another disk. A tool
//! may fail. A tool that succeeds on images that were clean must leave images without defects.

use std::fs::File;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use paradisk_disk_formats::image::{Content, Control, Output, compare, convert, write_difference};
use paradisk_disk_formats::vhd::spec::{DynamicHeader, FOOTER_SIZE, Footer, HEADER_SIZE};
use paradisk_disk_formats::vhdx::spec::{HEADERS_AT, MIB, REGION_TABLES_AT};
use paradisk_disk_formats::vhdx::{self, CreateOptions};
use paradisk_disk_formats::{
    FormatName, Image, OpenOptions, RebaseData, Repair, Scope, Severity, Shrink, Siblings, vhd,
};
use tempfile::TempDir;

use crate::common::folder::temporary;
use crate::common::image::{Stored, seal_vhd_structure, seal_vhdx};
use crate::common::input::Input;

/// Calls of a tool's progress after which it is cancelled: a damaged image may claim terabytes.
const STEPS: u32 = 2000;
const NAMES: [&str; 3] = ["parent", "child", "other"];

/// Places that have a meaning: start and bytes.
const VHD_AREAS: [(u64, u64); 6] =
    [(0, 512), (512, 64), (512 + 64, 960), (1536, 1024), (2560, 1024), (0, 16 << 10)];
const VHDX_AREAS: [(u64, u64); 8] = [
    (HEADERS_AT[0], 128),
    (REGION_TABLES_AT[0], 128),
    (MIB, 256),
    (2 * MIB, 256),
    (2 * MIB + (64 << 10), 1024),
    (3 * MIB, 64),
    (3 * MIB + (32 << 10), 16),
    (4 * MIB, 4 * MIB),
];

struct Rig {
    folder: TempDir,
    /// VHD, then VHDX: parent, child, and another disk of the same size.
    images: [Vec<Stored>; 2],
}

impl Rig {
    fn path(&self, format: FormatName, name: &str) -> PathBuf {
        self.folder.path().join(name).with_extension(format.as_str())
    }
}

fn make() -> Rig {
    let mut rig = Rig { folder: temporary(), images: [Vec::new(), Vec::new()] };
    for (number, format) in [FormatName::Vhd, FormatName::Vhdx].into_iter().enumerate() {
        let paths = NAMES.map(|name| rig.path(format, name));
        let [parent, child, other] = &paths;
        let fill = |path: &Path, step: u64| {
            let disk = OpenOptions::new(path).open_format().expect("a disk");
            // Some blocks are allocated and have only zeros: the tools free them.
            for (block, byte) in
                [(0, 0x10), (1, 0), (2, 0x12), (5, 0), (6, 0), (8, 0x18), (9, 0x19), (11, 0x1b)]
            {
                Content::new(&*disk).write_at(&[byte | 1; 4096], block * step).expect("a write");
                Content::new(&*disk).write_at(&[byte; 4096], block * step).expect("a write");
            }
            disk.flush().expect("a flush");
        };
        if format == FormatName::Vhd {
            vhd::create_dynamic(parent, MIB, Some(4096)).expect("an image");
            vhd::create_dynamic(other, MIB, Some(4096)).expect("an image");
            fill(parent, 4096);
            vhd::create_differencing(child, parent, Some(4096)).expect("an image");
            fill(child, 4096);
        } else {
            let options = CreateOptions { block_size: Some(1 << 20), ..CreateOptions::default() };
            vhdx::create_dynamic(parent, 12 * MIB, options).expect("an image");
            vhdx::create_dynamic(other, 12 * MIB, options).expect("an image");
            fill(parent, MIB);
            vhdx::create_differencing(child, parent, Some(1 << 20)).expect("an image");
            fill(child, MIB);
        }
        rig.images[number] = paths.iter().map(|path| Stored::read(path)).collect();
    }
    rig
}

/// Write valid checksums of a VHD's footer and header, at their usual places.
fn seal_vhd(file: &File) {
    let parts = [
        (0, FOOTER_SIZE, std::mem::offset_of!(Footer, checksum)),
        (FOOTER_SIZE as u64, HEADER_SIZE, std::mem::offset_of!(DynamicHeader, checksum)),
    ];
    for (start, len, at) in parts {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, start).expect("a read");
        seal_vhd_structure(&mut bytes, at);
        file.write_all_at(&bytes, start).expect("a write");
        if start == 0 {
            let end = file.metadata().expect("a file").len() - FOOTER_SIZE as u64;
            file.write_all_at(&bytes, end).expect("a write");
        }
    }
}

fn is_clean(path: &Path, format: FormatName) -> bool {
    let report = Image::of_format(path, format).check(Repair::ReportOnly);
    report.is_ok_and(|report| report.findings.is_empty())
}

fn open(path: &Path) -> Option<std::sync::Arc<dyn paradisk_disk_formats::Format>> {
    OpenOptions { read_only: true, ..OpenOptions::new(path) }.open_format().ok()
}

thread_local! {
    // Not in a static: its folder is removed when the thread ends.
    static RIG: Rig = make();
}

pub(crate) fn run(data: &[u8]) {
    RIG.with(|rig| run_with(rig, data));
}

fn run_with(rig: &Rig, data: &[u8]) {
    let mut input = Input(data);
    let (how, tool, place) = (input.u8(), input.u8() % 11, input.u8());
    let (number, format) = if how & 1 == 0 { (0, FormatName::Vhd) } else { (1, FormatName::Vhdx) };
    let paths = NAMES.map(|name| rig.path(format, name));
    let files: Vec<File> =
        paths.iter().zip(&rig.images[number]).map(|(path, stored)| stored.write(path)).collect();
    let areas = if number == 0 { &VHD_AREAS[..] } else { &VHDX_AREAS[..] };
    while !input.is_empty() {
        let which = input.u8();
        let (start, len) = areas[usize::from(which >> 2) % areas.len()];
        let (at, count) = (u64::from(input.u16()) * if len > 1 << 16 { 61 } else { 1 }, input.u8() % 9);
        let file = &files[[1, 0, 1, 2][usize::from(which & 3)]];
        file.write_all_at(input.bytes(count.into()), start + at % len).expect("a write");
    }
    if how & 2 != 0 {
        files.iter().for_each(if number == 0 { seal_vhd } else { seal_vhdx });
    }
    drop(files);
    let [parent, child, other] = &paths;
    let clean = paths.each_ref().map(|path| is_clean(path, format));
    let image = Image::of_format(child, format);
    let base = Image::of_format(parent, format);
    let calls = AtomicU32::new(0);
    let step = |_, _| calls.fetch_add(1, Relaxed) < STEPS;
    let still = |good: bool, which: usize| {
        if good && clean[which] {
            let report = Image::of_format(&paths[which], format).check(Repair::ReportOnly);
            // A merge may free blocks of the parent: their space is unused then.
            let worst = if matches!(tool, 4 | 5) { Some(Severity::Leak) } else { None };
            let good = report.as_ref().is_ok_and(|report| report.worst() <= worst);
            assert!(good, "tool {tool} damaged {}: {report:?}", NAMES[which]);
        }
    };
    match tool {
        0 => {
            let _ = image.info(Scope::Chain);
            let _ = base.children();
        }
        1 => {
            // A repair leaves nothing to repair. Only a repair of damage leaves unused space: it does not cut the file.
            if let Ok(first) = image.check(Repair::Repair) {
                let again = image.check(Repair::Repair).expect("a second check");
                let may_leak = first.findings.iter().any(|finding| finding.severity == Severity::Damage);
                let repaired: Vec<_> = again
                    .findings
                    .iter()
                    .filter(|finding| {
                        finding.repaired.is_some() && !(may_leak && finding.severity == Severity::Leak)
                    })
                    .collect();
                assert!(repaired.is_empty(), "repaired again: {repaired:?} after {first:?}");
            }
        }
        2 => {
            let size = u64::from(place) << if number == 0 { 16 } else { 20 };
            let shrink = if how & 4 != 0 { Shrink::Allow } else { Shrink::Refuse };
            still(image.resize(size, shrink).is_ok(), 1);
            still(base.resize(size, shrink).is_ok(), 0);
        }
        3 => {
            still(image.compact(step).is_ok(), 1);
            still(base.compact(step).is_ok(), 0);
        }
        4 | 5 => {
            let siblings = if how & 4 != 0 { Siblings::Orphan } else { Siblings::Refuse };
            still(image.merge(siblings, step).is_ok() && clean[1], 0);
        }
        6 => still(image.rebase(other, RebaseData::Assume, step).is_ok(), 1),
        7 => still(image.rebase(other, RebaseData::Copy, step).is_ok(), 1),
        8 | 9 => {
            let cancel = AtomicBool::new(false);
            let progress = |_, _| {
                if !step(0, 0) {
                    cancel.store(true, Relaxed);
                }
            };
            let control = Control { workers: NonZero::<usize>::MIN, cancel: &cancel, progress: &progress };
            let (Some(a), Some(b)) = (open(child), open(other)) else { return };
            let _ = compare(Content::new(&*a), Content::new(&*b), &control);
            let (Ok(output), true) = (Output::new(&rig.path(format, "new")), a.info().capacity <= 64 << 20)
            else {
                return;
            };
            let made = match number {
                0 => vhd::create_dynamic(output.part(), a.info().capacity, Some(4096)),
                _ => vhdx::create_dynamic(output.part(), a.info().capacity, CreateOptions::default()),
            };
            let options = OpenOptions { format: Some(format), ..OpenOptions::new(output.part()) };
            if let (Ok(()), Ok(to)) = (made, options.open_format()) {
                let done = convert(Content::new(&*a), Content::new(&*to), &control);
                drop(to);
                assert!(done.is_err() || is_clean(output.part(), format), "a conversion damaged its image");
            }
        }
        _ => {
            let (Some(a), Some(b)) = (open(child), open(other)) else { return };
            let fresh = rig.path(format, "new");
            let made = match number {
                0 => vhd::create_differencing(&fresh, other, Some(4096)),
                _ => vhdx::create_differencing(&fresh, other, Some(1 << 20)),
            };
            if made.is_ok() {
                if let Ok(to) = OpenOptions::new(&fresh).open_format() {
                    let _ = write_difference(Content::new(&*a), Content::new(&*b), Content::new(&*to), step);
                }
                let _ = std::fs::remove_file(&fresh);
            }
        }
    }
}

//! Creation of images: they are complete, or do not exist.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::super::Runs;
use super::super::images::{Kind, options};
use super::{After, Known, Tool, holds, known, text};
use crate::contract::error::OpenError;
use crate::formats::copy::content::Content;
use crate::formats::flat::raw::Raw;
use crate::formats::open::OpenOptions;
use crate::formats::output::Output;
use crate::formats::{vhd, vhdx};
use crate::image::{Control, convert};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

type Create = fn(&Path, &Path) -> Result<(), OpenError>;

/// The tools that create an image: name, size, function. Differencing images are over the parent of their format.
const WAYS: [(&str, u64, Create); 7] = [
    ("new.raw", 96 * KIB, |path, _| Raw::create(path, 96 * KIB)),
    ("new-fixed.vhd", 96 * KIB, |path, _| vhd::create_fixed(path, 96 * KIB)),
    ("new-dynamic.vhd", 96 * KIB, |path, _| vhd::create_dynamic(path, 96 * KIB, Some(8192))),
    ("new-child.vhd", 96 * KIB, |path, folder| {
        vhd::create_differencing(path, &folder.join("parent.vhd"), Some(8192))
    }),
    ("new-fixed.vhdx", 2 * MIB, |path, _| vhdx::create_fixed(path, 2 * MIB, options(1 << 20))),
    ("new-dynamic.vhdx", 2 * MIB, |path, _| vhdx::create_dynamic(path, 2 * MIB, options(1 << 20))),
    ("new-child.vhdx", 3 * MIB, |path, folder| {
        vhdx::create_differencing(path, &folder.join("parent.vhdx"), Some(1 << 20))
    }),
];

/// The expected content of a new image.
fn content(name: &str, size: u64, folder: &Path) -> (u64, Known) {
    match name {
        "new-child.vhd" => known(&folder.join("parent.vhd"), 8192).unwrap(),
        "new-child.vhdx" => known(&folder.join("parent.vhdx"), MIB).unwrap(),
        _ => (size, Known::new()),
    }
}

/// The image is complete, or it was not reported as created and does not exist. Nothing else is left of it.
fn complete_or_absent(
    path: &Path,
    block: u64,
    wanted: &(u64, Known),
    size: u64,
    after: After,
) -> Result<(), String> {
    let entries = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    let part = entries.into_iter().find(|name| name.to_string_lossy().contains(".part-"));
    // After a power failure the temporary name may exist again.
    if let (Some(part), true) = (part, after.powered) {
        return Err(format!("{} is left", part.display()));
    }
    match path.exists() {
        true => holds(path, block, wanted, &[size]),
        false if after.done => Err("it is not there".into()),
        false => Ok(()),
    }
}

#[test]
fn created() {
    let mut runs = Runs::new();
    for (name, size, create) in WAYS {
        for output in [false, true] {
            let make = |folder: &Path| {
                Kind::VhdDifferencing.make(folder);
                Kind::VhdxDifferencing.make(folder);
            };
            let run = |folder: &Path| {
                let path = folder.join(name);
                if !output {
                    return text(create(&path, folder));
                }
                let output = Output::new(&path).map_err(|error| error.to_string())?;
                text(create(output.part(), folder))?;
                text(output.finish())
            };
            let good = |folder: &Path, after: After| {
                let wanted = content(name, size, folder);
                let block = if name.ends_with('x') { MIB } else { 8192 };
                complete_or_absent(&folder.join(name), block, &wanted, size, after)
            };
            let title = format!("create {name}, output {output}");
            let tool =
                Tool { name: &title, clones: false, make: &make, run: &run, good: &good, again: false };
            tool.test(&mut runs);
        }
    }
    runs.end("created");
}

#[test]
fn converted() {
    let mut runs = Runs::new();
    let ways = [
        (Kind::Raw, 2, false),
        (Kind::Raw, 0, true),
        (Kind::VhdDifferencing, 5, false),
        (Kind::VhdDynamic, 1, false),
        (Kind::VhdxDifferencing, 0, false),
        (Kind::VhdInVhdx, 0, false),
        (Kind::VhdxInVhd, 5, false),
        (Kind::VhdxDynamic, 4, false),
    ];
    for (kind, to, clones) in ways {
        let (size, block) = kind.sizes();
        let (name, _, _) = WAYS[to];
        let run = |folder: &Path| -> Result<(), String> {
            let message = |error: OpenError| error.to_string();
            let output = Output::new(&folder.join(name)).map_err(message)?;
            match to {
                0 => Raw::create(output.part(), size),
                1 => vhd::create_fixed(output.part(), size),
                2 => vhd::create_dynamic(output.part(), size, Some(8192)),
                4 => vhdx::create_fixed(output.part(), size, options(1 << 20)),
                _ => vhdx::create_dynamic(output.part(), size, options(1 << 20)),
            }
            .map_err(message)?;
            {
                let source = OpenOptions { read_only: true, ..OpenOptions::new(kind.path(folder)) };
                let source = source.open_format().map_err(message)?;
                let into = crate::formats::name::FormatName::claimed(Path::new(name));
                let into = OpenOptions { format: into, ..OpenOptions::new(output.part()) };
                let into = into.open_format().map_err(message)?;
                let control = Control {
                    workers: NonZero::<usize>::MIN,
                    cancel: &AtomicBool::new(false),
                    progress: &|_, _| (),
                };
                text(convert(Content::new(&*source), Content::new(&*into), &control))?;
            }
            text(output.finish())
        };
        let good = |folder: &Path, after: After| {
            let wanted = known(&kind.path(folder), block)?;
            complete_or_absent(&folder.join(name), block, &wanted, size, after)
        };
        let title = format!("convert {kind:?} to {name}");
        let make = |folder: &Path| drop(kind.make(folder));
        let tool = Tool { name: &title, clones, make: &make, run: &run, good: &good, again: true };
        tool.test(&mut runs);
    }
    runs.end("converted");
}

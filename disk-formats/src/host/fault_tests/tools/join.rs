//! Merge and rebase.

use std::path::Path;

use super::super::Runs;
use super::super::images::{Kind, fill};
use super::{After, Tool, holds, known, text};
use crate::disk::image::{Image, RebaseData, Siblings};
use crate::formats::name::FormatName;

const KINDS: [(Kind, &str); 2] = [(Kind::VhdDifferencing, "vhd"), (Kind::VhdxDifferencing, "vhdx")];

fn image(kind: Kind, path: &Path) -> Image {
    let vhd = matches!(kind, Kind::VhdDifferencing);
    Image::of_format(path, if vhd { FormatName::Vhd } else { FormatName::Vhdx })
}

#[test]
fn merged() {
    let mut runs = Runs::new();
    for ((kind, extension), clones) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let block = kind.sizes().1;
        let make = |folder: &Path| drop(kind.make(folder));
        let host = super::Host::new();
        make(host.folder());
        let before = known(&kind.path(host.folder()), block).unwrap();
        let parent = |folder: &Path| folder.join(format!("parent.{extension}"));
        let good = |folder: &Path, after: After| {
            let child = kind.path(folder);
            match child.exists() {
                true if after.done => Err("the child is still there".into()),
                true => holds(&child, block, &before, &[before.0]),
                false => holds(&parent(folder), block, &before, &[before.0]),
            }
        };
        let run = |folder: &Path| {
            let child = kind.path(folder);
            if !child.exists() {
                // It was merged although an error was reported: there is nothing to repeat.
                return Ok(());
            }
            text(image(kind, &child).merge(Siblings::Refuse, |_, _| true))
        };
        let name = format!("merge {kind:?}, clones {clones}");
        Tool { name: &name, clones, make: &make, run: &run, good: &good, again: true }.test(&mut runs);
    }
    runs.end("merged");
}

/// To a copy of the parent; or to a parent with other data, after copying the differences.
#[test]
fn rebased() {
    let mut runs = Runs::new();
    for ((kind, extension), keep) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let block = kind.sizes().1;
        let beside = |folder: &Path, name: &str| folder.join(format!("{name}.{extension}"));
        let make = |folder: &Path| {
            kind.make(folder);
            std::fs::copy(beside(folder, "parent"), beside(folder, "other")).unwrap();
            if keep {
                fill(&beside(folder, "other"), &kind.places(), 1 << 44, 4);
            }
        };
        let host = super::Host::new();
        make(host.folder());
        let before = known(&kind.path(host.folder()), block).unwrap();
        let good = |folder: &Path, _| holds(&kind.path(folder), block, &before, &[before.0]);
        let run = |folder: &Path| {
            let data = if keep { RebaseData::Copy } else { RebaseData::Assume };
            text(image(kind, &kind.path(folder)).rebase(&beside(folder, "other"), data, |_, _| true))
        };
        let name = format!("rebase {kind:?}, keeping {keep}");
        Tool { name: &name, clones: false, make: &make, run: &run, good: &good, again: true }.test(&mut runs);
    }
    runs.end("rebased");
}

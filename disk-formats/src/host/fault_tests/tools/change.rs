//! Resize and compact.

use std::path::Path;

use super::super::Runs;
use super::super::images::Kind;
use super::{After, Tool, clear, holds, image, known, resize, text};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Resize an image. Its tail is empty if it is to shrink.
fn resized(runs: &mut Runs, kind: Kind, to: u64) {
    let (size, block) = kind.sizes();
    let make = |folder: &Path| {
        kind.make(folder);
        if to < size {
            let unit = block.min(16 * KIB);
            clear(&kind.path(folder), unit, &(to / unit..size / unit).collect::<Vec<_>>());
        }
    };
    let host = super::Host::new();
    make(host.folder());
    let before = known(&kind.path(host.folder()), block).unwrap();
    let good = |folder: &Path, after: After| {
        let sizes = if after.done { &[to][..] } else { &[size, to] };
        holds(&kind.path(folder), block, &before, sizes)
    };
    let run = |folder: &Path| text(resize(&kind.path(folder), to));
    let name = format!("resize {kind:?} to {to}");
    Tool { name: &name, clones: false, make: &make, run: &run, good: &good, again: true }.test(runs);
}

#[test]
fn resized_vhd() {
    let mut runs = Runs::new();
    for kind in [Kind::Raw, Kind::VhdFixed, Kind::VhdDynamic] {
        for to in [97 * KIB, 160 * KIB, 48 * KIB] {
            resized(&mut runs, kind, to);
        }
    }
    // The table moves.
    resized(&mut runs, Kind::VhdDynamic, 2 * MIB);
    resized(&mut runs, Kind::VhdDifferencing, 160 * KIB);
    runs.end("resized VHD");
}

#[test]
fn resized_vhdx() {
    let mut runs = Runs::new();
    for kind in [Kind::VhdxFixed, Kind::VhdxDynamic] {
        for to in [4 * MIB, 5 * MIB + 4096, MIB] {
            resized(&mut runs, kind, to);
        }
    }
    resized(&mut runs, Kind::VhdxDifferencing, 5 * MIB);
    runs.end("resized VHDX");
}

#[test]
fn compacted() {
    let mut runs = Runs::new();
    let kinds = [Kind::VhdDynamic, Kind::VhdDifferencing, Kind::VhdxDynamic, Kind::VhdxDifferencing];
    for (kind, emptied) in kinds.into_iter().zip([&[0, 3, 4, 5, 9][..], &[0, 3], &[0, 2], &[0]]) {
        let block = kind.sizes().1;
        let make = |folder: &Path| {
            kind.make(folder);
            clear(&kind.path(folder), block, emptied);
        };
        let host = super::Host::new();
        make(host.folder());
        let before = known(&kind.path(host.folder()), block).unwrap();
        let good = |folder: &Path, _| holds(&kind.path(folder), block, &before, &[before.0]);
        let run = |folder: &Path| text(image(&kind.path(folder)).compact(|_, _| true));
        let name = format!("compact {kind:?}");
        Tool { name: &name, clones: false, make: &make, run: &run, good: &good, again: true }.test(&mut runs);
    }
    runs.end("compacted");
}

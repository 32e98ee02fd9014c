//! Repair.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::super::Runs;
use super::super::images::Kind;
use super::{After, Tool, check, known, text};
use crate::formats::findings::Severity;

/// Damages an image.
type Harm = fn(&File);

fn size(file: &File) -> u64 {
    file.metadata().unwrap().len()
}

const HARMS: [(&str, Kind, Harm); 9] = [
    ("no copy of the footer", Kind::VhdDynamic, |file| file.write_all_at(&[0; 512], 0).unwrap()),
    ("no footer at the end", Kind::VhdDynamic, |file| file.set_len(size(file) - 512).unwrap()),
    ("a footer of 511 bytes", Kind::VhdFixed, |file| file.set_len(size(file) - 1).unwrap()),
    ("no copy of the footer", Kind::VhdDifferencing, |file| file.write_all_at(&[0; 512], 0).unwrap()),
    // The third entry of the table points outside of the file.
    ("a bad entry", Kind::VhdDynamic, |file| {
        file.write_all_at(&0x00FF_FFFF_u32.to_be_bytes(), 1536 + 8).unwrap();
    }),
    ("a bad first header", Kind::VhdxDynamic, |file| file.write_all_at(&[1; 4096], 64 << 10).unwrap()),
    ("a bad second header", Kind::VhdxFixed, |file| file.write_all_at(&[1; 4096], 128 << 10).unwrap()),
    ("a bad region table", Kind::VhdxDifferencing, |file| file.write_all_at(&[1; 4096], 192 << 10).unwrap()),
    // The second entry of the table points outside of the file.
    ("a bad entry", Kind::VhdxDynamic, |file| {
        file.write_all_at(&(6 | 1u64 << 40).to_le_bytes(), (3 << 20) + 8).unwrap();
    }),
];

#[test]
fn repaired() {
    let mut runs = Runs::new();
    for (what, kind, harm) in HARMS {
        let block = kind.sizes().1;
        let make = |folder: &Path| {
            kind.make(folder);
            let file = File::options().read(true).write(true).open(kind.path(folder)).unwrap();
            harm(&file);
        };
        let host = super::Host::new();
        make(host.folder());
        let path = kind.path(host.folder());
        let before = known(&path, block);
        check(&path, true).unwrap();
        let after = known(&path, block).unwrap();
        // The content is as before, or as after a repair without a fault. If it cannot be read, check must report
        // damage.
        let good = |folder: &Path, After { done, .. }: After| {
            let path = kind.path(folder);
            let report = check(&path, false).map_err(|error| error.to_string())?.unwrap();
            let harmed = report.worst() >= Some(Severity::Redundancy);
            match known(&path, block) {
                Ok(found) if found == after || !done && before.as_ref() == Ok(&found) => match harmed && done
                {
                    true => Err(format!("repaired, and check says {:?}", report.findings)),
                    false => Ok(()),
                },
                Ok(_) => Err("it holds something else".into()),
                Err(why) if !done && harmed && before.is_err() => drop_text(why),
                Err(why) => Err(why),
            }
        };
        let run = |folder: &Path| text(check(&kind.path(folder), true));
        let name = format!("repair {kind:?}: {what}");
        Tool { name: &name, clones: false, make: &make, run: &run, good: &good, again: true }.test(&mut runs);
    }
    runs.end("repaired");
}

/// The reason does not matter.
fn drop_text(_why: String) -> Result<(), String> {
    Ok(())
}

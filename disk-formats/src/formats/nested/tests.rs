use std::path::{Path, PathBuf};

use super::path::{Step, outermost, refuse_nested, split};
use crate::formats::open::OpenOptions;

fn steps(path: &str) -> Option<(String, Vec<String>)> {
    let nesting = split(Path::new(path))?;
    let step = |(step, path): &(Step, PathBuf)| match step {
        Step::Whole => format!("all of {}", path.display()),
        Step::Partition(number) => format!("{number} of {}", path.display()),
    };
    Some((nesting.outer.display().to_string(), nesting.steps.iter().map(step).collect()))
}

#[test]
fn paths_that_lead_into_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().display();
    for (end, outer, expected) in [
        ("a.vhd//", "a.vhd", vec!["all of a.vhd//"]),
        ("a.vhd//12", "a.vhd", vec!["12 of a.vhd//12"]),
        ("a.vhd////", "a.vhd", vec!["all of a.vhd//", "all of a.vhd////"]),
        ("a.vhd//1//", "a.vhd", vec!["1 of a.vhd//1", "all of a.vhd//1//"]),
        ("a.vhd////3", "a.vhd", vec!["all of a.vhd//", "3 of a.vhd////3"]),
        // A directory is not a nested path, whatever the names of its files.
        ("/1//", "/1", vec!["all of /1//"]),
    ] {
        let (found, steps) = steps(&format!("{folder}/{end}")).expect(end);
        assert_eq!(found, format!("{folder}/{outer}"));
        let expected: Vec<_> =
            expected.iter().map(|step| step.replacen(" of ", &format!(" of {folder}/"), 1)).collect();
        assert_eq!(steps, expected);
    }
    for path in ["", "/", "//", "//1", "a", "a/1", "a//b", "a//1b", "a//-1"] {
        assert!(split(Path::new(path)).is_none(), "{path}");
    }
    for path in [format!("{folder}//"), format!("{folder}//1"), format!("{folder}////")] {
        assert!(split(Path::new(&path)).is_none(), "{path}");
    }
    assert_eq!(outermost(Path::new("a.vhd//1//")).as_os_str(), "a.vhd");
    assert_eq!(outermost(Path::new("a.vhd")).as_os_str(), "a.vhd");
}

#[test]
fn a_third_disk_is_refused_before_anything_is_opened() {
    let error = OpenOptions::new("missing.vhd//////").open_format().err().expect("it is refused").to_string();
    assert_eq!(error, "missing.vhd//////: leads through 3 disks, expected at most 2");
    let error = refuse_nested(Path::new("a.vhd//2"), "resize changes files").unwrap_err().to_string();
    assert!(error.starts_with("a.vhd//2: it lies inside another disk: resize changes files"), "{error}");
}

use std::os::unix::fs::MetadataExt;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn complete_or_absent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    let output = Output::new(&path).unwrap();
    fs::write(output.part(), "half").unwrap();
    assert!(names(folder.path()).iter().all(|name| name.starts_with(".a.img.part-")));
    drop(output);
    assert!(names(folder.path()).is_empty());

    let output = Output::new(&path).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let output = output;
        fs::write(output.part(), "half").unwrap();
        panic!("as a defect would");
    }));
    assert!(panicked.is_err() && names(folder.path()).is_empty());

    let output = Output::new(&path).unwrap();
    fs::write(output.part(), "whole").unwrap();
    output.finish().unwrap();
    assert_eq!(
        (names(folder.path()), fs::read(&path).unwrap()),
        (vec!["a.img".to_owned()], b"whole".to_vec())
    );
}

#[test]
fn nothing_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    let output = Output::new(&path).unwrap();
    fs::write(output.part(), "ours").unwrap();
    // Two outputs at a time have different temporary names. A dangling link counts as an existing file.
    let second = Output::new(&path).unwrap();
    assert_ne!(output.part(), second.part());
    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    for error in [Output::new(&path).unwrap_err(), output.finish().unwrap_err()] {
        assert!(error.to_string().contains("a.img: cannot create: "), "{error}");
        assert!(error.to_string().contains("exists"), "{error}");
    }
    assert_eq!(names(folder.path()), ["a.img"]);
    assert!(Output::new(Path::new("/")).is_err());
}

#[test]
fn a_file_system_without_the_flag_links() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    fs::write(&from, "new").unwrap();
    let number = fs::metadata(&from).unwrap().ino();
    link_new(&from, &to).unwrap();
    assert_eq!((names(folder.path()), fs::metadata(&to).unwrap().ino()), (vec!["to".to_owned()], number));
    fs::write(&from, "newer").unwrap();
    assert_eq!(link_new(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&to).unwrap(), b"new");
}

#[test]
fn long_names_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x".repeat(255));
    let output = Output::new(&path).unwrap();
    fs::write(output.part(), "").unwrap();
    output.finish().unwrap();
    assert!(path.exists());
}

#[test]
fn a_temporary_name_is_recognized() {
    let output = Output::new(&std::env::temp_dir().join("a.img")).unwrap();
    assert!(is_part(output.part()) && !is_part(output.path()));
    for other in ["a.part-1-2", ".a.part-1", ".a.part-1-", ".a.part-x-1", ".a.part-1-2.vhd", "", "/"] {
        assert!(!is_part(Path::new(other)), "{other}");
    }
}

use std::os::unix::fs::FileExt;

use std::path::Path;

use crate::error::OpenError;
use crate::formats::flat::raw::Raw;
use crate::formats::name::FormatName;
use crate::formats::open::OpenOptions;
use crate::formats::vhd::create_fixed;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn opened(path: &Path) -> Result<&'static str, String> {
    let disk = OpenOptions::new(path).open().map_err(|error| error.to_string())?;
    Ok(disk.info().kind.format)
}

#[test]
fn name_and_content_must_agree() {
    let folder = folder();
    let vhd = folder.path().join("disk.VHD");
    create_fixed(&vhd, 1 << 20).unwrap();
    assert_eq!(opened(&vhd), Ok("vhd"));
    let renamed = folder.path().join("disk.img");
    std::fs::rename(&vhd, &renamed).unwrap();
    let error = opened(&renamed).unwrap_err();
    assert!(error.contains("disk.img: ends with a VHD footer") && error.contains("format=raw"), "{error}");
    let raw = folder.path().join("raw.vhd");
    Raw::create(&raw, 1 << 20).unwrap();
    let error = opened(&raw).unwrap_err();
    assert!(error.contains("raw.vhd: named as a VHD, but has no VHD footer"), "{error}");
    let vhdx = folder.path().join("a.vhdx");
    Raw::create(&vhdx, 1 << 20).unwrap();
    assert!(opened(&vhdx).unwrap_err().contains("VHDX"));
    let plain = folder.path().join("plain");
    Raw::create(&plain, 1 << 20).unwrap();
    assert_eq!(opened(&plain), Ok("raw"));
}

/// A guest writes a footer to the last sector of its raw disk: the disk stays raw.
#[test]
fn a_guest_cannot_change_the_format() {
    let folder = folder();
    let (raw, vhd) = (folder.path().join("guest.raw"), folder.path().join("a.vhd"));
    create_fixed(&vhd, 1 << 20).unwrap();
    let mut footer = [0; 512];
    std::fs::File::open(&vhd).unwrap().read_exact_at(&mut footer, 1 << 20).unwrap();
    Raw::create(&raw, 1 << 20).unwrap();
    std::fs::File::options().write(true).open(&raw).unwrap().write_all_at(&footer, (1 << 20) - 512).unwrap();
    assert!(opened(&raw).is_err());
    let disk = OpenOptions { format: Some(FormatName::Raw), ..OpenOptions::new(&raw) }.open().unwrap();
    assert_eq!((disk.info().kind.format, disk.info().capacity), ("raw", 1 << 20));
}

#[test]
fn failures_name_the_file_and_the_cause() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let error = opened(&path("absent.img")).unwrap_err();
    assert!(error.contains("absent.img: cannot open: No such file"), "{error}");
    let error = opened(folder.path()).unwrap_err();
    assert!(
        error.contains("type of file is a directory, expected a regular file or a block device"),
        "{error}"
    );
    let error = opened(Path::new("/dev/zero")).unwrap_err();
    assert!(error.contains("/dev/zero: type of file is a character device"), "{error}");
    for size in [0, 1, 511, 513, 1000] {
        std::fs::write(path("odd.img"), vec![0; size]).unwrap();
        let error = opened(&path("odd.img")).unwrap_err();
        assert!(
            error.contains(&format!("odd.img: size is {size} bytes, expected whole sectors of 512")),
            "{error}"
        );
    }
    std::fs::write(path("file"), [0; 512]).unwrap();
    let named = OpenOptions { format: Some(FormatName::Passthrough), ..OpenOptions::new(path("file")) };
    let error = named.open().err().unwrap().to_string();
    assert!(error.contains("type of file is a regular file, expected a block device"), "{error}");
}

#[test]
fn two_writers_are_refused_and_two_readers_are_not() {
    let folder = folder();
    let path = folder.path().join("shared.img");
    Raw::create(&path, 1 << 20).unwrap();
    let options = OpenOptions { format: Some(FormatName::Raw), ..OpenOptions::new(&path) };
    let reader = OpenOptions { read_only: true, ..options.clone() };
    let writer = options.open().unwrap();
    for second in [&options, &reader] {
        let error = second.open().err().unwrap();
        assert!(matches!(error, OpenError::Busy { .. }), "{error}");
        assert!(
            error.to_string().contains(&format!("shared.img: busy: this process, {} (", std::process::id())),
            "{error}"
        );
    }
    drop(writer);
    let first = reader.open().unwrap();
    let second = reader.open().unwrap();
    assert!(matches!(options.open().err().unwrap(), OpenError::Busy { .. }));
    drop((first, second));
    assert!(options.open().is_ok());
}

#[test]
fn format_names_are_those_of_the_command_line() {
    for name in FormatName::ALL {
        assert_eq!(name.to_string().parse(), Ok(name));
    }
    let error = "qcow2".parse::<FormatName>().unwrap_err().to_string();
    assert_eq!(error, "\"qcow2\" is no disk format: expected raw, passthrough, vhd or vhdx");
}

use std::os::unix::fs::FileExt;

use std::path::Path;

use crate::contract::error::OpenError;
use crate::formats::flat::raw::Raw;
use crate::formats::name::FormatName;
use crate::formats::open::OpenOptions;
use crate::formats::vhd::{self, create_fixed};
use crate::formats::vhdx;

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
    assert!(
        error.contains("disk.img: ends with a VHD footer")
            && error.ends_with("or name its format: vhd or raw"),
        "{error}"
    );
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

/// The start of an image of another program, of a compressed file, or of what a failed download leaves.
#[test]
fn what_is_no_raw_disk_is_refused_by_name() {
    let folder = folder();
    let at = |offset: usize, signature: &[u8]| [&vec![0; offset], signature].concat();
    let mut dmg = vec![0; 4096];
    dmg[4096 - 512..][..8].copy_from_slice(b"koly\0\0\0\x04");
    for (name, content) in [
        ("a qcow2 image", at(0, b"QFI\xfb\0\0\0\x03")),
        ("a QED image", at(0, b"QED\0")),
        ("a VMDK image", at(0, b"KDMV\x03\0\0\0")),
        ("a VMDK image", at(0, b"COWD")),
        ("a VMDK descriptor", at(0, b"# Disk DescriptorFile\nversion=1\n")),
        ("a VDI image", at(64, b"\x7f\x10\xda\xbe")),
        ("a Parallels image", at(0, b"WithoutFreeSpace")),
        ("a Parallels image", at(0, b"WithouFreSpacExt")),
        ("a DMG image", dmg),
        ("gzip-compressed", at(0, b"\x1f\x8b\x08\x08")),
        ("xz-compressed", at(0, b"\xfd7zXZ\0\0\x04")),
        ("zstd-compressed", at(0, b"\x28\xb5\x2f\xfd")),
        ("bzip2-compressed", at(0, b"BZh91AY&SY")),
        ("a zip archive", at(0, b"PK\x03\x04")),
        ("a tar archive", at(257, b"ustar\0")),
        ("an HTML page", at(0, b"\xef\xbb\xbf\r\n <!doctype HTML><title>404</title>")),
        ("an HTML page", at(0, b"<HTML lang=en>")),
        ("an XML document", at(0, b"<?xml version='1.0'?>")),
        ("a Git LFS pointer", at(0, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")),
    ] {
        // Whole, with the rest of a disk behind it, and under the name of an image.
        let disk = [&*content, &vec![0; 8192 - content.len()]].concat();
        let disk = if name == "a DMG image" { content.clone() } else { disk };
        for (file, content) in [("a.img", &content), ("b.raw", &disk), ("c.vhd", &disk), ("d.vhdx", &disk)] {
            let path = folder.path().join(file);
            std::fs::write(&path, content).unwrap();
            let error = opened(&path).unwrap_err();
            assert!(
                error.contains(&format!("{file}: {name}")) && error.ends_with("or name its format: raw"),
                "{error}"
            );
        }
        let meant =
            OpenOptions { format: Some(FormatName::Raw), ..OpenOptions::new(folder.path().join("b.raw")) };
        assert_eq!(meant.open().unwrap().info().kind.format, "raw");
    }
    for content in [&at(257, b"ustaX")[..], &at(63, b"\x7f\x10\xda\xbe"), b"QFI", b"\x1f\x8b", b"PK"] {
        let path = folder.path().join("raw");
        std::fs::write(&path, [content, &vec![0; 1024 - content.len()]].concat()).unwrap();
        assert_eq!(opened(&path), Ok("raw"));
    }
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

/// A parent that the caller names is opened wherever it lies, and its own parents beside it. The identity decides.
#[test]
fn a_parent_can_be_named_outright() {
    for format in ["vhd", "vhdx"] {
        let folder = folder();
        let away = folder.path().join("away");
        std::fs::create_dir(&away).unwrap();
        let path = |name: &str| folder.path().join(name).with_extension(format);
        let [root, parent, child, other] = ["root", "parent", "child", "other"].map(path);
        let create = |path: &Path| match format {
            "vhd" => vhd::create_dynamic(path, 4 << 20, None).unwrap(),
            _ => vhdx::create_dynamic(path, 4 << 20, vhdx::CreateOptions::default()).unwrap(),
        };
        let differencing = |path: &Path, parent: &Path| match format {
            "vhd" => vhd::create_differencing(path, parent, None).unwrap(),
            _ => vhdx::create_differencing(path, parent, None).unwrap(),
        };
        create(&root);
        create(&other);
        differencing(&parent, &root);
        differencing(&child, &parent);
        let moved = away.join("moved");
        std::fs::rename(&parent, &moved).unwrap();
        std::fs::rename(&root, away.join(root.file_name().unwrap())).unwrap();
        let open = |parent: Option<&Path>| {
            let options = OpenOptions::new(&child);
            let options = parent.into_iter().fold(options, |options, parent| options.parent(parent));
            options.open_format().map(|disk| disk.files().len()).map_err(|error| error.to_string())
        };
        let error = open(None).unwrap_err();
        assert!(error.contains("missing: "), "{error}");
        assert_eq!(open(Some(&moved)), Ok(3));
        let error = open(Some(&other)).unwrap_err();
        assert!(error.contains("as noted in the child") && error.contains("other"), "{error}");
        let error = open(Some(&child)).unwrap_err();
        assert!(error.contains("in the chain already"), "{error}");
        let error = open(Some(&path("absent"))).unwrap_err();
        assert!(error.contains("absent") && error.contains("cannot open the parent"), "{error}");
    }
}

/// A power failure while a fixed VHD grew kept the new size of the file and not the footer there: the old footer and all
/// data are used, and a writer or a repair cuts the zeros.
#[test]
fn a_fixed_vhd_that_a_resize_left_longer_is_opened_and_repaired() {
    use crate::{Image, Repair, Shrink};
    let folder = folder();
    let path = folder.path().join("a.vhd");
    let size = || path.metadata().unwrap().len();
    let grown = || {
        let _ = std::fs::remove_file(&path);
        create_fixed(&path, 6 << 20).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(20 << 20).unwrap();
    };
    let good = |read_only| {
        let disk = OpenOptions { read_only, ..OpenOptions::new(&path) }.open().unwrap();
        assert_eq!(disk.info().capacity, 6 << 20);
    };
    grown();
    good(true);
    assert_eq!(size(), 20 << 20);
    let check = |repair| Image::open(&path).unwrap().check(repair).unwrap();
    let report = check(Repair::ReportOnly);
    assert_eq!((report.findings.len(), report.findings[0].severity), (1, crate::Severity::Redundancy));
    check(Repair::Repair);
    assert_eq!((check(Repair::ReportOnly).findings, size()), (vec![], (6 << 20) + 512));
    good(true);
    grown();
    good(false);
    assert_eq!(size(), (6 << 20) + 512);
    grown();
    Image::open(&path).unwrap().resize(8 << 20, Shrink::Refuse).unwrap();
    assert_eq!((check(Repair::ReportOnly).findings, size()), (vec![], (8 << 20) + 512));
    // Anything but zeros behind it is no such state.
    grown();
    std::fs::File::options().write(true).open(&path).unwrap().write_all_at(&[1], (20 << 20) - 1).unwrap();
    assert!(opened(&path).is_err());
}

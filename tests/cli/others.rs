//! Files that are no images of ours, or not quite.

use super::*;

fn done(args: &[&str]) -> (String, String) {
    let output = paradisk(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    (stdout(&output), stderr(&output))
}

/// The message names the option that the command has.
#[test]
fn what_is_no_raw_disk_is_refused_by_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [image, new, zipped] = ["a.img", "new.vhdx", "z.vhdx"].map(path);
    fs::write(&image, [b"QFI\xfb\0\0\0\x03", &[0; 4088][..]].concat()).unwrap();
    fs::write(&zipped, [b"\x1f\x8b\x08\0", &[0; 4092][..]].concat()).unwrap();
    let qcow2 = "a.img: a qcow2 image, not a raw disk: convert it first (qemu-img convert -O raw), or name its format: ";
    for (args, option) in [
        (&["image", "convert", &image, &new, "--format", "vhdx"][..], "--from-format raw\n"),
        (&["image", "info", &image], "--format raw\n"),
        (&["image", "check", &image], "--format raw\n"),
        (&["image", "map", &image], "--format raw\n"),
        (&["image", "compact", &image], "--format raw\n"),
        (&["image", "compare", &image, &new], "--format-a raw\n"),
        (&["image", "resize", &image, "8K"], "--format raw\n"),
        (&["serve", "nbd", "--socket", "x", "--disk", &image], "format=raw\n"),
        (&["run", "--kernel", "x", "--disk", &image], "format=raw\n"),
    ] {
        failed(args, &[qcow2, option]);
    }
    failed(&["image", "check", &zipped], &["z.vhdx: gzip-compressed, not a raw disk: decompress it first"]);
    assert!(!Path::new(&new).exists());
    done(&["image", "convert", &image, &new, "--format", "vhdx", "--from-format", "raw"]);
    assert_eq!(done(&["image", "compare", &image, &new, "--format-a", "raw"]).0, "the same\n");
}

/// It is read to its last byte, and never grown.
#[test]
fn a_raw_file_of_any_size_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [odd, vhdx, back] = ["odd.raw", "new.vhdx", "back.raw"].map(path);
    let content: Vec<u8> = (0..3_000_001u32).map(|at| (at % 251) as u8 + 1).collect();
    fs::write(&odd, &content).unwrap();
    assert!(done(&["image", "info", &odd]).0.contains("size: 2930K (3000320 bytes)"));
    done(&["image", "convert", &odd, &vhdx, "--format", "vhdx"]);
    done(&["image", "convert", &vhdx, &back, "--format", "raw"]);
    let mut padded = content.clone();
    padded.resize(3_000_320, 0);
    assert!(fs::read(&back).unwrap() == padded);
    failed(
        &["serve", "nbd", "--socket", "x", "--disk", &odd],
        &[
            "size is 3000001 bytes, expected whole sectors of 512 bytes, at least one: open it read-only, or resize it to 3000320",
        ],
    );
    assert!(fs::read(&odd).unwrap() == content);
    done(&["image", "resize", &odd, "3000320"]);
    assert!(fs::read(&odd).unwrap() == padded);
}

#[test]
fn a_parent_in_another_folder_is_announced_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for name in ["a", "b", "c"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let [base, child, elsewhere, allowed] = ["b/base.vhdx", "a/child.vhdx", "c/BASE.vhdx", "c"].map(path);
    done(&["image", "create", &base, "--format", "vhdx", "--size", "8M"]);
    let said = done(&["image", "create", &child, "--format", "vhdx", "--parent", &base]).1;
    assert!(said.contains("is in another folder") && said.contains("--parent-dir"), "{said}");
    // The image itself is good.
    let (printed, said) = done(&["image", "check", &child]);
    assert!(printed.contains("good") && said.contains("its parents were not checked"), "{printed}{said}");
    fs::rename(&base, &elsewhere).unwrap();
    failed(&["image", "info", &child, "--chain"], &["parent is missing"]);
    // By its name in another case, and below the folder.
    for folder in [&allowed, &path("")] {
        assert!(done(&["image", "info", &child, "--chain", "--parent-dir", folder]).0.contains("BASE.vhdx"));
    }
    assert!(done(&["image", "info", &child, "--chain", "--parent-file", &elsewhere]).0.contains("BASE.vhdx"));
    failed(&["image", "info", &child, "--chain", "--parent-file", &child], &["in the chain already"]);
}

#[test]
fn a_fixed_vhd_takes_no_space_if_that_is_wanted() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [raw, made, copied, dynamic] = ["a.raw", "made.vhd", "copied.vhd", "dynamic.vhd"].map(path);
    fs::write(&raw, [vec![7; 4096], vec![0; (64 << 20) - 4096]].concat()).unwrap();
    let sparse = |args: &[&str], file: &str| {
        let said = done(args).1;
        assert!(said.contains("is sparse: Windows does not attach sparse files"), "{said}");
        assert!(fs::metadata(file).unwrap().blocks() < 1024);
        assert!(done(&["image", "check", file]).0.contains("good"));
    };
    sparse(&["image", "create", &made, "--format", "vhd", "--size", "64M", "--sparse"], &made);
    sparse(
        &["image", "convert", &raw, &copied, "--format", "vhd", "--subformat", "fixed", "--sparse"],
        &copied,
    );
    assert_eq!(done(&["image", "compare", &raw, &copied]).0, "the same\n");
    refused(
        &[
            "image",
            "create",
            &dynamic,
            "--format",
            "vhd",
            "--subformat",
            "dynamic",
            "--size",
            "64M",
            "--sparse",
        ],
        &["--sparse is for a fixed vhd"],
    );
    refused(
        &["image", "create", &dynamic, "--format", "vhdx", "--size", "64M", "--sparse"],
        &["--sparse is for a fixed vhd"],
    );
}

#[test]
fn several_images_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [one, two, absent] = ["one.vhdx", "two.vhd", "absent.vhd"].map(path);
    done(&["image", "create", &one, "--format", "vhdx", "--size", "8M"]);
    done(&["image", "create", &two, "--format", "vhd", "--size", "1.5M"]);
    let reports: serde_json::Value =
        serde_json::from_str(&done(&["image", "check", &one, &two, "--json"]).0).unwrap();
    assert_eq!((reports[0]["format"].as_str(), reports[1]["path"].as_str()), (Some("vhdx"), Some(&*two)));
    let output = paradisk(&["image", "check", &one, &absent, &two]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).lines().count() == 2 && stderr(&output).contains("absent.vhd: cannot open"));
}

//! `paradisk image`.

use super::*;

#[test]
fn image_info_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("a.img").display().to_string();
    assert!(paradisk(&["image", "create", &image, "--format", "raw", "--size", "3M"]).status.success());
    let text = stdout(&paradisk(&["image", "info", &image]));
    for line in [&format!("image: {image}"), "format: raw", "size: 3M (3145728 bytes)"] {
        assert!(text.lines().any(|each| each == line), "{line}\n{text}");
    }
}

/// `paradisk image`, which must succeed: what it prints.
fn done(args: &[&str]) -> String {
    let output = paradisk(&[&["image"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn an_image_goes_through_all_that_can_be_done_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [raw, base, child, grandchild, back] =
        ["a.raw", "base.vhd", "child.vhd", "grandchild.vhd", "back.raw"].map(path);
    let mut content = vec![0u8; 3 << 20];
    content[5000..70_000].fill(0x41);
    content[(2 << 20) + 512..(2 << 20) + 1024].fill(0x42);
    fs::write(&raw, &content).unwrap();
    done(&["convert", &raw, &base, "--format", "vhd", "--subformat", "dynamic"]);
    done(&["create", &child, "--format", "vhd", "--parent", &base]);
    done(&["create", &grandchild, "--format", "vhd", "--parent", &child, "--block-size", "64K"]);
    let info: serde_json::Value =
        serde_json::from_str(&done(&["info", &grandchild, "--chain", "--json"])).unwrap();
    assert_eq!((&info["subformat"], &info["capacity"]), (&"differencing".into(), &(3 << 20).into()));
    assert_eq!(info["images"].as_array().unwrap().len(), 3);
    assert_eq!(info["images"][1]["unique_id"], info["images"][0]["parent_unique_id"]);
    assert_eq!(done(&["compare", &raw, &grandchild]), "the same\n");
    let map: serde_json::Value = serde_json::from_str(&done(&["map", &grandchild, "--json"])).unwrap();
    let runs = map.as_array().unwrap();
    let covered: u64 = runs.iter().map(|run| run["length"].as_u64().unwrap()).sum();
    assert_eq!(covered, 3 << 20);
    assert!(runs.iter().any(|run| run["data"] == true && run["depth"] == 2));
    done(&["convert", &grandchild, &back, "--format", "raw"]);
    assert!(fs::read(&back).unwrap() == content);
    done(&["check", &grandchild]);
    // The parent goes elsewhere: not found, not allowed, allowed, named anew.
    let moved = path("elsewhere/base.vhd");
    fs::create_dir(folder.path().join("elsewhere")).unwrap();
    fs::rename(&base, &moved).unwrap();
    failed(
        &["image", "compare", &raw, &child],
        &["child.vhd: parent is missing:", "allow its directory, or name it"],
    );
    failed(&["image", "check", &child], &[]);
    // It is found by its name in a folder that is given, and by its path.
    let elsewhere = path("elsewhere");
    assert_eq!(done(&["compare", &raw, &child, "--parent-dir", &elsewhere]), "the same\n");
    assert_eq!(done(&["compare", &raw, &child, "--parent-file-b", &moved]), "the same\n");
    done(&["rebase", &child, "--parent", &moved]);
    assert_eq!(done(&["compare", &raw, &child]), "the same\n");
    let outside = tempfile::tempdir().unwrap();
    let far = outside.path().join("base.vhd").display().to_string();
    fs::rename(&moved, &far).unwrap();
    done(&["rebase", &child, "--parent", &far]);
    failed(&["image", "compare", &raw, &child], &["child.vhd: its parent", "is outside of", "--parent-dir"]);
    let allowed = outside.path().display().to_string();
    done(&["compare", &raw, &child, "--parent-dir", &allowed]);
    // Merging: refused beside others on the same parent, then done, and the orphan is named.
    let other = path("other.vhd");
    done(&["create", &other, "--format", "vhd", "--parent", &far]);
    failed(
        &["image", "merge", &child, "--parent-dir", &allowed],
        &["other disks have it as their parent", "other.vhd", "--force"],
    );
    fs::remove_file(&other).unwrap();
    let merged = paradisk(&["image", "merge", &child, "--parent-dir", &allowed]);
    assert!(merged.status.success() && stderr(&merged).contains("grandchild.vhd was"), "{}", stderr(&merged));
    assert!(!Path::new(&child).exists());
    done(&["rebase", &grandchild, "--parent", &far]);
    done(&["compare", &raw, &grandchild, "--parent-dir", &allowed]);
    let over = path("over.vhd");
    assert_eq!(
        done(&["convert", &raw, &over, "--format", "vhd", "--parent", &grandchild, "--parent-dir", &allowed]),
        "0 differ\n"
    );
    fs::remove_file(&over).unwrap();
    let whole = path("whole.vhd");
    done(&["merge", &grandchild, "--to", &whole, "--parent-dir", &allowed]);
    assert_eq!(done(&["compare", &raw, &whole]), "the same\n");
    // Over another parent: whatever that parent holds, the child reads the same.
    let blank = path("blank.vhd");
    done(&["create", &blank, "--format", "vhd", "--subformat", "dynamic", "--size", "3M"]);
    let copied = done(&["rebase", &grandchild, "--parent", &blank, "--safe", "--parent-dir", &allowed]);
    assert!(copied.ends_with(" copied\n") && !copied.starts_with("0 "), "{copied}");
    assert_eq!(done(&["compare", &raw, &grandchild]), "the same\n");
    done(&["convert", &raw, &over, "--format", "vhd", "--parent", &blank]);
    assert_eq!(done(&["compare", &raw, &over]), "the same\n");
    // Larger, smaller, compact; not where it is the parent of others.
    failed(
        &["image", "resize", &blank, "4M"],
        &["other disks have it as their parent", "grandchild.vhd", "--force"],
    );
    done(&["resize", &whole, "40M"]);
    failed(&["image", "resize", &whole, "3M"], &["--shrink"]);
    done(&["resize", &whole, "3M", "--shrink"]);
    failed(&["image", "resize", &whole, "1M", "--shrink"], &["there is data"]);
    assert!(done(&["compact", &whole]).contains("0 blocks released"));
    done(&["check", &whole]);
    assert_eq!(done(&["compare", &raw, &whole]), "the same\n");
    // What is there is not overwritten, and what fails leaves nothing.
    failed(&["image", "convert", &raw, &whole, "--format", "vhd"], &["whole.vhd", "exists"]);
    failed(
        &["image", "create", &path("b.vhd"), "--format", "vhd", "--size", "1000"],
        &["b.vhd: size is 1000 bytes"],
    );
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("part")), "{left:?}");
    fs::write(&back, [&content[..], &[1]].concat()).unwrap();
    let output = paradisk(&["image", "compare", &raw, &back]);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(1), "different from byte 3145728 on\n".to_owned())
    );
}

#[test]
fn image_compare_and_map_take_no_time_over_holes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [a, b, raw] = ["a.vhd", "b.vhd", "c.raw"].map(path);
    for file in [&a, &b] {
        let dynamic = ["--format", "vhd", "--subformat", "dynamic", "--size", "2040G"];
        assert!(paradisk(&[&["image", "create", file][..], &dynamic].concat()).status.success());
    }
    assert!(paradisk(&["image", "create", &raw, "--format", "raw", "--size", "3T"]).status.success());
    // Hours, if each part of a hole were looked at by itself.
    assert_eq!(stdout(&paradisk(&["image", "compare", &a, &b])), "the same\n");
    let text = stdout(&paradisk(&["image", "compare", &a, &raw, "--json"]));
    let verdict: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&verdict["equal"], &verdict["sizes"][1]), (&true.into(), &(3u64 << 40).into()));
    let map: serde_json::Value =
        serde_json::from_str(&stdout(&paradisk(&["image", "map", &raw, "--json"]))).unwrap();
    assert_eq!(map.as_array().unwrap().len(), 1);
    assert_eq!((&map[0]["length"], &map[0]["data"]), (&(3u64 << 40).into(), &false.into()));
}

#[test]
fn image_convert_reports_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (raw, vhd) = (path("a.raw"), path("a.vhd"));
    let mut content = vec![0u8; (8 << 20) + 512];
    content[1 << 20..3 << 20].fill(0x55);
    fs::write(&raw, &content).unwrap();
    let output = paradisk(&["image", "convert", &raw, &vhd, "--format", "vhd", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stderr.is_empty(), "no progress where there is no terminal");
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["capacity"], (8 << 20) + 512);
    let moved: u64 =
        ["written", "cloned", "copied_by_server"].map(|key| report[key].as_u64().unwrap()).iter().sum();
    assert!(moved >= 2 << 20);
    assert_eq!(stdout(&paradisk(&["image", "compare", &raw, &vhd])), "the same\n");
    // Past the page cache, where the file system of the folder can do that.
    let direct = path("direct.vhd");
    let output = paradisk(&["image", "convert", &raw, &direct, "--format", "vhd", "--direct"]);
    if output.status.success() {
        assert_eq!(stdout(&paradisk(&["image", "compare", &raw, &direct])), "the same\n");
    } else {
        assert!(stderr(&output).contains("direct"), "{}", stderr(&output));
        assert!(!Path::new(&direct).exists());
    }
}

/// Whenever the signal comes, the image is complete or absent, and nothing else is left.
#[test]
fn image_convert_that_is_interrupted_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (raw, vhd) = (path("a.raw"), path("a.vhd"));
    let content: Vec<u8> = (0..128 << 20).map(|at: u32| (at % 251) as u8 | 1).collect();
    fs::write(&raw, &content).unwrap();
    let (begin, mut stopped) = (Instant::now(), false);
    let mut delay = 0;
    while begin.elapsed() < Duration::from_secs(120) {
        let child = Command::new(env!("CARGO_BIN_EXE_paradisk"))
            .args(["image", "convert", &raw, &vhd, "--format", "vhd", "--subformat", "fixed"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        let names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        if output.status.success() {
            assert_eq!(fs::metadata(&vhd).unwrap().len(), (128 << 20) + 512);
            fs::remove_file(&vhd).unwrap();
            // The signal came too late.
            delay = 0;
        } else {
            assert!(sent.success());
            delay += 5;
            assert_eq!(names, ["a.raw"], "before {delay} ms: {}", stderr(&output));
            stopped |= stderr(&output).contains("stopped: nothing was created");
        }
        if stopped {
            return;
        }
    }
    panic!("no signal came in time");
}

#[test]
fn damage_is_told_and_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("a.vhd").display().to_string();
    assert!(
        paradisk(&["image", "create", &image, "--format", "vhd", "--subformat", "dynamic", "--size", "8M"])
            .status
            .success()
    );
    let mut bytes = fs::read(&image).unwrap();
    bytes[1536..1540].copy_from_slice(&1u32.to_be_bytes());
    bytes[20] ^= 1;
    fs::write(&image, &bytes).unwrap();
    let output = paradisk(&["image", "check", &image]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(
        text.contains("damage: BAT entry is 1 of block 0")
            && text.contains("copy of the footer is different"),
        "{text}"
    );
    failed(
        &["bench", "--engine", "harness", "--disk", &image],
        &["BAT entry is 1, expected", "check --repair"],
    );
    let repaired = paradisk(&["image", "check", &image, "--repair", "--json"]);
    assert!(repaired.status.success(), "{}", stderr(&repaired));
    let report: serde_json::Value = serde_json::from_str(&stdout(&repaired)).unwrap();
    assert_eq!(report["findings"][1]["repaired"], "unallocated: its data is lost");
    assert!(paradisk(&["image", "check", &image]).status.success());
}

#[test]
fn an_image_inside_a_disk_is_read_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [raw, inner, outer, twice, back] =
        ["a.raw", "inner.vhd", "outer.vhdx", "twice.vhd", "back.raw"].map(path);
    let mut content = vec![0u8; 3 << 20];
    content[5000..70_000].fill(0x41);
    fs::write(&raw, &content).unwrap();
    done(&["convert", &raw, &inner, "--format", "vhd", "--subformat", "dynamic"]);
    done(&["convert", &inner, &outer, "--from-format", "raw", "--format", "vhdx"]);
    done(&["convert", &outer, &twice, "--from-format", "raw", "--format", "vhd", "--subformat", "dynamic"]);
    let nested = format!("{outer}//");
    let deep = format!("{twice}////");
    let info: serde_json::Value = serde_json::from_str(&done(&["info", &nested, "--json"])).unwrap();
    assert_eq!((&info["path"], &info["format"]), (&nested.clone().into(), &"vhd".into()));
    assert_eq!((&info["subformat"], &info["capacity"]), (&"dynamic".into(), &(3 << 20).into()));
    assert!(done(&["info", &format!("{twice}//")]).contains("format: vhdx dynamic\n"));
    for disk in [&nested, &deep] {
        assert_eq!(done(&["compare", &raw, disk]), "the same\n");
        assert!(done(&["check", disk]).contains("//: good, "), "{disk}");
    }
    let map: serde_json::Value = serde_json::from_str(&done(&["map", &deep, "--json"])).unwrap();
    let stored = map.as_array().unwrap().iter().find(|run| run["data"] == true).unwrap();
    assert_eq!(stored["filename"], twice.as_str(), "the bytes are the outermost file's");
    let at = stored["offset"].as_u64().unwrap() as usize;
    let length = stored["length"].as_u64().unwrap() as usize;
    let start = stored["start"].as_u64().unwrap() as usize;
    assert!(fs::read(&twice).unwrap()[at..at + length] == content[start..start + length]);
    done(&["convert", &deep, &back, "--format", "raw"]);
    assert!(fs::read(&back).unwrap() == content);

    let quick = ["--duration", "5ms", "--runs", "1", "--json"];
    let bench = [&["bench", &nested, &deep][..], &quick].concat();
    let document: serde_json::Value = serde_json::from_str(&done(&bench)).unwrap();
    let rows = document["results"].as_array().unwrap();
    let formats: Vec<_> = rows.iter().map(|row| row["disk"]["format"].as_str().unwrap()).collect();
    assert_eq!(formats, ["raw", "vhd", "vhd"]);
    for row in rows {
        assert_eq!(row["errors"], 0);
        assert!(row["iops"]["median"].as_f64().unwrap() > 0.0, "{row}");
    }
    let write = ["bench", &nested, "--rw", "randwrite", "--fill", "--destroy"];
    failed(&[&["image"], &write[..], &quick].concat(), &["outer.vhdx//: cannot be filled", "no space left"]);
    // It grows where the disk around it has free space.
    done(&["resize", &outer, "12M"]);
    done(&[&write[..], &quick].concat());
    failed(&["image", "compare", &raw, &nested], &[]);
    done(&["check", &nested]);
    done(&["check", &outer]);

    let size = fs::metadata(&outer).unwrap().len();
    for (args, expected) in [
        (&["create", &nested, "--format", "raw", "--size", "1M"][..], "a new image is a file"),
        (&["convert", &raw, &nested, "--format", "raw"], "a new image is a file"),
        (&["resize", &nested, "4M"], "resize changes the length of files"),
        (&["compact", &nested], "compact makes files smaller"),
        (&["merge", &nested], "differencing disks and their parents are files"),
        (&["rebase", &inner, "--parent", &nested], "differencing disks and their parents are files"),
    ] {
        let output = paradisk(&[&["image"], args].concat());
        assert!(
            !output.status.success() && stderr(&output).contains(expected),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(stderr(&output).contains("it lies inside another disk"), "{args:?}: {}", stderr(&output));
    }
    assert_eq!(fs::metadata(&outer).unwrap().len(), size);
    failed(&["image", "info", &format!("{raw}//")], &["a.raw//: the disk holds no image"]);
    failed(&["image", "info", &format!("{nested}//1")], &["//1: partition table is missing"]);
    failed(&["image", "info", &format!("{deep}//")], &["leads through 3 disks, expected at most 2"]);
}

/// The same for a VHDX, with what only it has: sectors of 4,096 bytes, and a log that a kill leaves.
#[test]
fn a_vhdx_goes_through_all_that_can_be_done_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [raw, base, child, grandchild] = ["a.raw", "base.vhdx", "child.vhdx", "grandchild.vhdx"].map(&path);
    let content: Vec<u8> =
        (0..6u32 << 20).map(|at| if at >> 20 == 3 { 0 } else { (at % 251) as u8 }).collect();
    fs::write(&raw, &content).unwrap();
    done(&["convert", &raw, &base, "--format", "vhdx", "--block-size", "1M"]);
    done(&["create", &child, "--format", "vhdx", "--parent", &base]);
    done(&["create", &grandchild, "--format", "vhdx", "--parent", &child, "--block-size", "1M"]);
    assert_eq!(done(&["compare", &raw, &grandchild]), "the same\n");
    let info = done(&["info", &grandchild, "--chain"]);
    assert!(info.contains("kind: differencing") && info.contains("6 allocated, 1M each"), "{info}");
    done(&["check", &grandchild]);
    // A parent keeps its size, and a resize that is refused changes nothing that a child knows its parent by.
    failed(
        &["image", "resize", &child, "7M"],
        &["other disks have it as their parent", "grandchild.vhdx", "--force"],
    );
    failed(&["image", "resize", &base, "4M", "--shrink", "--force"], &["data are there"]);
    assert_eq!(done(&["compare", &raw, &grandchild]), "the same\n");
    // A parent that is written is not taken for the old one.
    let written = ["--rw", "randwrite", "--destroy", "--runs", "1", "--duration", "20ms"];
    done(&[&["bench", &child], &written[..]].concat());
    failed(&["image", "compare", &raw, &grandchild], &["parent data write GUID", "image rebase"]);
    let now = path("now.raw");
    done(&["convert", &child, &now, "--format", "raw"]);
    done(&["rebase", &grandchild, "--parent", &child]);
    assert_eq!(done(&["compare", &now, &grandchild]), "the same\n");
    done(&["merge", &child]);
    assert!(!Path::new(&child).exists());
    assert_eq!(done(&["compare", &now, &base]), "the same\n");
    done(&["rebase", &grandchild, "--parent", &base]);
    let blank = path("blank.vhdx");
    done(&["create", &blank, "--format", "vhdx", "--size", "6M"]);
    done(&["rebase", &grandchild, "--parent", &blank, "--safe"]);
    assert_eq!(done(&["compare", &now, &grandchild]), "the same\n");
    // Larger, smaller, compact; never smaller than its parent.
    let smaller = ["expected at least 6291456 bytes", "the size of its parent"];
    failed(&["image", "resize", &grandchild, "5M", "--shrink"], &smaller);
    done(&["resize", &base, "3T"]);
    done(&["resize", &base, "6M", "--shrink"]);
    failed(&["image", "resize", &base, "4M", "--shrink"], &["data are there"]);
    assert!(done(&["compact", &base]).contains("blocks released"));
    assert!(done(&["check", &base]).contains("0 bytes leaked"));
    assert_eq!(done(&["compare", &now, &base]), "the same\n");
    // What differs from a parent, alone.
    let over = path("over.vhdx");
    let said = done(&["convert", &raw, &over, "--format", "vhdx", "--parent", &blank]);
    assert!(said.ends_with(" differ\n") && !said.starts_with("0 "), "{said}");
    assert_eq!(done(&["compare", &raw, &over]), "the same\n");
    let same = path("same.vhdx");
    assert_eq!(done(&["convert", &raw, &same, "--format", "vhdx", "--parent", &over]), "0 differ\n");
    assert_eq!(done(&["compare", &raw, &same]), "the same\n");
    refused(
        &[
            "image",
            "convert",
            &raw,
            &path("z.vhd"),
            "--format",
            "vhd",
            "--subformat",
            "fixed",
            "--parent",
            &over,
        ],
        &["--parent is for --subformat differencing"],
    );
    // Formats and sectors.
    let [vhd, large] = ["a.vhd", "large.vhdx"].map(&path);
    failed(
        &["image", "create", &path("x.vhdx"), "--format", "vhdx", "--parent", &vhd],
        &["a.vhd: cannot open"],
    );
    done(&["convert", &base, &vhd, "--format", "vhd"]);
    failed(
        &["image", "create", &path("x.vhdx"), "--format", "vhdx", "--parent", &vhd],
        &["it is a VHD, and the parent of a VHDX must be a VHDX"],
    );
    done(&["convert", &vhd, &large, "--format", "vhdx", "--logical-sector-size", "4096"]);
    assert!(done(&["info", &large]).contains("sectors: 4096 bytes logical"));
    assert_eq!(done(&["compare", &now, &large]), "the same\n");
    let parted = path("parted.raw");
    let mut table = content.clone();
    table[510..512].copy_from_slice(&[0x55, 0xAA]);
    fs::write(&parted, &table).unwrap();
    failed(
        &["image", "convert", &parted, &path("y.vhdx"), "--format", "vhdx", "--logical-sector-size", "4096"],
        &["partition table that counts in sectors of 512"],
    );
    assert!(!Path::new(&path("y.vhdx")).exists());
}

#[test]
fn the_log_of_a_vhdx_that_was_not_closed_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.vhdx");
    let disk = disk.to_str().unwrap();
    let create = ["image", "create", disk, "--format", "vhdx", "--size", "64M", "--block-size", "1M"];
    assert!(paradisk(&create).status.success());
    let load =
        ["image", "bench", disk, "--rw", "randwrite", "--destroy", "--duration", "600s", "--raw-size", "1M"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_paradisk")).args(load).spawn().unwrap();
    // It opens its log before its first write.
    let header = |at: u64| {
        let mut guid = [0; 16];
        use std::os::unix::fs::FileExt;
        fs::File::open(disk).unwrap().read_exact_at(&mut guid, at + 48).unwrap();
        guid
    };
    let started = std::time::Instant::now();
    while header(64 << 10) == [0; 16] && started.elapsed().as_secs() < 120 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(header(64 << 10), [0; 16]);
    let before = fs::read(disk).unwrap();
    let info = paradisk(&["image", "info", disk]);
    assert!(stdout(&info).contains("log: 1 entries to replay"), "{}", stdout(&info));
    let check = paradisk(&["image", "check", disk]);
    assert!(stdout(&check).contains("entries to be replayed"), "{}", stdout(&check));
    let same = paradisk(&["image", "compare", disk, disk]);
    assert!(stderr(&same).contains("entries of its log are replayed in memory"), "{}", stderr(&same));
    assert!(fs::read(disk).unwrap() == before, "looking at it changes nothing");
    assert!(paradisk(&["image", "check", disk, "--repair"]).status.success());
    assert_eq!([header(64 << 10), header(128 << 10)], [[0; 16]; 2]);
    let check = paradisk(&["image", "check", disk]);
    assert!(stdout(&check).contains("good"), "{}", stdout(&check));
}

/// What is past RLIMIT_FSIZE fails with EFBIG. The signal that comes with it would end the process, which may serve others.
#[test]
fn a_file_larger_than_the_limit_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("a.vhd");
    let mut command = Command::new("prlimit");
    command.arg("--fsize=1048576").arg(env!("CARGO_BIN_EXE_paradisk"));
    command.args(["image", "create", "--format", "vhd", "--subformat", "fixed", "--size", "4M"]).arg(&image);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("File too large"), "{output:?}");
    assert!(!image.exists());
}

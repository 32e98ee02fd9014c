//! The built binary as scripts see it: exit statuses, error texts, outputs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn paradisk(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_paradisk")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Exit status 2, nothing on standard output, and all of these on standard error.
#[track_caller]
fn refused(args: &[&str], expected: &[&str]) {
    let output = paradisk(args);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?}");
    for part in expected {
        assert!(text.contains(part), "{args:?}: `{part}` is not in: {text}");
    }
}

/// Exit status 1, and all of these on standard error.
#[track_caller]
fn failed(args: &[&str], expected: &[&str]) {
    let output = paradisk(args);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
    for part in expected {
        assert!(text.contains(part), "{args:?}: `{part}` is not in: {text}");
    }
}

const QUICK: [&str; 7] = ["bench", "--engine", "harness", "--duration", "5ms", "--runs", "2"];

fn quick(more: &[&str]) -> Output {
    paradisk(&[&QUICK, more].concat())
}

#[test]
fn wrong_arguments_say_what_is_allowed() {
    refused(&["bench", "--adapter", "ide"], &["adapter `ide` is not one of: pvscsi, lsi"]);
    refused(&["bench", "--engine", "qemu"], &["engine `qemu` is not one of: kvm, harness"]);
    refused(
        &["bench", "--rw", "randread,rw"],
        &["`rw` is not one of: randread, randwrite, read, write, randrw"],
    );
    refused(&["bench", "--coalescing", "on"], &["is not one of: off, batch, oio, oio-iops"]);
    refused(&["bench", "--block-size", "4K,1000"], &["block size `1000`", "from 512 to 1M"]);
    refused(&["bench", "--queue-depth", "0"], &["1..=256"]);
    refused(&["bench", "--queue-depth", "256", "--workers", "8"], &["at most 1024 accesses in flight"]);
    refused(&["bench", "--workers", "17"], &["1..=16"]);
    refused(&["bench", "--duration", "5"], &["duration `5`", "500ms or 2s"]);
    refused(&["bench", "--runs", "0"], &["1..=1000"]);
    refused(&["bench", "--disk", "ram=1M,colour=red"], &["unknown key `colour`; keys are: path=FILE[//[N]]"]);
    refused(&["bench", "--read-percent", "50"], &["--read-percent is for --rw randrw"]);
    refused(&["bench", "--read-percent", "101", "--rw", "randrw"], &["0..=100"]);
    refused(&["bench", "--suite", "tpc-c"], &["suite `tpc-c` is not one of: pvscsi-vs-lsi, coalescing"]);
    for contradiction in [
        ["--adapter", "pvscsi"],
        ["--rw", "read"],
        ["--block-size", "4K"],
        ["--queue-depth", "32"],
        ["--workers", "1"],
        ["--coalescing", "off"],
        ["--disk", "ram=1M"],
        ["--workload", "verify"],
    ] {
        let suite = ["bench", "--suite", "coalescing"];
        refused(&[&suite[..], &contradiction].concat(), &["cannot be used with", contradiction[0]]);
    }
    refused(&["bench", "--plots", "p"], &["--suite <NAME>"]);
    refused(&["bench", "--workload", "oltp"], &["possible values: verify"]);
    refused(&["bench", "--workload", "verify", "--rw", "read"], &["cannot be used with"]);
    refused(
        &["bench", "--rw", "write", "--disk", "path=a,readonly=on"],
        &["readonly=on, and the workload writes"],
    );
    refused(
        &["image", "create", "a.img", "--format", "qcow2", "--size", "1M"],
        &["possible values: raw, vhd"],
    );
    refused(
        &["image", "create", "a.img", "--format", "raw", "--size", "1M", "--subformat", "fixed"],
        &["for vhd"],
    );
    refused(&["image", "create", "a.img", "--format", "raw", "--size", "1x"], &["size `1x`"]);
    refused(&["image", "create", "a.vhd", "--format", "vhd"], &["--size SIZE is needed"]);
    let differencing = ["image", "create", "a.vhd", "--format", "vhd", "--subformat", "differencing"];
    refused(&differencing, &["a differencing disk needs --parent FILE"]);
    refused(&["frobnicate"], &["frobnicate"]);
}

#[test]
fn image_bench_refuses_what_makes_no_sense_and_what_destroys() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("a.img").display().to_string();
    fs::write(&image, vec![0xaa; 1 << 20]).unwrap();
    let bench = |more: &[&'static str]| [&["image", "bench"], more].concat();
    refused(&bench(&[]), &["<FILE>"]);
    refused(&bench(&["a", "--rw", "rw"]), &["`rw` is not one of: randread, randwrite"]);
    refused(&bench(&["a", "--runs", "0"]), &["1..=1000"]);
    refused(&bench(&["a", "--raw", "b", "--raw-size", "1M"]), &["cannot be used with"]);
    refused(&bench(&["a", "--read-percent", "50"]), &["--read-percent is for --rw randrw"]);
    refused(&bench(&["path=a,adapter=lsi"]), &["disk a: adapter and serial are for disks that a guest sees"]);
    refused(
        &bench(&["path=a,readonly=on", "--rw", "write", "--destroy"]),
        &["readonly=on, and --rw write writes"],
    );
    refused(&bench(&["ram=1M"]), &["none of the disks is a file", "--raw FILE"]);
    refused(&["image", "bench", &image, &image], &[&image, "given twice"]);
    for writer in [&["--rw", "read,randwrite"][..], &["--rw", "write"], &["--rw", "randrw"], &["--fill"]] {
        let args = [&["image", "bench", &image], writer].concat();
        refused(&args, &["overwrites the content of the disks: allow it with --destroy"]);
    }
    assert!(fs::read(&image).unwrap().iter().all(|byte| *byte == 0xaa));
    failed(&bench(&["missing.img"]), &["missing.img", "No such file"]);
    failed(&["image", "bench", &image, "--raw", "missing.img"], &["missing.img", "No such file"]);
}

#[test]
fn image_bench_tells_the_memory_of_maps() {
    let folder = tempfile::tempdir().unwrap();
    let vhdx = folder.path().join("a.vhdx").display().to_string();
    let create = ["image", "create", &vhdx, "--format", "vhdx", "--size", "64M", "--subformat", "dynamic"];
    assert!(paradisk(&create).status.success());
    let quick = ["--duration", "5ms", "--runs", "1", "--json"];
    let output = paradisk(&[&["image", "bench", &vhdx], &quick[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let [raw, vhdx] = &document["results"].as_array().unwrap()[..] else { panic!("{document}") };
    assert_eq!(raw.get("map_memory"), None);
    let memory = |name: &str| vhdx["map_memory"][name].as_u64().unwrap();
    assert!(memory("bytes") > 0 && memory("bytes") <= memory("peak"), "{vhdx}");
    assert!(memory("peak") <= memory("budget") && memory("evictions") == 0, "{vhdx}");
}

#[test]
fn image_bench_measures_beside_raw_and_leaves_only_the_disks() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (vhd, raw, csv) = (path("a.vhd"), path("b.img"), path("r.csv"));
    assert!(paradisk(&["image", "create", &vhd, "--format", "vhd", "--size", "4M"]).status.success());
    fs::write(&raw, vec![0xaa; 2 << 20]).unwrap();
    let threads = format!("path={vhd},engine=threads");
    let quick = ["--duration", "5ms", "--runs", "2", "--queue-depth", "1,8"];
    let read = [&["image", "bench", &vhd, &threads, &raw][..], &quick, &["--json", "--csv", &csv]].concat();
    let output = paradisk(&read);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("a.vhd: 100.0% is not written"), "{}", stderr(&output));
    let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["schema"], 1);
    let rows = document["results"].as_array().unwrap();
    let formats: Vec<_> = rows.iter().map(|row| row["disk"]["format"].as_str().unwrap()).collect();
    // A raw file for each engine, and the disks, at both depths.
    assert_eq!(formats, [["raw", "raw", "vhd", "vhd", "raw"]; 2].concat());
    for row in rows {
        assert_eq!((&row["adapter"], &row["errors"], &row["runs"]), (&"native".into(), &0.into(), &2.into()));
        assert!(row["iops"]["median"].as_f64().unwrap() > 100.0, "{row}");
        assert!(row["cycles_per_io"]["total"]["median"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(rows[0]["disk"]["capacity"], 2 << 20, "no more than the smallest disk has");
    let names: Vec<_> = document["ratios"].as_array().unwrap().iter().map(|ratio| &ratio["name"]).collect();
    let [io_uring, threads, raws] =
        ["vhd fixed against raw", "vhd fixed threads against raw threads", "raw against raw"];
    let each = [io_uring, threads, raws];
    assert_eq!(names, each.iter().flat_map(|name| [name; 2]).collect::<Vec<_>>().repeat(2));
    for ratio in document["ratios"].as_array().unwrap() {
        assert!(["cycles_per_io.total", "iops"].contains(&ratio["metric"].as_str().unwrap()));
        assert!(ratio["min"].as_f64() <= ratio["median"].as_f64() && ratio["min"].as_f64() > Some(0.0));
    }
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 11);
    assert!(fs::read(&raw).unwrap().iter().all(|byte| *byte == 0xaa));
    let left = || fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left(), 3);

    let page = path("page.html");
    let json = path("r.json");
    fs::write(&json, stdout(&output)).unwrap();
    assert!(paradisk(&["report", &json, "--html", &page]).status.success());

    // With the user's raw file, both written, inside what both have.
    let write = ["image", "bench", &vhd, "--raw", &raw, "--rw", "randwrite", "--fill", "--destroy"];
    let output = paradisk(&[&write[..], &quick].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert_eq!(text.lines().filter(|line| line.starts_with("vhd fixed ")).count(), 2, "{text}");
    assert!(text.contains("/ raw") && !text.contains("not written"), "{text}");
    let data = fs::read(&vhd).unwrap();
    assert!(data[..2 << 20].iter().filter(|byte| **byte == 0).count() < 1 << 16);
    assert!(data[2 << 20..4 << 20].iter().all(|byte| *byte == 0), "written outside of what the raw file has");
    assert_eq!(left(), 5);
}

#[test]
fn failures_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    failed(&["bench", "--disk", &path("missing.img")], &[&path("missing.img"), "No such file"]);
    fs::write(path("odd.img"), [0; 700]).unwrap();
    failed(&["bench", "--engine", "harness", "--disk", &path("odd.img")], &[&path("odd.img"), "700"]);
    fs::write(path("damaged.vhd"), [0; 4096]).unwrap();
    failed(
        &["bench", "--disk", &format!("path={},format=vhd", path("damaged.vhd"))],
        &[&path("damaged.vhd")],
    );
    failed(&["image", "info", &path("missing.img")], &[&path("missing.img")]);
    failed(&["report", &path("odd.img"), "--html", &path("a.html")], &[&path("odd.img")]);
    fs::write(path("other.json"), "{}").unwrap();
    failed(&["report", &path("other.json"), "--html", &path("a.html")], &["not results of `bench --json`"]);
    assert!(!Path::new(&path("a.html")).exists());
    // What exists is not overwritten.
    failed(
        &["image", "create", &path("odd.img"), "--format", "raw", "--size", "1M"],
        &[&path("odd.img"), "exists"],
    );
    assert_eq!(fs::read(path("odd.img")).unwrap().len(), 700);
    failed(
        &["image", "create", &path("b.vhd"), "--format", "vhd", "--size", "1000"],
        &[&path("b.vhd"), "1000"],
    );
}

#[test]
fn every_subcommand_has_help_with_an_example() {
    for command in
        [&["bench"][..], &["report"], &["run"], &["image", "create"], &["image", "info"], &["image", "bench"]]
    {
        let output = paradisk(&[command, &["--help"]].concat());
        assert!(output.status.success());
        assert!(stdout(&output).contains("Example"), "{command:?}");
    }
}

#[test]
fn bench_prints_a_table_of_all_combinations() {
    let output =
        quick(&["--disk", "ram=4M", "--disk", "null=1G", "--block-size", "512,4K", "--queue-depth", "1,32"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stderr.is_empty(), "no progress where there is no terminal");
    let text = stdout(&output);
    let rows = |adapter: &str| text.lines().filter(|line| line.starts_with(adapter)).count();
    assert_eq!((rows("native "), rows("pvscsi ")), (8, 8), "{text}");
}

#[test]
fn bench_writes_json_csv_and_html_and_report_reads_the_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (json, csv, html, page) = (path("r.json"), path("r.csv"), path("r.html"), path("page.html"));
    let output = quick(&[
        "--disk",
        "ram=4M",
        "--rw",
        "randrw",
        "--read-percent",
        "70",
        "--workers",
        "2",
        "--json",
        &json,
        "--csv",
        &csv,
        "--html",
        &html,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("randrw 70% read"));
    let document: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(document["schema"], 1);
    let results = document["results"].as_array().unwrap();
    let adapters: Vec<_> = results.iter().map(|result| result["adapter"].as_str().unwrap()).collect();
    assert_eq!(adapters, ["native", "pvscsi", "lsi", "virtio-blk"]);
    let pvscsi = &results[1];
    assert_eq!(
        (&pvscsi["adapter"], &pvscsi["engine"], &pvscsi["rw"]),
        (&"pvscsi".into(), &"harness".into(), &"randrw".into())
    );
    assert_eq!(
        (&pvscsi["read_percent"], &pvscsi["workers"], &pvscsi["errors"]),
        (&70.into(), &2.into(), &0.into())
    );
    assert!(pvscsi["iops"]["median"].as_f64().unwrap() > 1000.0);
    assert_eq!(document["ratios"].as_array().unwrap().len(), 3);
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 5);
    assert!(fs::read_to_string(&html).unwrap().contains("<svg"));
    let output = paradisk(&["report", &json, "--html", &page]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(fs::read_to_string(&page).unwrap().contains("pvscsi"));
}

#[test]
fn a_suite_writes_tables_plots_and_one_document() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (json, page, plots) = (path("r.json"), path("page.html"), path("plots"));
    let output = quick(&["--suite", "coalescing", "--json", &json, "--plots", &plots]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("PVSCSI by coalescing policy, engine harness"));
    let document: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(document["suite"], "coalescing");
    for name in ["cpio-harness.svg", "interrupts-harness.svg", "latency-harness.svg"] {
        let file = Path::new(&plots).join(name);
        assert!(fs::read_to_string(&file).unwrap().starts_with("<svg xmlns="), "{name}");
        assert!(stderr(&output).contains(&format!("wrote {}", file.display())), "{}", stderr(&output));
    }
    assert!(stderr(&output).contains(&format!("wrote {json}")));
    assert!(paradisk(&["report", &json, "--html", &page]).status.success());
    assert!(fs::read_to_string(&page).unwrap().contains("Interrupts per I/O by coalescing policy"));
}

#[test]
fn json_on_standard_output_is_one_document_and_nothing_else() {
    let output = quick(&["--disk", "null=1G", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["results"][0]["disk"]["format"], "null");
}

#[test]
fn verify_checks_every_block_size_and_writes_nothing_where_there_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("v.vhd").display().to_string();
    let output = paradisk(&["image", "create", &image, "--format", "vhd", "--size", "4M"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let verify =
        ["bench", "--engine", "harness", "--workload", "verify", "--disk", &image, "--disk", "null=1M"];
    let output = paradisk(&verify);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("12 (512-1M)") && text.contains("passed") && text.contains("SKIP: null"), "{text}");
    // The image is still one, and holds data now.
    let output = paradisk(&["image", "info", &image, "--json"]);
    let info: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        (&info["format"], &info["subformat"], &info["capacity"]),
        (&"vhd".into(), &"fixed".into(), &(4 << 20).into())
    );
    assert!(fs::read(&image).unwrap().iter().filter(|byte| **byte != 0).count() > 1 << 20);
}

#[test]
fn rows_that_cannot_run_fail_the_whole_and_are_named() {
    let output = quick(&["--disk", "ram=64K", "--block-size", "4K,1M"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(text.contains("FAILED: pvscsi (oio-iops) over ram, randread 1M"), "{text}");
    assert!(text.contains("block size 1048576 is larger than the disk (65536 bytes)"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("pvscsi ") && line.contains("4K")), "{text}");
}

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

#[test]
fn an_image_goes_through_all_that_can_be_done_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let done = |args: &[&str]| {
        let output = paradisk(&[&["image"], args].concat());
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    };
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
    failed(&["image", "compare", &raw, &child], &["child.vhd: parent is missing:", "image rebase"]);
    failed(&["image", "check", &child], &[]);
    done(&["rebase", &child, "--parent", &moved]);
    assert_eq!(done(&["compare", &raw, &child]), "the same\n");
    let outside = tempfile::tempdir().unwrap();
    let far = outside.path().join("base.vhd").display().to_string();
    fs::rename(&moved, &far).unwrap();
    done(&["rebase", &child, "--parent", &far]);
    failed(&["image", "compare", &raw, &child], &["expected a file below", "--parent-dir"]);
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
    failed(&["image", "compare", &raw, &back], &["back.raw"]);
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
    let start = std::time::Instant::now();
    assert_eq!(stdout(&paradisk(&["image", "compare", &a, &b])), "the same\n");
    let text = stdout(&paradisk(&["image", "compare", &a, &raw, "--json"]));
    let verdict: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&verdict["equal"], &verdict["sizes"][1]), (&true.into(), &(3u64 << 40).into()));
    let map: serde_json::Value =
        serde_json::from_str(&stdout(&paradisk(&["image", "map", &raw, "--json"]))).unwrap();
    assert_eq!(map.as_array().unwrap().len(), 1);
    assert_eq!((&map[0]["length"], &map[0]["data"]), (&(3u64 << 40).into(), &false.into()));
    // Minutes, if each part of a hole were looked at by itself; seconds at the most otherwise.
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
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
    let mut stopped = false;
    for delay in (0..200).step_by(5) {
        let child = Command::new(env!("CARGO_BIN_EXE_paradisk"))
            .args(["image", "convert", &raw, &vhd, "--format", "vhd", "--subformat", "fixed"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(delay));
        let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        let names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        if output.status.success() {
            assert_eq!(fs::metadata(&vhd).unwrap().len(), (128 << 20) + 512);
            fs::remove_file(&vhd).unwrap();
        } else {
            assert!(sent.success());
            assert_eq!(names, ["a.raw"], "after {delay} ms: {}", stderr(&output));
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
    let done = |args: &[&str]| {
        let output = paradisk(&[&["image"], args].concat());
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    };
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
        assert!(row["iops"]["median"].as_f64().unwrap() > 100.0, "{row}");
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
    let done = |args: &[&str]| {
        let output = paradisk(&[&["image"], args].concat());
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    };
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
    failed(&["image", "resize", &grandchild, "5M", "--shrink"], &["its parent", "has as many"]);
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
        ["image", "bench", disk, "--rw", "randwrite", "--destroy", "--duration", "60s", "--raw-size", "1M"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_paradisk")).args(load).spawn().unwrap();
    // It opens its log before its first write.
    let header = |at: u64| {
        let mut guid = [0; 16];
        use std::os::unix::fs::FileExt;
        fs::File::open(disk).unwrap().read_exact_at(&mut guid, at + 48).unwrap();
        guid
    };
    let started = std::time::Instant::now();
    while header(64 << 10) == [0; 16] && started.elapsed().as_secs() < 30 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(header(64 << 10), [0; 16]);
    let before = fs::read(disk).unwrap();
    // The kernel closes the files of a ring some time after its process has ended.
    let mut info = paradisk(&["image", "info", disk]);
    while stderr(&info).contains("busy") && started.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        info = paradisk(&["image", "info", disk]);
    }
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

/// Events go to standard error, up to the level that an argument or the environment names; without one there are none.
#[test]
fn events_are_printed_up_to_a_level() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("a.raw");
    fs::write(&image, [0; 4096]).unwrap();
    let command = |level: Option<&str>, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
        command.args(["image", "info", image.to_str().unwrap()]).args(args).env_remove("PARADISK_LOG");
        level.map(|level| command.env("PARADISK_LOG", level));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        (stdout(&output), stderr(&output))
    };
    let (report, silence) = command(None, &[]);
    assert_eq!(silence, "");
    for (level, args) in [(None, &["--log", "info"][..]), (Some("info"), &[])] {
        let (same, events) = command(level, args);
        assert_eq!(same, report);
        assert!(events.contains("INFO") && events.contains("disk opened"), "{events}");
        assert!(events.contains("format=raw") && events.contains("capacity=4096"), "{events}");
    }
    // The argument is stronger, and an event of a lower level is left out.
    assert_eq!(command(Some("info"), &["--log", "warn"]).1, "");
    refused(&["image", "info", "x", "--log", "loud"], &["loud", "--log"]);
}

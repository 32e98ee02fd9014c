//! `paradisk bench`, `report` and `image bench`.

use super::*;

const QUICK: [&str; 7] = ["bench", "--engine", "harness", "--duration", "5ms", "--runs", "2"];

fn quick(more: &[&str]) -> Output {
    paradisk(&[&QUICK, more].concat())
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
    refused(&bench(&["ram=1M"]), &["no disk is a file", "--raw FILE"]);
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
        assert!(row["iops"]["median"].as_f64().unwrap() > 0.0, "{row}");
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
    assert!(pvscsi["iops"]["median"].as_f64().unwrap() > 0.0);
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
fn loads_of_applications_run_by_name_by_file_and_by_fio() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let output = paradisk(&["bench", "--workload", "list"]);
    assert!(output.status.success());
    for part in ["oltp ", "8K, 70% read, 100% random", "think-time", "zipf"] {
        assert!(stdout(&output).contains(part), "{part}: {}", stdout(&output));
    }
    fs::write(
        path("orders.toml"),
        "block-size = \"4K\"\nread-percent = 60\nrandom-percent = 40\nzipf = 1.1\nworking-set = \"1M\"\nqueue-depth = [1, 4]\n\
         burst = 8\nthink-time = \"100us\"\nalignment = 512\n",
    )
    .unwrap();
    let both = format!("oltp,{}", path("orders.toml"));
    let output = quick(&["--disk", "ram=8M", "--adapter", "pvscsi", "--workload", &both, "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let results = document["results"].as_array().unwrap();
    let of = |name: &str| results.iter().filter(|row| row["workload"] == name).collect::<Vec<_>>();
    // With and without the adapter.
    assert_eq!((of("OLTP").len(), of("orders").len()), (2, 4));
    assert_eq!((&of("OLTP")[0]["rw"], &of("OLTP")[0]["read_percent"]), (&"randrw".into(), &70.into()));
    assert_eq!((&of("orders")[0]["rw"], &of("orders")[0]["random_percent"]), (&"mix".into(), &40.into()));
    assert!(results.iter().all(|row| row["errors"] == 0 && row["latency_us"]["p9999"].as_f64() > Some(0.0)));

    fs::write(
        path("job.fio"),
        "[global]\nruntime=5ms\ndirect=1\n[log]\nrw=write\nbs=64k\niodepth=4\nsize=4M\n",
    )
    .unwrap();
    let output = paradisk(&[
        "bench",
        "--engine",
        "harness",
        "--disk",
        "ram=8M",
        "--adapter",
        "lsi",
        "--runs",
        "2",
        "--fio",
        &path("job.fio"),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    for part in ["log", "64K", "direct=1 is not used"] {
        assert!(stdout(&output).contains(part), "{part}: {}", stdout(&output));
    }

    fs::write(path("bad.toml"), "block-size = \"4K\"\nread-percent = 1\nrandom-percent = 1\ncolour = 1\n")
        .unwrap();
    refused(&["bench", "--workload", &path("bad.toml")], &["bad.toml", "colour", "working-set"]);
    fs::write(path("bad.fio"), "[a]\nverify=md5\n").unwrap();
    refused(
        &["bench", "--fio", &path("bad.fio")],
        &["line 2: key `verify` is not known", "random_distribution"],
    );
    refused(
        &["bench", "--workload", "oltp", "--block-size", "4K"],
        &["--block-size cannot be used with this"],
    );
    refused(&["bench", "--workload", "verify", "--runs", "2"], &["--runs cannot be used with this"]);
    refused(&["bench", "--random-percent", "5"], &["--random-percent is for --rw mix"]);
}

#[test]
fn suites_tell_their_time_and_run_nothing_for_it() {
    let output = paradisk(&["bench", "--list"]);
    assert!(output.status.success());
    for suite in
        ["pvscsi-vs-lsi", "coalescing", "chain", "hyperv-analysis", "adapters", "vhd-workloads", "creation"]
    {
        let line = stdout(&output).lines().find(|line| line.starts_with(suite)).unwrap().to_owned();
        assert!(line.contains(" rows, about ") && line.contains("--quick"), "{line}");
        let quick = line.split("--quick").nth(1).unwrap();
        let minutes: u32 = match quick.contains("minutes") {
            true => quick.split_whitespace().rev().nth(1).unwrap().parse().unwrap(),
            false => 1,
        };
        assert!(minutes <= 3, "{line}");
    }
    let output = paradisk(&["bench", "--suite", "vhd-workloads", "--adapter", "lsi,virtio-blk", "--list"]);
    for part in [
        "native: OLTP (8K, 70% read, 100% random), depth 1,2,4,8,16,32,64,128,256",
        "lsi (oio-iops): OLTP (8K, 70% read, 100% random), depth 1,32\n",
        "virtio-blk (oio-iops): OLTP",
    ] {
        assert!(stdout(&output).contains(part), "{part}: {}", stdout(&output));
    }
    refused(&["bench", "--quick"], &["--suite <NAME>"]);
}

/// Without a folder for temporary disks, most suites cannot make theirs.
#[test]
fn a_suite_that_fails_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results");
    let short = ["--engine", "harness", "--quick", "--duration", "1ms", "--runs", "1"];
    let output = Command::new(env!("CARGO_BIN_EXE_paradisk"))
        .args(["bench", "--suite", "all", "--plots", results.to_str().unwrap()])
        .args(short)
        .env("TMPDIR", folder.path().join("nowhere"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).starts_with("all 7 suites: "), "{}", stderr(&output));
    for suite in ["chain", "hyperv-analysis", "creation"] {
        assert!(stderr(&output).contains(&format!("{suite}: failed; the others run")), "{}", stderr(&output));
    }
    assert!(stdout(&output).contains("\nadapters: ") || stdout(&output).starts_with("adapters: "));
    let page = fs::read_to_string(results.join("page.html")).unwrap();
    assert!(page.contains("Suite adapters") && !page.contains("Suite chain"));
    for file in ["adapters.json", "adapters.txt", "adapters/adapters-harness.svg"] {
        assert!(results.join(file).is_file(), "{file}");
    }
    refused(&["bench", "--suite", "all", "--json"], &["--json: not with --suite all", "--plots"]);
    refused(&["bench", "--suite", "every"], &["or all for each in turn"]);
}

//! Every suite of `paradisk bench`, in its quick form: all rows, tables, plots and files.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

/// What a suite left behind.
struct Ran {
    folder: tempfile::TempDir,
    document: Value,
    text: String,
    errors: String,
}

fn paradisk(args: &[&str]) -> (bool, String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_paradisk")).args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// Run the quick form of a suite to its end.
fn quick(suite: &str) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (json, page, plots) = (path("r.json"), path("r.html"), path("plots"));
    let begin = Instant::now();
    let files = ["--json", &json, "--html", &page, "--plots", &plots];
    let (success, text, errors) = paradisk(&[&["bench", "--suite", suite, "--quick"], &files[..]].concat());
    assert!(success, "{text}{errors}");
    let announced = errors.lines().find(|line| line.starts_with(suite)).unwrap_or_default();
    // A busy machine takes longer, which is no failure.
    println!("{announced}; took {:.0} seconds", begin.elapsed().as_secs_f64());
    let document: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!((&document["schema"], &document["suite"]), (&1.into(), &suite.into()));
    for result in document["results"].as_array().unwrap() {
        assert_eq!((&result["errors"], &result["runs"]), (&0.into(), &2.into()), "{result}");
        for metric in ["iops", "mb_per_s"] {
            assert!(result[metric]["median"].as_f64().unwrap() > 0.0, "{metric}: {result}");
        }
        assert!(result["cycles_per_io"]["total"]["median"].as_f64().unwrap() > 0.0, "{result}");
        assert!(result["latency_us"]["mean"].as_f64().unwrap() > 0.0, "{result}");
    }
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("<svg") && page.len() < 2 << 20, "{} bytes", page.len());
    Ran { folder, document, text, errors }
}

impl Ran {
    /// The engines that guests ran on: the harness, and KVM where there is one.
    fn engines(&self) -> Vec<&str> {
        let kvm = (self.document["host"]["kvm"] != "none").then_some("kvm");
        kvm.into_iter().chain(["harness"]).collect()
    }

    /// These plots are there.
    fn plots(&self, names: &[String]) {
        let folder = self.folder.path().join("plots");
        for name in names {
            let path = folder.join(format!("{name}.svg"));
            assert!(fs::read_to_string(&path).unwrap().starts_with("<svg xmlns="), "{name}");
            assert!(self.errors.contains(&format!("wrote {}", path.display())), "{}", self.errors);
        }
    }

    /// Check that each combination of the values of these fields has rows on exactly `disks` disks, for this engine and adapter.
    #[track_caller]
    fn rows(&self, engine: &str, adapter: &str, disks: usize, fields: &[(&str, &[Value])]) {
        let mut wanted: Vec<Vec<(&str, &Value)>> = vec![Vec::new()];
        for (name, values) in fields {
            wanted = wanted
                .into_iter()
                .flat_map(|row| values.iter().map(move |value| [&row[..], &[(*name, value)]].concat()))
                .collect();
        }
        for combination in wanted {
            let found = self.document["results"].as_array().unwrap().iter().filter(|row| {
                row["engine"] == engine
                    && row["adapter"] == adapter
                    && combination.iter().all(|(name, value)| row[*name] == **value)
            });
            let of: Vec<String> = found.map(|row| row["disk"].to_string()).collect();
            let distinct: BTreeSet<&String> = of.iter().collect();
            assert_eq!((of.len(), distinct.len()), (disks, disks), "{engine} {adapter} {combination:?}");
        }
    }

    #[track_caller]
    fn says(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.text.contains(part), "{part}: {}", self.text);
        }
    }
}

fn values<T: Clone + Into<Value>>(values: &[T]) -> Vec<Value> {
    values.iter().cloned().map(Into::into).collect()
}

/// Names of plots for each engine.
fn named(names: &[&str], engines: &[&str]) -> Vec<String> {
    engines.iter().flat_map(|engine| names.iter().map(move |name| format!("{name}-{engine}"))).collect()
}

#[test]
fn pvscsi_vs_lsi() {
    let ran = quick("pvscsi-vs-lsi");
    let sizes: Vec<u32> = (10..=19).map(|bits| 1 << bits).collect();
    for engine in ran.engines() {
        for adapter in ["pvscsi", "lsi"] {
            let fields = [("block_size", &values(&sizes)[..]), ("workers", &values(&[1, 2]))];
            ran.rows(engine, adapter, 1, &fields);
        }
    }
    ran.plots(&named(&["throughput", "throughput-ratio", "cpio"], &ran.engines()));
    ran.says(&["PVSCSI against LSI Logic, engine harness", "Published: VMware"]);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_coalescing() {
    let ran = quick("coalescing");
    let depths: Vec<u32> = (0..=8).map(|bits| 1 << bits).collect();
    for engine in ran.engines() {
        let policies = values(&["off", "batch", "oio", "oio-iops"]);
        let fields = [("queue_depth", &values(&depths)[..]), ("coalescing", &policies)];
        ran.rows(engine, "pvscsi", 4, &fields);
    }
    ran.plots(&named(&["cpio", "interrupts", "latency"], &ran.engines()));
    ran.says(&["PVSCSI by coalescing policy, engine harness", "the published flaw of oio"]);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_adapters() {
    let ran = quick("adapters");
    for engine in ran.engines() {
        for adapter in ["pvscsi", "lsi", "lsi-sas", "buslogic", "ide", "virtio-blk", "virtio-scsi", "storvsc"]
        {
            ran.rows(engine, adapter, 1, &[("queue_depth", &values(&[1, 8, 32]))]);
        }
    }
    ran.plots(&named(&["adapters"], &ran.engines()));
    ran.says(&["Adapters, engine harness"]);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_hyperv_analysis() {
    let ran = quick("hyperv-analysis");
    let engines = ran.engines();
    for (engine, adapter) in [("native", "native")]
        .into_iter()
        .chain(engines.iter().flat_map(|engine| ["storvsc", "ide"].map(|adapter| (*engine, adapter))))
    {
        // Writes to the differencing disk would make it another.
        for (access, size, disks) in
            [("read", 512, 4), ("randread", 8192, 4), ("write", 512, 3), ("randwrite", 8192, 3)]
        {
            let fields = [("rw", &values(&[access])[..]), ("block_size", &values(&[size]))];
            ran.rows(engine, adapter, disks, &fields);
        }
    }
    ran.plots(&named(&["iops"], &[&["native"], &engines[..]].concat()));
    ran.says(&["Hyper-V's disks and adapters, engine harness", "emulated IDE is never a good choice"]);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_chain() {
    let ran = quick("chain");
    let engines = ran.engines();
    let chains: BTreeSet<(String, String)> = ["vhd", "vhdx"]
        .into_iter()
        .flat_map(|format| {
            let depths = ["1", "8", "64", "256", "1024", "1024 spread"];
            depths.map(|depth| (format.to_owned(), format!("[\"depth {depth}\"]")))
        })
        .collect();
    for (engine, adapter) in
        [("native", "native")].into_iter().chain(engines.iter().map(|engine| (*engine, "pvscsi")))
    {
        let rows = ran.document["results"].as_array().unwrap().iter();
        let of = rows.filter(|row| row["engine"] == engine && row["adapter"] == adapter).map(|row| {
            (row["disk"]["format"].as_str().unwrap().to_owned(), row["disk"]["options"].to_string())
        });
        let of: BTreeSet<_> = of.collect();
        assert!(of.is_superset(&chains), "{engine} {adapter}: {of:?}");
    }
    ran.plots(&named(&["iops", "cpio"], &[&["native"], &engines[..]].concat()));
    ran.says(&["Chains, engine harness"]);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_vhd_workloads() {
    let ran = quick("vhd-workloads");
    let skipped = ran.text.contains("SKIP: raw device");
    let disks = if skipped { 7 } else { 8 };
    let loads: BTreeSet<&str> = ran.document["results"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["workload"].as_str())
        .collect();
    assert_eq!(loads.len(), 8 + 8 + 12);
    let loads = values(&loads.into_iter().collect::<Vec<_>>());
    ran.rows("native", "native", disks, &[("workload", &loads), ("queue_depth", &values(&[1, 32]))]);
    for engine in ran.engines() {
        ran.rows(engine, "pvscsi", disks, &[("workload", &loads), ("queue_depth", &values(&[32]))]);
    }
    // On the host once, whatever the number of engines.
    let rows = ran.document["results"].as_array().unwrap().len();
    assert_eq!(rows, 28 * disks * (2 + ran.engines().len()));
    let ratios = |metric: &str| {
        let all = ran.document["ratios"].as_array().unwrap().iter();
        all.filter(|ratio| ratio["metric"] == metric).count()
    };
    // Each load on each disk but the fixed VHD, with which even the fixed VHDX is compared.
    assert_eq!(ratios("peak iops"), 28 * (disks - 1));
    // Each guest with the host.
    assert_eq!(ratios("iops"), 28 * disks * ran.engines().len());
    let guests = ran.engines().into_iter().map(|engine| format!("guest-pvscsi-{engine}"));
    let plots = ["sequential", "random", "applications", "peaks"].map(str::to_owned);
    ran.plots(&plots.into_iter().chain(guests).collect::<Vec<_>>());
    ran.says(&["Random: pvscsi, engine harness: cycles per I/O at the peak: guest | host"]);
    ran.says(&[
        "Applications: peak IOPS @ its depth",
        "OLTP",
        "Published: Yang and Voellm",
        "fixed VHD's peak",
    ]);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_creation() {
    let ran = quick("creation");
    ran.says(&["create     vhd fixed", "merge", "compact", "convert", "zero-fill", "Published: D. Van Hoof"]);
    let timings = ran.document["timings"].as_array().unwrap();
    let done = |row: &Value| row["seconds"]["median"].as_f64() > Some(0.0);
    assert!(timings.iter().all(|row| done(row) != row["skipped"].is_string()), "{timings:?}");
    let places: BTreeSet<&str> = timings.iter().map(|row| row["file_system"].as_str().unwrap()).collect();
    // Where nothing can be mounted, the folder for temporary files stands beside the three.
    assert!(places.len() >= 3, "{places:?}");
    for place in places {
        let of = timings.iter().filter(|row| row["file_system"] == place);
        let fixed = of.clone().filter(|row| row["operation"] == "create" && row["subformat"] == "fixed");
        let operations: BTreeSet<&str> = of.map(|row| row["operation"].as_str().unwrap()).collect();
        // Three sizes of a VHD and of a VHDX.
        assert_eq!((fixed.count(), operations.len()), (6, 5), "{place}: {operations:?}");
    }
    assert!(timings.iter().any(done));
    ran.plots(&["creation".to_owned()]);
}

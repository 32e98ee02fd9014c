//! The built binary as scripts see it: exit statuses, error texts, outputs.

mod bench;
mod compare;
mod files;
mod image;
mod others;
mod resume;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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

#[test]
fn wrong_arguments_say_what_is_allowed() {
    refused(&["bench", "--adapter", "floppy"], &["adapter `floppy` is not one of: pvscsi, lsi"]);
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
    refused(
        &["bench", "--workload", "oltp2"],
        &["`oltp2` is neither a file nor one of: verify, list, web-file-server-4k"],
    );
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

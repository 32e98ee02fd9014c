//! Measurements that are ended by a signal, and go on.

use std::io::Write;
use std::process::Child;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::*;

/// Start a measurement in a folder for temporary files, and end it by a signal when so many runs are kept in `partial`.
fn interrupted(args: &[&str], folder: &Path, partial: &Path, runs: usize, signal: Signal) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    let mut child: Child =
        command.args(args).env("TMPDIR", folder).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let kept = || fs::read_to_string(partial).unwrap_or_default().lines().count().saturating_sub(1);
    let begin = Instant::now();
    while kept() < runs {
        assert!(begin.elapsed() < Duration::from_secs(600), "{} runs after ten minutes", kept());
        assert_eq!(child.try_wait().unwrap(), None, "it ended by itself after {} runs", kept());
        thread::sleep(Duration::from_millis(2));
    }
    kill_process(Pid::from_child(&child), signal).unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success() && status.code().is_none(), "{status}");
}

fn document(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The runs that a file keeps.
fn runs(partial: &Path) -> Vec<Value> {
    let text = fs::read_to_string(partial).unwrap();
    text.lines().skip(1).filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect()
}

/// What the document says about its runs of an earlier process.
fn resumed_note(document: &Value) -> Option<&str> {
    let notes = document["notes"].as_array().unwrap();
    notes.iter().find_map(|note| note.as_str()?.strip_prefix("resumed: "))
}

#[test]
fn a_measurement_that_any_signal_ended_goes_on() {
    // A shell that starts tests in the background may have them ignore SIGINT.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    let ignores = u64::from_str_radix(ignored, 16).unwrap() & 1 << (Signal::INT.as_raw() - 1) != 0;
    let interrupt = if ignores { Signal::TERM } else { Signal::INT };
    for (signal, before) in [(Signal::KILL, 1), (interrupt, 4), (Signal::TERM, 6)] {
        let folder = tempfile::tempdir().unwrap();
        let (json, partial) = (folder.path().join("r.json"), folder.path().join("r.json.partial"));
        let name = json.display().to_string();
        let name = name.as_str();
        let load = ["--disk", "ram=4M", "--disk", "null=1G", "--adapter", "pvscsi", "--queue-depth", "1,8"];
        let measure = |file: [&'static str; 1], runs: &'static str| {
            let common = ["bench", "--engine", "harness", "--duration", "150ms", "--runs", runs];
            [&common[..], &load, &file].concat()
        };
        let begin = [&measure(["--json"], "3")[..], &[name]].concat();
        interrupted(&begin, folder.path(), &partial, before, signal);
        assert!(!json.exists());
        let kept = runs(&partial);
        assert!((before..24).contains(&kept.len()), "{}", kept.len());
        // Another measurement is refused, and nothing is lost.
        let other = [&measure(["--resume"], "2")[..], &[name]].concat();
        failed(&other, &["r.json.partial: another measurement: runs was 3, and is 2 here"]);

        let output = paradisk(&[&measure(["--resume"], "3")[..], &[name]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("resumed: "), "{}", stdout(&output));
        let document = document(&json);
        let rows = document["results"].as_array().unwrap();
        // With and without the adapter, two disks, two depths.
        assert_eq!(rows.len(), 8);
        for row in rows {
            assert_eq!((&row["runs"], &row["errors"]), (&3.into(), &0.into()), "{row}");
            assert_eq!(row["values"]["iops"].as_array().unwrap().len(), 3);
        }
        assert_eq!(document["ratios"].as_array().unwrap().len(), 4);
        // The first run is the one of the process that was ended.
        let (first, row) = (&kept[0]["run"], &rows[0]);
        let number = |value: &Value| value.as_f64().unwrap();
        let iops = number(&first["ios"]) * number(&document["host"]["tsc_hz"]) / number(&first["ticks"]);
        assert!((number(&row["values"]["iops"][0]) / iops - 1.0).abs() < 0.01, "{iops}: {row}");
        assert!(!partial.exists());
        let again = [&measure(["--resume"], "3")[..], &[name]].concat();
        failed(&again, &["r.json: nothing to resume: it is finished"]);
        fs::remove_file(&json).unwrap();
        failed(&again, &["r.json.partial: cannot go on: No such file"]);
    }
}

#[test]
fn a_suite_that_was_killed_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (json, plots) = (path("r.json"), path("plots"));
    let suite = ["bench", "--suite", "adapters", "--quick", "--engine", "harness", "--plots", &plots];
    let partial = folder.path().join("r.json.partial");
    interrupted(&[&suite[..], &["--json", &json]].concat(), folder.path(), &partial, 8, Signal::KILL);
    let kept = runs(&partial).len();
    // A process that is killed while it writes leaves a line without an end.
    let mut file = fs::OpenOptions::new().append(true).open(&partial).unwrap();
    file.write_all(b"{\"run\":{\"engine\":\"har").unwrap();
    let output = paradisk(&[&suite[..], &["--resume", &json]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let document = document(Path::new(&json));
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 8 * 3);
    assert!(rows.iter().all(|row| row["runs"] == 2));
    let note = resumed_note(&document);
    assert!(note.unwrap().starts_with(&format!("{kept} runs")), "{note:?}");
    assert!(Path::new(&plots).join("adapters-harness.svg").exists());
}

#[test]
fn creation_that_was_ended_unmounts_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (json, plots) = (path("r.json"), path("plots"));
    let suite = ["bench", "--suite", "creation", "--quick", "--runs", "1", "--plots", &plots];
    let partial = folder.path().join("r.json.partial");
    interrupted(&[&suite[..], &["--json", &json]].concat(), folder.path(), &partial, 3, Signal::TERM);
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(&folder.path().display().to_string()), "{mounts}");
    let kept = runs(&partial);
    let output = paradisk(&[&suite[..], &["--resume", &json]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let document = document(Path::new(&json));
    let timings = document["timings"].as_array().unwrap();
    assert!(
        timings.iter().all(|row| row["seconds"].is_object() != row["skipped"].is_string()),
        "{timings:?}"
    );
    // What was measured before is in it, to the last bit.
    for time in kept.iter().map(|line| &line["time"]) {
        let same = |row: &&Value| row["file_system"] == time["place"] && row["values"][0] == time["seconds"];
        assert!(timings.iter().any(|row| same(&row)), "{time}");
    }
    assert!(kept.len() < timings.len() && !partial.exists());
}

/// Without a folder for temporary disks, only few suites run.
#[test]
fn all_suites_go_on_in_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (results, nowhere) = (folder.path().join("results"), folder.path().join("nowhere"));
    let name = results.to_str().unwrap();
    let short = ["bench", "--suite", "all", "--quick", "--engine", "harness", "--duration", "20ms"];
    let partial = results.join("adapters.json.partial");
    let measure =
        |runs: &'static str, options: [&'static str; 1]| [&short[..], &["--runs", runs], &options].concat();
    let begin = [&measure("2", ["--plots"])[..], &[name]].concat();
    interrupted(&begin, &nowhere, &partial, 2, Signal::KILL);
    let kept = runs(&partial).len();
    let resumed = |runs: &'static str| {
        let args = [&measure(runs, ["--resume"])[..], &[name]].concat();
        let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
        let output = command.args(args).env("TMPDIR", &nowhere).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        output
    };
    assert!(
        stderr(&resumed("3"))
            .contains("adapters.json.partial: another measurement: runs was 2, and is 3 here")
    );
    // Suites that have not ended keep the runs of all, so the second call measures nothing.
    for kept in [kept, 8 * 3 * 2] {
        resumed("2");
        let document = document(&results.join("adapters.json"));
        assert_eq!(document["results"].as_array().unwrap().len(), 8 * 3);
        let note = resumed_note(&document).unwrap();
        assert!(note.starts_with(&format!("{kept} runs")), "{note}");
    }
    failed(&["bench", "--suite", "all", "--resume", nowhere.to_str().unwrap()], &["nothing to resume"]);
    assert!(!nowhere.exists());
    refused(&["bench", "--suite", "all", "--resume", name, "--plots", name], &["--resume names the folder"]);
}

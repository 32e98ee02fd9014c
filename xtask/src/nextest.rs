//! Tests by cargo-nextest: each in a process of its own. It kills one that hangs, and reports each test's time and output in JUnit's format.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use roxmltree::{Document, Node};

use crate::command::target_dir;
use crate::summary::Report;
use crate::tools::NEXTEST;

/// Everything is built with the same features, for all tests: nothing is built twice.
const WORKSPACE: [&str; 2] = ["--workspace", "--all-features"];
/// Exit status of nextest when tests have failed: the report has them.
const TESTS_FAILED: i32 = 100;

/// Build the tests of these targets (`--lib`, ...; none: all), and with all of them the program, which other steps run, too.
///
/// # Errors
/// How cargo ended.
pub(crate) fn build(targets: &[&str]) -> Result<(), String> {
    let status = nextest(&[&["run", "--no-run", "--cargo-quiet"], targets].concat(), None)?;
    status.success().then_some(()).ok_or_else(|| format!("the tests do not compile: {status}"))
}

/// Run tests, chosen by `options` of `cargo nextest run`, and add them to the report. Those without an end of their own (random commands,
/// crashes, faults) try `effort` times as much as by default.
///
/// # Errors
/// Tests could not be run. Tests that have failed are in the report.
pub(crate) fn run(options: &[&str], effort: Option<u32>, report: &mut Report) -> Result<(), String> {
    let results = target_dir().join("nextest/default/junit.xml");
    // One of another run.
    let _ = fs::remove_file(&results);
    let status = nextest(&[&["run", "--cargo-quiet", "--no-tests", "fail"], options].concat(), effort)?;
    if !status.success() && status.code() != Some(TESTS_FAILED) {
        return Err(format!("cargo nextest: {status}"));
    }
    let text = fs::read_to_string(&results).map_err(|error| format!("{}: {error}", results.display()))?;
    let failed = report.tests.failed.len();
    read(&text, report).map_err(|error| format!("{}: {error}", results.display()))?;
    if !status.success() && report.tests.failed.len() == failed {
        return Err("tests have failed, and the report names none".to_owned());
    }
    Ok(())
}

fn nextest(args: &[&str], effort: Option<u32>) -> Result<std::process::ExitStatus, String> {
    let mut command = Command::new(program()?);
    command.arg("nextest").args(args).args(WORKSPACE).stdin(Stdio::null());
    if let Some(effort) = effort {
        command.env("PARADISK_TEST_EFFORT", effort.to_string());
    }
    command.status().map_err(|error| format!("cargo nextest: {error}"))
}

/// Add the tests of a report in JUnit's format.
fn read(text: &str, report: &mut Report) -> Result<(), String> {
    let document = Document::parse(text).map_err(|error| error.to_string())?;
    let of_name = |node: &Node<'_, '_>, name: &str| node.has_tag_name(name);
    for suite in document.descendants().filter(|node| of_name(node, "testsuite")) {
        // Of repeated runs, the name ends with the run's number.
        let binary = suite.attribute("name").unwrap_or("?").split('@').next().unwrap_or_default();
        for case in suite.children().filter(|node| of_name(node, "testcase")) {
            let seconds = case.attribute("time").and_then(|time| time.parse().ok()).unwrap_or(0.0);
            let failed = case.children().any(|node| of_name(&node, "failure") || of_name(&node, "error"));
            let output: Vec<&str> = case
                .children()
                .filter(|node| of_name(node, "system-out") || of_name(node, "system-err"))
                .filter_map(|node| node.text())
                .collect();
            report.test(binary, case.attribute("name").unwrap_or("?"), seconds, failed, &output.join("\n"));
        }
    }
    Ok(())
}

/// The one that is installed, or ours.
///
/// # Errors
/// It cannot be installed.
pub(crate) fn program() -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let installed =
        env::split_paths(&path).map(|folder| folder.join("cargo-nextest")).find(|file| file.is_file());
    installed.map_or_else(|| NEXTEST.path(), Ok)
}

/// What was built with the tests.
pub(crate) fn built(name: &str) -> PathBuf {
    target_dir().join("debug").join(Path::new(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULTS: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0" time="2.5">
    <testsuite name="paradisk-devices" tests="2" failures="1">
        <testcase name="lsi::a" classname="paradisk-devices" time="0.5"></testcase>
        <testcase name="lsi::b" classname="paradisk-devices" time="1.25">
            <failure message="thread 'lsi::b' panicked" type="test failure">left &lt; right</failure>
            <system-out>1 of 2</system-out>
            <system-err>thread 'lsi::b' panicked at b.rs:1:
left &lt; right</system-err>
        </testcase>
    </testsuite>
    <testsuite name="paradisk::cli" tests="1">
        <testcase name="c" time="0.1"><system-out>SKIP: c: no loop device</system-out></testcase>
    </testsuite>
</testsuites>"#;

    #[test]
    fn a_report_has_tests_and_times_and_skips() {
        let mut report = Report::default();
        read(RESULTS, &mut report).unwrap();
        assert_eq!(
            (report.tests.passed, &report.tests.skips[..]),
            (2, &["c: no loop device".to_owned()][..])
        );
        let [(name, output)] = &report.tests.failed[..] else { panic!("{:?}", report.tests) };
        assert_eq!(name, "paradisk-devices lsi::b");
        assert_eq!(output, &["  thread 'lsi::b' panicked at b.rs:1:", "  left < right"]);
        let binaries = report.times.binaries.iter().map(|timed| (&*timed.name, timed.seconds));
        assert_eq!(binaries.collect::<Vec<_>>(), [("paradisk-devices", 1.75), ("paradisk::cli", 0.1)]);
        assert!(read("<testsuites>", &mut report).is_err());
    }
}

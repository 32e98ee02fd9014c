//! `paradisk bench compare`.

use super::*;

use serde_json::Value;

/// A document of `bench` in `folder`/a.json: two rows, with the values of five runs that a quiet machine would have.
fn measured(folder: &Path) -> Value {
    let json = folder.join("a.json").display().to_string();
    let disk = ["--disk", "null=1G", "--adapter", "pvscsi"];
    let quick = ["bench", "--engine", "harness", "--duration", "5ms", "--runs", "2", "--json", &json];
    let output = paradisk(&[&quick[..], &disk].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let mut document: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    for result in document["results"].as_array_mut().unwrap() {
        for metric in ["iops", "cycles_per_io", "latency_p99_us"] {
            assert_eq!(result["values"][metric].as_array().unwrap().len(), 2, "{result}");
            result["values"][metric] = vec![1000.0, 1010.0, 995.0, 1005.0, 1001.0].into();
        }
    }
    write(Path::new(&json), &document);
    document
}

/// Multiply the values of each run of PVSCSI.
fn scale(document: &mut Value, metric: &str, factor: f64) {
    for value in document["results"][1]["values"][metric].as_array_mut().unwrap() {
        *value = (value.as_f64().unwrap() * factor).into();
    }
}

fn write(path: &Path, document: &Value) -> String {
    fs::write(path, document.to_string()).unwrap();
    path.display().to_string()
}

#[test]
fn the_exit_status_is_3_where_something_got_slower() {
    let folder = tempfile::tempdir().unwrap();
    let before = measured(folder.path());
    let (a, b) = (folder.path().join("a.json").display().to_string(), folder.path().join("b.json"));

    let output = paradisk(&["bench", "compare", &a, &a]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("6 comparisons: 6 equal, 0 faster, 0 slower"), "{}", stdout(&output));

    let mut after = before.clone();
    scale(&mut after, "iops", 100.0);
    let output = paradisk(&["bench", "compare", &a, &write(&b, &after)]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("5 equal, 1 faster, 0 slower"), "{}", stdout(&output));

    for (metric, named) in
        [("cycles_per_io", "cycles_per_io.total"), ("latency_p99_us", "latency_us.p99"), ("iops", "iops")]
    {
        let mut after = before.clone();
        scale(&mut after, metric, if metric == "iops" { 0.01 } else { 100.0 });
        let output = paradisk(&["bench", "compare", &a, &write(&b, &after)]);
        assert_eq!(output.status.code(), Some(3), "{}{}", stdout(&output), stderr(&output));
        assert_eq!(stderr(&output), "slower: 1 of 6 comparisons\n");
        let line = format!(
            "SLOWER: harness/pvscsi/null of 1073741824/randread/bs 4096/qd 32/workers 1/oio-iops: {named} "
        );
        assert!(stdout(&output).contains(&line), "{}", stdout(&output));
    }

    let b = b.display().to_string();
    let output = paradisk(&["bench", "compare", &a, &b, "--json"]);
    assert_eq!(output.status.code(), Some(3));
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&document["baseline"], &document["candidate"]), (&a.as_str().into(), &b.as_str().into()));
    let verdicts: Vec<_> = document["comparisons"]
        .as_array()
        .unwrap()
        .iter()
        .map(|each| &each["confidence"]["verdict"])
        .collect();
    assert_eq!(verdicts, ["equal", "equal", "equal", "equal", "slower", "equal"]);
    assert_eq!(document["comparisons"][4]["confidence"]["margin"], 0.05);
    let output = paradisk(&["bench", "compare", &a, &b, "--margin", "7", "--json"]);
    assert!(stdout(&output).contains("\"margin\": 0.07"), "{}", stdout(&output));
}

#[test]
fn rows_of_one_file_are_named_and_failed_ones_fail() {
    let folder = tempfile::tempdir().unwrap();
    let before = measured(folder.path());
    let (a, b) = (folder.path().join("a.json").display().to_string(), folder.path().join("b.json"));
    let mut after = before.clone();
    after["results"][1]["queue_depth"] = 64.into();
    let output = paradisk(&["bench", "compare", &a, &write(&b, &after)]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("only in A: harness/pvscsi/") && text.contains("only in B: harness/pvscsi/"),
        "{text}"
    );
    after["results"][0]["queue_depth"] = 64.into();
    failed(&["bench", "compare", &a, &write(&b, &after)], &["a.json and ", "b.json have no row in common"]);
    let mut after = before.clone();
    after["results"][0]["errors"] = 5.into();
    failed(&["bench", "compare", &a, &write(&b, &after)], &["1 rows have failed accesses"]);
    let mut after = before;
    for result in after["results"].as_array_mut().unwrap() {
        result.as_object_mut().unwrap().remove("values");
    }
    failed(
        &["bench", "compare", &a, &write(&b, &after)],
        &["nothing is judged: no row has the values of 2 runs"],
    );
}

#[test]
fn foreign_files_and_wrong_arguments_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let good = measured(folder.path());
    let (a, b) = (folder.path().join("a.json").display().to_string(), folder.path().join("b.json"));
    let name = b.display().to_string();
    let mut later = good.clone();
    later["schema"] = 2.into();
    let mut long = good;
    long["results"][0]["values"]["iops"] = vec![1.0; 2001].into();
    let contents: [(Vec<u8>, &str); 8] = [
        (b"".into(), "not JSON"),
        (b"\x1b[2J".into(), "not JSON"),
        (b"\xff\xfe".into(), "not results of `bench --json`: invalid utf-8"),
        (b"{}".into(), "not results of `bench --json`: missing field `schema`"),
        (br#"{"schema": 1, "results": [{"adapter": "lsi"}]}"#.into(), "not results of `bench --json`"),
        (("{\"schema\": 1, \"results\": ".to_owned() + &"[".repeat(1 << 20)).into(), "not JSON: EOF"),
        (later.to_string().into(), "schema is 2, expected 1"),
        (long.to_string().into(), "2001 runs in this row, expected at most 2000"),
    ];
    for (content, expected) in contents {
        fs::write(&b, content).unwrap();
        failed(&["bench", "compare", &a, &name], &[&name, expected]);
        failed(&["bench", "compare", &name, &a], &[&name, expected]);
    }
    failed(&["bench", "compare", &a, "/dev/zero"], &["/dev/zero: cannot be results: larger than 64 MiB"]);
    failed(&["bench", "compare", &a, "missing.json"], &["missing.json: cannot read: No such file"]);
    failed(&["bench", "compare", &a, "/"], &["/: cannot read: Is a directory"]);
    refused(&["bench", "compare", &a], &["<B.json>"]);
    refused(&["bench", "compare", &a, &a, "--margin", "0"], &["margin `0`: expected 0.1 to 100 percent"]);
    refused(&["bench", "compare", &a, &a, "--margin", "NaN"], &["expected 0.1 to 100 percent"]);
    refused(&["bench", "--runs", "2", "compare", &a, &a], &["cannot be used with"]);
}

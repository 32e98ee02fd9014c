//! The statistics of a server: `paradisk ctl SOCKET stats` and its metrics parse, agree, and never fall.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::server::Place;

const KINDS: [&str; 5] = ["read", "write", "flush", "discard", "write_zeroes"];
const FIELDS: [&str; 3] = ["count", "bytes", "errors"];
/// Samples of metrics that never fall.
const COUNTERS: [&str; 4] = ["_total", "_count", "_bucket", "_sum"];
const READ: &str = "paradisk_disk_read_bytes_total{";

/// Time for a server to notice that its clients have gone.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Counters by name.
type Counters = BTreeMap<String, f64>;

pub(crate) struct Watch {
    place: Place,
    control: String,
    metrics: String,
    last: Counters,
}

impl Watch {
    pub(crate) fn new(place: &Place) -> Self {
        let path = |name| place.file(name).display().to_string();
        let (control, metrics) = (path("control"), path("metrics"));
        Self { place: place.clone(), control, metrics, last: Counters::new() }
    }

    /// Arguments of the server.
    pub(crate) fn args(&self) -> [&str; 4] {
        ["--control", &self.control, "--metrics", &self.metrics]
    }

    /// Make disk 0 larger.
    pub(crate) fn resize(&self, bytes: u64) {
        self.place.run(&["ctl", &self.control, "resize", "disk0", &bytes.to_string()]);
    }

    /// Wait until the server has completed the requests of clients that have gone, and closed their queues.
    pub(crate) fn await_no_queues(&self) {
        let begin = Instant::now();
        loop {
            let document = self.document();
            let queues = document["queues"].as_array().expect("queues");
            if queues.iter().all(|queue| queue["active"] == false) {
                return;
            }
            assert!(begin.elapsed() < CLOSE_TIMEOUT, "queues of clients that have gone: {document}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn document(&self) -> Value {
        let text = self.place.run(&["ctl", &self.control, "stats"]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Take the statistics. Clients have read so many bytes since the server was started.
    pub(crate) fn take(&mut self, read: u64) {
        let (mut counters, counted) = self.stats();
        assert!(counted >= read as f64, "{counted} bytes are counted, {read} were read");
        let metrics = self.metrics();
        let samples = metrics.iter().filter(|(name, _)| name.starts_with(READ));
        let later: f64 = samples.map(|(_, value)| value).sum();
        assert!(later >= counted, "read by stats: {counted}, by metrics afterwards: {later}");
        counters.extend(metrics);
        for (name, before) in &self.last {
            let now = counters.get(name);
            assert!(now.is_some_and(|now| now >= before), "{name} was {before} and is {now:?}");
        }
        self.last = counters;
    }

    /// What `stats` says of the queues, and the bytes read in all.
    fn stats(&self) -> (Counters, f64) {
        let document = self.document();
        let queues = document["queues"].as_array().expect("queues");
        let (mut counters, mut read) = (Counters::new(), 0.0);
        for queue in queues {
            for (kind, field) in KINDS.into_iter().flat_map(|kind| FIELDS.map(|field| (kind, field))) {
                let name = format!("{} {} {kind} {field}", queue["disk"], queue["queue"]);
                let value = queue[kind][field].as_f64().unwrap_or_else(|| panic!("no {name}: {document}"));
                if (kind, field) == ("read", "bytes") {
                    read += value;
                }
                assert_eq!(counters.insert(name, value), None, "twice: {document}");
            }
        }
        (counters, read)
    }

    fn metrics(&self) -> Counters {
        let mut stream = UnixStream::connect(&self.metrics).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        parse(body)
    }
}

/// The counters of OpenMetrics text.
fn parse(text: &str) -> Counters {
    assert!(text.ends_with("\n# EOF\n"), "no end: {text}");
    let mut counters = Counters::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("`{line}`"));
        let value: f64 = value.parse().unwrap_or_else(|error| panic!("`{line}`: {error}"));
        let metric = name.split('{').next().unwrap_or_default();
        if COUNTERS.iter().any(|end| metric.ends_with(end)) {
            assert_eq!(counters.insert(name.to_owned(), value), None, "twice: {name}");
        }
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_parsed_and_gauges_are_left_out() {
        let text =
            "# TYPE a counter\na_total{disk=\"x y\"} 3\nb{disk=\"x\"} 7\nc_bucket{le=\"0.5\"} 1.5\n# EOF\n";
        let counters = parse(text);
        let expected = [("a_total{disk=\"x y\"}", 3.0), ("c_bucket{le=\"0.5\"}", 1.5)];
        assert_eq!(counters, expected.map(|(name, value)| (name.to_owned(), value)).into());
        for wrong in ["a_total 1\n", "a_total one\n# EOF\n", "a_total 1\na_total 1\n# EOF\n"] {
            assert!(std::panic::catch_unwind(|| parse(wrong)).is_err(), "{wrong}");
        }
    }
}

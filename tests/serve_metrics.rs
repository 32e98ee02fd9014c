//! Statistics of servers: `paradisk ctl stats` and `--metrics`, compared with requests whose number is known.

#[path = "../serve/tests/vfio_user/block_guest.rs"]
#[allow(dead_code, reason = "the tests of the servers use all of it")]
mod block_guest;
#[path = "../serve/tests/vfio_user/client.rs"]
#[allow(dead_code, reason = "the tests of the servers use all of it")]
mod client;
mod common;
#[path = "common/control.rs"]
#[expect(dead_code, reason = "disks of these servers do not grow")]
mod control;
#[path = "../serve/tests/vhost_user_blk/client.rs"]
#[allow(dead_code, reason = "the tests of the servers use all of it")]
mod vhost_client;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use block_guest::BlockGuest;
use common::{Folder, Running, ended, ready, ready_with_notes, refused};
use control::answer;
use rustix::process::Signal;
use serde_json::{Value, json};
use vhost_client::{FLUSH as GUEST_FLUSH, Guest, IN, OUT, Shape};

/// Metrics of this age may be sent again.
const FRESH: Duration = Duration::from_millis(60);

fn serve(protocol: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    command.args(["serve", protocol]).args(args).stdin(Stdio::null());
    command
}

impl Folder {
    /// With a raw disk of 1 MiB.
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        std::fs::File::create(folder.path("disk.raw")).unwrap().set_len(1 << 20).unwrap();
        folder
    }
}

/// Start it; the address of its metrics.
fn ready_with_metrics(command: &mut Command) -> (Running, String) {
    let (child, said) = ready_with_notes(command);
    let line = &said[0];
    let address = line.trim().strip_prefix("metrics: http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
    (child, address)
}

/// The metrics at a TCP address.
fn scrape(address: &str) -> String {
    std::thread::sleep(FRESH);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(body.ends_with("# EOF\n"));
    body.to_owned()
}

/// The value of the sample that begins so.
#[track_caller]
fn sample(text: &str, name: &str) -> f64 {
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {name} in:\n{text}")).parse().unwrap()
}

/// A client of the Network Block Device protocol with simple replies, without any request of its own.
struct Client(UnixStream);

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

impl Client {
    fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        // Fixed newstyle, no zeroes; NBD_OPT_EXPORT_NAME with the default export.
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        stream.write_all(&[&b"IHAVEOPT"[..], &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat()).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        Self(stream)
    }

    /// Send requests together, and take the replies; their errors.
    fn ask(&mut self, requests: &[(u16, u64, u32)]) -> Vec<u32> {
        let mut bytes = Vec::new();
        for (cookie, &(command, offset, len)) in requests.iter().enumerate() {
            bytes.extend(0x2560_9513u32.to_be_bytes());
            bytes.extend([0u16, command].map(u16::to_be_bytes).concat());
            bytes.extend([cookie as u64, offset].map(u64::to_be_bytes).concat());
            bytes.extend(len.to_be_bytes());
            bytes.resize(bytes.len() + if command == WRITE { len as usize } else { 0 }, 0x5A);
        }
        self.0.write_all(&bytes).unwrap();
        let mut errors = vec![0; requests.len()];
        for _ in requests {
            let mut reply = [0; 16];
            self.0.read_exact(&mut reply).unwrap();
            let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
            let cookie = u64::from_be_bytes(reply[8..].try_into().unwrap()) as usize;
            errors[cookie] = error;
            let (command, _, len) = requests[cookie];
            if command == READ && error == 0 {
                self.0.read_exact(&mut vec![0; len as usize]).unwrap();
            }
        }
        errors
    }
}

/// A known load: reads, writes, a write of zeros, a trim, a flush, and a read and a write beyond the end, which do not reach the disk.
fn load(client: &mut Client) {
    let reads = [(READ, 0, 4096), (READ, 65536, 8192), (READ, 4096, 512)];
    assert_eq!(client.ask(&reads), [0; 3]);
    assert_eq!(client.ask(&[(WRITE, 0, 16384), (WRITE, 32768, 16384)]), [0; 2]);
    assert_eq!(client.ask(&[(WRITE_ZEROES, 0, 65536), (TRIM, 524_288, 131_072)]), [0; 2]);
    assert_eq!(client.ask(&[(FLUSH, 0, 0)]), [0]);
    let beyond = client.ask(&[(READ, 1 << 20, 512), (WRITE, 1 << 20, 512)]);
    assert!(beyond.iter().all(|error| *error != 0), "{beyond:?}");
}

/// Kind, requests and bytes of `load`, none of which fails.
const LOAD: [(&str, u64, u64); 5] = [
    ("read", 3, 12800),
    ("write", 2, 32768),
    ("flush", 1, 0),
    ("discard", 1, 131_072),
    ("write_zeroes", 1, 65536),
];

/// The statistics of a queue are those of so many `load`s, and so many of them were measured.
#[track_caller]
fn is_loaded(queue: &Value, loads: u64, measured: u64) {
    for (kind, count, bytes) in LOAD {
        let found = &queue[kind];
        let expected = [count, bytes, 0].map(|value| Value::from(value * loads));
        assert_eq!(["count", "bytes", "errors"].map(|key| found[key].clone()), expected, "{kind} of {queue}");
        let latency = &found["latency_us"];
        if measured == 0 {
            assert!(latency.is_null(), "{latency}");
        } else {
            let [mean, most] = ["mean", "max"].map(|key| latency[key].as_f64().unwrap());
            assert!(latency["count"] == count * measured && mean > 0.0 && mean <= most, "{kind}: {latency}");
        }
    }
    let requests: u64 = LOAD.iter().map(|(_, count, ..)| count * loads).sum();
    let batches = &queue["batches"];
    assert_eq!((&queue["in_flight"], &batches["requests"]), (&0.into(), &requests.into()));
    let count = batches["count"].as_u64().unwrap();
    assert!((4 * loads..=requests).contains(&count), "{batches}");
    let most = queue["in_flight_max"].as_u64().unwrap();
    assert!((1..=3).contains(&most), "{queue}");
}

#[test]
fn figures_of_a_known_load_over_nbd_are_exact() {
    let folder = Folder::new();
    let (socket, control, image) = (folder.path("socket"), folder.path("control"), folder.name("disk.raw"));
    let args = ["--socket", socket.to_str().unwrap(), "--disk", &image, "--metrics", "127.0.0.1:0"];
    let mut server = serve("nbd", &args);
    let (mut child, address) = ready_with_metrics(server.arg("--control").arg(&control));
    let text = scrape(&address);
    assert_eq!(sample(&text, r#"paradisk_disk_capacity_bytes{disk="disk0",adapter="nbd"}"#), 1048576.0);
    assert!(!text.contains("paradisk_disk_reads_total"), "there is no queue before the first client: {text}");
    let mut client = Client::connect(&socket);
    load(&mut client);
    let text = scrape(&address);
    let labels = r#"disk="disk0",adapter="nbd",queue="0""#;
    let of = |name: &str| sample(&text, &format!("paradisk_disk_{name}{{{labels}}}"));
    let names = ["reads_total", "writes_total", "flushes_total", "discards_total", "write_zeroes_total"];
    assert_eq!(names.map(of), [3.0, 2.0, 1.0, 1.0, 1.0]);
    let names = ["read_bytes_total", "write_bytes_total", "discard_bytes_total", "write_zeroes_bytes_total"];
    assert_eq!(names.map(of), [12800.0, 32768.0, 131_072.0, 65536.0]);
    assert_eq!((of("in_flight"), of("batch_requests_sum")), (0.0, 8.0));
    for (kind, count, _) in LOAD {
        let labels = format!(r#"{labels},kind="{kind}""#);
        let of = |name: &str| sample(&text, &format!("paradisk_disk_{name}{{{labels}}}"));
        assert_eq!((of("errors_total"), of("request_seconds_count")), (0.0, count as f64));
        assert!((1e-7..10.0).contains(&of("request_seconds_sum")), "{kind}");
    }
    let stats = answer(&control, &["stats"]);
    assert_eq!((&stats["schema"], &stats["disks"][0]["id"]), (&1.into(), &"disk0".into()));
    assert_eq!(
        (stats["queues"].as_array().unwrap().len(), stats["adapters"].as_array().unwrap().len()),
        (1, 0)
    );
    let queue = &stats["queues"][0];
    let place = ["disk", "adapter", "queue", "active"].map(|key| queue[key].clone());
    assert_eq!(Value::from(place.to_vec()), json!(["disk0", "nbd", 0, true]));
    is_loaded(queue, 1, 1);
    // A second connection beside the first has counters of its own; one after it continues them.
    let mut second = Client::connect(&socket);
    load(&mut second);
    is_loaded(&answer(&control, &["stats"])["queues"][1], 1, 1);
    drop(second);
    while answer(&control, &["stats"])["queues"][1]["active"] == true {
        std::thread::sleep(Duration::from_millis(10));
    }
    load(&mut Client::connect(&socket));
    let queues = answer(&control, &["stats"])["queues"].clone();
    assert_eq!(queues.as_array().unwrap().len(), 2);
    is_loaded(&queues[1], 2, 2);
    is_loaded(&queues[0], 1, 1);
    drop(client);
    ended(&mut child, Signal::TERM);
}

#[test]
fn latencies_are_measured_when_they_are_wanted() {
    let folder = Folder::new();
    let (socket, control, image) = (folder.path("socket"), folder.path("control"), folder.name("disk.raw"));
    let mut server = serve("nbd", &["--socket", socket.to_str().unwrap(), "--disk", &image]);
    let (mut child, _) = ready(server.arg("--control").arg(&control));
    let mut client = Client::connect(&socket);
    for (option, loads, measured) in
        [(&[][..], 1, 0), (&["--latency", "on"], 2, 1), (&["--latency", "off"], 3, 1)]
    {
        answer(&control, &[&["stats"], option].concat());
        load(&mut client);
        is_loaded(&answer(&control, &["stats"])["queues"][0], loads, measured);
    }
    let mut wrong = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    refused(wrong.arg("ctl").arg(&control).args(["stats", "--latency", "maybe"]), 2, "expected on or off");
    drop(client);
    assert_eq!(answer(&control, &["stop"]), "stopped");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// The kernel may keep the files of its rings open for a moment: the next server waits for that.
#[test]
fn a_server_that_was_killed_is_started_again_at_once() {
    let folder = Folder::new();
    let (socket, image) = (folder.path("socket"), folder.name("disk.raw"));
    for _ in 0..10 {
        let mut server = serve("nbd", &["--socket", socket.to_str().unwrap(), "--disk", &image]);
        let (mut child, _) = ready(&mut server);
        load(&mut Client::connect(&socket));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_trace_has_each_request() {
    let folder = Folder::new();
    let (socket, image) = (folder.path("socket"), folder.name("disk.raw"));
    let mut server = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    server.args(["--log", "trace", "serve", "nbd", "--socket", socket.to_str().unwrap(), "--disk", &image]);
    let (mut child, _) = ready(&mut server);
    load(&mut Client::connect(&socket));
    ended(&mut child, Signal::TERM);
    let mut trace = String::new();
    child.stderr.take().unwrap().read_to_string(&mut trace).unwrap();
    let count = |text: &str| trace.lines().filter(|line| line.contains(text)).count() as u64;
    let requests: u64 = LOAD.iter().map(|(_, count, ..)| count).sum();
    // The last flush is that of the end.
    assert_eq!((count("request starts"), count("request ends")), (requests + 1, requests + 1), "{trace}");
    assert_eq!((count("op=Read offset=65536 len=8192"), count("op=Flush")), (1, 2), "{trace}");
}

/// What is asked over the Unix socket by a client that others wrote.
fn curl(socket: &Path, options: &[&str]) -> Option<String> {
    std::thread::sleep(FRESH);
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "120", "--unix-socket"]).arg(socket);
    let Ok(output) = curl.args(options).arg("http://localhost/metrics").output() else {
        println!("SKIP: the_metrics_are_served_to_curl: curl is not installed");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn servers_of_adapters_report_them_too() {
    let folder = Folder::new();
    let (socket, image) = (folder.name("socket"), folder.name("disk.raw"));
    let (metrics, control) = (folder.path("metrics"), folder.path("control"));
    let common = ["--socket", &socket, "--disk", &image, "--metrics", metrics.to_str().unwrap()];
    for (protocol, more, adapter, vectors) in [
        ("vhost-user-blk", &["--queues", "2"][..], "virtio-blk0", 2),
        ("vfio-user", &["--adapter", "pvscsi", "--coalescing", "batch"], "pvscsi0", 1),
        ("vfio-user", &["--adapter", "ide-native"], "ide-native0", 0),
    ] {
        let mut server = serve(protocol, &[&common, more].concat());
        let (mut child, _) = ready(server.arg("--control").arg(&control));
        let stats = answer(&control, &["stats"]);
        let found = &stats["adapters"][0];
        assert_eq!(found["name"], adapter);
        for key in ["requests", "completions", "errors", "interrupts", "interrupts_suppressed", "doorbells"] {
            assert_eq!(found[key], 0, "{key} of {adapter}");
        }
        let moderation = found["moderation"].as_array().unwrap();
        let policy = if more.contains(&"batch") { "batch" } else { "oio-iops" };
        assert_eq!(moderation.len(), vectors, "{adapter}");
        assert!(moderation.iter().all(|vector| vector["policy"] == policy && vector["held_back"] == false));
        assert!(stats["queues"].as_array().unwrap().iter().all(|queue| queue["adapter"] == adapter));
        if let Some(text) = curl(&metrics, &[]) {
            assert_eq!(
                sample(&text, &format!(r#"paradisk_adapter_interrupts_total{{adapter="{adapter}"}}"#)),
                0.0
            );
            let ratio = format!(r#"paradisk_adapter_moderation_ratio{{adapter="{adapter}",vector="0"}}"#);
            assert!(vectors == 0 || sample(&text, &ratio) == 1.0);
            let head = curl(&metrics, &["--head"]).unwrap();
            assert!(head.contains("application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
        }
        ended(&mut child, Signal::TERM);
        assert!(!metrics.exists());
    }
}

/// Requests of a guest on two queues, the flushes without data: queue, type, sector and status.
const GUEST_LOAD: [(usize, u32, u64, u8); 9] = [
    (0, IN, 0, 0),
    (0, IN, 8, 0),
    (0, OUT, 16, 0),
    (0, GUEST_FLUSH, 0, 0),
    // Beyond the end.
    (0, OUT, 2048, 1),
    (1, IN, 16, 0),
    (1, OUT, 24, 0),
    (1, OUT, 32, 0),
    (1, GUEST_FLUSH, 0, 0),
];

/// Make the requests of [`GUEST_LOAD`], one after the other.
fn guest_load(mut run: impl FnMut(usize, u32, u64, u32) -> u8) {
    for (queue, request_type, sector, status) in GUEST_LOAD {
        let len = if request_type == GUEST_FLUSH { 0 } else { 4096 };
        assert_eq!(run(queue, request_type, sector, len), status, "{request_type} at {sector}");
    }
}

/// Reads, writes and flushes of [`GUEST_LOAD`] by queue, and together.
const BY_QUEUE: &[[u64; 3]] = &[[2, 2, 1], [1, 2, 1]];
const TOGETHER: &[[u64; 3]] = &[[3, 4, 2]];

/// The statistics of a virtio block device with two queues after `loads` times [`GUEST_LOAD`], with this policy. `counts`: what each queue
/// of the disk has done in one.
#[track_caller]
fn adapter_is_loaded(control: &Path, loads: u64, policy: &str, counts: &[[u64; 3]]) {
    let requests = loads * GUEST_LOAD.len() as u64;
    let begin = Instant::now();
    let stats = loop {
        let stats = answer(control, &["stats"]);
        // A queue counts what it has done after it has signalled it.
        if stats["adapters"][0]["completions"] == requests || begin.elapsed() > Duration::from_secs(60) {
            break stats;
        }
    };
    let adapter = &stats["adapters"][0];
    let totals = ["requests", "completions", "errors"].map(|key| adapter[key].as_u64().unwrap());
    assert_eq!((&adapter["name"], totals), (&json!("virtio-blk0"), [requests, requests, loads]), "{stats}");
    let interrupts = adapter["interrupts"].as_u64().unwrap();
    assert!((1..=requests).contains(&interrupts), "{adapter}");
    assert_eq!(adapter["interrupts_suppressed"], requests - interrupts);
    // A vector of each queue; where the adapter has it, that of configuration changes.
    let vectors = adapter["moderation"].as_array().unwrap();
    assert!(vectors.len() >= 2 && vectors.iter().all(|vector| vector["policy"] == policy), "{adapter}");
    let found = stats["queues"].as_array().unwrap().iter();
    let found =
        found.map(|queue| ["read", "write", "flush"].map(|kind| queue[kind]["count"].as_u64().unwrap()));
    let expected = counts.iter().map(|counts| counts.map(|count| count * loads));
    assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn servers_of_adapters_count_what_their_guests_do() {
    let folder = Folder::new();
    let (socket, image, control) = (folder.name("socket"), folder.name("disk.raw"), folder.path("control"));
    let common = ["--socket", &socket, "--disk", &image, "--queues", "2", "--metrics", "127.0.0.1:0"];
    let vfio = ["--adapter", "virtio-blk"];
    let threads = [&vfio[..], &["--threads", "2"]].concat();
    for (protocol, more, counts) in [
        ("vhost-user-blk", &[][..], BY_QUEUE),
        // One thread serves both queues by one queue of the disk.
        ("vfio-user", &vfio, TOGETHER),
        ("vfio-user", &threads, BY_QUEUE),
    ] {
        let mut server = serve(protocol, &[&common, more].concat());
        let (mut child, metrics) = ready_with_metrics(server.arg("--control").arg(&control));
        let shape = Shape { queues: 2, ..Shape::default() };
        let mut run: Box<dyn FnMut(usize, u32, u64, u32) -> u8> = if protocol == "vfio-user" {
            let mut guest = BlockGuest::connect(&folder.path("socket"), shape);
            guest.start();
            Box::new(move |queue, kind, sector, len| guest.run(queue, kind, sector, len))
        } else {
            let mut client = vhost_client::Client::connect(&folder.path("socket"), Guest::new(shape));
            Box::new(move |queue, kind, sector, len| {
                // All of the client is captured: its connection stays open.
                let client = &mut client;
                client.guest.run(queue, kind, sector, len)
            })
        };
        for (loads, policy) in [(1, "batch"), (2, "off")] {
            answer(&control, &["coalescing", policy]);
            guest_load(&mut run);
            adapter_is_loaded(&control, loads, policy, counts);
        }
        let text = scrape(&metrics);
        for (counter, expected) in [("requests", 18.0), ("completions", 18.0), ("errors", 2.0)] {
            let name = format!(r#"paradisk_adapter_{counter}_total{{adapter="virtio-blk0"}}"#);
            assert_eq!(sample(&text, &name), expected, "{protocol}: {counter}");
        }
        drop(run);
        ended(&mut child, Signal::TERM);
    }
}

#[test]
fn hostile_clients_of_the_metrics_keep_nobody_out() {
    let folder = Folder::new();
    let (socket, image) = (folder.path("socket"), folder.name("disk.raw"));
    let args = ["--socket", socket.to_str().unwrap(), "--disk", &image, "--metrics", "127.0.0.1:0"];
    let (mut child, address) = ready_with_metrics(&mut serve("nbd", &args));
    let mut crowd: Vec<_> = (0..100).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for stream in crowd.iter_mut().step_by(3) {
        // Fails where the server has closed it for another.
        let _ = stream.write_all(&[0xFF; 4096]);
    }
    let mut client = Client::connect(&socket);
    load(&mut client);
    let reads = r#"paradisk_disk_reads_total{disk="disk0",adapter="nbd",queue="0"}"#;
    assert_eq!(sample(&scrape(&address), reads), 3.0);
    // It keeps no descriptor of those that it has closed.
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count();
    assert!(open < 60, "{open} descriptors");
    drop((crowd, client));
    ended(&mut child, Signal::TERM);
}

#[test]
fn wrong_places_are_refused() {
    let folder = Folder::new();
    let socket = folder.name("socket");
    let nbd = |more: &[&str]| serve("nbd", &[&["--socket", &socket, "--disk", "ram=1M"], more].concat());
    refused(&mut nbd(&["--metrics", "0.0.0.0:0"]), 2, "--metrics-public");
    refused(&mut nbd(&["--metrics", "[::]:0"]), 2, "not a loopback address");
    refused(&mut nbd(&["--metrics", "/nowhere/metrics"]), 1, "/nowhere/metrics");
    refused(&mut nbd(&["--metrics", &folder.name("m"), "--metrics-mode", "9"]), 2, "octal");
    refused(&mut nbd(&["--metrics-public"]), 2, "--metrics");
    assert!(!folder.path("socket").exists());
    let (mut child, address) = ready_with_metrics(&mut nbd(&["--metrics", "0.0.0.0:0", "--metrics-public"]));
    let port = address.rsplit(':').next().unwrap();
    assert!(scrape(&format!("127.0.0.1:{port}")).contains("paradisk_build_info"));
    refused(
        &mut serve(
            "nbd",
            &[
                "--socket",
                &folder.name("other"),
                "--disk",
                "ram=1M",
                "--metrics",
                &format!("127.0.0.1:{port}"),
            ],
        ),
        1,
        "in use",
    );
    ended(&mut child, Signal::TERM);
}

//! IOPS and CPU time of NBD servers over a Unix socket: ours and qemu-nbd in turn, with the same file through the page cache, and with
//! the same clients (4 KiB, random, 32 in flight, one connection). The client in this file only sends requests and checks each reply.
//! fio's nbd engine is what others measure with; it is often slower than the server. A server's time is that of all its threads,
//! including those of the kernel.
//!
//! `cargo bench -p paradisk-serve --bench nbd [-- SECONDS [FOLDER]]`: a run of 1 s, images in cargo's folder for such files. With a
//! folder in memory (`/dev/shm`), no other file system is part of the measurement.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{PIECE, Process, Run, image, piece, socket, spread};
use paradisk_disk_formats::{EngineKind, FormatName, OpenOptions};
use paradisk_serve::Socket;
use paradisk_serve::nbd::{Export, Exports, Server};

const PEER: &str = "qemu-nbd";
/// Set for our server, which is this program again.
const IMAGE: &str = "PARADISK_BENCH_IMAGE";
const SIZE: u64 = 256 << 20;
const BLOCK: usize = 4096;
const DEPTH: usize = 32;
const ROUNDS: usize = 7;
/// Before a run is measured.
const WARM_UP: Duration = Duration::from_millis(200);

/// The servers that are compared.
const SERVERS: [&str; 3] = ["paradisk", "qemu-nbd", "qemu-nbd --aio=io_uring"];

fn main() {
    if let Some(image) = std::env::var_os(IMAGE) {
        return serve(Path::new(&image));
    }
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let seconds = arguments.next().and_then(|argument| argument.parse().ok()).unwrap_or(1.0);
    let parent = arguments.next().map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    if let Err(error) = Command::new(PEER).arg("--version").stdout(Stdio::null()).status() {
        return println!("SKIP: {PEER}: {error} (package qemu-utils)");
    }
    let frequency = cycles_of_a_nanosecond();
    let folder = tempfile::tempdir_in(parent).unwrap();
    println!("Median (min to max) of {ROUNDS} runs; ratios of ours to the other of the same round.\n");
    let load = |writes, fio| Load { writes, fio, time: Duration::from_secs_f64(seconds) };
    let loads = [load(false, false), load(true, false), load(false, true), load(true, true)];
    let loads = if fio_is_there() { &loads[..] } else { &loads[..2] };
    for format in [FormatName::Raw, FormatName::Vhdx] {
        let image = image(folder.path(), format, SIZE);
        for load in loads {
            let access = if load.writes { "write" } else { "read" };
            println!("{format}, random {access}{}", if load.fio { ", fio" } else { "" });
            let runs = rounds(&image, format, load);
            for (server, name) in SERVERS.iter().enumerate() {
                let of = |value: fn(&Run) -> f64| spread(runs.iter().map(|round| value(&round[server])));
                let (iops, iops_least, iops_most) = of(|run| run.iops);
                let (time, least, most) = of(|run| run.nanoseconds / 1e3);
                let cycles = time * 1e3 * frequency;
                print!(
                    "  {name:24} {iops:7.0} IOPS ({iops_least:.0} to {iops_most:.0})  {time:5.2} us of CPU an I/O ({least:.2} to \
                     {most:.2}), {cycles:.0} cycles"
                );
                let ratio = |value: fn(&Run) -> f64| {
                    let (median, least, most) =
                        spread(runs.iter().map(|round| value(&round[0]) / value(&round[server])));
                    format!("{median:.2} ({least:.2} to {most:.2})")
                };
                if server > 0 {
                    print!(
                        "; ratio of IOPS {}, of CPU {}",
                        ratio(|run| run.iops),
                        ratio(|run| run.nanoseconds)
                    );
                }
                println!();
            }
        }
    }
}

/// Each round runs every server once. Each round begins with another server, because a run may speed up the next one by what it leaves in
/// the host.
fn rounds(image: &Path, format: FormatName, load: &Load) -> Vec<[Run; SERVERS.len()]> {
    let round = |round: usize| {
        let mut runs = [Run { nanoseconds: 0.0, iops: 0.0 }; SERVERS.len()];
        for turn in 0..SERVERS.len() {
            let server = (round + turn) % SERVERS.len();
            runs[server] = run(&mut command(server, image, format), image, load, round as u64);
        }
        runs
    };
    (0..ROUNDS).map(round).collect()
}

fn command(server: usize, image: &Path, format: FormatName) -> Command {
    if server == 0 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(IMAGE, image);
        return command;
    }
    let mut command = Command::new(PEER);
    command.args(["-t", "-f", format.as_str()]).arg("-k").arg(socket(image));
    if server == 2 {
        command.arg("--aio=io_uring");
    }
    command.arg(image);
    command
}

/// Our server. It runs in a process of its own until the process is killed.
fn serve(image: &Path) {
    let export = Export {
        name: String::new(),
        description: String::new(),
        disk: OpenOptions::new(image).open().unwrap(),
        engine: EngineKind::default(),
    };
    let exports = Exports::new(vec![export]).unwrap();
    let _server = Server::start(Socket::listen(&socket(image)).unwrap(), exports).unwrap();
    loop {
        std::thread::park();
    }
}

/// What clients do.
struct Load {
    writes: bool,
    fio: bool,
    time: Duration,
}

fn run(server: &mut Command, image: &Path, load: &Load, seed: u64) -> Run {
    let socket = socket(image);
    let process = Process::start(server, &socket);
    let run = if load.fio {
        fio(&process, &socket, load)
    } else {
        let mut client = Client::connect(&socket, load.writes, seed);
        client.drive(WARM_UP);
        let (before, start) = (process.spent(), Instant::now());
        let count = client.drive(load.time);
        let (elapsed, spent) = (start.elapsed(), process.spent() - before);
        Run { nanoseconds: spent as f64 / count as f64, iops: count as f64 / elapsed.as_secs_f64() }
    };
    drop(process);
    // The kernel closes the file shortly after the server has ended.
    std::thread::sleep(Duration::from_millis(200));
    run
}

fn fio_is_there() -> bool {
    let engines =
        Command::new("fio").arg("--enghelp").output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&engines).lines().any(|line| line.trim() == "nbd")
}

fn fio(process: &Process, socket: &Path, load: &Load) -> Run {
    let output = socket.with_extension("json");
    let status = Command::new("fio")
        .args(["--name=nbd", "--ioengine=nbd", "--bs=4k", "--iodepth=32", "--time_based", "--norandommap"])
        .arg(format!("--uri=nbd+unix:///?socket={}", socket.display()))
        .arg(format!("--size={SIZE}"))
        .arg(format!("--rw=rand{}", if load.writes { "write" } else { "read" }))
        .arg(format!("--runtime={}ms", load.time.as_millis()))
        .args(["--output-format=json", "--output"])
        .arg(&output)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "fio: {status}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    let told = &report["jobs"][0][if load.writes { "write" } else { "read" }];
    let (count, iops) = (told["total_ios"].as_f64().unwrap(), told["iops"].as_f64().unwrap());
    // The server has done no other I/O, and the thread of its connection has ended.
    Run { nanoseconds: process.spent_by_all() as f64 / count, iops }
}

/// A client with a fixed number of requests in flight, and simple replies.
struct Client {
    stream: UnixStream,
    writes: bool,
    random: fastrand::Rng,
    piece: Vec<u8>,
    /// Buffer of received bytes.
    input: Vec<u8>,
    /// Number of bytes in it.
    filled: usize,
}

impl Client {
    fn connect(socket: &Path, writes: bool, seed: u64) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        // Fixed newstyle, no zeroes; NBD_OPT_EXPORT_NAME, the default.
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        let random = fastrand::Rng::with_seed(seed);
        Self { stream, writes, random, piece: piece(), input: vec![0; 2 * DEPTH * (BLOCK + 16)], filled: 0 }
    }

    /// For this time, send a new request for each one that has completed; then wait for all. Returns the number of requests.
    fn drive(&mut self, time: Duration) -> u64 {
        let (start, mut count, mut ended, mut in_flight) = (Instant::now(), 0, DEPTH, 0);
        let mut output = Vec::new();
        loop {
            if start.elapsed() < time {
                output.clear();
                (0..ended).for_each(|_| self.request(&mut output));
                self.stream.write_all(&output).unwrap();
                in_flight += ended;
            }
            if in_flight == 0 {
                return count;
            }
            ended = self.replies();
            in_flight -= ended;
            count += ended as u64;
        }
    }

    /// Append a request. Its cookie is its offset.
    fn request(&mut self, output: &mut Vec<u8>) {
        let offset = self.random.u64(..SIZE / BLOCK as u64) * BLOCK as u64;
        output.extend(0x2560_9513u32.to_be_bytes());
        output.extend(u32::from(self.writes).to_be_bytes());
        output.extend(offset.to_be_bytes());
        output.extend(offset.to_be_bytes());
        output.extend((BLOCK as u32).to_be_bytes());
        if self.writes {
            let at = offset as usize % PIECE;
            output.extend_from_slice(&self.piece[at..at + BLOCK]);
        }
    }

    /// Receive, and check complete replies. Returns their number.
    fn replies(&mut self) -> usize {
        let len = 16 + if self.writes { 0 } else { BLOCK };
        let received = self.stream.read(&mut self.input[self.filled..]).unwrap();
        assert!(received > 0, "the server has left");
        self.filled += received;
        let whole = self.filled / len;
        for reply in self.input[..whole * len].chunks(len) {
            assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
            let at = u64::from_be_bytes(reply[8..16].try_into().unwrap()) as usize % PIECE;
            assert!(
                self.writes
                    || reply[16..32] == self.piece[at..at + 16]
                        && reply[len - 1] == self.piece[at + BLOCK - 1]
            );
        }
        self.input.copy_within(whole * len..self.filled, 0);
        self.filled -= whole * len;
        whole
    }
}

/// Cycles at the processor's nominal frequency, as reported by the kernel; 0 if it reports none.
fn cycles_of_a_nanosecond() -> f64 {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("cpu MHz"));
    let megahertz = line.and_then(|line| line.split(':').nth(1)?.trim().parse::<f64>().ok());
    megahertz.unwrap_or(0.0) / 1e3
}

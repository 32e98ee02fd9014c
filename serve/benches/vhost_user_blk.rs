//! CPU time that a server spends for each I/O: ours and qemu-storage-daemon in turn, with the same file and the same client (4 KiB
//! random reads, 32 in flight, past the page cache). A server's time is that of all its threads, including those of the kernel
//! (`schedstat`).
//!
//! `cargo bench -p paradisk-serve --bench vhost_user_blk [-- SECONDS]`

#[path = "../tests/vhost_user_blk/client.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod client;
mod common;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Process, Run, image, socket, spread};
use paradisk_disk_formats::{FormatName, OpenOptions};
use paradisk_serve::Socket;
use paradisk_serve::vhost_user_blk::{Options, Server};

use client::{Client, Guest, IN, Shape};

const PEER: &str = "qemu-storage-daemon";
const IMAGE: &str = "PARADISK_BENCH_IMAGE";
const SIZE: u64 = 512 << 20;
const DEPTH: u16 = 32;
const PAIRS: usize = 7;
/// Before a run is measured.
const WARM_UP: Duration = Duration::from_millis(200);

fn main() {
    if let Some(image) = std::env::var_os(IMAGE) {
        return serve(Path::new(&image));
    }
    let seconds = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(1.0);
    let measure = Duration::from_secs_f64(seconds);
    if let Err(error) = Command::new(PEER).arg("--version").stdout(Stdio::null()).status() {
        return println!("SKIP: {PEER}: {error} (package qemu-system-common)");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let images = [
        ("raw", image(folder.path(), FormatName::Raw, SIZE)),
        ("vhdx", image(folder.path(), FormatName::Vhdx, SIZE)),
    ];
    println!(
        "format  CPU ns per I/O: ours (IOPS)   {PEER} (IOPS)   ratio: median (min to max) of {PAIRS} pairs"
    );
    for (format, path) in images {
        let mut pairs = Vec::new();
        for pair in 0..PAIRS {
            // The servers take turns to run first, because the first run may speed up the second by what it leaves in the host.
            let (mut ours, mut theirs) = (None, None);
            for turn in [pair % 2, (pair + 1) % 2] {
                match turn {
                    0 => {
                        ours = Some(run(
                            Command::new(std::env::current_exe().unwrap()).env(IMAGE, &path),
                            &path,
                            measure,
                        ))
                    }
                    _ => theirs = Some(run(&mut peer(format, &path), &path, measure)),
                }
            }
            pairs.extend(ours.zip(theirs));
        }
        let of = |value: fn(&(Run, Run)) -> f64| spread(pairs.iter().map(value));
        let (ratio, least, most) = of(|(ours, theirs)| ours.nanoseconds / theirs.nanoseconds);
        println!(
            "{format:6}  {:8.0} ({:.0})   {:8.0} ({:.0})   {ratio:.3} ({least:.3} to {most:.3})",
            of(|(ours, _)| ours.nanoseconds).0,
            of(|(ours, _)| ours.iops).0,
            of(|(_, theirs)| theirs.nanoseconds).0,
            of(|(_, theirs)| theirs.iops).0,
        );
    }
}

/// Our server. It runs in a process of its own until the process is killed.
fn serve(image: &Path) {
    let disk = OpenOptions { direct: Some(true), read_only: true, ..OpenOptions::new(image) }.open().unwrap();
    let server = Server::new(disk, Options::default()).unwrap();
    let socket = Socket::listen(&socket(image)).unwrap();
    let (_stop, stopped) = UnixStream::pair().unwrap();
    server.run(socket.listener(), stopped.as_fd(), &|_| ()).unwrap();
}

fn peer(format: &str, image: &Path) -> Command {
    let mut command = Command::new(PEER);
    let file = format!(
        "driver=file,node-name=f0,filename={},cache.direct=on,aio=native,read-only=on",
        image.display()
    );
    command.args(["--object", "iothread,id=io0", "--blockdev", &file]);
    command.args(["--blockdev", &format!("driver={format},node-name=d0,file=f0,read-only=on")]);
    let socket = socket(image);
    command.arg("--export").arg(format!(
        "type=vhost-user-blk,id=e0,node-name=d0,addr.type=unix,addr.path={},num-queues=1,iothread=io0",
        socket.display()
    ));
    command
}

fn run(server: &mut Command, image: &Path, measure: Duration) -> Run {
    let socket = socket(image);
    let process = Process::start(server, &socket);
    let mut client = Client::connect(&socket, Guest::new(Shape { size: 128, ..Shape::default() }));
    let (guest, mut random) = (&mut client.guest, fastrand::Rng::with_seed(1));
    (0..DEPTH).for_each(|slot| guest.add(0, slot, IN, sector(&mut random), 4096));
    guest.publish(0);
    drive(guest, &mut random, WARM_UP);
    let (before, start) = (process.spent(), Instant::now());
    let count = drive(guest, &mut random, measure);
    let (elapsed, spent) = (start.elapsed(), process.spent() - before);
    guest.wait(0, DEPTH.into());
    drop((client, process));
    // The kernel closes the file shortly after the server has ended.
    std::thread::sleep(Duration::from_millis(500));
    Run { nanoseconds: spent as f64 / count as f64, iops: count as f64 / elapsed.as_secs_f64() }
}

/// Add a new request for each one that has completed. Returns the number of completed requests.
fn drive(guest: &mut Guest, random: &mut fastrand::Rng, time: Duration) -> u64 {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        for (slot, status) in guest.wait(0, 1) {
            assert_eq!(status, 0);
            guest.add(0, slot, IN, sector(random), 4096);
            count += 1;
        }
        guest.publish(0);
    }
    count
}

fn sector(random: &mut fastrand::Rng) -> u64 {
    random.u64(..SIZE / 4096) * 8
}

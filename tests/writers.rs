//! Two programs and one image: the second is refused, with a message that names the first. QEMU's programs respect the
//! same locks.

mod common;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Running, ready, refused};

const PARADISK: &str = env!("CARGO_BIN_EXE_paradisk");

fn paradisk(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(PARADISK);
    command.args(args).current_dir(folder).stdin(Stdio::null());
    command
}

#[track_caller]
fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A folder with a raw disk, and a VHD and a VHDX on parents.
fn images() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::File::create(folder.path().join("a.raw")).unwrap().set_len(16 << 20).unwrap();
    for format in ["vhd", "vhdx"] {
        let (base, child) = (format!("base.{format}"), format!("child.{format}"));
        let create = ["image", "create", "--format", format];
        let dynamic = [&base, "--subformat", "dynamic", "--size", "16M"];
        done(&mut paradisk(folder.path(), &[&create[..], &dynamic].concat()));
        done(&mut paradisk(folder.path(), &[&create[..], &[&child, "--parent", &base]].concat()));
    }
    folder
}

/// Everything that writes to a disk, or to an image of its format.
fn writers(image: &str) -> Vec<Vec<&str>> {
    let mut writers = vec![
        vec!["serve", "nbd", "--socket", "other", "--disk", image],
        vec!["serve", "vhost-user-blk", "--socket", "other", "--disk", image],
        vec!["serve", "vfio-user", "--socket", "other", "--adapter", "pvscsi", "--disk", image],
        vec!["bench", "--rw", "randwrite", "--disk", image],
        vec!["run", "--kernel", "/bin/true", "--disk", image],
        vec!["image", "resize", image, "32M"],
    ];
    if image != "a.raw" {
        writers.push(vec!["image", "compact", image]);
    }
    if image.starts_with("child") {
        writers.push(vec!["image", "merge", image]);
        writers.push(vec!["image", "rebase", image, "--parent", "a.raw"]);
    }
    writers
}

#[test]
fn a_second_writer_is_told_who_was_first() {
    let folder = images();
    let disks = ["a.raw", "child.vhd", "child.vhdx"];
    let args = disks.iter().flat_map(|disk| ["--disk", disk, "--export", disk]);
    let args: Vec<&str> = ["serve", "nbd", "--socket", "socket"].into_iter().chain(args).collect();
    let (server, line) = ready(&mut paradisk(folder.path(), &args));
    assert!(line.starts_with("serving"), "{line}");
    let holder = format!("process {} (paradisk) has it open", server.id());
    for (image, how) in [
        ("a.raw", " for writing"),
        ("child.vhd", " for writing"),
        ("child.vhdx", " for writing"),
        // Parents are read.
        ("base.vhd", "\n"),
        ("base.vhdx", "\n"),
    ] {
        for args in writers(image) {
            refused(&mut paradisk(folder.path(), &args), 1, &format!("{image}: busy: {holder}{how}"));
        }
    }
    refused(&mut paradisk(folder.path(), &["image", "info", "a.raw"]), 1, &format!("{holder} for writing"));
    done(&mut paradisk(folder.path(), &["image", "info", "base.vhdx"]));
    drop(server);
    done(&mut paradisk(folder.path(), &["image", "check", "child.vhdx"]));
}

fn there(test: &str, program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIP: {test}: {program} is not installed");
    }
    found
}

/// What QEMU's program says, in a folder.
fn qemu_io(folder: &Path, format: &str, options: &[&str], image: &str) -> (bool, String) {
    let command = if options.is_empty() { "write -P 1 0 4k" } else { "read 0 4k" };
    let args = [&["-f", format, "-c", command][..], options, &[image]].concat();
    let output = Command::new("qemu-io").args(&args).current_dir(folder).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn qemu_is_refused_what_we_write_to() {
    if !there("qemu_is_refused_what_we_write_to", "qemu-io") {
        return;
    }
    let folder = images();
    let disks = [("raw", "a.raw"), ("vpc", "child.vhd"), ("vhdx", "base.vhdx")];
    for (format, image) in disks {
        let (server, _) =
            ready(&mut paradisk(folder.path(), &["serve", "nbd", "--socket", "socket", "--disk", image]));
        for options in [&[][..], &["-r"]] {
            let (opened, text) = qemu_io(folder.path(), format, options, image);
            assert!(
                !opened && text.contains("Is another process using the image"),
                "{image} {options:?}: {text}"
            );
        }
        drop(server);
    }
    // A reader lets others read.
    let readonly = ["serve", "nbd", "--socket", "socket", "--disk", "path=a.raw,readonly=on"];
    let (server, _) = ready(&mut paradisk(folder.path(), &readonly));
    assert!(!qemu_io(folder.path(), "raw", &[], "a.raw").0);
    let (opened, text) = qemu_io(folder.path(), "raw", &["-r"], "a.raw");
    assert!(opened, "{text}");
    drop(server);
    assert!(qemu_io(folder.path(), "raw", &[], "a.raw").0);
}

#[test]
fn what_qemu_writes_to_is_not_opened() {
    if !there("what_qemu_writes_to_is_not_opened", "qemu-nbd") {
        return;
    }
    let folder = images();
    for (format, image) in [("raw", "a.raw"), ("vpc", "base.vhd"), ("vhdx", "base.vhdx")] {
        let (server, socket) = qemu_nbd(folder.path(), format, image);
        let holder = format!("{image}: busy: process {} (qemu-nbd) has it open for writing", server.id());
        for args in writers(image).into_iter().chain([vec!["image", "info", image]]) {
            refused(&mut paradisk(folder.path(), &args), 1, &holder);
        }
        drop(server);
        // It had no time to remove it.
        std::fs::remove_file(socket).unwrap();
    }
}

/// QEMU's server, once it greets: it listens before it has opened the image.
fn qemu_nbd(folder: &Path, format: &str, image: &str) -> (Running, PathBuf) {
    let socket = folder.join("qemu");
    let mut command = Command::new("qemu-nbd");
    command.args(["-t", "-f", format, "-k"]).arg(&socket).arg(image).current_dir(folder);
    let server = Running(command.spawn().unwrap());
    let begin = Instant::now();
    let greets =
        || UnixStream::connect(&socket).and_then(|mut client| client.read_exact(&mut [0; 8])).is_ok();
    while !greets() {
        assert!(begin.elapsed() < Duration::from_secs(120), "qemu-nbd does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    (server, socket)
}

//! QEMU's log read by this crate, and this crate's log read by QEMU.

use std::path::Path;
use std::process::Command;

use super::super::entry::Sector;
use super::super::{Log, find};
use super::*;
use crate::host::crash::CrashFile;

/// Default location of the log by `qemu-img create`.
const THEIRS: Region = Region { offset: 1 << 20, length: 1 << 20 };
/// The write command of qemu-io that fills the disk.
const WRITE: &str = "write -P 7 0 1M";
const READ: &str = "read -P 7 0 1M";

fn run(program: &str, args: &[&str], file: &Path) -> Result<(), String> {
    let output = Command::new(program).args(args).arg(file).output().map_err(|error| error.to_string())?;
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    // In older versions of QEMU, the exit status is zero even if the pattern does not match.
    let good = output.status.success() && !text.contains("Pattern verification failed");
    if good { Ok(()) } else { Err(format!("{program} {args:?}: {text}")) }
}

/// Set the log GUID in both headers.
fn publish(image: &mut [u8], guid: Uuid) {
    for header in [64 << 10, 128 << 10] {
        let header = &mut image[header..header + 4096];
        header[48..64].copy_from_slice(&guid.to_bytes_le());
        seal(header);
    }
}

#[test]
fn logs_are_exchanged_with_qemu() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.vhdx");
    if Command::new("qemu-img").arg("--version").output().is_err() {
        println!("SKIP: logs_are_exchanged_with_qemu: no qemu-img");
        return;
    }
    let create = Command::new("qemu-img").args(["create", "-q", "-f", "vhdx"]).arg(&path).arg("64M").status();
    assert!(create.expect("it runs").success());
    run("qemu-io", &["-f", "vhdx", "-c", WRITE], &path).expect("a write");
    let image = std::fs::read(&path).expect("an image");

    // The entry that QEMU has logged is still in the ring, though it is applied and its GUID no longer in the header.
    let guid = image[THEIRS.offset as usize + 32..].first_chunk().expect("an entry");
    let guid = Uuid::from_bytes_le(*guid);
    let theirs = CrashFile::new(image.clone());
    let replay = find(&theirs, THEIRS, guid).expect("good");
    let updates = updates(&replay, &theirs);
    let [Update::Data { offset: bat, sector }] = &updates[..] else { panic!("{updates:x?}") };
    let mut undone = image.clone();
    undone[*bat as usize..][..SECTOR].fill(0);
    assert_ne!(undone, image);
    let file = CrashFile::new(undone.clone());
    replay.apply(&file).expect("space");
    assert!(file.bytes() == image, "the BAT is as QEMU left it");

    // The same change in a log of this crate, with the BAT not written: without the log the data cannot be read.
    std::fs::write(&path, &undone).expect("space");
    run("qemu-io", &["-r", "-f", "vhdx", "-c", READ], &path).expect_err("no block");
    let file = CrashFile::new(undone);
    log_change(&file, *bat, sector, image.len() as u64);
    let mut ours = file.bytes();
    publish(&mut ours, GUID);
    std::fs::write(&path, &ours).expect("space");
    run("qemu-img", &["check", "-q", "-r", "all", "-f", "vhdx"], &path).expect("replay");
    run("qemu-io", &["-r", "-f", "vhdx", "-c", READ], &path).expect("the block");
}

/// Several entries, the last with zeros, too, across the end of the ring.
fn log_change(file: &CrashFile, bat: u64, sector: &Sector, len: u64) {
    let sizes = Sizes { flushed: len, last: len };
    let mut log = Log::start(file, THEIRS, GUID, sizes).expect("space");
    let fill: Vec<Update> =
        (0..125).map(|_| Update::Data { offset: bat, sector: Box::new([0; SECTOR]) }).collect();
    for _ in 0..2 {
        log.append(file, &fill, sizes).expect("space");
    }
    let zeros = Update::Zero { offset: bat, len: SECTOR as u64 };
    let last = Update::Data { offset: bat, sector: Box::new(*sector) };
    log.append(file, &[fill[0].clone(), zeros, fill[0].clone(), last], sizes).expect("space");
}

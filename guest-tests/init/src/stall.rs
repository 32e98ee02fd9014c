//! Disks that do not complete their I/O for a while, so that the kernel's error handling for SCSI has something to do.

use std::fs;
use std::io;
use std::slice;

use guest_init::{Disk, Line};

use crate::find;
use crate::fio::{Load, Running};
use crate::output::print;
use crate::verify::{self, Buffer};

/// Requests in flight for each disk: the error handling aborts one after another, and waits 2 s and more for each, before it resets
/// anything.
const DEPTH: u32 = 2;
/// Seconds until a command times out, and until a command of the error handling does. The kernel repeats a command that a reset has ended
/// for six times the first timeout: the error handling must take less than that.
const TIMEOUTS: [(&str, u32); 2] = [("device/timeout", 24), ("device/eh_timeout", 4)];
/// Messages of the kernel below this level are on the console.
const LOG_LEVEL: &str = "/proc/sys/kernel/printk";

/// Say that the disks are to be stalled, wait until a line is typed, and have fio verify all of them at the same time.
pub(crate) fn run(names: &[String], buffer: &mut Buffer) -> Result<Vec<Disk>, String> {
    let mut disks = names.iter().map(|name| find::describe(name)).collect::<Result<Vec<_>, _>>()?;
    disks.iter().try_for_each(shorten_timeouts)?;
    // All that the kernel says of the error handling, whatever it said until now.
    fs::write(LOG_LEVEL, "8").map_err(|error| format!("{LOG_LEVEL}: {error}"))?;
    print(&Line::Stalling);
    let mut line = String::new();
    let typed = io::stdin().read_line(&mut line).map_err(|error| format!("console: {error}"))?;
    if typed == 0 {
        return Err("the console ended before the disks were stalled".to_owned());
    }
    let running: Vec<_> = disks
        .iter()
        .map(|disk| Running::start(disk, slice::from_ref(&disk.name), Load::Verify, DEPTH))
        .collect();
    for (disk, running) in disks.iter_mut().zip(running) {
        disk.error = finish(disk, running, buffer).err();
    }
    Ok(disks)
}

fn finish(disk: &mut Disk, running: Result<Running, String>, buffer: &mut Buffer) -> Result<(), String> {
    disk.fio.push(running?.finish()?);
    disk.after_fio = Some(verify::checksum(disk, buffer)?);
    Ok(())
}

/// Where the disk is one of SCSI. virtio-blk waits for as long as it takes.
fn shorten_timeouts(disk: &Disk) -> Result<(), String> {
    for (attribute, seconds) in TIMEOUTS {
        let path = format!("/sys/block/{}/{attribute}", disk.name);
        if fs::exists(&path).unwrap_or(false) {
            fs::write(&path, seconds.to_string()).map_err(|error| format!("{path}: {error}"))?;
        }
    }
    Ok(())
}

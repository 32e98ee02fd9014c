//! Adapters and disks that are changed while fio runs on them: disks attached and detached, disks that grow, other moderation of
//! interrupts, and resets that the guest asks for.

use std::fs::{self, OpenOptions};
use std::io;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use guest_init::{Change, Disk, FioDone, Line, Reset, ResetDone};

use crate::fio::{Load, Running};
use crate::output::print;
use crate::verify::{self, Buffer};
use crate::{find, grow, ioctl};

/// Requests in flight for each disk.
const DEPTH: u32 = 8;
/// Reads and writes of a disk in a second at the most. An emulated CPU would be busy with fio alone.
const RATE: u32 = 10;
/// Resets of each kind for each disk. The kernel repeats a command five times at the most.
const RESETS: usize = 2;
/// Between resets, for commands to complete that the one before has failed.
const PAUSE: Duration = Duration::from_millis(300);
/// Pause after a host reset by the driver [`NEGOTIATES`]. That driver then negotiates with its disks again, and logs an error if another
/// reset interrupts this.
const NEGOTIATION: Duration = Duration::from_secs(4);
const NEGOTIATES: &str = "mptspi";
/// For the kernel to find a disk or to let go of one. All fios compete with it for the CPU, which on a busy host is slow.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Drivers of parallel SCSI, whose adapters cannot report disks that come and go.
const SILENT: [&str; 2] = ["mptspi", "BusLogic"];

/// Have everything changed, while one fio after another verifies each disk; what became of the disks that were there at first.
pub(crate) fn run(names: &[String], buffer: &mut Buffer) -> Result<Vec<Disk>, String> {
    let mut disks = names.iter().map(|name| find::describe(name)).collect::<Result<Vec<_>, _>>()?;
    let end = &AtomicBool::new(false);
    let (changed, loads) = thread::scope(|scope| {
        let load = |disk| scope.spawn(move || run_until(disk, end));
        let loads: Vec<_> = disks.iter().map(load).collect();
        let changed = change(&disks, buffer);
        end.store(true, Ordering::Relaxed);
        let ended = loads.into_iter().map(|load| load.join().unwrap_or_else(|_| Err("panic".to_owned())));
        (changed, ended.collect::<Vec<_>>())
    });
    // A load that has ended may be why the changes could not go on.
    let changed = changed.map_err(|error| {
        let ended: Vec<_> = loads.iter().filter_map(|load| load.as_ref().err()).collect();
        format!("{error}; loads that failed: {ended:?}")
    })?;
    for ((disk, load), resets) in disks.iter_mut().zip(loads).zip(changed) {
        disk.size = find::describe(&disk.name)?.size;
        disk.resets = resets;
        disk.error = match load {
            Ok(done) => {
                disk.fio = done;
                verify::checksum(disk, buffer).map(|sum| disk.after_fio = Some(sum)).err()
            }
            Err(error) => Some(error),
        };
    }
    Ok(disks)
}

/// One run after another, each of which compares all that it wrote.
fn run_until(disk: &Disk, end: &AtomicBool) -> Result<Vec<FioDone>, String> {
    let mut done = Vec::new();
    while !end.load(Ordering::Relaxed) {
        done.push(
            Running::start(disk, slice::from_ref(&disk.name), Load::Steady { rate: RATE }, DEPTH)?
                .finish()?,
        );
    }
    Ok(done)
}

/// The resets of each disk.
fn change(disks: &[Disk], buffer: &mut Buffer) -> Result<Vec<Vec<ResetDone>>, String> {
    attach_and_detach(disks, buffer)?;
    let before = disks.iter().map(|disk| find::describe(&disk.name)).collect::<Result<Vec<_>, _>>()?;
    ask(Change::Resize)?;
    grow::wait_for(&before, TIMEOUT)?;
    ask(Change::Coalescing)?;
    disks.iter().map(resets).collect()
}

/// Say what is to be changed, and wait until a line says that it is.
fn ask(change: Change) -> Result<(), String> {
    print(&Line::Changing(change));
    let mut line = String::new();
    match io::stdin().read_line(&mut line) {
        Ok(0) => Err(format!("the console ended before {change:?} was done")),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("console: {error}")),
    }
}

/// A disk more for each SCSI adapter, which is verified and goes again.
fn attach_and_detach(disks: &[Disk], buffer: &mut Buffer) -> Result<(), String> {
    let is_scsi = |disk: &&Disk| disk.driver != "virtio_blk";
    let adapters = disks.iter().filter(is_scsi).count();
    ask(Change::Attach)?;
    scan(disks)?;
    let names = wait_for(disks.len() + adapters)?;
    let new = names.iter().filter(|name| disks.iter().all(|disk| disk.name != **name));
    let new = new.map(|name| find::describe(name)).collect::<Result<Vec<_>, _>>()?;
    for disk in &new {
        Running::start(disk, slice::from_ref(&disk.name), Load::Verify, DEPTH)?.finish()?;
        let sum = verify::checksum(disk, buffer)?;
        print(&Line::Disk(Box::new(Disk { after_fio: Some(sum), ..disk.clone() })));
    }
    for disk in new.iter().filter(|disk| is_silent(disk)) {
        write(&format!("/sys/block/{}/device/delete", disk.name), "1")?;
    }
    ask(Change::Detach)?;
    wait_for(disks.len()).map(drop)
}

fn is_silent(disk: &Disk) -> bool {
    SILENT.contains(&&*disk.driver)
}

/// Have the kernel scan for disks behind the adapters that cannot report them.
fn scan(disks: &[Disk]) -> Result<(), String> {
    for disk in disks.iter().filter(|disk| is_silent(disk)) {
        let host = disk.device.split(':').next().unwrap_or_default();
        write(&format!("/sys/class/scsi_host/host{host}/scan"), "- - -")?;
    }
    Ok(())
}

/// Wait until there are as many disks.
fn wait_for(expected: usize) -> Result<Vec<String>, String> {
    let start = Instant::now();
    loop {
        let names = find::disks()?;
        if names.len() == expected {
            return Ok(names);
        }
        if start.elapsed() > TIMEOUT {
            return Err(format!("{expected} disks were expected, not {names:?}"));
        }
        sleep(PAUSE);
    }
}

/// Resets of each kind, where the disk is one of SCSI.
fn resets(disk: &Disk) -> Result<Vec<ResetDone>, String> {
    if disk.driver == "virtio_blk" {
        return Ok(Vec::new());
    }
    let path = format!("/dev/{}", disk.name);
    let device = OpenOptions::new().read(true).open(&path).map_err(|error| format!("{path}: {error}"))?;
    let mut done = Vec::new();
    for what in [Reset::Device, Reset::Bus, Reset::Host] {
        for _ in 0..RESETS {
            let in_flight = wait_for_load(disk)?;
            let error = ioctl::reset(&device, what).err().map(|error| error.to_string());
            done.push(ResetDone { what, in_flight, error });
            sleep(if what == Reset::Host && disk.driver == NEGOTIATES { NEGOTIATION } else { PAUSE });
        }
    }
    Ok(done)
}

/// Requests in flight, once there are some: fio may be between two runs.
fn wait_for_load(disk: &Disk) -> Result<u32, String> {
    let path = format!("/sys/block/{}/inflight", disk.name);
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let in_flight = text.split_whitespace().filter_map(|number| number.parse::<u32>().ok()).sum();
        if in_flight > 0 {
            return Ok(in_flight);
        }
        // fio may want this CPU.
        sleep(Duration::from_millis(1));
    }
    Err(format!("{}: fio has nothing in flight", disk.name))
}

fn write(path: &str, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{path}: {error}"))
}

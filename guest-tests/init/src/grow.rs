//! Disks that become larger while the guest has them.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use guest_init::{Disk, Line};

use crate::find;
use crate::output::print;

/// Say that the disks may grow, and wait until all have, or `timeout` is over.
pub(crate) fn wait(names: &[String], timeout: Duration) -> Result<(), String> {
    let before = names.iter().map(|name| find::describe(name)).collect::<Result<Vec<_>, _>>()?;
    print(&Line::Growing);
    wait_for(&before, timeout)
}

/// Wait until all have grown since they were described.
pub(crate) fn wait_for(before: &[Disk], timeout: Duration) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let now = before.iter().map(|disk| find::describe(&disk.name)).collect::<Result<Vec<_>, _>>()?;
        let Some((small, _)) = now.iter().zip(before).find(|(now, before)| now.size <= before.size) else {
            return Ok(());
        };
        if start.elapsed() > timeout {
            return Err(format!("{} ({}) has not grown", small.name, small.driver));
        }
        now.iter().try_for_each(look)?;
        sleep(Duration::from_millis(200));
    }
}

/// Have the kernel rescan a disk, unless its adapter is a virtio device: virtio devices notify the kernel themselves.
fn look(disk: &Disk) -> Result<(), String> {
    let path = format!("/sys/block/{}/device/rescan", disk.name);
    if disk.driver.starts_with("virtio") {
        return Ok(());
    }
    fs::write(&path, "1").map_err(|error| format!("{path}: {error}"))
}

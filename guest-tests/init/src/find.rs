//! Which disks there are and what the kernel knows of them: `/sys/block`.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use guest_init::Disk;

const BLOCK: &str = "/sys/block";
const SCSI_HOSTS: &str = "/sys/class/scsi_host";
/// What `queue/max_sectors_kb` and its like count in, and `size`.
const SECTOR: u64 = 512;
/// Header of a SCSI VPD page.
const PAGE_HEADER: usize = 4;

/// Names of the disks, once there are as many as expected, or after `timeout`.
pub(crate) fn wait(expected: usize, timeout: Duration) -> Result<Vec<String>, String> {
    let start = Instant::now();
    loop {
        let names = disks()?;
        if names.len() >= expected || start.elapsed() >= timeout {
            return Ok(names);
        }
        sleep(Duration::from_millis(100));
    }
}

/// Block devices that a driver of an adapter stands behind: no RAM disks, no loop devices.
pub(crate) fn disks() -> Result<Vec<String>, String> {
    let entries = fs::read_dir(BLOCK).map_err(|error| format!("{BLOCK}: {error}"))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| driver(name).is_some())
        .collect();
    names.sort();
    Ok(names)
}

/// What the kernel says of a disk.
pub(crate) fn describe(name: &str) -> Result<Disk, String> {
    let number = |attribute: &str| -> Result<u64, String> {
        let text = text(name, attribute).ok_or_else(|| format!("{name} has no {attribute}"))?;
        text.parse().map_err(|error| format!("{name}: {attribute} is {text:?}: {error}"))
    };
    let optional = |attribute| text(name, attribute).unwrap_or_default();
    let device = fs::canonicalize(path(name, "device")).map_err(|error| format!("{name}/device: {error}"))?;
    let device = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Disk {
        name: name.to_owned(),
        driver: driver(name).unwrap_or_default(),
        device,
        size: number("size")? * SECTOR,
        logical_sector: number("queue/logical_block_size")?,
        physical_sector: number("queue/physical_block_size")?,
        vendor: optional("device/vendor"),
        model: optional("device/model"),
        serial: serial(name),
        rotational: number("queue/rotational")? != 0,
        read_only: number("ro")? != 0,
        write_back: optional("queue/write_cache") == "write back",
        discard_max: number("queue/discard_max_bytes")?,
        write_zeroes_max: number("queue/write_zeroes_max_bytes")?,
        queues: fs::read_dir(path(name, "mq")).map_or(0, Iterator::count),
        checked: None,
        fio: Vec::new(),
        libiscsi: Vec::new(),
        resets: Vec::new(),
        after_fio: None,
        error: None,
    })
}

fn path(name: &str, attribute: &str) -> PathBuf {
    Path::new(BLOCK).join(name).join(attribute)
}

fn text(name: &str, attribute: &str) -> Option<String> {
    Some(fs::read_to_string(path(name, attribute)).ok()?.trim().to_owned())
}

/// virtio-blk has an attribute; SCSI has VPD page 80h, as the device sent it.
fn serial(name: &str) -> String {
    text(name, "serial").unwrap_or_else(|| {
        let page = fs::read(path(name, "device/vpd_pg80")).unwrap_or_default();
        String::from_utf8_lossy(page.get(PAGE_HEADER..).unwrap_or_default()).trim().to_owned()
    })
}

/// The nearest driver above the block device that is not the one for all SCSI disks.
fn driver(name: &str) -> Option<String> {
    let device = fs::canonicalize(Path::new(BLOCK).join(name)).ok()?;
    device.ancestors().find_map(|above| {
        let Ok(driver) = fs::read_link(above.join("driver")) else { return unbound_host(above) };
        let driver = driver.file_name()?.to_str()?;
        (driver != "sd").then(|| driver.to_owned())
    })
}

/// The driver of a SCSI host to whose PCI function no driver is bound: BusLogic's driver scans the PCI bus by itself.
fn unbound_host(device: &Path) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    if !name.starts_with("host") || device.parent()?.join("driver").exists() {
        return None;
    }
    let driver = fs::read_to_string(Path::new(SCSI_HOSTS).join(name).join("proc_name")).ok()?;
    Some(driver.trim().to_owned())
}

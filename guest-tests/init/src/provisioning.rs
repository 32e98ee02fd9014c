//! Discards on disks behind BusLogic. The kernel learns from READ CAPACITY (16) that a disk has discards, and BusLogic's driver cannot send
//! that command. The disk's page of logical block provisioning says it, too. So this process reads the page, and sets the discard mode in
//! the kernel's attributes of the disk.

use std::fs;

use guest_init::Disk;

use crate::find;

/// The driver whose CDBs have 12 bytes.
const DRIVER: &str = "BusLogic";
/// Logical block provisioning page: byte and bit of WRITE SAME (10) with UNMAP.
const LBPWS10: (usize, u8) = (5, 0x20);
const MODE: &str = "writesame_10";

/// Have the kernel discard by WRITE SAME (10), where the disk has it, and only the driver keeps the kernel from knowing.
pub(crate) fn allow_discards(disk: &mut Disk) -> Result<(), String> {
    if disk.driver != DRIVER {
        return Ok(());
    }
    let device = format!("/sys/block/{}/device", disk.name);
    let page = format!("{device}/vpd_pgb2");
    let bytes = fs::read(&page).map_err(|error| format!("{page}: {error}"))?;
    let (at, bit) = LBPWS10;
    if bytes.get(at).is_some_and(|byte| byte & bit != 0) {
        let mode = format!("{device}/scsi_disk/{}/provisioning_mode", disk.device);
        fs::write(&mode, MODE).map_err(|error| format!("{mode}: {error}"))?;
        disk.discard_max = find::describe(&disk.name)?.discard_max;
    }
    Ok(())
}

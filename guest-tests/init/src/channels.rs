//! Channels of a VMBus, as the kernel counts their signals: `Documentation/ABI/stable/sysfs-bus-vmbus`.

use std::fs;
use std::path::Path;

use guest_init::Channel;

const DEVICES: &str = "/sys/bus/vmbus/devices";

/// Those that are open, of all devices; none where there is no bus.
pub(crate) fn open() -> Vec<Channel> {
    let devices = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let channels =
        devices.flat_map(|device| fs::read_dir(device.path().join("channels")).into_iter().flatten());
    let mut open: Vec<_> = channels.flatten().filter_map(|channel| describe(&channel.path())).collect();
    open.sort_by_key(|channel| channel.number);
    open
}

/// `None`: it is not open.
fn describe(path: &Path) -> Option<Channel> {
    let count = |name: &str| fs::read_to_string(path.join(name)).ok()?.trim().parse().ok();
    let number = path.file_name()?.to_str()?.parse().ok()?;
    Some(Channel { number, signals: count("events")?, interrupts: count("interrupts")? })
}

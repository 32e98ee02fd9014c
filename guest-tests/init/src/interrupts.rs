//! Interrupts of devices so far, from `/proc/interrupts`.

use std::fs;

const FILE: &str = "/proc/interrupts";
/// The line of Hyper-V's callback, by which the VMBus interrupts: it has no number of its own.
const HYPERV: &str = "HYP";

/// Of all devices, on all CPUs.
pub(crate) fn of_devices() -> Result<u64, String> {
    fs::read_to_string(FILE).map(|table| sum(&table)).map_err(|error| format!("{FILE}: {error}"))
}

/// Of each request queue of a virtio device that has an interrupt of its own, on all CPUs.
pub(crate) fn of_virtio_queues() -> Vec<u64> {
    fs::read_to_string(FILE).map(|table| virtio_queues(&table)).unwrap_or_default()
}

fn sum(table: &str) -> u64 {
    devices(table).map(|(_, count)| count).sum()
}

/// virtio_blk names them `virtio0-req.0`, virtio_scsi `virtio0-request`.
fn virtio_queues(table: &str) -> Vec<u64> {
    let of_queue =
        |line: &str| line.split_whitespace().any(|word| word.starts_with("virtio") && word.contains("-req"));
    devices(table).filter(|(line, _)| of_queue(line)).map(|(_, count)| count).collect()
}

/// The lines of devices, each with the sum of its counts. A line has a number and a count for each CPU. Those of CPUs themselves (timers,
/// messages to each other) have letters in place of the number.
fn devices(table: &str) -> impl Iterator<Item = (&str, u64)> {
    let cpus = table.lines().next().map_or(0, |head| head.split_whitespace().count());
    table.lines().filter_map(move |line| {
        let (name, counts) = line.split_once(':')?;
        if name.trim() != HYPERV {
            name.trim().parse::<u32>().ok()?;
        }
        let counts = counts.split_whitespace().take(cpus).filter_map(|count| count.parse::<u64>().ok());
        Some((line, counts.sum::<u64>()))
    })
}

#[cfg(test)]
mod tests {
    use super::{sum, virtio_queues};

    const TABLE: &str = "           CPU0       CPU1
  4:          7          0   IO-APIC   4-edge      ttyS0
 24:       1000         30   PCI-MSI 32768-edge      vmw_pvscsi
LOC:      55555       4444   Local timer interrupts
HYP:          2          1   Hypervisor callback interrupts
HVS:        300        300   Hyper-V stimer0 interrupts
ERR:          1
";

    #[test]
    fn queues_are_known_by_their_names() {
        let table = "           CPU0       CPU1
 24:          1          0   PCI-MSI 32768-edge      virtio0-config
 25:          2          3   PCI-MSI 32769-edge      virtio0-req.0
 26:          0          0   PCI-MSI 32770-edge      virtio0-req.1
 27:          4          0   PCI-MSI 49153-edge      virtio1-event
 28:          0          7   PCI-MSI 49154-edge      virtio1-request
";
        assert_eq!(virtio_queues(table), [5, 0, 7]);
    }

    #[test]
    fn timers_are_no_devices() {
        assert_eq!(sum(TABLE), 1040);
        assert_eq!(sum(""), 0);
    }
}

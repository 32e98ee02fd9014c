//! Interrupts of devices so far, from `/proc/interrupts`.

use std::fs;

const FILE: &str = "/proc/interrupts";
/// The line of Hyper-V's callback, by which the VMBus interrupts: it has no number of its own.
const HYPERV: &str = "HYP";

/// Of all devices, on all CPUs.
pub(crate) fn of_devices() -> Result<u64, String> {
    fs::read_to_string(FILE).map(|table| sum(&table)).map_err(|error| format!("{FILE}: {error}"))
}

/// A line has a number and a count for each CPU. Those of CPUs themselves (timers, messages to each other) have letters in place of the
/// number.
fn sum(table: &str) -> u64 {
    let cpus = table.lines().next().map_or(0, |head| head.split_whitespace().count());
    let of_line = |line: &str| -> Option<u64> {
        let (name, counts) = line.split_once(':')?;
        if name.trim() != HYPERV {
            name.trim().parse::<u32>().ok()?;
        }
        Some(counts.split_whitespace().take(cpus).filter_map(|count| count.parse::<u64>().ok()).sum())
    };
    table.lines().filter_map(of_line).sum()
}

#[cfg(test)]
mod tests {
    use super::sum;

    const TABLE: &str = "           CPU0       CPU1
  4:          7          0   IO-APIC   4-edge      ttyS0
 24:       1000         30   PCI-MSI 32768-edge      vmw_pvscsi
LOC:      55555       4444   Local timer interrupts
HYP:          2          1   Hypervisor callback interrupts
HVS:        300        300   Hyper-V stimer0 interrupts
ERR:          1
";

    #[test]
    fn timers_are_no_devices() {
        assert_eq!(sum(TABLE), 1040);
        assert_eq!(sum(""), 0);
    }
}

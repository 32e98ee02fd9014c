//! Debian's kernel with two virtual CPUs on a host with two CPUs, [`KvmHost`], again and again, while QEMU has every reason for the fault that
//! the plugin repairs: without the repair most of these guests deadlock or panic.

use std::fs;
use std::time::Duration;

use guest_init::Job;
use guest_linux::{Clock, HostJob, KvmHost};
use guest_tests::linux::{Report, command_line};

use crate::matrix::SEED;

/// Without the repair nine of ten starts fail.
const STARTS: usize = 1;
/// A start takes 20 s alone; it has 600 s, so that a busy machine does not fail.
const TIMEOUT: Duration = Duration::from_secs(900);
/// Bytes of L1's memory.
const MEMORY: u64 = 3 << 30;
/// Bytes of the disk.
const DISK: u64 = 4 << 20;
/// Switch a PCI device that has no driver off and on: each time QEMU's map of memory changes, and all its CPUs are interrupted.
const MAP_CHANGES: &str = r"
set_command() { printf $1 | dd of=/sys/bus/pci/devices/0000:00:1f.2/config bs=1 seek=4 conv=notrunc 2> /dev/null; }
while set_command '\005' && set_command '\007'; do echo; done > /out/changes &
";

#[test]
fn two_virtual_cpus_on_two_cpus() {
    let prepared = KvmHost::prepare().and_then(|host| Ok((host, KvmHost::stock_guest()?)));
    let (host, files) = match prepared {
        Ok(prepared) => prepared,
        Err(reason) => return println!("SKIP: two_virtual_cpus_on_two_cpus: {reason}"),
    };
    let job = Job { disks: 1, seed: SEED, reads: 8, ..Job::default() };
    let cmdline = format!("mitigations=off {}", command_line(job));
    let mut script = MAP_CHANGES.to_owned();
    for start in 0..STARTS {
        script += &format!(
            "dd if=/dev/zero of=disk{start} bs={DISK} count=1 2> /dev/null\n\
             timeout 600 ./paradisk run --kernel vmlinuz --initrd initramfs --memory 256M --cpus 2 --cmdline '{cmdline}' \
             --disk path=disk{start},format=raw,adapter=pvscsi,serial=disk > /out/{start} 2>&1 < /dev/null\n\
             echo \"ended with $?\" >> /out/{start}\n"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let disks = Vec::new();
    let job = HostJob { script, files, disks, cpus: 2, clock: Clock::Host, memory: MEMORY, timeout: TIMEOUT };
    let ended = host.run(&job, folder.path()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ended.status, 0, "{}", ended.console);
    let read =
        |name: &str| String::from_utf8_lossy(&fs::read(folder.path().join(name)).unwrap()).into_owned();
    let changes = read("changes").len();
    assert!(changes > 10 * STARTS, "QEMU's map of memory changed only {changes} times");
    let failed: Vec<_> = (0..STARTS).filter_map(|start| why_failed(&read(&start.to_string()))).collect();
    assert!(failed.is_empty(), "{} of {STARTS} starts failed:\n{}", failed.len(), failed.join("\n\n"));
}

/// What is wrong with a start that printed this.
fn why_failed(printed: &str) -> Option<String> {
    let report = match Report::parse(printed) {
        Ok(report) => report,
        Err(error) => return Some(format!("{error}")),
    };
    // "smpboot: do_boot_cpu failed(-1) to wakeup CPU#1", among others.
    let good = report.done.log.iter().all(|line| !line.contains("smpboot"))
        && printed.ends_with("ended with 0\n")
        && report.done.error.is_none()
        && report.disks.len() == 1
        && report.disks[0].error.is_none();
    (!good).then(|| printed.to_owned())
}

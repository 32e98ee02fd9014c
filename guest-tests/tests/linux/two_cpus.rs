//! Debian's kernel with two virtual CPUs on a host with two CPUs, [`KvmHost`], under a load that provokes the two bugs of QEMU that the
//! plugin repairs. Without the repair of the first bug, most of these guests deadlock or panic. Without the repair of the second, many
//! guests do, or L1 itself.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use guest_init::Job;
use guest_linux::{Clock, HostJob, KvmHost, StockKernel};
use guest_tests::linux::{Report, command_line};

use crate::matrix::SEED;
use crate::needed;

/// Without repairs nine of ten starts fail.
const STARTS: usize = 1;
/// Starts in one L1 where there are many, and how many times.
const MANY: usize = 20;
const ROUNDS: usize = 10;
/// A start takes 20 s alone; it has 600 s, so that a busy machine does not fail.
const LONGEST: Duration = Duration::from_secs(600);
/// For L1 itself.
const MORE: Duration = Duration::from_secs(300);
/// Bytes of L1's memory.
const MEMORY: u64 = 3 << 30;
/// Bytes of the disk.
const DISK: u64 = 4 << 20;
/// Switch a PCI device that has no driver off and on: each time QEMU's map of memory changes, and all its CPUs are interrupted.
const MAP_CHANGES: &str = r"
set_command() { printf $1 | dd of=/sys/bus/pci/devices/0000:00:1f.2/config bs=1 seek=4 conv=notrunc 2> /dev/null; }
while set_command '\005' && set_command '\007'; do echo; done > /out/changes &
";

/// What starts the guest in L1.
#[derive(Clone, Copy, Debug)]
enum Vmm {
    Paradisk,
    Qemu,
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_two_virtual_cpus_on_two_cpus() {
    let prepared = KvmHost::prepare_with(2).and_then(|host| Ok((host, KvmHost::stock_guest()?)));
    let Some((host, files)) = needed("long_two_virtual_cpus_on_two_cpus", prepared) else { return };
    let failed = starts(&host, &files, Vmm::Paradisk, STARTS).unwrap_or_else(|why| panic!("L1: {why}"));
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
#[ignore = "a measurement of an hour"]
fn two_virtual_cpus_many_times() {
    let host = KvmHost::prepare_with(2).unwrap();
    // The kernel that starts soonest.
    let guest = KvmHost::stock_guest_of(&StockKernel::cloud().unwrap()).unwrap();
    let files = [guest, KvmHost::peer().unwrap()].concat();
    for round in 0..ROUNDS {
        for vmm in [Vmm::Paradisk, Vmm::Qemu] {
            let start = Instant::now();
            let failed = starts(&host, &files, vmm, MANY);
            let seconds = start.elapsed().as_secs();
            match failed {
                Ok(failed) => {
                    println!("round {round}: {vmm:?}: {} of {MANY} starts failed, {seconds} s", failed.len());
                    failed.iter().for_each(|why| println!("{why}"));
                }
                Err(why) => println!("round {round}: {vmm:?}: L1 failed, {seconds} s: {why}"),
            }
        }
    }
}

/// Start a guest `count` times. Returns what is wrong with each start that failed. The error: why L1 itself failed.
fn starts(
    host: &KvmHost,
    files: &[(String, PathBuf)],
    vmm: Vmm,
    count: usize,
) -> Result<Vec<String>, String> {
    let job = Job { disks: 1, seed: SEED, reads: 8, ..Job::default() };
    let cmdline = format!("mitigations=off console=ttyS0 quiet panic=-1 {}", command_line(job));
    let command = match vmm {
        Vmm::Paradisk => "./paradisk run --cpus 2 --memory 256M --kernel vmlinuz --initrd initramfs \
             --disk path=disk,format=raw,adapter=pvscsi,serial=disk --cmdline"
            .to_owned(),
        Vmm::Qemu => format!(
            "{} -machine q35,vmport=off -accel kvm -cpu host -smp 2 -m 256M -nodefaults -display none -no-reboot -serial stdio \
             -bios bios-microvm.bin -kernel vmlinuz -initrd initramfs -blockdev driver=file,filename=disk,node-name=d \
             -device pvscsi -device scsi-hd,drive=d,serial=disk -append",
            KvmHost::QEMU
        ),
    };
    let limit = LONGEST.as_secs();
    let script = format!(
        "{MAP_CHANGES}for start in $(seq {count}); do\n\
         dd if=/dev/zero of=disk bs={DISK} count=1 2> /dev/null\n\
         timeout {limit} {command} '{cmdline}' > /out/$start 2>&1 < /dev/null\n\
         echo \"ended with $?\" >> /out/$start\ndone\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let timeout = LONGEST * u32::try_from(count).unwrap() + MORE;
    let (files, disks) = (files.to_vec(), Vec::new());
    let job = HostJob { script, files, disks, cpus: 2, clock: Clock::Host, memory: MEMORY, timeout };
    let ended = host.run(&job, folder.path()).map_err(|error| error.to_string())?;
    if ended.status != 0 {
        return Err(format!("status {}: {}", ended.status, ended.console));
    }
    let read =
        |name: &str| String::from_utf8_lossy(&fs::read(folder.path().join(name)).unwrap()).into_owned();
    let changes = read("changes").len();
    assert!(changes > 10 * count, "QEMU's map of memory changed only {changes} times");
    Ok((1..=count).filter_map(|start| why_failed(&read(&start.to_string()))).collect())
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

//! A stock Linux with its own drivers. Each pair of adapter and VMM is one boot. For each load in it, fio reads N blocks to warm up, then
//! N and then 2N. The result is the difference of the last two runs, which excludes the start of fio.

use std::error::Error;
use std::fs;

use guest_init::{Counted, Fio, FioDone, Job, Line};
use guest_linux::KvmHost;
use serde_json::Value;

use super::counters::Counters;
use super::measured::{Measured, count, row};
use super::options::{Disk, Options, Vmm};

/// N. With fewer reads, changes of the memory layout would dominate.
const READS: u32 = 4000;
/// N with more than one request in flight: devices adapt to the guest, and the start of fio has a longer effect.
const READS_IN_FLIGHT: u32 = 16_000;
/// Limit of N for large blocks, in bytes, and the least N.
const MAX_BYTES: u32 = 128 << 20;
const MIN_READS: u32 = 500;
/// Counted runs of fio for each load.
const RUNS: usize = 2;
/// Kernel command line: no mitigations, no random addresses.
const KERNEL_OPTIONS: &str = "mitigations=off nokaslr quiet console=ttyS0";
/// The guest's memory.
const MEMORY: &str = "256M";

/// The file in the host's memory that QEMU uses as a RAM disk: QEMU has no RAM disk of its own.
const RAM: &str = "/tmp/ram";

/// Adapters not measured over vfio-user: they are not just a PCI function.
const NOT_SERVED: [&str; 2] = ["ide", "storvsc"];

/// Socket of `paradisk serve vfio-user`.
const SOCKET: &str = "/tmp/socket";
const STOP_SERVER: &str = "kill $server; wait $server || exit 1\n";

/// One boot.
struct Boot<'a> {
    adapter: &'a str,
    vmm: Vmm,
}

pub(super) fn measure(options: &Options) -> Result<Vec<Value>, Box<dyn Error>> {
    let loads = loads(options);
    let fio = Some(Fio::Counted(loads.clone()));
    let words = format!("{KERNEL_OPTIONS} {}", Job { disks: 1, fio, ..Job::default() });
    let mut boots = Vec::new();
    for adapter in &options.adapters {
        boots.push(Boot { adapter, vmm: Vmm::Paradisk });
        let has_one = |vmm: &&Vmm| match vmm {
            Vmm::Paradisk | Vmm::NoSandbox | Vmm::Statistics => true,
            Vmm::Qemu => qemu_device(adapter).is_some(),
            Vmm::VfioUser => !NOT_SERVED.contains(&&**adapter),
        };
        boots.extend(options.peers.iter().filter(has_one).map(|vmm| Boot { adapter, vmm: *vmm }));
    }
    let mut script = format!("dd if=/dev/zero of={RAM} bs=1M count=16 2> /dev/null\n");
    script.extend(boots.iter().map(|boot| boot.script(options.disk, &words)));
    let results = tempfile::tempdir()?;
    let jobs = count(script, options, results.path())?;
    let console = |boot: &Boot<'_>| fs::read_to_string(results.path().join(boot.name()));
    if jobs.len() != boots.len() * loads.len() * RUNS {
        let printed: String = boots.iter().filter_map(|boot| console(boot).ok()).collect();
        return Err(format!("{} runs of fio:\n{printed}", jobs.len()).into());
    }
    let mut rows = Vec::new();
    for (boot, jobs) in boots.iter().zip(jobs.chunks(loads.len() * RUNS)) {
        let done = complete(&console(boot)?, &loads)?;
        for ((load, jobs), done) in loads.iter().zip(jobs.chunks(RUNS)).zip(done.chunks(RUNS)) {
            let (&[once, twice], [first, second]) = (jobs, done) else {
                return Err("a run is missing".into());
            };
            rows.push(row(&Measured {
                guest: "linux",
                vmm: boot.vmm,
                adapter: boot.adapter,
                disk: options.disk,
                host_cpus: options.host_cpus,
                block_size: load.block_size,
                depth: load.depth,
                batch: Some(load.batch),
                counters: run_counts(once, twice),
                accesses: load.reads.into(),
                interrupts: interrupts(first, second).map(|more| more / f64::from(load.reads)),
            }));
        }
    }
    Ok(rows)
}

fn loads(options: &Options) -> Vec<Counted> {
    let mut loads = Vec::new();
    for &block_size in &options.block_sizes {
        for &depth in &options.depths {
            for &batch in options.batches.iter().filter(|batch| **batch <= depth) {
                // Rounded up to whole batches.
                let most = if depth > 1 { READS_IN_FLIGHT } else { READS };
                let reads = most.min((MAX_BYTES / block_size).max(MIN_READS)).next_multiple_of(batch);
                loads.push(Counted { reads, block_size, depth, batch });
            }
        }
    }
    loads
}

impl Boot<'_> {
    /// Name of the file with the boot's console output.
    fn name(&self) -> String {
        format!("{}-{}", self.vmm.name(), self.adapter)
    }

    fn script(&self, disk: Disk, words: &str) -> String {
        let Self { adapter, vmm } = *self;
        let (before, command, after) = match vmm {
            Vmm::Paradisk => (String::new(), ours(adapter, disk, ""), ""),
            Vmm::NoSandbox => (String::new(), ours(adapter, disk, "--sandbox off"), ""),
            Vmm::Statistics => (String::new(), ours(adapter, disk, "--control /tmp/control"), ""),
            Vmm::Qemu => {
                let device = qemu_device(adapter).unwrap_or_default();
                (String::new(), qemu("", &format!("{} {device}", qemu_disk(disk))), "")
            }
            Vmm::VfioUser => {
                // Guest memory that is shared with the server.
                let memory = format!(
                    "-object memory-backend-memfd,id=ram,size={MEMORY},share=on \
                     -device '{{\"driver\":\"vfio-user-pci\",\"socket\":{{\"type\":\"unix\",\"path\":\"{SOCKET}\"}}}}'"
                );
                (serve(adapter, disk), qemu(",memory-backend=ram", &memory), STOP_SERVER)
            }
        };
        let name = self.name();
        format!("{before}{command} '{words}' < /dev/null > /out/{name} 2>&1 || exit 1\n{after}")
    }
}

/// Our command with these options, up to `--cmdline`; the kernel command line follows.
fn ours(adapter: &str, disk: Disk, options: &str) -> String {
    let disk = disk.spec();
    format!(
        "./paradisk run {options} --kernel vmlinuz --initrd initramfs --memory {MEMORY} --disk {disk},adapter={adapter} --cmdline"
    )
}

/// The QEMU command with these options, up to `-append`; the kernel command line follows.
fn qemu(machine: &str, devices: &str) -> String {
    format!(
        "{} -machine q35,vmport=off{machine} -accel kvm -cpu host -m {MEMORY} -nodefaults -display none -no-reboot -serial stdio \
         -bios bios-microvm.bin -kernel vmlinuz -initrd initramfs {devices} -append",
        KvmHost::QEMU
    )
}

/// Start our server, and wait until clients can connect.
fn serve(adapter: &str, disk: Disk) -> String {
    format!(
        "./paradisk serve vfio-user --socket {SOCKET} --adapter {adapter} --disk {} > /tmp/served 2>&1 & server=$!\n\
         until grep -q serving /tmp/served; do kill -0 $server || {{ cat /tmp/served; exit 1; }}; sleep 0.1; done\n",
        disk.spec()
    )
}

/// QEMU's options for a device like this adapter, on the block device `d`.
fn qemu_device(adapter: &str) -> Option<&'static str> {
    match adapter {
        "pvscsi" => Some("-device pvscsi -device scsi-hd,drive=d"),
        "lsi-sas" => Some("-device mptsas1068 -device scsi-hd,drive=d,wwn=0x5000c50000000001"),
        "virtio-scsi" => Some("-device virtio-scsi-pci -device scsi-hd,drive=d"),
        "virtio-blk" => Some("-device virtio-blk-pci,drive=d"),
        // QEMU has no LSI53C1030; its LSI53C895A has another driver in Linux. The others are not compared.
        _ => None,
    }
}

fn qemu_disk(disk: Disk) -> &'static str {
    match disk {
        Disk::Null => "-blockdev driver=null-co,size=67108864,read-zeroes=off,node-name=d",
        Disk::Ram => "-blockdev driver=file,filename=/tmp/ram,node-name=d",
        Disk::PassThrough => {
            "-blockdev driver=host_device,filename=/dev/ram0,cache.direct=on,aio=io_uring,node-name=d"
        }
        Disk::Iscsi => {
            "-blockdev driver=host_device,filename=/dev/sda,cache.direct=on,aio=io_uring,node-name=d"
        }
    }
}

/// The counts of both runs. [`row`] takes their difference.
fn run_counts(once: [Counters; 2], twice: [Counters; 2]) -> [Counters; 2] {
    [once, twice].map(|[begin, end]| end.since(&begin))
}

fn interrupts(once: &FioDone, twice: &FioDone) -> Option<f64> {
    Some(twice.interrupts? as f64 - once.interrupts? as f64)
}

/// The guest's report of each run of fio, if all runs made the expected number of reads.
fn complete(console: &str, loads: &[Counted]) -> Result<Vec<FioDone>, String> {
    let disk =
        Line::all(console).find_map(|line| if let Line::Disk(disk) = line { Some(disk) } else { None });
    let disk = disk.ok_or_else(|| format!("no disk was reported:\n{console}"))?;
    let expected = loads.iter().flat_map(|load| [load.reads, 2 * load.reads]).map(u64::from);
    if disk.error.is_none() && disk.fio.iter().map(|run| run.reads).eq(expected) {
        return Ok(disk.fio);
    }
    Err(format!("fio failed or made a wrong number of reads: {disk:#?}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(words: &str) -> Options {
        Options::parse(&words.split(' ').collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn each_run_has_to_be_complete() {
        let loads = loads(&options("--guest linux --queue-depth 1,32"));
        assert_eq!(
            loads.iter().map(|load| (load.depth, load.batch)).collect::<Vec<_>>(),
            [(1, 1), (32, 1), (32, 32)]
        );
        let console = |runs: &[u32], error: Option<&str>| {
            let fio: Vec<_> =
                runs.iter().map(|reads| FioDone { reads: (*reads).into(), ..FioDone::default() }).collect();
            let disk =
                guest_init::Disk { fio, error: error.map(str::to_owned), ..guest_init::Disk::default() };
            format!("[    1.0] boot\n\n{}\n{{\"done\": 1}}\n", json!(Line::Disk(Box::new(disk))))
        };
        let all: Vec<_> = loads.iter().flat_map(|load| [load.reads, 2 * load.reads]).collect();
        assert_eq!(complete(&console(&all, None), &loads).unwrap().len(), 6);
        assert!(complete(&console(&all[1..], None), &loads).is_err());
        assert!(complete(&console(&all, Some("fio: it failed")), &loads).is_err());
        assert!(complete("[    1.0] boot\n", &loads).is_err());
    }

    #[test]
    fn large_blocks_are_read_less_often() {
        let reads = |words: &str| loads(&options(words)).iter().map(|load| load.reads).collect::<Vec<_>>();
        assert_eq!(reads("--queue-depth 32 --batch 32 --block-size 1K,64K,512K"), [16_000, 2048, 512]);
    }
}

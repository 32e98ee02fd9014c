//! A stock Linux with its own drivers. Each pair of adapter and VMM is one boot. For each load in it, fio makes N requests to warm
//! up, then N and then 2N. The result is the difference of the last two runs, which excludes the start of fio. With `--after-singles`,
//! requests with one in flight come before both runs, in place of the warm-up: the difference is the last N of 2N requests after them.

use std::error::Error;
use std::fs;

use guest_init::{Counted, Fio, FioDone, Job, Line, Rw};
use guest_linux::KvmHost;
use serde_json::Value;

use super::counters::Counters;
use super::measured::{Measured, count, image, row};
use super::options::{Disk, Options, Vmm};

/// N. With fewer requests, changes of the memory layout would dominate.
const REQUESTS: u32 = 4000;
/// N with more than one request in flight: devices adapt to the guest, and the start of fio has a longer effect.
const REQUESTS_IN_FLIGHT: u32 = 16_000;
/// N after requests with one in flight.
const REQUESTS_AFTER_SINGLES: u32 = 3200;
/// Limit of N for large blocks, in bytes, and the least N.
const MAX_BYTES: u32 = 128 << 20;
const MIN_REQUESTS: u32 = 500;
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

/// Socket of a server.
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
    let words = format!("{KERNEL_OPTIONS} {}", Job { disks: options.disks as usize, fio, ..Job::default() });
    let mut boots = Vec::new();
    for adapter in &options.adapters {
        let has_one = |vmm: &&Vmm| match vmm {
            Vmm::Paradisk | Vmm::NoSandbox | Vmm::Statistics | Vmm::Polling => true,
            Vmm::Qemu => qemu_device(adapter).is_some(),
            Vmm::QemuIoThread | Vmm::QemuPolling => with_io_thread(adapter, "").is_some(),
            Vmm::VfioUser => !NOT_SERVED.contains(&&**adapter),
            Vmm::VhostUser | Vmm::StorageDaemon => adapter == "virtio-blk",
        };
        let opens = |vmm: &&Vmm| options.disk != Disk::Qcow2 || vmm.is_qemu();
        let all = [Vmm::Paradisk].iter().chain(&options.peers).filter(opens).filter(has_one);
        boots.extend(all.map(|vmm| Boot { adapter, vmm: *vmm }));
    }
    let mut script = String::new();
    if options.disk == Disk::Ram {
        script += &format!("dd if=/dev/zero of={RAM} bs=1M count=16 2> /dev/null\n");
    }
    // Each VMM discards data that are there.
    let renewed = if options.rws.contains(&Rw::Discard) { image(options.disk) } else { String::new() };
    script.extend(boots.iter().map(|boot| renewed.clone() + &boot.script(options, &words)));
    let results = tempfile::tempdir()?;
    let counts = count(script, options, results.path())?;
    let jobs = counts.jobs;
    let console = |boot: &Boot<'_>| fs::read_to_string(results.path().join(boot.name()));
    if jobs.len() != boots.len() * loads.len() * RUNS {
        let printed: String = boots.iter().filter_map(|boot| console(boot).ok()).collect();
        return Err(format!("{} runs of fio:\n{printed}", jobs.len()).into());
    }
    let mut rows = Vec::new();
    let mut mark = 0;
    for (boot, jobs) in boots.iter().zip(jobs.chunks(loads.len() * RUNS)) {
        let done = complete(&console(boot)?, &loads)?;
        for ((load, jobs), done) in loads.iter().zip(jobs.chunks(RUNS)).zip(done.chunks(RUNS)) {
            let (&[once, twice], [first, second]) = (jobs, done) else {
                return Err("a run is missing".into());
            };
            if let Some(profile) = &counts.profile {
                println!("{} {} {load}", boot.vmm.name(), boot.adapter);
                print!("{}", profile.between(mark, load.requests.into()));
            }
            mark += 2 * RUNS;
            rows.push(row(&Measured {
                guest: "linux",
                vmm: boot.vmm,
                adapter: boot.adapter,
                options,
                rw: load.rw,
                block_size: load.block_size,
                depth: load.depth,
                batch: Some(load.batch),
                counters: run_counts(once, twice),
                accesses: load.requests.into(),
                interrupts: interrupts(first, second).map(|more| more / f64::from(load.requests)),
                latency: Some(second.latency),
            }));
        }
    }
    Ok(rows)
}

fn loads(options: &Options) -> Vec<Counted> {
    let mut loads = Vec::new();
    for &rw in &options.rws {
        for &block_size in &options.block_sizes {
            for &depth in &options.depths {
                for &batch in options.batches.iter().filter(|batch| **batch <= depth) {
                    // Rounded up to whole batches of each virtual CPU.
                    let most = match options.after_singles {
                        Some(_) => REQUESTS_AFTER_SINGLES,
                        None if depth > 1 => REQUESTS_IN_FLIGHT,
                        None => REQUESTS,
                    };
                    let most = most.min((MAX_BYTES / block_size).max(MIN_REQUESTS));
                    loads.push(Counted {
                        rw,
                        requests: most.next_multiple_of(batch * options.guest_cpus),
                        block_size,
                        depth,
                        batch,
                        singles: options.after_singles.unwrap_or(0),
                        cpus: options.guest_cpus,
                    });
                }
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

    fn script(&self, options: &Options, words: &str) -> String {
        let Self { adapter, vmm } = *self;
        let Options { disk, guest_cpus: cpus, .. } = *options;
        let ours = |more: &str| ours(adapter, options, more);
        let qemu = |machine: &str, devices: &str| qemu(machine, cpus, devices);
        let served = |device: &str| served(cpus, device);
        let (before, command, after) = match vmm {
            Vmm::Paradisk => (String::new(), ours(""), ""),
            Vmm::NoSandbox => (String::new(), ours("--sandbox off"), ""),
            Vmm::Statistics => (String::new(), ours("--control /tmp/control"), ""),
            Vmm::Polling => (String::new(), ours("--poll 100us"), ""),
            Vmm::Qemu => {
                let device = qemu_device(adapter).unwrap_or_default();
                (String::new(), qemu("", &format!("{} {device}", qemu_disk(disk))), "")
            }
            Vmm::QemuIoThread => {
                (String::new(), qemu("", &on_io_thread(adapter, disk, ",poll-max-ns=0")), "")
            }
            Vmm::QemuPolling => (String::new(), qemu("", &on_io_thread(adapter, disk, "")), ""),
            Vmm::VfioUser => {
                let device = format!(
                    "-device '{{\"driver\":\"vfio-user-pci\",\"socket\":{{\"type\":\"unix\",\"path\":\"{SOCKET}\"}}}}'"
                );
                let queues = if has_queues(adapter) { format!(" --queues {cpus}") } else { String::new() };
                let command = format!("vfio-user --adapter {adapter}{queues} --disk {}", disk.spec());
                (serve(&command), served(&device), STOP_SERVER)
            }
            Vmm::VhostUser => {
                let command = format!("vhost-user-blk --queues {cpus} --disk {}", disk.spec());
                (serve(&command), served(&vhost_user_blk()), STOP_SERVER)
            }
            Vmm::StorageDaemon => (storage_daemon(disk, cpus), served(&vhost_user_blk()), STOP_SERVER),
        };
        let name = self.name();
        format!("{before}{command} '{words}' < /dev/null > /out/{name} 2>&1 || exit 1\n{after}")
    }
}

/// Our command with `more` options, up to `--cmdline`; the kernel command line follows.
fn ours(adapter: &str, options: &Options, more: &str) -> String {
    let cpus = options.guest_cpus;
    let queues = if has_queues(adapter) { format!(",queues={cpus}") } else { String::new() };
    let one = |index| format!("--disk {},adapter={adapter}{queues} ", options.disk.spec_of(index));
    let disks: String = (0..options.disks).map(one).collect();
    format!(
        "./paradisk run {more} --kernel vmlinuz --initrd initramfs --memory {MEMORY} --cpus {cpus} {disks}--cmdline"
    )
}

/// The QEMU command with these options, up to `-append`; the kernel command line follows.
fn qemu(machine: &str, cpus: u32, devices: &str) -> String {
    format!(
        "{} -machine q35,vmport=off{machine} -accel kvm -cpu host -smp {cpus} -m {MEMORY} -nodefaults -display none -no-reboot -serial stdio \
         -bios bios-microvm.bin -kernel vmlinuz -initrd initramfs {devices} -append",
        KvmHost::QEMU
    )
}

/// QEMU's options for a disk and its device on an I/O thread with this option.
fn on_io_thread(adapter: &str, disk: Disk, polling: &str) -> String {
    format!("{} {}", qemu_disk(disk), with_io_thread(adapter, polling).unwrap_or_default())
}

/// The QEMU command with a device of a server, which shares the guest's memory.
fn served(cpus: u32, device: &str) -> String {
    let memory = format!("-object memory-backend-memfd,id=ram,size={MEMORY},share=on");
    qemu(",memory-backend=ram", cpus, &format!("{memory} {device}"))
}

/// QEMU's device for the disk of a vhost-user-blk server.
fn vhost_user_blk() -> String {
    format!("-chardev socket,id=s,path={SOCKET} -device vhost-user-blk-pci,chardev=s")
}

/// Start a server with this command, and wait until it is ready.
fn start(command: &str, ready: &str) -> String {
    format!(
        "{command} > /tmp/served 2>&1 & server=$!\n\
         until {ready}; do kill -0 $server || {{ cat /tmp/served; exit 1; }}; sleep 0.1; done\n"
    )
}

/// Start our server with this command.
fn serve(command: &str) -> String {
    start(&format!("./paradisk serve {command} --socket {SOCKET}"), "grep -q serving /tmp/served")
}

/// Start QEMU's storage daemon with an I/O thread that does not poll. Its options have two dashes.
fn storage_daemon(disk: Disk, cpus: u32) -> String {
    let (program, disk) = (KvmHost::STORAGE_DAEMON, qemu_disk(disk));
    let command = format!(
        "{program} -{disk} --object iothread,id=t,poll-max-ns=0 \
         --export type=vhost-user-blk,id=e,node-name=d,writable=on,num-queues={cpus},iothread=t,addr.type=unix,addr.path={SOCKET}"
    );
    // A server before it may have left its socket.
    format!("rm -f {SOCKET}\n{}", start(&command, &format!("[ -S {SOCKET} ]")))
}

/// Whether the adapter can have several request queues.
fn has_queues(adapter: &str) -> bool {
    adapter.starts_with("virtio-")
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

/// QEMU's options for a device like this adapter on an I/O thread, if QEMU's can have one.
fn with_io_thread(adapter: &str, polling: &str) -> Option<String> {
    let device = match adapter {
        "virtio-scsi" => "-device virtio-scsi-pci,iothread=t -device scsi-hd,drive=d",
        "virtio-blk" => "-device virtio-blk-pci,drive=d,iothread=t",
        _ => return None,
    };
    Some(format!("-object iothread,id=t{polling} {device}"))
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
        Disk::Async => {
            "-blockdev driver=host_device,filename=/dev/nullb0,cache.direct=on,aio=io_uring,node-name=d"
        }
        Disk::File => {
            "-blockdev driver=file,filename=/timed/disk.raw,cache.direct=on,aio=io_uring,discard=unmap,node-name=d"
        }
        Disk::FileCached => {
            "-blockdev driver=file,filename=/timed/disk.raw,aio=io_uring,discard=unmap,node-name=d"
        }
        Disk::Vhd => {
            "-blockdev driver=vpc,file.driver=file,file.filename=/timed/disk.vhd,file.aio=io_uring,node-name=d"
        }
        Disk::Vhdx => {
            "-blockdev driver=vhdx,file.driver=file,file.filename=/timed/disk.vhdx,file.cache.direct=on,file.aio=io_uring,node-name=d"
        }
        Disk::Qcow2 => {
            "-blockdev driver=qcow2,discard=unmap,cache.direct=on,file.driver=file,file.discard=unmap,file.filename=/timed/disk.qcow2,file.cache.direct=on,file.aio=io_uring,node-name=d"
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

/// The guest's report of each run of fio, if all runs made the expected number of requests.
fn complete(console: &str, loads: &[Counted]) -> Result<Vec<FioDone>, String> {
    let disk =
        Line::all(console).find_map(|line| if let Line::Disk(disk) = line { Some(disk) } else { None });
    let disk = disk.ok_or_else(|| format!("no disk was reported:\n{console}"))?;
    let expected = loads.iter().flat_map(|load| [load.requests, 2 * load.requests]).map(u64::from);
    if disk.error.is_none() && disk.fio.iter().map(|run| run.reads + run.writes).eq(expected) {
        return Ok(disk.fio);
    }
    Err(format!("fio failed or made a wrong number of requests: {disk:#?}"))
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
        let all: Vec<_> = loads.iter().flat_map(|load| [load.requests, 2 * load.requests]).collect();
        assert_eq!(complete(&console(&all, None), &loads).unwrap().len(), 6);
        assert!(complete(&console(&all[1..], None), &loads).is_err());
        assert!(complete(&console(&all, Some("fio: it failed")), &loads).is_err());
        assert!(complete("[    1.0] boot\n", &loads).is_err());
    }

    #[test]
    fn large_blocks_are_accessed_less_often() {
        let requests =
            |words: &str| loads(&options(words)).iter().map(|load| load.requests).collect::<Vec<_>>();
        assert_eq!(
            requests("--guest linux --queue-depth 32 --batch 32 --block-size 1K,64K,512K"),
            [16_000, 2048, 512]
        );
        let after = loads(&options("--guest linux --queue-depth 32 --batch 32 --after-singles 7"));
        assert!(matches!(after[..], [Counted { requests: REQUESTS_AFTER_SINGLES, singles: 7, .. }]));
    }

    #[test]
    fn served_disks_have_a_server_and_a_client() {
        for (vmm, server) in [
            (Vmm::VhostUser, "serve vhost-user-blk --queues 1 --disk null=64M"),
            (Vmm::StorageDaemon, "qemu-storage-daemon --blockdev driver=null-co"),
        ] {
            let script = Boot { adapter: "virtio-blk", vmm }.script(&options("--guest linux"), "words");
            assert!(
                script.contains(server) && script.contains(&format!("path={SOCKET} -device vhost")),
                "{script}"
            );
        }
    }
}

//! The oldest QEMU that the host with KVM runs in: Debian 12's 7.2, whose plugins have another interface, on one CPU.

use std::time::Duration;

use guest_init::{Counted, Fio, Job, Rw};
use guest_linux::{Clock, HostJob, KvmHost, Qemu};
use serde_json::Value;

use super::{MEMORY, assert_no_complaints, boot, report};
use crate::needed;

/// It takes 30 s alone.
const TIMEOUT: Duration = Duration::from_secs(300);
const READS: u32 = 500;
/// Of both runs of fio, in their order.
const MARKS: [u8; 4] = *b"<><>";

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_instructions_are_counted_in_the_oldest_qemu() {
    let prepared =
        Qemu::bookworm().and_then(KvmHost::prepare_in).and_then(|host| Ok((host, KvmHost::stock_guest()?)));
    let Some((host, files)) = needed("long_instructions_are_counted_in_the_oldest_qemu", prepared) else {
        return;
    };
    let load = Counted {
        rw: Rw::RandRead,
        requests: READS,
        block_size: 4096,
        depth: 1,
        batch: 1,
        singles: 0,
        cpus: 1,
    };
    let job = Job { disks: 1, fio: Some(Fio::Counted(vec![load])), ..Job::default() };
    // The sizes of XSAVE's area that this QEMU's CPU reports contradict each other, of which the kernel complains.
    let boot = boot(job, "nokaslr noxsave");
    let script = format!("{boot} --disk null=64M,adapter=pvscsi > /out/console < /dev/null\n");
    let (disks, clock) = (Vec::new(), Clock::Instructions);
    let job = HostJob { script, files, disks, cpus: 1, clock, memory: MEMORY, timeout: TIMEOUT };
    let folder = tempfile::tempdir().unwrap();

    let more = host.run(&HostJob { cpus: 2, ..job.clone() }, folder.path()).unwrap_err().to_string();
    assert!(more.contains("a host with 2 CPUs") && more.contains("bookworm"), "{more}");

    let ended = host.run(&job, folder.path()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ended.status, 0, "{}", ended.console);
    assert!(ended.console.contains("count: the store of the vector"), "{}", ended.console);
    let (_, report) = report(folder.path(), "console");
    assert_no_complaints(&report, &[]);
    assert_eq!(report.disks[0].fio.iter().map(|run| run.reads).collect::<Vec<_>>(), [500, 1000]);

    let marks: Vec<Value> = ended.counts.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [begin, once, again, twice, end] = &marks[..] else { panic!("{}", ended.counts) };
    let numbers = [begin, once, again, twice].map(|mark| mark["mark"].as_u64());
    assert_eq!((numbers, end["end"].as_u64()), (MARKS.map(|mark| Some(mark.into())), Some(0)));
    // By how much the run with twice the reads is longer.
    let each = |name: &str| {
        let count = |mark: &Value| mark[name].as_u64().unwrap();
        (count(twice) - count(again) - (count(once) - count(begin))) as f64 / f64::from(READS)
    };
    let [guest, device, host, exits] = ["guest_kernel", "host_user", "host_kernel", "vmruns"].map(each);
    println!("guest's kernel {guest:.0}, device {device:.0}, host's kernel {host:.0}, VMRUNs {exits:.3}");
    // 16,700, 2,200 and 9,600 in QEMU 11.1; 2 exits: the doorbell and the end of the interrupt.
    assert!((10_000.0..25_000.0).contains(&guest), "{guest}");
    assert!((1000.0..5000.0).contains(&device), "{device}");
    assert!((4000.0..20_000.0).contains(&host), "{host}");
    assert!((1.5..3.0).contains(&exits), "{exits}");
}

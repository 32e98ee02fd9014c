//! Storage controllers with several queues, in a guest with several virtual CPUs. Hyper-V's controller offers one channel for each four
//! virtual CPUs. The virtio devices have several request queues; threads of the device serve those of one virtio-blk.

use std::fs;
use std::path::Path;

use guest_init::Job;
use guest_init::job::Fio;
use serde_json::Value;

use super::{assert_no_complaints, boot_kernel, report};

/// Virtual CPUs, and the channels that the controller then offers: one for each four.
const CPUS: u32 = 5;
const CHANNELS: usize = 2;
/// Request queues of each virtio device.
const QUEUES: usize = 3;
/// For each adapter its driver and the size of its disk in bytes. The size identifies the disk in the report.
const DISKS: [(&str, &str, u64); 4] = [
    ("storvsc", "hv_storvsc", 2 << 20),
    ("virtio-scsi,queues=3", "virtio_scsi", 1 << 20),
    ("virtio-blk,queues=3", "virtio_blk", 512 << 10),
    ("virtio-blk,queues=3,threads=2", "virtio_blk", 256 << 10),
];
/// The rest of the line that the kernel prints for each virtual CPU, if another message interrupts the line.
const OF_CPUS: [&str; CPUS as usize - 1] = ["4:  #1", "4:  #2", "4:  #3", "4:  #4"];

/// What the guest printed.
const CONSOLE: &str = "console-channels";

/// The guest opens all channels and queues, sends requests over each channel, and is signalled by each; what it writes is on the disks. It
/// chooses the channel or queue by the virtual CPU that submits the request.
pub(super) fn script() -> String {
    let fio = Some(Fio::VerifyOnCpus { cpus: CPUS });
    let job = Job { disks: DISKS.len(), fio, ..Job::default() };
    let (mut script, mut options) = (String::new(), String::new());
    for (adapter, _, size) in DISKS {
        script += &format!("truncate -s {size} /out/{size}\n");
        options += &format!(" --disk path=/out/{size},format=raw,adapter={adapter}");
    }
    // With a control socket, the requests of disks are counted, too.
    options += " --control vm.socket --stats /out/stats.json";
    script + &format!("{}{options} > /out/{CONSOLE} < /dev/null\n", boot_kernel("-newer", CPUS, job, ""))
}

/// What the script has left in the folder.
pub(super) fn check(folder: &Path) {
    let (_, report) = report(folder, CONSOLE);
    assert_no_complaints(&report, &OF_CPUS);
    let channels = &report.done.channels;
    println!("{channels:?}");
    assert_eq!(channels.len(), CHANNELS, "{channels:?}");
    for channel in channels {
        assert!(channel.signals > 0 && channel.interrupts > 0, "{channels:?}");
    }
    let signals = &report.done.virtio_queues;
    println!("{signals:?}");
    assert!(signals.len() == 3 * QUEUES && signals.iter().all(|count| *count > 0), "{signals:?}");
    for (adapter, driver, size) in DISKS {
        let disk = report.disks.iter().find(|disk| disk.size == size);
        let disk = disk.unwrap_or_else(|| panic!("no {adapter}: {:#?}", report.disks));
        assert_eq!((&*disk.driver, &disk.error), (driver, &None));
        assert!(driver == "hv_storvsc" || disk.queues == QUEUES, "{adapter}: {} queues", disk.queues);
        let content = fs::read(folder.join(size.to_string())).unwrap();
        assert_eq!(disk.after_fio, Some(crc32c::crc32c(&content)), "{adapter}");
    }
    assert_counted(&serde_json::from_slice(&fs::read(folder.join("stats.json")).unwrap()).unwrap());
}

/// The machine has counted what the guest did on each adapter.
fn assert_counted(document: &Value) {
    let [adapters, queues] = ["adapters", "queues"].map(|list| document[list].as_array().unwrap());
    let names: Vec<_> = adapters.iter().map(|adapter| &adapter["name"]).collect();
    assert_eq!(names, ["storvsc0", "virtio-scsi0", "virtio-blk0", "virtio-blk1"]);
    let number = |object: &Value, key: &str| object[key].as_u64().unwrap();
    for adapter in adapters {
        let [requests, completions] = ["requests", "completions"].map(|key| number(adapter, key));
        assert!(number(adapter, "interrupts") > 0 && requests == completions, "{adapter:#}");
        let of_disk = queues.iter().filter(|queue| queue["adapter"] == adapter["name"]);
        let reads_and_writes: Vec<_> =
            of_disk.map(|queue| number(&queue["read"], "count") + number(&queue["write"], "count")).collect();
        let is_used = !reads_and_writes.is_empty() && reads_and_writes.iter().all(|count| *count > 0);
        assert!(is_used && reads_and_writes.iter().sum::<u64>() <= completions, "{adapter:#} {queues:#?}");
    }
}

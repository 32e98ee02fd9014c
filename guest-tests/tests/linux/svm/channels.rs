//! Storage controllers with more than one queue, behind a guest with several virtual CPUs: channels of Hyper-V's, of which it offers one
//! for each four virtual CPUs, and request queues of virtio devices.

use std::fs;

use guest_init::Job;
use guest_init::job::Fio;

use super::{Rig, assert_no_complaints, boot_kernel, report};
use crate::needed;

/// Virtual CPUs, and the channels that the controller then offers: one for each four.
const CPUS: u32 = 5;
const CHANNELS: usize = 2;
/// Request queues of each virtio device.
const QUEUES: usize = 3;
/// Disks by adapter, with the driver, and bytes of the disk.
const DISKS: [(&str, &str, u64); 3] = [
    ("storvsc", "hv_storvsc", 8 << 20),
    ("virtio-scsi,queues=3", "virtio_scsi", 4 << 20),
    ("virtio-blk,queues=3", "virtio_blk", 2 << 20),
];
/// Each virtual CPU that comes up, where something else is printed before the line is at its end.
const OF_CPUS: [&str; CPUS as usize - 1] = ["4:  #1", "4:  #2", "4:  #3", "4:  #4"];

/// The guest opens all channels and queues, sends requests over each channel, and is signalled by each; what it writes is on the disks. It
/// chooses the channel or queue by the virtual CPU that submits the request.
#[test]
fn a_guest_uses_all_channels_and_queues() {
    let Some(rig) = needed("a_guest_uses_all_channels_and_queues", Rig::prepare()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let fio = Some(Fio::VerifyOnCpus { cpus: CPUS });
    let job = Job { disks: DISKS.len(), fio, ..Job::default() };
    let mut script = "set -e\n".to_owned();
    let mut options = String::new();
    for (adapter, driver, size) in DISKS {
        script.push_str(&format!("truncate -s {size} /out/{driver}\n"));
        options.push_str(&format!(" --disk path=/out/{driver},format=raw,adapter={adapter}"));
    }
    script.push_str(&format!("{}{options} > /out/console < /dev/null\n", boot_kernel("", CPUS, job, "")));
    rig.run(script, &[], folder.path());
    let (_, report) = report(folder.path(), "console");
    assert_no_complaints(&report, &OF_CPUS);
    let channels = &report.done.channels;
    println!("{channels:?}");
    assert_eq!(channels.len(), CHANNELS, "{channels:?}");
    for channel in channels {
        // Those of the bring-up alone are fewer.
        assert!(channel.signals > 20 && channel.interrupts > 20, "{channels:?}");
    }
    for (_, driver, size) in DISKS {
        let disk = report.disks.iter().find(|disk| disk.size == size);
        let disk = disk.unwrap_or_else(|| panic!("no {driver}: {:#?}", report.disks));
        assert_eq!((&*disk.driver, &disk.error), (driver, &None));
        assert!(driver == "hv_storvsc" || disk.queues == QUEUES, "{driver}: {} queues", disk.queues);
        let content = fs::read(folder.path().join(driver)).unwrap();
        assert_eq!(disk.after_fio, Some(crc32c::crc32c(&content)), "{driver}");
    }
}

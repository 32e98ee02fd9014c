//! A storage controller with more than one channel: Hyper-V's, behind a guest with more than four virtual CPUs.

use std::fs;

use guest_init::Job;
use guest_init::job::Fio;

use super::{Rig, assert_no_complaints, boot_kernel, report};
use crate::needed;

/// Virtual CPUs, and the channels that the controller then offers: one for each four.
const CPUS: u32 = 5;
const CHANNELS: usize = 2;
/// Bytes of the disk.
const SIZE: u64 = 8 << 20;
/// Each virtual CPU that comes up, where something else is printed before the line is at its end.
const OF_CPUS: [&str; CPUS as usize - 1] = ["4:  #1", "4:  #2", "4:  #3", "4:  #4"];

/// The guest opens all channels, sends requests over each, and is signalled by each; what it writes is on the disk. It chooses the channel by
/// the virtual CPU that submits the request.
#[test]
fn a_guest_uses_all_channels_of_a_controller() {
    let Some(rig) = needed("a_guest_uses_all_channels_of_a_controller", Rig::prepare()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let job = Job { disks: 1, fio: Some(Fio::VerifyOnCpus { cpus: CPUS }), ..Job::default() };
    let script = format!(
        "set -e\ntruncate -s {SIZE} /out/disk\n{} --disk path=/out/disk,format=raw,adapter=storvsc > /out/console < /dev/null\n",
        boot_kernel("", CPUS, job, "")
    );
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
    let [disk] = &report.disks[..] else { panic!("{:?}", report.disks) };
    let content = fs::read(folder.path().join("disk")).unwrap();
    assert_eq!((&*disk.driver, disk.size, &disk.error), ("hv_storvsc", SIZE, &None));
    assert_eq!(disk.after_fio, Some(crc32c::crc32c(&content)));
}

//! A software iSCSI disk passed through to the guest: LIO and the kernel's initiator in L1, joined by the loopback network.

use std::fs;

use guest_init::Job;
use guest_linux::KvmHost;

use super::{Rig, assert_no_complaints, boot, report};
use crate::matrix::{SEED, content};
use crate::medium::initial;
use crate::needed;

/// Bytes of a RAM disk of L1.
const SIZE: u64 = 16 << 20;

/// The guest reads what the target's disk holds, and what the guest writes arrives there.
#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_an_iscsi_disk_is_passed_through() {
    let prepared = Rig::prepare().and_then(|mut rig| {
        rig.files.extend(KvmHost::iscsi()?);
        Ok(rig)
    });
    let Some(rig) = needed("long_an_iscsi_disk_is_passed_through", prepared) else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    fs::write(&image, initial(SIZE)).unwrap();
    let script = format!(
        "set -e\ndd if=image of=/dev/ram0 bs=1M\n{} /dev/ram0\n{} --disk path={},format=passthrough,adapter=pvscsi > /out/console < /dev/null\n\
         dd if=/dev/ram0 of=/out/disk bs=1M\ncat /sys/block/sda/device/model > /out/model\n",
        KvmHost::ISCSI_UP,
        boot(Job { disks: 1, seed: SEED, reads: 8, ..Job::default() }, ""),
        KvmHost::ISCSI_DISK
    );
    rig.run(script, &[("image", &image)], folder.path());
    // LIO's name for a target that exports a block device.
    assert_eq!(fs::read_to_string(folder.path().join("model")).unwrap().trim(), "IBLOCK");
    let (_, report) = report(folder.path(), "console");
    assert_no_complaints(&report, &[]);
    let [disk] = &report.disks[..] else { panic!("{:?}", report.disks) };
    assert_eq!((&*disk.driver, disk.size, &disk.error), ("vmw_pvscsi", SIZE, &None));
    let checked = disk.checked.as_ref().expect("nothing was verified");
    content("iscsi", &fs::read(folder.path().join("disk")).unwrap(), disk, checked);
}

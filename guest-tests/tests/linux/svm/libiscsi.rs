//! libiscsi's suite on Hyper-V's controller, which no other virtual machine monitor can be served: on paradisk's own machine.

use guest_init::Job;
use guest_linux::{StockKernel, initramfs_with_libiscsi};
use guest_tests::linux::command_line;

use super::{Rig, report};
use crate::libiscsi::{MEMORY, SUBJECTS, check, media};
use crate::needed;

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_libiscsi_on_storvsc() {
    let prepared =
        Rig::prepare().and_then(|rig| Ok((rig, initramfs_with_libiscsi(&StockKernel::newest()?)?)));
    let Some((rig, initramfs)) = needed("long_libiscsi_on_storvsc", prepared) else { return };
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    std::fs::create_dir(&images).unwrap();
    let media = media(&images, &SUBJECTS);
    let disks: String = media
        .iter()
        .map(|medium| {
            let (name, format) = (medium.format.serial(), medium.format.option());
            format!(" --disk path=images/{name},format={format},adapter=storvsc,serial={name}")
        })
        .collect();
    let job = Job { disks: media.len(), libiscsi: true, ..Job::default() };
    let script = format!(
        "set -e\n./paradisk run --kernel vmlinuz --initrd suite --memory {}M --cmdline 'mitigations=off quiet {}'{disks} \
         > /out/console < /dev/null\n",
        MEMORY >> 20,
        command_line(job)
    );
    rig.run(script, &[("images", &images), ("suite", &initramfs)], folder.path());
    let (_, report) = report(folder.path(), "console");
    check(&report, "hv_storvsc", &SUBJECTS);
}

//! Adapters and disks that are changed while the guest uses them: disks that come and go, disks that grow, other moderation of interrupts,
//! and resets that the guest asks for.

use std::fmt::Write as _;
use std::fs;

use guest_init::{Disk, Job, Reset, ResetDone};
use paradisk_devices::AdapterKind;

use super::stalls::{BUSLOGIC_RESET, OF_RESETS};
use super::{Rig, assert_no_complaints, boot, report};
use crate::needed;

/// All but IDE, whose disks do not come and go. The guest scans for those of BusLogic.
const ADAPTERS: [(AdapterKind, &str, &str); 7] = {
    let [pvscsi, lsi, lsi_sas, virtio_scsi, virtio_blk] = super::ADAPTERS;
    let [_, buslogic, storvsc] = super::OTHERS;
    [pvscsi, lsi, lsi_sas, virtio_scsi, virtio_blk, buslogic, storvsc]
};

/// Sectors of a disk at first, after it has grown, and of one that comes and goes.
const SECTORS: [u64; 3] = [8 << 10, 12 << 10, 6 << 10];
/// Added latency of a request, in ms: at the guest's rate, a disk has requests in flight at nearly all times.
const DELAY: u64 = 200;
/// What the guest asks for (`guest_init::Change`), in its order. It uses all disks at the same time.
const CHANGE: &str = r#"
ctl() { ./paradisk ctl vm.socket "$@"; }
wait_for() { until grep -q "^{\"changing\":\"$1\"}" /out/console; do kill -0 $pid || exit 1; sleep 0.2; done; }
wait_for attach
for name in $scsi; do ids="$ids $(ctl attach path=/dev/mapper/more-$name,format=passthrough,adapter=$name,serial=more-$name)"; done
echo >&3
wait_for detach
for id in $ids; do ctl detach $id; done
echo >&3
wait_for resize
larger
ctl rescan
echo >&3
wait_for coalescing
for policy in off batch oio oio-iops off oio; do ctl coalescing $policy; sleep 0.5; done
echo >&3
wait $pid
for disk in $slow; do dd if=/dev/mapper/$disk of=/out/$disk bs=64k 2> /dev/null; done
"#;
/// What a guest says of disks that grow.
const OF_GROWTH: [&str; 1] = ["Capacity data has changed"];
/// Before it resets the host, `mptscsih_host_reset` gives back the frames of requests that the controller has not read yet. The controller
/// takes such a frame for a function that it does not have, and answers with the context that it finds there.
const OF_FREED_FRAMES: [&str; 1] = ["mpt_reply: WARNING"];
/// What `hv_storvsc` logs of requests that a reset has aborted, and of those that end with a unit attention; and what the kernel says of
/// the attention by which the controller reports disks that come and go.
const OF_STORVSC: [&str; 3] = [
    "status: scsi 0x0 srb 0xe hv 0xc0000120",
    "status: scsi 0x2 srb 0x84 hv 0xc0000185",
    "LUN assignments on this target have changed",
];

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_disks_and_adapters_change_under_load() {
    let Some(rig) = needed("long_disks_and_adapters_change_under_load", Rig::prepare()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let is_scsi = |kind: AdapterKind| kind != AdapterKind::VirtioBlk;
    let (mut create, mut attach) = (String::new(), String::new());
    for (n, (kind, name, _)) in ADAPTERS.into_iter().enumerate() {
        let mut disk = format!("path=/dev/mapper/{name},format=passthrough");
        if is_scsi(kind) {
            create += &slow(name, n, SECTORS[0]);
            create += &slow(&format!("more-{name}"), ADAPTERS.len() + n, SECTORS[2]);
        } else {
            // A file that paradisk itself makes larger. Nothing waits for its requests to be in flight.
            create += &format!("truncate -s {} /out/{name}\n", SECTORS[0] * 512);
            disk = format!("path=/out/{name},format=raw");
        }
        let _ = write!(attach, " --disk {disk},adapter={name},serial={name}");
    }
    let larger: String = ADAPTERS
        .into_iter()
        .enumerate()
        .map(|(n, (kind, name, _))| if is_scsi(kind) { grow(name, n) } else { resize(name) })
        .collect();
    let scsi: Vec<_> =
        ADAPTERS.into_iter().filter(|(kind, ..)| is_scsi(*kind)).map(|(_, name, _)| name).collect();
    let job = Job { disks: ADAPTERS.len(), changes: true, ..Job::default() };
    let script = format!(
        "set -e\nscsi='{}'\n{create}dmsetup mknodes --noudevrules\nlarger() {{\n{larger}}}\nmkfifo typed\nexec 3<> typed\n\
         {} --control vm.socket --sandbox-path /dev{attach} > /out/console < typed &\npid=$!\n{CHANGE}",
        scsi.join(" "),
        boot(job, "")
    );
    rig.run(script, &[], folder.path());
    let (printed, report) = report(folder.path(), "console");
    assert_no_complaints(
        &report,
        &[&OF_RESETS[..], &OF_GROWTH, &OF_FREED_FRAMES, &OF_STORVSC, &[BUSLOGIC_RESET]].concat(),
    );
    let find = |serial: &str| -> &Disk {
        let disk = report.disks.iter().find(|disk| disk.serial == serial);
        disk.unwrap_or_else(|| panic!("no {serial}:\n{printed}"))
    };
    let compare = |disk: &Disk, sectors: u64| {
        let content = fs::read(folder.path().join(&disk.serial)).unwrap();
        assert_eq!((disk.size, content.len() as u64), (sectors * 512, sectors * 512), "{}", disk.serial);
        assert_eq!((&disk.error, disk.after_fio), (&None, Some(crc32c::crc32c(&content))), "{}", disk.serial);
    };
    for (kind, name, driver) in ADAPTERS {
        let disk = find(name);
        assert_eq!(disk.driver, driver);
        assert!(disk.fio.len() > 1, "{name}: {:?}", disk.fio);
        compare(disk, SECTORS[1]);
        resets(kind, &disk.resets);
        if is_scsi(kind) {
            let more = find(&format!("more-{name}"));
            assert_eq!(more.driver, driver);
            compare(more, SECTORS[2]);
        }
    }
}

/// Make a disk in L1's memory with the added latency [`DELAY`].
fn slow(name: &str, ram: usize, sectors: u64) -> String {
    format!("slow=\"$slow {name}\"\ndmsetup create {name} --table '{}'\n", table(ram, sectors))
}

/// Have paradisk make the file of a virtio block device larger.
fn resize(name: &str) -> String {
    format!("ctl resize {name}0 {}\n", SECTORS[1] * 512)
}

/// Make such a disk larger.
fn grow(name: &str, ram: usize) -> String {
    format!("dmsetup reload {name} --table '{}'\ndmsetup resume {name}\n", table(ram, SECTORS[1]))
}

/// As the device mapper takes it.
fn table(ram: usize, sectors: u64) -> String {
    format!("0 {sectors} delay /dev/ram{ram} 0 {DELAY}")
}

/// Each reset that the driver has was made while requests were in flight.
fn resets(kind: AdapterKind, resets: &[ResetDone]) {
    let known: &[Reset] = match kind {
        AdapterKind::VirtioBlk => return assert!(resets.is_empty()),
        // Linux's virtio_scsi resets neither a bus nor the host.
        AdapterKind::VirtioScsi => &[Reset::Device],
        // Nor does mptsas reset a bus.
        AdapterKind::LsiSas => &[Reset::Device, Reset::Host],
        // BusLogic's driver resets the adapter alone, and so does hv_storvsc.
        AdapterKind::BusLogic | AdapterKind::Storvsc => &[Reset::Host],
        _ => &[Reset::Device, Reset::Bus, Reset::Host],
    };
    for what in known {
        let made: Vec<_> = resets.iter().filter(|reset| reset.what == *what).collect();
        assert!(made.len() > 1, "{kind:?}: {resets:?}");
        let good = |reset: &&ResetDone| reset.in_flight > 0 && reset.error.is_none();
        assert!(made.iter().all(good), "{kind:?}: {resets:?}");
    }
}

//! Debian's kernel, its own drivers and fio on a QEMU that knows vfio-user: our adapters as PCI functions, and vhost-user-blk
//! beside them. Nothing in the guest was written here but the first process, and KVM is not needed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_init::{Disk, Fio, Job};
use guest_linux::{Qemu, StockKernel};
use guest_tests::linux::Report;
use guest_tests::qemu::Vm;
use paradisk_devices::AdapterKind;

use crate::matrix::NOT_OURS;
use crate::medium::{Format, Medium};
use crate::served::{self, QUEUES, Served};
use crate::{Images, needed};

const FORMATS: [Format; 3] = [Format::Raw, Format::VhdDifferencing, Format::VhdxDifferencing];
/// For a guest that does not end. It takes minutes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(3000);
/// Bytes of the smallest disk, and by how much the next one is larger.
const SIZE: u64 = 4 << 20;
const STEP: u64 = 72 << 10;
/// By how much disks grow: no two are of one size, before or after.
const MORE: u64 = 4 << 20;

/// How complaints of the kernel in QEMU begin: about the machine's tables, and about clocks, because QEMU interprets the guest on a busy
/// host.
const OF_QEMU: [&str; 9] = [
    "mtrr: ",
    "acpi PNP0A0",
    "ACPI: ",
    "tsc: ",
    "clocksource: ",
    "APIC calibration not consistent",
    "..MP-BIOS bug: 8254 timer not connected to IO-APIC",
    "Unstable clock detected",
    "rcu: ",
];
/// Who stands between the guest and the disks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Protocol {
    VfioUser(AdapterKind),
    VhostUserBlk,
}

/// Each with the driver that is to bind, and how many devices it takes for all formats.
pub(crate) const DEVICES: [(Protocol, &str, usize); 7] = [
    (Protocol::VfioUser(AdapterKind::Pvscsi), "vmw_pvscsi", 1),
    (Protocol::VfioUser(AdapterKind::Lsi), "mptspi", 1),
    (Protocol::VfioUser(AdapterKind::LsiSas), "mptsas", 1),
    (Protocol::VfioUser(AdapterKind::BusLogic), "BusLogic", 1),
    (Protocol::VfioUser(AdapterKind::VirtioScsi), "virtio_scsi", 1),
    (Protocol::VfioUser(AdapterKind::VirtioBlk), "virtio_blk", FORMATS.len()),
    (Protocol::VhostUserBlk, "virtio_blk", FORMATS.len()),
];

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_stock_drivers_and_fio_on_pc() {
    stock_drivers_and_fio("long_stock_drivers_and_fio_on_pc", "pc");
}

#[test]
fn stock_drivers_and_fio_on_q35() {
    stock_drivers_and_fio("stock_drivers_and_fio_on_q35", "q35");
}

fn stock_drivers_and_fio(test: &str, machine: &str) {
    let Some((qemu, images)) = needed(test, prepared()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let devices = devices(folder.path(), &FORMATS);
    let count = devices.iter().map(|device| device.media.len()).sum();
    let served: Vec<_> = devices.iter().map(Device::serve).collect();
    let options: Vec<_> = devices.iter().flat_map(Device::options).collect();
    let job = Job { disks: count, fio: Some(Fio::Verify), ..Job::default() };
    let console = folder.path().join("console");
    let vm = Vm::boot(qemu.system(), machine, &images.system(job.to_string()), &options, console).unwrap();
    let printed = vm.output_within(TIMEOUT, |_| {}).unwrap();
    // All is closed before the images are looked at.
    served.into_iter().for_each(|served| served.stop().unwrap());
    check(&Report::parse(&printed).unwrap(), &devices);
}

/// Raw disks grow while the guest uses them. virtio-blk, virtio-scsi and vhost-user-blk notify the guest. The guest rescans the other
/// disks, which report the growth as a unit attention.
#[test]
fn disks_grow() {
    let Some((qemu, images)) = needed("disks_grow", prepared()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut devices = devices(folder.path(), &[Format::Raw]);
    let served: Vec<_> = devices.iter().map(Device::serve).collect();
    let options: Vec<_> = devices.iter().flat_map(Device::options).collect();
    let job = Job { disks: devices.len(), seed: 11, grows: true, ..Job::default() };
    let console = folder.path().join("console");
    let vm = Vm::boot(qemu.system(), "q35", &images.system(job.to_string()), &options, console).unwrap();
    let mut grown = false;
    let printed = vm.output_within(TIMEOUT, |vm| {
        let printed = vm.printed().unwrap();
        if !grown && printed.lines().any(|line| line.trim() == r#""growing""#) {
            grown = true;
            served.iter().for_each(|served| served.grow(MORE));
        }
    });
    let printed = printed.unwrap();
    served.into_iter().for_each(|served| served.stop().unwrap());
    devices.iter_mut().for_each(|device| device.media[0].size += MORE);
    check_grown(&Report::parse(&printed).unwrap(), &devices);
}

fn check_grown(report: &Report, devices: &[Device]) {
    assert_eq!(report.done.error, None);
    for Device { protocol, driver, media, .. } in devices {
        let disk = report.disks.iter().find(|disk| disk.size == media[0].size);
        let disk = disk.unwrap_or_else(|| panic!("no {protocol:?}: {}", found(report)));
        assert_eq!((&*disk.driver, &disk.error), (*driver, &None), "{protocol:?}");
        let checked = disk.checked.as_ref().unwrap_or_else(|| panic!("{protocol:?}: not verified"));
        assert_eq!(checked.after, crc32c::crc32c(&media[0].content()), "{protocol:?}");
        let attention = format!("{}: Capacity data has changed", disk.device);
        let reported = report.done.log.iter().any(|line| line.contains(&attention));
        assert!(reported || driver.starts_with("virtio"), "{protocol:?}: {:#?}", report.done.log);
    }
}

/// The disks that the guest has, and its log.
fn found(report: &Report) -> String {
    let disks = report.disks.iter().map(|disk| format!("{} {} {}", disk.name, disk.driver, disk.size));
    disks.chain(report.done.log.iter().cloned()).collect::<Vec<_>>().join("\n")
}

fn prepared() -> Result<(Qemu, Images), guest_linux::Error> {
    let qemu = Qemu::backported()?;
    println!("QEMU {}", qemu.version()?);
    let stock = StockKernel::newest()?;
    Ok((qemu, Images { kernel: stock.image()?, initramfs: guest_linux::initramfs_with_fio(&stock)? }))
}

/// A device of the guest, with its disks.
pub(crate) struct Device {
    pub(crate) protocol: Protocol,
    driver: &'static str,
    socket: PathBuf,
    pub(crate) media: Vec<Medium>,
}

/// All devices. No two disks have the same size: the size identifies a disk in the report.
pub(crate) fn devices(folder: &Path, formats: &[Format]) -> Vec<Device> {
    let mut sizes = (SIZE..).step_by(STEP as usize);
    let mut devices = Vec::new();
    for (protocol, driver, count) in DEVICES {
        for formats in formats.chunks(formats.len().div_ceil(count)) {
            let own = folder.join(devices.len().to_string());
            std::fs::create_dir(&own).unwrap();
            let media = formats.iter().zip(&mut sizes);
            let media = media.map(|(format, size)| Medium::new(&own, *format, size).unwrap()).collect();
            devices.push(Device::new(&own, protocol, driver, media));
        }
    }
    devices
}

impl Device {
    /// With its socket in `folder`.
    pub(crate) fn new(folder: &Path, protocol: Protocol, driver: &'static str, media: Vec<Medium>) -> Self {
        Self { protocol, driver, socket: folder.join("socket"), media }
    }

    pub(crate) fn serve(&self) -> Served {
        match self.protocol {
            Protocol::VfioUser(kind) => Served::vfio_user(&self.socket, kind, &self.media),
            Protocol::VhostUserBlk => Served::vhost_user_blk(&self.socket, &self.media[0]),
        }
    }

    pub(crate) fn options(&self) -> Vec<String> {
        let socket = self.socket.display();
        match self.protocol {
            Protocol::VfioUser(_) => served::vfio_user_options(&self.socket),
            Protocol::VhostUserBlk => {
                let name = self.media[0].format.serial();
                vec![
                    "-chardev".to_owned(),
                    format!("socket,id={name},path={socket}"),
                    "-device".to_owned(),
                    format!("vhost-user-blk-pci,chardev={name},num-queues={QUEUES}"),
                ]
            }
        }
    }
}

fn check(report: &Report, devices: &[Device]) {
    let complaints: Vec<_> = report.done.log.iter().filter(|line| is_ours(line)).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert_eq!(report.done.error, None);
    for device in devices {
        for medium in &device.media {
            let disk = report.disks.iter().find(|disk| disk.size == medium.size);
            let what = format!("{:?}, {}", device.protocol, medium.format.serial());
            let disk = disk.unwrap_or_else(|| panic!("no {what}: {}", found(report)));
            assert_eq!((&*disk.driver, &*disk.serial), (device.driver, medium.format.serial()), "{what}");
            verified(&what, medium, disk);
        }
    }
}

/// Whether a record of the kernel's log, `LEVEL: text`, may be about a driver or a disk.
fn is_ours(record: &str) -> bool {
    let text = record.split_once(": ").map_or(record, |(_, text)| text);
    let known = NOT_OURS.iter().any(|known| text.contains(known));
    !known && !OF_QEMU.iter().any(|known| text.starts_with(known))
}

/// That fio found what it wrote, and that the image holds what the guest saw last.
fn verified(what: &str, medium: &Medium, disk: &Disk) {
    assert_eq!(disk.error, None, "{what}");
    let [fio] = &disk.fio[..] else { panic!("{what}: {:?}", disk.fio) };
    // Each range once, and once more what was written.
    assert!(fio.writes > 0 && fio.reads > fio.writes && fio.bytes > medium.size, "{what}: {fio:?}");
    assert_eq!(disk.after_fio, Some(crc32c::crc32c(&medium.content())), "{what}");
    medium.check();
}

//! Each adapter and each format in a guest.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use guest_init::Job;
use paradisk_devices::AdapterKind;

use super::{ADAPTERS, OTHERS, Rig, assert_no_complaints, boot_kernel, channels, report};
use crate::matrix::{SEED, compare};
use crate::medium::{Format, Medium};
use crate::needed;

/// Those that are files with sectors of 512 bytes, which IDE needs.
const FORMATS: [Format; 7] = [
    Format::Raw,
    Format::VhdDynamic,
    Format::VhdDifferencing,
    Format::VhdxDynamic,
    Format::VhdxDifferencing,
    Format::VhdFixed,
    Format::VhdxFixed,
];
/// How the files' names of a kernel end, and the virtual CPUs that it gets.
const KERNELS: [(&str, u32); 2] = [("", 1), ("-newer", 2)];

/// A disk with what the guest has to say of it.
struct Expected {
    kind: AdapterKind,
    driver: &'static str,
    serial: String,
    medium: Medium,
}

/// Each adapter and each format, not each pair of them; and in the same L1, as its boot takes a while, the newer kernel with
/// [all channels and queues](channels).
#[test]
fn stock_kernels_with_each_adapter_each_format_and_all_channels() {
    boot(
        "stock_kernels_with_each_adapter_each_format_and_all_channels",
        &KERNELS[..1],
        1,
        &channels::script(),
        channels::check,
    );
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_stock_kernels_with_each_adapter_with_each_format() {
    boot("long_stock_kernels_with_each_adapter_with_each_format", &KERNELS, FORMATS.len(), "", |_| {});
}

/// Boot each kernel with so many disks of each adapter. Then run the script `more`, and check what it has left.
fn boot(test: &str, kernels: &[(&str, u32)], most: usize, more: &str, check: fn(&Path)) {
    let Some(rig) = needed(test, Rig::with_newer_kernel()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    let mut script = "set -e\n".to_owned();
    let mut formats = FORMATS.into_iter().cycle();
    let mut disks_of = |&(which, cpus): &(&str, u32)| {
        let media = disks(&images.join(format!("linux{which}")), &mut formats, most);
        let job = Job { disks: media.len(), seed: SEED, reads: 8, ..Job::default() };
        let options: String = media.iter().map(|disk| disk.option(which)).collect();
        let boot = boot_kernel(which, cpus, job, "");
        let _ = writeln!(script, "{boot}{options} > /out/console{which} < /dev/null");
        media
    };
    let media: Vec<_> = kernels.iter().map(&mut disks_of).collect();
    rig.run(format!("{script}{more}mv images /out\n"), &[("images", &images)], folder.path());
    for ((which, _), media) in kernels.iter().zip(media) {
        let (_, report) = report(folder.path(), &format!("console{which}"));
        assert_no_complaints(&report, &[]);
        assert_eq!(report.disks.len(), media.len(), "{:#?}", report.disks);
        for Expected { kind, driver, serial, medium } in &media {
            let disk = report.disks.iter().find(|disk| disk.serial == *serial);
            let disk = disk.unwrap_or_else(|| panic!("no {serial}: {:#?}", report.disks));
            assert_eq!(disk.driver, *driver, "{serial}");
            compare(medium, disk, *kind);
        }
    }
    check(folder.path());
}

fn adapters() -> impl Iterator<Item = (AdapterKind, &'static str, &'static str)> {
    ADAPTERS.into_iter().chain(OTHERS)
}

/// `most` disks for each adapter, in a folder for each adapter.
fn disks(folder: &Path, formats: &mut impl Iterator<Item = Format>, most: usize) -> Vec<Expected> {
    let mut media = Vec::new();
    // No two of a size, and none a whole number of blocks.
    let mut sizes = (4 << 20..).step_by(72 << 10);
    for (kind, name, driver) in adapters() {
        let own = folder.join(name);
        fs::create_dir_all(&own).unwrap();
        // A machine has one IDE adapter.
        let most = if kind == AdapterKind::Ide { most.min(kind.targets().count()) } else { most };
        for (format, size) in formats.take(most).zip(&mut sizes) {
            // virtio-blk has 20 characters for it.
            let serial = format!("{name}-{}", media.len());
            media.push(Expected { kind, driver, serial, medium: Medium::new(&own, format, size).unwrap() });
        }
    }
    media
}

impl Expected {
    /// Of `paradisk run`.
    fn option(&self, which: &str) -> String {
        let (format, serial) = (self.medium.format, &self.serial);
        let (_, name, _) = adapters().find(|(kind, ..)| *kind == self.kind).unwrap();
        format!(
            " --disk path=images/linux{which}/{name}/{},format={},adapter={name},serial={serial}",
            format.serial(),
            format.option()
        )
    }
}

//! A root file system in a disk image, on each adapter: the test kernel mounts it and runs its shell.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use guest_tests::linux::{Guest, System};
use paradisk_devices::{AdapterConfig, AdapterKind, Attachment};
use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::{EngineKind, Image, OpenOptions, Repair, vhdx};
use paradisk_vmm::{Host, Machine, layout};

use crate::{MEMORY, kernels};

const TIMEOUT: Duration = Duration::from_secs(300);
const SIZE: u64 = 16 << 20;
const PROMPT: &str = "paradisk# ";

#[test]
fn root_on_pvscsi() {
    root("root_on_pvscsi", AdapterKind::Pvscsi, "sda");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_root_on_lsi() {
    root("long_root_on_lsi", AdapterKind::Lsi, "sda");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_root_on_lsi_sas() {
    root("long_root_on_lsi_sas", AdapterKind::LsiSas, "sda");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_root_on_virtio_blk() {
    root("long_root_on_virtio_blk", AdapterKind::VirtioBlk, "vda");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_root_on_virtio_scsi() {
    root("long_root_on_virtio_scsi", AdapterKind::VirtioScsi, "sda");
}

fn root(test: &str, kind: AdapterKind, name: &str) {
    let Some((host, kernels)) = kernels(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (raw, image) = (folder.path().join("raw"), folder.path().join("image.vhdx"));
    let power = (layout::POWER_CONTROL.start, layout::POWER_OFF);
    if let Err(error) = guest_linux::root_file_system(&raw, SIZE, power) {
        return println!("SKIP: {test}: {error}");
    }
    let options = vhdx::CreateOptions { block_size: Some(1 << 20), ..Default::default() };
    vhdx::create_dynamic(&image, SIZE, options).unwrap();
    let format = OpenOptions::new(&image).open_format().unwrap();
    Content::new(&*format).write_at(&fs::read(&raw).unwrap(), 0).unwrap();
    drop(format);
    let system = System {
        kernel: kernels[0].kernel.clone(),
        initrd: None,
        cmdline: format!("root=/dev/{name} rootfstype=ext4 rootwait rw init=/init"),
        memory: MEMORY,
    };
    use_shell(boot(&host, &system, kind, &image)).unwrap_or_else(|error| panic!("{error}"));
    let report = Image::open(&image).unwrap().check(Repair::ReportOnly).unwrap();
    assert!(report.findings.is_empty());
    let mut content = vec![0; SIZE as usize];
    let format = OpenOptions { read_only: true, ..OpenOptions::new(&image) }.open_format().unwrap();
    Content::new(&*format).read_at(&mut content, 0).unwrap();
    fs::write(&raw, content).unwrap();
    assert_eq!(output(Command::new("debugfs").args(["-R", "cat /root/file"]).arg(&raw)), "written 42\n");
    output(Command::new("e2fsck").args(["-f", "-n"]).arg(&raw));
}

fn boot(host: &Host, system: &System, kind: AdapterKind, image: &Path) -> Guest {
    let disk = OpenOptions::new(image).open().unwrap();
    let disk = Attachment { disk, engine: EngineKind::default(), serial: None };
    let target = kind.targets().next().unwrap();
    let config = AdapterConfig::new(kind);
    let devices = |machine: &mut Machine| {
        let build =
            |memory, interrupts| Ok(paradisk_devices::build(memory, interrupts, config, &[(target, disk)])?);
        machine.add_device(build).map(drop)
    };
    Guest::boot(host, system, devices).unwrap()
}

/// Write a file, see it, power off.
fn use_shell(mut guest: Guest) -> Result<(), guest_tests::linux::GuestError> {
    guest.expect(PROMPT, TIMEOUT)?;
    guest.type_line("echo written $((6*7)) > file; cat file", TIMEOUT)?;
    guest.expect("written 42", TIMEOUT)?;
    guest.expect(PROMPT, TIMEOUT)?;
    guest.type_line("power-off", TIMEOUT)?;
    guest.power_off(TIMEOUT).map(drop)
}

/// What a program printed that is where root finds it.
pub(crate) fn output(command: &mut Command) -> String {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = command.env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

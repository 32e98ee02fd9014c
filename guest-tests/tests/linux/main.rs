//! Linux and its own drivers on each adapter, with a disk of each format; root file systems; the same disks in QEMU. Without `/dev/kvm`, or
//! where an image cannot be made, each test says why it is skipped.

mod firmware;
mod libiscsi;
#[path = "../../../disk-formats/tests/common/loop_device.rs"]
mod loop_device;
mod matrix;
mod medium;
mod qemu;
mod root;
mod served;
mod svm;
mod system;
mod two_cpus;
mod vfio_user;

use std::fmt::Display;
use std::path::PathBuf;

use guest_linux::StockKernel;
use guest_tests::linux::System;
use paradisk_vmm::Host;

/// Bytes of guest memory: little, for its kernel looks at each page.
const MEMORY: u64 = 128 << 20;

/// A kernel with the initramfs that goes with it.
struct Images {
    kernel: PathBuf,
    initramfs: PathBuf,
}

impl Images {
    fn system(&self, cmdline: String) -> System {
        let (kernel, initrd) = (self.kernel.clone(), Some(self.initramfs.clone()));
        System { kernel, initrd, cmdline, memory: MEMORY }
    }
}

/// What a test needs. `None`: it cannot be had, and a line on standard output says why the test is skipped.
fn needed<T>(test: &str, made: Result<T, impl Display>) -> Option<T> {
    made.map_err(|reason| println!("SKIP: {test}: {reason}")).ok()
}

/// KVM and the kernels that it can run: the test kernel, and where guests' kernels run on the CPU the stock kernel.
fn kernels(test: &str) -> Option<(Host, Vec<Images>)> {
    let host = needed(test, Host::open())?;
    let images = needed(test, images(&host))?;
    Some((host, images))
}

fn images(host: &Host) -> Result<Vec<Images>, guest_linux::Error> {
    let mut images =
        vec![Images { kernel: guest_linux::test_kernel()?, initramfs: guest_linux::initramfs(None)? }];
    if host.native_kernel_mode {
        let stock = StockKernel::newest()?;
        images.push(Images { kernel: stock.image()?, initramfs: guest_linux::initramfs(Some(&stock))? });
    }
    Ok(images)
}

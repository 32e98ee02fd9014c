//! What test guests are made of: kernels, initial file systems, QEMU. All of it is in the cache once made.

use std::process::Command;

use guest_linux::{DebianSystem, KvmHost, Qemu, StockKernel};

use crate::nextest::built;

/// Make what is not in the cache, and print the paths. What cannot be made has been printed: it makes tests fail or skip.
pub(crate) fn prepare() {
    if let Err(error) = test_kernel() {
        println!("test kernel: {error}");
    }
    if let Err(error) = emulated() {
        println!("QEMU and fio: {error}");
    }
}

/// A kernel and an initramfs for test guests.
///
/// # Errors
/// A package is not to be had, or something does not compile.
pub(crate) fn test_kernel() -> Result<(), guest_linux::Error> {
    println!("kernel: {}", guest_linux::test_kernel()?.display());
    println!("initramfs: {}", guest_linux::initramfs(None)?.display());
    Ok(())
}

/// As [`test_kernel`]: QEMU with vfio-user, an initramfs with fio, and a host with KVM inside QEMU.
fn emulated() -> Result<(), guest_linux::Error> {
    println!("QEMU: {}", Qemu::any()?.version()?);
    println!("initramfs with fio: {}", guest_linux::initramfs_with_fio(&StockKernel::newest()?)?.display());
    KvmHost::prepare()?;
    println!("a newer kernel: {}", StockKernel::newer()?.image()?.display());
    println!("Debian with systemd: {}", DebianSystem::prepare()?.disk.display());
    Ok(())
}

/// The meter's main job, short, with the program of the tests: it prints a table, and each row ran.
///
/// # Errors
/// The meter fails.
pub(crate) fn meter() -> Result<Option<String>, String> {
    let output =
        Command::new(built("paradisk")).args(["bench", "--runs", "2", "--duration", "100ms"]).output();
    let output = output.map_err(|error| format!("paradisk bench: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("paradisk bench: {}", output.status));
    }
    match ["native ", "pvscsi "].iter().find(|row| !text.lines().any(|line| line.starts_with(**row))) {
        Some(row) => Err(format!("paradisk bench: no row `{row}`")),
        None => Ok(None),
    }
}

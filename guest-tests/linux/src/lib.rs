//! Images for Linux test guests, made from Debian's packages and kept in a cache: the [`test_kernel`], which also boots where
//! KVM interprets the guest's kernel; Debian's [stock kernel](StockKernel); an [`initramfs`] with `paradisk-guest-init`; a
//! [root file system](root_file_system) with a shell. And [QEMU](Qemu) for them to run in, where the host's is too old, and
//! [QEMU's tests](qemu_iotests). A [folder](DebianRoot) to install packages in. A [real system](DebianSystem): Debian with systemd. And a
//! [Linux host with KVM](KvmHost) inside QEMU, for machines whose own KVM runs no stock kernel.

mod archive;
mod cache;
mod cargo;
mod cpio;
mod debian;
mod debian_root;
mod debian_system;
mod error;
mod fio;
mod initramfs;
mod iotests;
mod kvm_host;
mod qemu;
mod root;
mod run;
mod stock;
mod test_kernel;
mod with_libraries;

pub use cache::{cached, root as cache};
pub use debian_root::DebianRoot;
pub use debian_system::{DebianSystem, root_initramfs};
pub use error::Error;
pub use initramfs::{initramfs, initramfs_with_fio, initramfs_with_libiscsi};
pub use iotests::{QEMU_VERSION, qemu_iotests};
pub use kvm_host::{Clock, Ended, HostJob, KvmHost};
pub use qemu::Qemu;
pub use root::root_file_system;
pub use stock::StockKernel;
pub use test_kernel::test_kernel;

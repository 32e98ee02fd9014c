//! Images for Linux test guests, made from Debian's packages and kept in a cache: the [`test_kernel`], which also boots where
//! KVM interprets the guest's kernel; Debian's [stock kernel](StockKernel); an [`initramfs`] with `paradisk-guest-init`; a
//! [root file system](root_file_system) with a shell. And, from the same archive, [QEMU's tests](qemu_iotests).

mod cache;
mod cpio;
mod debian;
mod error;
mod initramfs;
mod iotests;
mod root;
mod run;
mod stock;
mod test_kernel;

pub use error::Error;
pub use initramfs::initramfs;
pub use iotests::{QEMU_VERSION, qemu_iotests};
pub use root::root_file_system;
pub use stock::StockKernel;
pub use test_kernel::test_kernel;

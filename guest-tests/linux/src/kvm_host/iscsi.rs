//! A software iSCSI disk in L1: the kernel's target (LIO) over a block device, and the kernel's initiator, joined by the loopback network.

use std::fs;
use std::path::PathBuf;

use super::KvmHost;
use crate::cache;
use crate::error::Error;
use crate::stock::StockKernel;
use crate::with_libraries::ISCSISTART;

/// The disk's driver; target and its store; initiator.
const MODULES: [&str; 4] = ["sd_mod", "target_core_iblock", "iscsi_target_mod", "iscsi_tcp"];
const FOLDER: &str = "iscsi";
/// Sets up the disk.
const UP: &str = include_str!("iscsi-up");

impl KvmHost {
    /// The block device that [`ISCSI_UP`](Self::ISCSI_UP) makes.
    pub const ISCSI_DISK: &str = "/dev/sda";
    /// How a script makes it, if it has the files of [`iscsi`](Self::iscsi): the block device that the target exports follows. The exit
    /// status is 0 when the disk is there.
    pub const ISCSI_UP: &str = "sh iscsi/up";

    /// Modules of L1's kernel and the initiator's tool, for a job with an iSCSI disk.
    ///
    /// # Errors
    /// A package is not to be had, or the kernel lacks a module.
    pub fn iscsi() -> Result<Vec<(String, PathBuf)>, Error> {
        let kernel = StockKernel::cloud()?;
        let modules = kernel.modules(&MODULES)?;
        if let Some(name) = MODULES.iter().find(|name| modules.iter().all(|module| module.name != **name)) {
            return Err(Error::Package { package: kernel.version(), what: format!("module {name}") });
        }
        let order: String = modules.iter().map(|module| format!("{}\n", module.name)).collect();
        let mut files = ISCSISTART.contents()?;
        files.extend([("up", UP), ("order", &order)].map(|(name, text)| (name.to_owned(), text.into())));
        files.extend(modules.into_iter().map(|module| (format!("{}.ko", module.name), module.content)));
        let inputs: Vec<_> =
            files.iter().flat_map(|(name, content)| [name.as_bytes(), content.as_slice()]).collect();
        let folder = cache::directory(&format!("{FOLDER}-{}", cache::fingerprint(&inputs)), |directory| {
            files.iter().try_for_each(|(name, content)| {
                let path = directory.join(name);
                fs::write(&path, content).map_err(Error::file(&path))
            })
        })?;
        Ok(vec![(FOLDER.to_owned(), folder)])
    }
}

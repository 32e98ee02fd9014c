//! An initramfs whose `/init` is the package `paradisk-guest-init`, linked statically.

use std::fs;
use std::path::PathBuf;

use crate::cache;
use crate::cargo::{self, Program};
use crate::cpio::Cpio;
use crate::error::Error;
use crate::fio::fio;
use crate::stock::Module;
use crate::stock::StockKernel;
use crate::with_libraries::ISCSI_TEST_CU;

const PACKAGE: &str = "paradisk-guest-init";
/// A C library inside, at fixed addresses, and not a byte that the guest does not need.
const FLAGS: &str = "-Ctarget-feature=+crt-static -Crelocation-model=static -Cstrip=symbols";
/// Where the program finds what to load, one path a line.
const MODULES: &str = "modules/order";
/// Folder of libiscsi's suite and its libraries.
const LIBISCSI: &str = "libiscsi";

/// A file and its path in the initramfs; the folder that it is in, if any, is made.
type Extra = (String, Vec<u8>);

/// An initramfs: for the test kernel, or with the modules of `kernel` that the adapters need.
///
/// # Errors
/// The program does not compile, or a module is missing.
pub fn initramfs(kernel: Option<&StockKernel>) -> Result<PathBuf, Error> {
    kept(&kernel.map_or(Ok(Vec::new()), StockKernel::adapter_modules)?, &[])
}

/// An initramfs with the modules of `kernel` and [fio](https://fio.readthedocs.io), which takes a minute to build where the
/// cache has none.
///
/// # Errors
/// As [`initramfs`]; Debian's source of fio or a tool for the build is not to be had.
pub fn initramfs_with_fio(kernel: &StockKernel) -> Result<PathBuf, Error> {
    let fio = fio()?;
    let fio = fs::read(&fio).map_err(Error::file(&fio))?;
    kept(&kernel.adapter_modules()?, &[("fio".to_owned(), fio)])
}

/// An initramfs with the modules of `kernel` and libiscsi's conformance suite for SCSI targets
/// (<https://github.com/sahlberg/libiscsi>).
///
/// # Errors
/// As [`initramfs`]; Debian's packages of libiscsi are not to be had.
pub fn initramfs_with_libiscsi(kernel: &StockKernel) -> Result<PathBuf, Error> {
    let files = ISCSI_TEST_CU.contents()?.into_iter();
    let extras: Vec<_> = files.map(|(name, content)| (format!("{LIBISCSI}/{name}"), content)).collect();
    kept(&kernel.adapter_modules()?, &extras)
}

fn kept(modules: &[Module], extras: &[Extra]) -> Result<PathBuf, Error> {
    let program = program()?;
    let init = fs::read(&program).map_err(Error::file(&program))?;
    keep(&archive(&init, modules, extras))
}

/// The path in the cache of an initial RAM disk with this content.
pub(crate) fn keep(archive: &[u8]) -> Result<PathBuf, Error> {
    let name = format!("initramfs-{}", cache::fingerprint(&[archive]));
    let directory = cache::directory(&name, |directory| {
        fs::write(directory.join("initramfs.cpio"), archive).map_err(Error::file(directory))
    })?;
    Ok(directory.join("initramfs.cpio"))
}

fn archive(init: &[u8], modules: &[Module], extras: &[Extra]) -> Vec<u8> {
    let mut archive = Cpio::default();
    ["dev", "proc", "sys"].iter().for_each(|name| archive.directory(name));
    archive.device("dev/console", 5, 1);
    archive.file("init", init);
    let mut folders: Vec<_> = extras.iter().filter_map(|(path, _)| Some(path.rsplit_once('/')?.0)).collect();
    folders.dedup();
    folders.iter().for_each(|folder| archive.directory(folder));
    extras.iter().for_each(|(path, content)| archive.file(path, content));
    add_modules(&mut archive, modules);
    archive.finish()
}

/// The folder of modules, with the order in which they are loaded, if there are any.
pub(crate) fn add_modules(archive: &mut Cpio, modules: &[Module]) {
    if modules.is_empty() {
        return;
    }
    archive.directory("modules");
    let line = |Module { name, depends, .. }: &Module| format!("{name} {}\n", depends.join(" "));
    let order: String = modules.iter().map(line).collect();
    archive.file(MODULES, order.as_bytes());
    for module in modules {
        archive.file(&format!("modules/{}.ko", module.name), &module.content);
    }
}

fn program() -> Result<PathBuf, Error> {
    cargo::build(Program { package: PACKAGE, folder: "guest-init", flags: FLAGS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_listed_in_their_order() {
        let module = |name: &str, depends: &[&str]| Module {
            name: name.to_owned(),
            content: b"\x7fELF".to_vec(),
            depends: depends.iter().map(|name| (*name).to_owned()).collect(),
        };
        let text = String::from_utf8(archive(
            b"program",
            &[module("scsi_mod", &[]), module("sd_mod", &["scsi_mod"])],
            &[],
        ))
        .unwrap();
        assert!(text.contains("scsi_mod \nsd_mod scsi_mod\n"));
        assert!(text.contains("modules/sd_mod.ko\0"));
        assert!(!String::from_utf8(archive(b"program", &[], &[])).unwrap().contains("modules"));
    }

    #[test]
    fn folders_come_before_their_files() {
        let extras = ["fio", "libs/a", "libs/b"].map(|path| (path.to_owned(), b"content".to_vec()));
        let text = String::from_utf8(archive(b"program", &[], &extras)).unwrap();
        let at = |name: &str| text.find(&format!("{name}\0")).unwrap_or_else(|| panic!("no {name}"));
        assert!(at("libs") < at("libs/a") && at("libs/a") < at("libs/b"));
        assert_eq!(text.matches("libs\0").count(), 1);
        assert!(at("fio") > 0);
    }
}

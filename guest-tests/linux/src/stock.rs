//! Debian's own kernels and those of their modules that are wanted, for a KVM that runs kernels natively.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;
use crate::debian::Package;
use crate::error::Error;

/// The package that depends on the newest kernel for any machine.
const GENERIC: &str = "linux-image-amd64";
/// The same for virtual machines: with KVM, and without drivers of hardware.
const CLOUD: &str = "linux-image-cloud-amd64";
/// The package that depends on a newer kernel than this release's, which Debian keeps for it.
const NEWER: &str = "linux-image-6.12-amd64";
/// How a compressed module's name ends.
const COMPRESSED: &str = ".xz";
/// Modules for all adapters.
const ADAPTERS: [&str; 10] = [
    "virtio_pci",
    "virtio_blk",
    "sd_mod",
    "virtio_scsi",
    "vmw_pvscsi",
    "mptspi",
    "mptsas",
    "ata_piix",
    "BusLogic",
    "hv_storvsc",
];
/// Begins the list of names in a module's `.modinfo` section, which ends with a zero byte.
const DEPENDS: &[u8] = b"\0depends=";

/// A kernel of Debian's, unpacked in the cache.
#[derive(Clone, Debug)]
pub struct StockKernel {
    package: Package,
    directory: PathBuf,
}

/// A module as the kernel takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
    /// Modules that it needs, by name.
    pub(crate) depends: Vec<String>,
}

impl StockKernel {
    /// The newest of this release.
    ///
    /// # Errors
    /// The package is not to be had.
    pub fn newest() -> Result<Self, Error> {
        Self::of(GENERIC)
    }

    /// A newer one: Debian 13's, as built for Debian 12.
    ///
    /// # Errors
    /// The package is not to be had.
    pub fn newer() -> Result<Self, Error> {
        Self::of(NEWER)
    }

    /// The newest of this release that is made for virtual machines.
    pub fn cloud() -> Result<Self, Error> {
        Self::of(CLOUD)
    }

    /// The kernel that a package without contents depends on.
    fn of(meta_package: &str) -> Result<Self, Error> {
        let meta = Package::candidate(meta_package)?;
        let image = meta.dependency("linux-image-").ok_or_else(|| meta.lacks("kernel that it depends on"))?;
        let package = Package::candidate(image)?;
        let name = format!("{}-{}", package.name, cache::fingerprint(&[package.version.as_bytes()]));
        let directory = cache::directory(&name, |directory| package.unpack(directory))?;
        Ok(Self { package, directory })
    }

    /// Name and version of the package.
    pub(crate) fn version(&self) -> String {
        format!("{} {}", self.package.name, self.package.version)
    }

    /// The kernel, a bzImage.
    ///
    /// # Errors
    /// The package holds none.
    pub fn image(&self) -> Result<PathBuf, Error> {
        let boot = self.directory.join("boot");
        let files = fs::read_dir(&boot).map_err(Error::file(&boot))?;
        let mut paths = files.flatten().map(|file| file.path());
        let is_kernel = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        };
        paths.find(is_kernel).ok_or_else(|| self.package.lacks("kernel"))
    }

    /// The modules for the adapters, as [`modules`](Self::modules).
    pub(crate) fn adapter_modules(&self) -> Result<Vec<Module>, Error> {
        self.modules(&ADAPTERS)
    }

    /// These modules, each after those it depends on. What is built in or not there is left out.
    pub(crate) fn modules(&self, wanted: &[&str]) -> Result<Vec<Module>, Error> {
        let mut files = BTreeMap::new();
        find_modules(&self.directory.join("lib/modules"), &mut files)?;
        if files.is_empty() {
            return Err(self.package.lacks("modules"));
        }
        let mut modules = Vec::new();
        for name in wanted {
            add(name, &mut files, &mut modules)?;
        }
        Ok(modules)
    }
}

/// Paths by module name, in which `-` and `_` are the same.
fn find_modules(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), Error> {
    for entry in fs::read_dir(directory).map_err(Error::file(directory))?.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find_modules(&path, files)?;
        } else if let Some(name) = entry.file_name().to_str().and_then(module_name) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// `dm_mod` of `dm-mod.ko` and `dm-mod.ko.xz`; none of what is no module.
fn module_name(file: &str) -> Option<String> {
    let name = file.strip_suffix(COMPRESSED).unwrap_or(file).strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

/// A module as the kernel takes it without a decompressor of its own.
fn read_module(path: &Path) -> Result<Vec<u8>, Error> {
    if !path.to_string_lossy().ends_with(COMPRESSED) {
        return fs::read(path).map_err(Error::file(path));
    }
    let mut xz = Command::new("xz");
    xz.args(["--decompress", "--stdout"]).arg(path);
    let failed = |how: String| Error::Command { command: format!("xz {}", path.display()), how };
    let output = xz.output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() { Ok(output.stdout) } else { Err(failed(output.status.to_string())) }
}

/// Add a module after what it depends on; each is taken out of `files`, so none comes twice.
fn add(name: &str, files: &mut BTreeMap<String, PathBuf>, modules: &mut Vec<Module>) -> Result<(), Error> {
    let Some(path) = files.remove(name) else { return Ok(()) };
    let content = read_module(&path)?;
    let depends = dependencies(&content);
    for dependency in &depends {
        add(dependency, files, modules)?;
    }
    modules.push(Module { name: name.to_owned(), content, depends });
    Ok(())
}

fn dependencies(module: &[u8]) -> Vec<String> {
    let Some(at) = module.windows(DEPENDS.len()).position(|window| window == DEPENDS) else {
        return Vec::new();
    };
    let list = module[at + DEPENDS.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(list).replace('-', "_");
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_depend_on() {
        let directory = tempfile::tempdir().unwrap();
        let kernel = directory.path().join("6.1/kernel");
        fs::create_dir_all(&kernel).unwrap();
        for (file, depends) in [
            ("sd_mod.ko", "scsi_mod,t10-pi"),
            ("scsi_mod.ko", "scsi-common"),
            ("scsi_common.ko", ""),
            ("t10-pi.ko", ""),
        ] {
            fs::write(kernel.join(file), format!("ELF\0license=GPL\0depends={depends}\0name=x\0")).unwrap();
        }
        let (mut files, mut modules) = (BTreeMap::new(), Vec::new());
        find_modules(directory.path(), &mut files).unwrap();
        for name in ["sd_mod", "scsi_mod", "built_in"] {
            add(name, &mut files, &mut modules).unwrap();
        }
        let order: Vec<&str> = modules.iter().map(|module| &*module.name).collect();
        assert_eq!(order, ["scsi_common", "scsi_mod", "t10_pi", "sd_mod"]);
    }

    #[test]
    fn compressed_modules_are_decompressed() {
        let directory = tempfile::tempdir().unwrap();
        for (file, depends) in [("sd_mod.ko", "scsi-mod"), ("scsi-mod.ko", "")] {
            let path = directory.path().join(file);
            fs::write(&path, format!("ELF\0depends={depends}\0")).unwrap();
            match Command::new("xz").arg(&path).status() {
                Ok(status) => assert!(status.success()),
                Err(error) => return println!("SKIP: compressed_modules_are_decompressed: xz: {error}"),
            }
        }
        fs::write(directory.path().join("modules.xz"), "no module").unwrap();
        let (mut files, mut modules) = (BTreeMap::new(), Vec::new());
        find_modules(directory.path(), &mut files).unwrap();
        assert_eq!(files.keys().collect::<Vec<_>>(), ["scsi_mod", "sd_mod"]);
        add("sd_mod", &mut files, &mut modules).unwrap();
        let contents: Vec<_> = modules.iter().map(|module| &*module.content).collect();
        assert_eq!(contents, [&b"ELF\0depends=\0"[..], b"ELF\0depends=scsi-mod\0"]);
    }
}

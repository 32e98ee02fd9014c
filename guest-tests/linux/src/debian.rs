//! Debian's binary packages: which version, downloaded by apt, unpacked without being installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cache;
use crate::error::Error;
use crate::run::run;

/// A package in the version that apt would install.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    depends: String,
}

impl Package {
    /// What apt knows of it, without asking the network.
    pub(crate) fn candidate(name: &str) -> Result<Self, Error> {
        let shown = run(apt_cache()?.args(["show", "--no-all-versions", name]))
            .map_err(|_| Error::NoPackage(name.to_owned()))?;
        let field =
            |key| shown.lines().find_map(|line| line.strip_prefix(key)).map(|value| value.trim().to_owned());
        let version = field("Version:").ok_or_else(|| Error::NoPackage(name.to_owned()))?;
        Ok(Self { name: name.to_owned(), version, depends: field("Depends:").unwrap_or_default() })
    }

    /// Name of the first package it depends on that begins with `prefix`.
    pub(crate) fn dependency(&self, prefix: &str) -> Option<&str> {
        let mut names = self.depends.split([',', '|']).filter_map(|each| each.split_whitespace().next());
        names.find(|name| name.starts_with(prefix))
    }

    /// Download it into `directory` and unpack it there.
    pub(crate) fn unpack(&self, directory: &Path) -> Result<(), Error> {
        let exact = format!("{}={}", self.name, self.version);
        let download = tempfile::tempdir_in(directory).map_err(Error::file(directory))?;
        run(Command::new("apt-get").args(["download", "--quiet", &exact]).current_dir(download.path()))?;
        let files = fs::read_dir(download.path()).map_err(Error::file(download.path()))?;
        let file =
            files.flatten().find(|file| file.path().extension().is_some_and(|extension| extension == "deb"));
        let file = file.ok_or_else(|| self.lacks("file that apt-get would have downloaded"))?;
        run(Command::new("dpkg-deb").arg("--extract").arg(file.path()).arg(directory))?;
        Ok(())
    }

    pub(crate) fn lacks(&self, what: &str) -> Error {
        Error::Package { package: self.name.clone(), what: what.to_owned() }
    }
}

/// apt-cache with a cache of its own: machines without a cache of the system (containers) would read all lists for each question, a second
/// or more, and most tests ask several.
fn apt_cache() -> Result<Command, Error> {
    let folder = cache::root()?.join("apt");
    fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
    let mut command = Command::new("apt-cache");
    command.arg(format!("-oDir::Cache={}", folder.display()));
    command.args(["-oDir::Cache::pkgcache=pkgcache.bin", "-oDir::Cache::srcpkgcache="]);
    Ok(command)
}

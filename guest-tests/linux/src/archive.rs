//! Debian's archive apart from what the host has of it: apt with sources, lists and a record of installed packages of its own,
//! as any user.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::error::Error;
use crate::run::run;

/// Where apt is not told of a mirror nearer by.
const MIRROR: &str = "http://deb.debian.org/debian";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Lists of a few suites, fetched anew; gone when this is dropped.
pub(crate) struct Archive {
    folder: TempDir,
}

impl Archive {
    /// Fetch the lists of `suites`: pairs of `deb` or `deb-src` and a suite's name.
    pub(crate) fn fetch(suites: &[(&str, &str)]) -> Result<Self, Error> {
        let folder = tempfile::tempdir().map_err(Error::file(env::temp_dir()))?;
        for name in ["lists/partial", "archives/partial"] {
            let path = folder.path().join(name);
            fs::create_dir_all(&path).map_err(Error::file(&path))?;
        }
        let mirror = mirror();
        let line = |(kind, suite)| format!("{kind} [signed-by={KEYRING}] {mirror} {suite} main\n");
        let sources: String = suites.iter().copied().map(line).collect();
        for (name, text) in [("sources.list", &*sources), ("status", "")] {
            let path = folder.path().join(name);
            fs::write(&path, text).map_err(Error::file(&path))?;
        }
        let archive = Self { folder };
        // A list that is missing is a warning otherwise.
        run(archive.apt().args(["-o", "APT::Update::Error-Mode=any", "update"]))?;
        Ok(archive)
    }

    /// Unpack `packages` of `release`, and all that they depend on, into `directory`.
    pub(crate) fn unpack(&self, release: &str, packages: &[&str], directory: &Path) -> Result<(), Error> {
        for file in self.download(release, packages)? {
            run(Command::new("dpkg-deb").arg("--extract").arg(file).arg(directory))?;
        }
        Ok(())
    }

    /// Download `packages` of `release`, and all that they depend on: paths in the order of their names. They are gone when this is
    /// dropped.
    pub(crate) fn download(&self, release: &str, packages: &[&str]) -> Result<Vec<PathBuf>, Error> {
        let mut install = self.apt();
        install.args(["--yes", "--no-install-recommends", "--download-only", "--target-release", release]);
        run(install.arg("install").args(packages))?;
        let mut files = self.files("archives")?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "deb"));
        files.sort();
        Ok(files)
    }

    /// Download the source of a package and unpack what its authors released into `directory`, without the folder that it
    /// is in.
    pub(crate) fn unpack_source(&self, package: &str, directory: &Path) -> Result<(), Error> {
        let archives = self.folder.path().join("archives");
        run(self.apt().args(["--download-only", "source", package]).current_dir(archives))?;
        let is_release = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.contains(".orig.tar.") && !name.ends_with(".asc")
        };
        let release = self.files("archives")?.into_iter().find(is_release).ok_or_else(|| Error::Package {
            package: package.to_owned(),
            what: "source of its authors".to_owned(),
        })?;
        let mut tar = Command::new("tar");
        tar.args(["--strip-components=1", "-xf"]).arg(release).arg("-C").arg(directory);
        run(&mut tar).map(drop)
    }

    fn apt(&self) -> Command {
        let mut apt = Command::new("apt-get");
        let at = |name| self.folder.path().join(name).display().to_string();
        let options = [
            // Proxies and the like stay as the host has them.
            ("Dir::Etc::sourcelist", at("sources.list")),
            ("Dir::Etc::sourceparts", "/dev/null".to_owned()),
            ("Dir::Etc::preferences", "/dev/null".to_owned()),
            ("Dir::Etc::preferencesparts", "/dev/null".to_owned()),
            ("Dir::State", at("")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("")),
            ("APT::Architecture", "amd64".to_owned()),
            ("APT::Architectures", "amd64".to_owned()),
            // A user without rights could not write where only this one may.
            ("APT::Sandbox::User", "root".to_owned()),
            ("Acquire::Languages", "none".to_owned()),
            // A mirror that cannot be reached is a skipped test, and soon.
            ("Acquire::Retries", "1".to_owned()),
            ("Acquire::http::Timeout", "15".to_owned()),
            ("Acquire::https::Timeout", "15".to_owned()),
        ];
        apt.arg("--quiet");
        apt.args(options.iter().map(|(name, value)| format!("-o{name}={value}")));
        apt
    }

    fn files(&self, name: &str) -> Result<Vec<PathBuf>, Error> {
        let path = self.folder.path().join(name);
        Ok(fs::read_dir(&path).map_err(Error::file(&path))?.flatten().map(|entry| entry.path()).collect())
    }
}

/// Where the host's apt has Debian from.
pub(crate) fn mirror() -> String {
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Label: Debian"]);
    let known = run(&mut targets).unwrap_or_default();
    known.lines().next().unwrap_or(MIRROR).trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether there is a mirror or not; apt alone would only warn.
    #[test]
    fn a_suite_that_cannot_be_fetched_is_an_error() {
        if Command::new("apt-get").arg("--version").output().is_err() {
            return println!("SKIP: a_suite_that_cannot_be_fetched_is_an_error: no apt-get");
        }
        let error = Archive::fetch(&[("deb", "no-such-suite")]).err().unwrap().to_string();
        assert!(error.contains("no-such-suite"), "{error}");
    }
}

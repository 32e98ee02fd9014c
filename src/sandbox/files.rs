//! Landlock: which files can be opened by path, now that everything else is open.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope, make_bitflags,
};

use crate::error::Error;

/// Paths that are needed later. Everything else is open already and stays usable, whatever its path is.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    /// Images, block devices, and folders of them with all below: may be opened, read, written and truncated, but not made or removed.
    pub images: Vec<PathBuf>,
    /// Files, and folders with all below, that are opened for reading alone.
    pub read: Vec<PathBuf>,
    /// Sockets that are removed at the end, each by its path: files in their folders, and below, may be removed.
    pub sockets: Vec<PathBuf>,
}

/// The newest ABI whose rights are used.
const NEWEST: ABI = ABI::V6;

/// Where the limits of a block device are found when it is opened.
const DEVICES: [&str; 2] = ["/sys/dev/block", "/sys/devices"];

/// Restrict this thread and those that it starts, as far as this kernel can. Returns what Landlock it has.
pub(crate) fn restrict(grants: &Grants) -> Result<LandlockStatus, Error> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let image = make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | Truncate | IoctlDev});
    for path in &grants.images {
        rules = grant(rules, path, image)?;
    }
    if !grants.images.is_empty() {
        for path in DEVICES.map(Path::new).iter().filter(|path| path.exists()) {
            rules = grant(rules, path, make_bitflags!(AccessFs::{ReadFile | ReadDir}))?;
        }
    }
    // A file that does not exist is reported when it is opened.
    for path in grants.read.iter().filter(|path| path.exists()) {
        rules = grant(rules, path, AccessFs::ReadFile.into())?;
    }
    for socket in &grants.sockets {
        // The folder is opened to lock it.
        rules = grant(rules, folder(socket), make_bitflags!(AccessFs::{ReadDir | RemoveFile}))?;
    }
    Ok(rules.restrict_self()?.landlock)
}

fn grant(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, Error> {
    let failed = |source| Error::Path { path: path.to_owned(), source };
    // A right of folders cannot be granted for a file.
    let access = match path.metadata().map_err(failed)?.is_dir() {
        true => access,
        false => access & AccessFs::from_file(NEWEST),
    };
    let opened = PathFd::new(path).map_err(|error| failed(std::io::Error::other(error)))?;
    Ok(rules.add_rule(PathBeneath::new(opened, access))?)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

//! Folders that are made once: `$XDG_CACHE_HOME/paradisk` or `~/.cache/paradisk`, each under a name that tells by a hash
//! what it was made from.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The folder `name`, made by `make` if it is not there yet. Whoever else wants it at the same time waits.
pub(crate) fn directory(name: &str, make: impl FnOnce(&Path) -> Result<(), Error>) -> Result<PathBuf, Error> {
    directory_in(&root()?, name, make)
}

/// A folder in the cache, made by `make` if it is not there yet.
///
/// # Errors
/// That of `make`, or the folder cannot be made.
pub fn cached(name: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, Error> {
    directory(name, |directory| {
        make(directory).map_err(|how| Error::Command { command: name.to_owned(), how })
    })
}

fn directory_in(
    root: &Path,
    name: &str,
    make: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    fs::create_dir_all(root).map_err(Error::file(root))?;
    let wanted = root.join(name);
    let lock = root.join(format!("{name}.lock"));
    // Held until the end of this function, and no longer than this process lives.
    let file = File::create(&lock).map_err(Error::file(&lock))?;
    file.lock().map_err(Error::file(&lock))?;
    if !wanted.exists() {
        // A process that was killed may have left something.
        let unfinished = root.join(format!("{name}.unfinished"));
        remove(&unfinished)?;
        fs::create_dir(&unfinished).map_err(Error::file(&unfinished))?;
        if let Err(error) = make(&unfinished) {
            remove(&unfinished)?;
            return Err(error);
        }
        fs::rename(&unfinished, &wanted).map_err(Error::file(&wanted))?;
    }
    Ok(wanted)
}

fn remove(directory: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file(directory)(error)),
        _ => Ok(()),
    }
}

/// The folder of all that is made once, and of what else lasts beyond a checkout.
///
/// # Errors
/// The environment names neither a cache nor a home.
pub fn root() -> Result<PathBuf, Error> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    Ok(cache.ok_or(Error::NoHome)?.join("paradisk"))
}

/// A name for these inputs: FNV-1a over all of them.
pub(crate) fn fingerprint(inputs: &[&[u8]]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in inputs.iter().flat_map(|input| input.iter().chain(b"\0")) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_folder_is_made_once() {
        let root = tempfile::tempdir().unwrap();
        let made = AtomicU32::new(0);
        let want = || {
            directory_in(root.path(), "x", |directory| {
                made.fetch_add(1, Ordering::SeqCst);
                fs::write(directory.join("file"), "whole").map_err(Error::file(directory))
            })
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| want().unwrap()))));
        assert_eq!(fs::read_to_string(want().unwrap().join("file")).unwrap(), "whole");
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn a_failure_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let failed = directory_in(root.path(), "x", |directory| {
            fs::write(directory.join("half"), "half").map_err(Error::file(directory))?;
            Err(Error::NoHome)
        });
        assert!(failed.is_err());
        let left: Vec<_> =
            fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["x.lock"]);
        // Nor does one that ended before it could clean up.
        fs::create_dir(root.path().join("x.unfinished")).unwrap();
        fs::write(root.path().join("x.unfinished/half"), "half").unwrap();
        let made = directory_in(root.path(), "x", |_| Ok(())).unwrap();
        assert_eq!(fs::read_dir(made).unwrap().count(), 0);
    }

    #[test]
    fn inputs_are_told_apart() {
        assert_ne!(fingerprint(&[b"ab", b"c"]), fingerprint(&[b"a", b"bc"]));
        assert_eq!(fingerprint(&[b"ab", b"c"]), fingerprint(&[b"ab", b"c"]));
    }
}

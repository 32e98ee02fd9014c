//! fio without a library, for guests that have none: built from Debian's source.

use std::path::PathBuf;
use std::process::Command;
use std::thread::available_parallelism;

use crate::archive::Archive;
use crate::cache;
use crate::error::Error;
use crate::run::run;

const PACKAGE: &str = "fio";
const SUITE: (&str, &str) = ("deb-src", "bookworm");
/// Nothing that wants libraries or a network.
const OPTIONS: [&str; 9] = [
    "--build-static",
    "--disable-gfapi",
    "--disable-http",
    "--disable-native",
    "--disable-numa",
    "--disable-pmem",
    "--disable-rados",
    "--disable-rbd",
    "--disable-rdma",
];

/// The program. Built where the cache has none: a minute.
pub(crate) fn fio() -> Result<PathBuf, Error> {
    let name = format!("{PACKAGE}-{}-{}", SUITE.1, cache::fingerprint(&OPTIONS.map(str::as_bytes)));
    let directory = cache::directory(&name, |directory| {
        eprintln!("building fio from Debian's source: a minute");
        let work = tempfile::tempdir_in(directory).map_err(Error::file(directory))?;
        let tree = work.path();
        Archive::fetch(&[SUITE])?.unpack_source(PACKAGE, tree)?;
        run(Command::new("./configure").args(OPTIONS).current_dir(tree))?;
        let jobs = available_parallelism().map_or(1, usize::from);
        let mut make = Command::new("make");
        // What another make or Cargo says of its own jobs is not for this one.
        make.arg(format!("-j{jobs}")).arg(PACKAGE).env_remove("MAKEFLAGS").env_remove("MFLAGS");
        run(make.current_dir(tree))?;
        let built = directory.join(PACKAGE);
        run(Command::new("strip").arg("-o").arg(&built).arg(tree.join(PACKAGE))).map(drop)
    })?;
    Ok(directory.join(PACKAGE))
}

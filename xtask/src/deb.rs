//! `cargo xtask deb`: a Debian package of `paradisk`, the same bytes for the same commit and compiler.

mod contents;
mod depends;
mod identity;
mod installed;
mod unit;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use self::identity::{ARCHITECTURE, NAME, VERSION};
use crate::command::{cargo, output, run, target_dir};

pub(crate) use installed::check;

/// Level of xz's compression; dpkg-deb's default.
const LEVEL: u8 = 6;

/// Build the package of an optimized program.
///
/// # Errors
/// What failed.
pub(crate) fn write() -> Result<(), String> {
    let deb = package(&released()?, &target_dir().join("debian"), time()?, LEVEL)?;
    println!("{}", deb.display());
    if contents::maintainer().is_none() {
        eprintln!(
            "warning: the field Maintainer has no address for reports: DEBFULLNAME and DEBEMAIL are not both set"
        );
    }
    Ok(())
}

/// The program without paths of this machine in it.
fn released() -> Result<PathBuf, String> {
    let workspace = fs::canonicalize(".").map_err(|error| format!(".: {error}"))?;
    let home = env::var_os("HOME").unwrap_or_default();
    let registry = env::var_os("CARGO_HOME").map_or_else(|| Path::new(&home).join(".cargo"), PathBuf::from);
    let flags = format!(
        "--remap-path-prefix={}=/cargo\u{1f}--remap-path-prefix={}=/paradisk",
        registry.display(),
        workspace.display()
    );
    // A folder of its own: in the usual one, the other flags would make cargo build everything again each time.
    let target = target_dir().join("debian/build");
    let args = ["build", "--quiet", "--locked", "--release", "--package", NAME];
    // For C and assembly in crates.
    let c_flags = format!("-ffile-prefix-map={}=/cargo", registry.display());
    let environment = [
        ("CARGO_ENCODED_RUSTFLAGS", OsStr::new(&flags)),
        ("CARGO_TARGET_DIR", target.as_os_str()),
        ("CFLAGS", OsStr::new(&c_flags)),
    ];
    cargo(Path::new("."), &args, &environment)?;
    let program = target.join("release").join(NAME);
    let bytes = fs::read(&program).map_err(|error| format!("{}: {error}", program.display()))?;
    for folder in [&workspace, &registry] {
        let folder = folder.as_os_str().as_encoded_bytes();
        // The flags also replace these folders in debugging information.
        if bytes.windows(folder.len()).any(|window| window == folder) {
            let folder = String::from_utf8_lossy(folder);
            return Err(format!("{} has paths of this machine: {folder}", program.display()));
        }
    }
    Ok(program)
}

/// The time of everything in the package: `SOURCE_DATE_EPOCH`, or the last commit's.
fn time() -> Result<u64, String> {
    let text = match env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => output("git", &["log", "-1", "--format=%ct"])?,
    };
    text.trim().parse().map_err(|_| {
        format!("`{}` is no time: without git, SOURCE_DATE_EPOCH says of when the sources are", text.trim())
    })
}

/// Package this program in `folder`, compressed at a level of xz; the package's path.
fn package(program: &Path, folder: &Path, time: u64, level: u8) -> Result<PathBuf, String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let tree = tempfile::tempdir_in(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    contents::fill(tree.path(), program, time)?;
    run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(tree.path()), "chmod")?;
    set_times(tree.path(), SystemTime::UNIX_EPOCH + Duration::from_secs(time))?;
    let deb = folder.join(format!("{NAME}_{VERSION}_{ARCHITECTURE}.deb"));
    let mut build = Command::new("dpkg-deb");
    // dpkg-deb sorts the files. Its default compression and level differ among its versions.
    build.args(["--build", "--root-owner-group", "--uniform-compression", "-Zxz"]).arg(format!("-z{level}"));
    build.env("SOURCE_DATE_EPOCH", time.to_string()).stdout(std::process::Stdio::null());
    run(build.arg(tree.path()).arg(&deb), "dpkg-deb")?;
    Ok(deb)
}

fn set_times(path: &Path, time: SystemTime) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if path.is_dir() {
        for entry in fs::read_dir(path).map_err(failed)? {
            set_times(&entry.map_err(failed)?.path(), time)?;
        }
    }
    let file = fs::File::open(path).map_err(failed)?;
    file.set_times(fs::FileTimes::new().set_modified(time)).map_err(failed)
}

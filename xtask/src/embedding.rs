//! The crates to embed, as their users get them: with any features, from a registry, with an API that changes on purpose.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::api;
use crate::command::{cargo, run as run_program, target_dir};
use crate::summary::Report;

/// Packages, and the features that are checked one at a time; the empty name is no feature.
const FEATURES: [(&str, &[&str]); 3] = [
    ("paradisk-disk-formats", &["", "conformance", "io-uring", "vhd", "vhdx"]),
    ("paradisk-devices", &["", "buslogic", "event-loop", "ide", "lsi", "pvscsi", "virtio", "vmbus"]),
    ("paradisk-serve", &["", "nbd", "tls", "vfio-user", "vhost-user-blk"]),
];
/// Packages that others embed, in the order to publish them in.
const EMBEDDED: [&str; 2] = ["paradisk-disk-formats", "paradisk-devices"];
/// All that is published, in an order in which each comes after those that it depends on. The last is the program.
const PACKAGES: [&str; 11] = [
    "paradisk-disk-formats",
    "paradisk-devices",
    "paradisk-vmm",
    "paradisk-guest-driver",
    "paradisk-serve",
    "paradisk-facts",
    "paradisk-sandbox",
    "paradisk-guest-init",
    "paradisk-guest-tests",
    "paradisk-benches",
    "paradisk",
];
/// Examples that a crate outside of the workspace runs: package and name. Each verifies what it does.
const EXAMPLES: [(&str, &str); 3] = [
    ("paradisk-devices", "embed"),
    ("paradisk-devices", "event_manager"),
    ("paradisk-disk-formats", "async_io"),
];
/// What those need beside the two crates; the versions are those of the workspace's lock file.
const DEPENDENCIES: &str = r#"
event-manager = "0.4"
libc = "0.2"
rustix = { version = "1", features = ["event", "fs"] }
tempfile = "3"
vm-memory = { version = "0.18", features = ["backend-mmap", "backend-atomic"] }
vmm-sys-util = "0.15"
zerocopy = { version = "0.8", features = ["derive"] }
"#;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The name of a check, and the check. It returns the reason if it was skipped, or what failed.
type Check = (&'static str, fn() -> Result<Option<String>, String>);

/// Those of `cargo xtask test --all` alone.
pub(crate) const CHECKS: [Check; 3] =
    [("features", features), ("packages", packages), ("cargo install", install)];

/// Run these checks and that of the public API, of which the names contain `part`.
///
/// # Errors
/// What failed.
pub(crate) fn check(part: &str) -> Result<(), String> {
    let mut report = Report::default();
    let all = CHECKS.into_iter().chain([("public API", api::check as _)]);
    for (name, check) in all.filter(|(name, _)| name.contains(part)) {
        report.step(name, |_| check());
    }
    if report.failed.is_empty() { Ok(()) } else { Err(report.failed.join("\n")) }
}

/// Each feature alone, and none at all.
fn features() -> Result<Option<String>, String> {
    for (package, features) in FEATURES {
        for feature in features {
            let only = ["--no-default-features", "--features", feature, "--", "-D", "warnings"];
            let args = [&["clippy", "--quiet", "--package", package], &only[..]].concat();
            cargo(Path::new("."), &args, &[])?;
        }
    }
    Ok(None)
}

/// Package all crates.
fn pack() -> Result<(), String> {
    let mut args = vec!["package", "--quiet", "--no-verify", "--offline", "--allow-dirty"];
    args.extend(PACKAGES.iter().flat_map(|package| ["--package", package]));
    cargo(Path::new("."), &args, &[])
}

/// Use the packages in a crate outside of the workspace.
fn packages() -> Result<Option<String>, String> {
    pack()?;
    let folder = target_dir().join("embedder");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let patches = unpacked(&folder, &EMBEDDED)?;
    fs::create_dir_all(folder.join("src/bin")).map_err(failed)?;
    let mut manifest =
        String::from("[package]\nname = \"embedder\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]");
    manifest += DEPENDENCIES;
    for package in EMBEDDED {
        manifest += &format!("{package} = \"{VERSION}\"\n");
    }
    fs::write(folder.join("Cargo.toml"), manifest + &patches).map_err(failed)?;
    fs::copy("Cargo.lock", folder.join("Cargo.lock")).map_err(failed)?;
    for (package, example) in EXAMPLES {
        let from = folder.join(format!("{package}-{VERSION}/examples/{example}.rs"));
        fs::copy(from, folder.join(format!("src/bin/{example}.rs"))).map_err(failed)?;
    }
    let target = target_dir();
    cargo(&folder, &["build", "--quiet", "--offline"], &[("CARGO_TARGET_DIR", target.as_os_str())])?;
    for (_, example) in EXAMPLES {
        let mut bounded = Command::new("timeout");
        run_program(bounded.arg("60").arg(target.join("debug").join(example)), example)?;
    }
    Ok(None)
}

/// Unpack packages into an empty folder. Returns the lines of a manifest or of cargo's configuration that replace crates.io's packages by
/// these.
fn unpacked(folder: &Path, packages: &[&str]) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(failed)?;
    }
    fs::create_dir_all(folder).map_err(failed)?;
    let mut patches = String::from("\n[patch.crates-io]\n");
    for package in packages {
        unpack(package, folder)?;
        let path = folder.join(format!("{package}-{VERSION}"));
        patches += &format!("{package} = {{ path = \"{}\" }}\n", path.display());
    }
    Ok(patches)
}

/// Install the program from the packages, with all features, but without optimization.
fn install() -> Result<Option<String>, String> {
    let folder = target_dir().join("installer");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    pack()?;
    let (program, libraries) = PACKAGES.split_last().ok_or("there are no packages")?;
    let patches = unpacked(&folder, libraries)?;
    let source = folder.join(format!("{program}-{VERSION}"));
    unpack(program, &folder)?;
    fs::create_dir_all(folder.join(".cargo")).map_err(failed)?;
    fs::write(folder.join(".cargo/config.toml"), patches).map_err(failed)?;
    // The folder is below that of this workspace, so cargo would take the package for a member of it.
    let manifest = source.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(failed)? + "\n[workspace]\n";
    fs::write(&manifest, text).map_err(failed)?;
    // With this lock file, cargo uses versions of other crates that have been downloaded already.
    fs::copy("Cargo.lock", source.join("Cargo.lock")).map_err(failed)?;
    let (target, root) = (target_dir(), folder.join("root"));
    let (path, into) = (source.display().to_string(), root.display().to_string());
    let args = ["install", "--quiet", "--offline", "--debug", "--no-track", "--path", &path, "--root", &into];
    cargo(&folder, &args, &[("CARGO_TARGET_DIR", target.as_os_str())])?;
    let installed = root.join("bin").join(program);
    for args in [&["--version"][..], &["bench", "--help"]] {
        let mut bounded = Command::new("timeout");
        bounded.arg("60").arg(&installed).args(args).stdout(std::process::Stdio::null());
        run_program(&mut bounded, &format!("{} {}", installed.display(), args.join(" ")))?;
    }
    Ok(None)
}

/// Unpack a package into a folder.
fn unpack(package: &str, folder: &Path) -> Result<(), String> {
    let archive = target_dir().join("package").join(format!("{package}-{VERSION}.crate"));
    // All files in packages have the same time, so cargo would not see that a file has changed. `-m` gives each the present time.
    run_program(Command::new("tar").arg("-xmzf").arg(archive).arg("-C").arg(folder), "tar")
}

//! The crates to embed, as their users get them: with any features, from a registry, with an API that changes on purpose.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::api;
use crate::command::{cargo, run as run_program, target_dir};
use crate::summary::Report;

/// Packages whose features are checked alone, with the features.
const FEATURES: [(&str, &[&str]); 3] = [
    ("paradisk-disk-formats", &["", "conformance", "io-uring", "vhd", "vhdx"]),
    ("paradisk-devices", &["", "buslogic", "event-loop", "ide", "lsi", "pvscsi", "virtio", "vmbus"]),
    ("paradisk-serve", &["", "nbd", "tls", "vfio-user", "vhost-user-blk"]),
];
/// Packages that others embed, in the order to publish them in.
const EMBEDDED: [&str; 2] = ["paradisk-disk-formats", "paradisk-devices"];
/// All that can be published.
const PACKAGES: [&str; 4] = ["paradisk-disk-formats", "paradisk-devices", "paradisk-vmm", "paradisk-serve"];
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

/// What is checked, and how: why it was skipped, if so, or what failed.
type Check = (&'static str, fn() -> Result<Option<String>, String>);

const CHECKS: [Check; 3] = [("features", features), ("packages", packages), ("public API", api::check)];

/// Run them all; all run, also after one has failed.
pub(crate) fn run(report: &mut Report) {
    for (name, check) in CHECKS {
        report.check(name, check);
    }
}

/// Run them, and nothing else.
///
/// # Errors
/// What failed.
pub(crate) fn check() -> Result<(), String> {
    let mut report = Report::default();
    run(&mut report);
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

/// Package the crates, and use what came out of it in a crate outside of the workspace.
fn packages() -> Result<Option<String>, String> {
    let mut args = vec!["package", "--quiet", "--no-verify", "--offline", "--allow-dirty"];
    args.extend(PACKAGES.iter().flat_map(|package| ["--package", package]));
    cargo(Path::new("."), &args, &[])?;
    let folder = target_dir().join("embedder");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(folder.join("src/bin")).map_err(failed)?;
    let version = env!("CARGO_PKG_VERSION");
    let mut manifest =
        String::from("[package]\nname = \"embedder\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]");
    manifest += DEPENDENCIES;
    let mut patches = String::from("\n[patch.crates-io]\n");
    for package in EMBEDDED {
        let name = format!("{package}-{version}");
        let archive = target_dir().join("package").join(format!("{name}.crate"));
        // Files in packages all have one time, by which cargo would not see that they have changed: they get that of now.
        run_program(Command::new("tar").arg("-xmzf").arg(archive).arg("-C").arg(&folder), "tar")?;
        manifest += &format!("{package} = \"{version}\"\n");
        patches += &format!("{package} = {{ path = \"{name}\" }}\n");
    }
    fs::write(folder.join("Cargo.toml"), manifest + &patches).map_err(failed)?;
    fs::copy("Cargo.lock", folder.join("Cargo.lock")).map_err(failed)?;
    for (package, example) in EXAMPLES {
        let from = folder.join(format!("{package}-{version}/examples/{example}.rs"));
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

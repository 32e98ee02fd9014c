//! The package, installed by dpkg in a minimal Debian: the program runs, manual pages and completions are valid.

use std::fs;
use std::path::Path;

use guest_linux::{DebianRoot, Error};
use serde_json::Value;

use super::contents::{COMPLETIONS, DOC, USERS};
use super::identity::{NAME, VERSION};
use super::{package, time, unit};
use crate::command::{output, target_dir};
use crate::nextest::built;

/// Prints the completions of `paradisk serve vho` in bash.
const COMPLETE: &str = "source /usr/share/bash-completion/completions/paradisk
COMP_WORDS=(paradisk serve vho) COMP_CWORD=2
_paradisk paradisk vho serve
echo \"${COMPREPLY[*]}\"";

/// Level of compression for a program with all that debugging needs.
const FAST: u8 = 0;

/// Package the program of the tests twice, and install it.
pub(crate) fn check() -> Result<Option<String>, String> {
    if let Err(error) = output("dpkg-deb", &["--version"]) {
        return Ok(Some(error));
    }
    let program = built(NAME);
    let folders = ["debian/check", "debian/again"].map(|name| target_dir().join(name));
    let time = time()?;
    let [deb, again] = folders.each_ref().map(|folder| package(&program, folder, time, FAST));
    let (deb, again) = (deb?, again?);
    let bytes = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    if bytes(&deb)? != bytes(&again)? {
        return Err(format!("{} and {} differ", deb.display(), again.display()));
    }
    let root = match DebianRoot::new() {
        Ok(root) => root,
        Err(error) => return Ok(Some(error.to_string())),
    };
    if let Err(error) = root.run(&["true"]) {
        return Ok(Some(format!("a root folder of its own: {error}")));
    }
    fs::copy(&deb, root.path().join("paradisk.deb")).map_err(|error| error.to_string())?;
    in_root(&root)
}

/// What this machine lacks, if it lacks something.
fn in_root(root: &DebianRoot) -> Result<Option<String>, String> {
    let run = |program: &[&str]| root.run(program).map_err(|error: Error| error.to_string());
    let expect = |what: &str, found: &str, expected: &str| {
        if found.contains(expected) {
            Ok(())
        } else {
            Err(format!("{what}: `{expected}` is not in: {found}"))
        }
    };
    run(&["dpkg", "--install", "/paradisk.deb"])?;
    expect("dpkg", &run(&["dpkg-query", "--show", NAME])?, VERSION)?;
    let verified = run(&["dpkg", "--verify", NAME])?;
    if !verified.is_empty() {
        return Err(format!("dpkg --verify: {verified}"));
    }
    expect("--version", &run(&[NAME, "--version"])?, concat!("paradisk ", env!("CARGO_PKG_VERSION")))?;

    run(&[NAME, "image", "create", "/disk.vhdx", "--format", "vhdx", "--size", "64M"])?;
    let info = run(&[NAME, "image", "info", "/disk.vhdx", "--json"])?;
    let info: Value = serde_json::from_str(&info).map_err(|error| format!("image info: {error}: {info}"))?;
    if info.to_string().contains("67108864") {
        run(&[NAME, "image", "check", "/disk.vhdx"])?;
    } else {
        return Err(format!("image info: {info}"));
    }

    let pages = run(&["find", "/usr/share/man/man1", "-name", "paradisk*.1.gz"])?;
    expect("manual pages", &pages, "/paradisk-serve-vhost-user-blk.1.gz")?;
    for page in pages.lines() {
        // Warnings of all kinds are printed, and nothing else.
        let script = format!("zcat {page} | groff -ww -mandoc -Tutf8 -z 2>&1");
        let warnings = run(&["sh", "-c", &script])?;
        if !warnings.is_empty() {
            return Err(format!("{page}: {warnings}"));
        }
    }
    expect("man -w", &run(&["man", "-w", "paradisk-image-create"])?, "paradisk-image-create.1.gz")?;

    for (shell, path) in COMPLETIONS {
        run(&[shell, "-n", &format!("/{path}")])?;
    }
    expect("completion", &run(&["bash", "-c", COMPLETE])?, "vhost-user-blk")?;

    let units = ["socket", "service"].map(|kind| format!("/{DOC}/examples/paradisk-disk@.{kind}"));
    let verify = format!("systemd-analyze verify --man=no {} 2>&1", units.join(" "));
    let warnings = run(&["sh", "-c", &verify])?;
    if !warnings.is_empty() {
        return Err(format!("systemd-analyze verify: {warnings}"));
    }

    let description = "/usr/share/qemu/vhost-user/50-paradisk-blk.json";
    let described = run(&["cat", description])?;
    let described: Value =
        serde_json::from_str(&described).map_err(|error| format!("{description}: {error}"))?;
    let binary = described["binary"].as_str().unwrap_or_default();
    let capabilities = run(&[binary, "--print-capabilities"])?;
    let capabilities: Value =
        serde_json::from_str(&capabilities).map_err(|error| format!("--print-capabilities: {error}"))?;
    if capabilities["type"] != described["type"] {
        return Err(format!("{description} and --print-capabilities differ in their type"));
    }

    let lacking = unit::check(root)?;
    run(&["dpkg", "--purge", NAME])?;
    for path in ["usr/bin/paradisk", DOC, "usr/libexec/paradisk", USERS] {
        if root.path().join(path).exists() {
            return Err(format!("/{path} is left when the package is purged"));
        }
    }
    Ok(lacking)
}

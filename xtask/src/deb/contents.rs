//! The files of the package.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::depends;
use super::identity::{ARCHITECTURE, NAME, VERSION};
use crate::command::{output, run};

const PACKAGING: &str = "packaging";
pub(super) const DOC: &str = "usr/share/doc/paradisk";
const MAN: &str = "usr/share/man/man1";
/// The program that starts the vhost-user back end, and its description.
const BACK_END: &str = "usr/libexec/paradisk/vhost-user-blk";
const DESCRIPTION: &str = "usr/share/qemu/vhost-user/50-paradisk-blk.json";
/// The user and the group of the example units.
pub(super) const USERS: &str = "usr/lib/sysusers.d/paradisk.conf";
/// Shells, and where Debian has the completions of packages for each.
pub(super) const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/paradisk"),
    ("fish", "usr/share/fish/vendor_completions.d/paradisk.fish"),
    ("zsh", "usr/share/zsh/vendor-completions/_paradisk"),
];
/// Write all files of the package into `tree`, and the control file.
pub(super) fn fill(tree: &Path, program: &Path, time: u64) -> Result<(), String> {
    let installed = tree.join("usr/bin").join(NAME);
    copy(program, &installed)?;
    make_executable(&installed)?;
    let sections = ["--strip-all", "--remove-section=.comment", "--remove-section=.note"];
    run(Command::new("strip").args(sections).arg(&installed), "strip")?;
    for (shell, path) in COMPLETIONS {
        write(&tree.join(path), &generated(program, &["completions", shell])?)?;
    }
    manual(&tree.join(MAN), program)?;
    let packaging = Path::new(PACKAGING);
    copy(&packaging.join("vhost-user-blk"), &tree.join(BACK_END))?;
    make_executable(&tree.join(BACK_END))?;
    copy(&packaging.join("50-paradisk-blk.json"), &tree.join(DESCRIPTION))?;
    copy(&packaging.join("sysusers.conf"), &tree.join(USERS))?;
    documentation(&tree.join(DOC), time)?;
    control(tree, &installed)
}

/// What the program prints.
fn generated(program: &Path, args: &[&str]) -> Result<String, String> {
    let failed = |how: String| format!("{} {}: {how}", program.display(), args.join(" "));
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr))));
    }
    String::from_utf8(output.stdout).map_err(|error| failed(error.to_string()))
}

fn manual(folder: &Path, program: &Path) -> Result<(), String> {
    create(folder)?;
    generated(program, &["man", &folder.display().to_string()])?;
    for page in files(folder)? {
        compress(&page)?;
    }
    Ok(())
}

fn documentation(folder: &Path, time: u64) -> Result<(), String> {
    copy(Path::new("README.md"), &folder.join("README.md"))?;
    // Not the lists of the public API.
    for document in files(Path::new("docs"))?.iter().filter(|path| path.is_file()) {
        copy(document, &folder.join("docs").join(document.file_name().unwrap_or_default()))?;
    }
    for example in files(&Path::new(PACKAGING).join("examples"))? {
        copy(&example, &folder.join("examples").join(example.file_name().unwrap_or_default()))?;
    }
    copy(Path::new("CHANGELOG.md"), &folder.join("changelog"))?;
    compress(&folder.join("changelog"))?;
    write(&folder.join("changelog.Debian"), &changelog(time)?)?;
    compress(&folder.join("changelog.Debian"))?;
    write(&folder.join("third-party-licenses"), &third_party()?)?;
    compress(&folder.join("third-party-licenses"))?;
    write(&folder.join("copyright"), &copyright()?)
}

/// Name and address of the person who makes the package, from the variables that Debian's own tools read.
pub(super) fn maintainer() -> Option<(String, String)> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    variable("DEBFULLNAME").zip(variable("DEBEMAIL"))
}

/// The fields of the control file that are not computed.
fn fixed_fields() -> Result<String, String> {
    let fields = read(&Path::new(PACKAGING).join("control"))?;
    let Some((name, address)) = maintainer() else { return Ok(fields) };
    let lines = fields.lines().map(|line| match line.starts_with("Maintainer: ") {
        true => format!("Maintainer: {name} <{address}>\n"),
        false => format!("{line}\n"),
    });
    Ok(lines.collect())
}

/// Debian's changelog: of the package, not of the program.
fn changelog(time: u64) -> Result<String, String> {
    let date = output("date", &["--utc", "--rfc-email", &format!("--date=@{time}")])?;
    let control = fixed_fields()?;
    let maintainer = control.lines().find_map(|line| line.strip_prefix("Maintainer: "));
    let maintainer = maintainer.ok_or_else(|| format!("{PACKAGING}/control: no Maintainer"))?;
    Ok(format!(
        "{NAME} ({VERSION}) unstable; urgency=medium\n\n  * The changes of the program are in changelog.gz.\n\n -- {maintainer}  {date}"
    ))
}

/// The licences of the program.
fn copyright() -> Result<String, String> {
    let mut text = read(&Path::new(PACKAGING).join("copyright"))?;
    text += "License: BSD-3-Clause\n";
    // After the line of the copyright.
    for line in read(Path::new("LICENSE-BSD-3-Clause"))?.lines().skip(2) {
        text += &if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") };
    }
    text +=
        "Comment:\n The program contains crates of crates.io: third-party-licenses.gz has their licences.\n";
    Ok(text)
}

/// The crates that are linked into the program, and their licences.
fn third_party() -> Result<String, String> {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    let tree =
        ["tree", "--package", NAME, "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let tree = output(&cargo, &tree)?;
    // A line is `name vVERSION` and marks. The lines of this workspace's crates have a path, too.
    let linked: BTreeSet<String> = tree
        .lines()
        .filter(|line| !line.contains(" (/"))
        .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" v").replace(" vv", " v"))
        .collect();
    let metadata = output(&cargo, &["metadata", "--format-version", "1", "--locked"])?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let mut text = String::new();
    let mut found = 0;
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let field = |name: &str| package[name].as_str().unwrap_or_default();
        let name = format!("{} v{}", field("name"), field("version"));
        if !linked.contains(&name) {
            continue;
        }
        found += 1;
        text += &format!("==== {name}: {}\n\n", field("license"));
        let folder = Path::new(field("manifest_path")).parent().unwrap_or(Path::new("."));
        for file in files(folder)?.iter().filter(|path| is_licence(path)) {
            text += &format!("{}\n", read(file)?);
        }
    }
    if found != linked.len() || found == 0 {
        return Err(format!("cargo metadata has {found} of the {} crates of cargo tree", linked.len()));
    }
    Ok(text)
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    let beginnings = ["COPYING", "COPYRIGHT", "LICENCE", "LICENSE", "NOTICE", "UNLICENSE"];
    path.is_file() && beginnings.iter().any(|beginning| name.starts_with(beginning))
}

/// The control file and the sums of the others.
fn control(tree: &Path, installed: &Path) -> Result<(), String> {
    let mut paths = Vec::new();
    walk(tree, &mut paths)?;
    paths.sort();
    let sizes = paths.iter().map(|path| fs::metadata(path).map_or(0, |found| found.len().div_ceil(1024)));
    let size: u64 = sizes.sum();
    let mut sums = String::new();
    for path in &paths {
        let sum = output("md5sum", &["--binary", &path.display().to_string()])?;
        let sum = sum.split_whitespace().next().unwrap_or_default();
        let name = path.strip_prefix(tree).unwrap_or(path);
        sums += &format!("{sum}  {}\n", name.display());
    }
    let depends = depends::of(installed)?;
    let fixed = fixed_fields()?;
    let fields = format!(
        "Version: {VERSION}\nArchitecture: {ARCHITECTURE}\nInstalled-Size: {size}\nDepends: {depends}\nDescription:"
    );
    write(&tree.join("DEBIAN/control"), &fixed.replacen("Description:", &fields, 1))?;
    write(&tree.join("DEBIAN/md5sums"), &sums)
}

fn walk(folder: &Path, paths: &mut Vec<std::path::PathBuf>) -> Result<(), String> {
    for path in files(folder)? {
        if path.is_dir() { walk(&path, paths)? } else { paths.push(path) }
    }
    Ok(())
}

/// Compress a file. The result contains neither its name nor a time.
fn compress(path: &Path) -> Result<(), String> {
    run(Command::new("gzip").args(["-9", "--no-name"]).arg(path), "gzip")
}

fn files(folder: &Path) -> Result<Vec<std::path::PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        files.push(entry.map_err(failed)?.path());
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn create(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    create(path.parent().unwrap_or(path))?;
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    create(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map_err(|error| format!("{}: {error}", from.display()))?;
    // Whatever the mode of the file in the sources.
    fs::set_permissions(to, PermissionsExt::from_mode(0o644))
        .map_err(|error| format!("{}: {error}", to.display()))
}

fn make_executable(path: &Path) -> Result<(), String> {
    fs::set_permissions(path, PermissionsExt::from_mode(0o755))
        .map_err(|error| format!("{}: {error}", path.display()))
}

//! The public API of the crates to embed, as text: one line an item, kept in `docs/api`, so that a change of it is seen.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{fs, io};

use crate::command::{cargo, output, target_dir};

/// Packages, with the names of their libraries.
const CRATES: [(&str, &str); 2] =
    [("paradisk-disk-formats", "paradisk_disk_formats"), ("paradisk-devices", "paradisk_devices")];

/// Write the lists anew.
///
/// # Errors
/// What cannot be run, read or written.
pub(crate) fn write() -> Result<(), String> {
    document()?;
    for (package, library) in CRATES {
        let path = list(package);
        fs::write(&path, current(package, library)?).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

/// The Rust whose rustdoc's JSON can be read: the format changes from one to the next.
const RUST: &str = "1.95.";

/// Compare the lists with what they were when they were last written; or say why not.
///
/// # Errors
/// What has changed, or what cannot be run or read.
pub(crate) fn check() -> Result<Option<String>, String> {
    let rust = output("rustdoc", &["--version"])?;
    if rust.split_whitespace().nth(1).is_none_or(|version| !version.starts_with(RUST)) {
        return Ok(Some(format!("the lists are made with Rust {RUST}x, this is {}", rust.trim_end())));
    }
    document()?;
    let mut changed = false;
    for (package, library) in CRATES {
        let path = list(package);
        let known = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let differences = difference(&known, &current(package, library)?);
        differences.iter().for_each(|line| println!("{package}: {line}"));
        changed |= !differences.is_empty();
    }
    match changed {
        true => Err("the public API has changed: where that is meant, run `cargo xtask api`".into()),
        false => Ok(None),
    }
}

fn list(package: &str) -> String {
    format!("docs/api/{package}.txt")
}

/// Removed lines, then added lines.
fn difference(known: &str, now: &str) -> Vec<String> {
    let (known, now) = (known.lines().collect::<BTreeSet<_>>(), now.lines().collect::<BTreeSet<_>>());
    let gone = known.difference(&now).map(|line| format!("- {line}"));
    gone.chain(now.difference(&known).map(|line| format!("+ {line}"))).collect()
}

/// Make the documentation of the workspace, without warnings; and of [`CRATES`] in JSON, too.
///
/// # Errors
/// Warnings, or what cannot be run or written.
pub(crate) fn document() -> Result<(), String> {
    let rustdoc = target_dir().join("xtask-rustdoc");
    twofold_rustdoc(&rustdoc).map_err(|error| format!("{}: {error}", rustdoc.display()))?;
    let args = ["doc", "--workspace", "--all-features", "--no-deps", "--quiet"];
    let environment = [("RUSTDOC", rustdoc.as_os_str()), ("RUSTDOCFLAGS", "-D warnings".as_ref())];
    cargo(Path::new("."), &args, &environment)
}

/// The API as [`document`] has found it.
fn current(package: &str, library: &str) -> Result<String, String> {
    let path = target_dir().join("doc").join(library).with_extension("json");
    let api = public_api::Builder::from_rustdoc_json(path).omit_blanket_impls(true).build();
    let api = api.map_err(|error| format!("{package}: {error} (the lists are made with Rust {RUST}x)"))?;
    let items: Vec<String> = api.items().map(ToString::to_string).collect();
    Ok(condense(items.iter().map(String::as_str)))
}

/// A rustdoc that writes JSON, too, which is unstable. RUSTC_BOOTSTRAP is set for rustdoc alone, so cargo does not build dependencies again.
fn twofold_rustdoc(path: &Path) -> io::Result<()> {
    let libraries = CRATES.map(|(_, library)| format!("*' {library} '*")).join("|");
    fs::create_dir_all(target_dir())?;
    fs::write(
        path,
        format!(
            "#!/bin/sh\nrustdoc \"$@\" || exit\n\
             case \" $* \" in\n{libraries}) RUSTC_BOOTSTRAP=1 exec rustdoc \"$@\" -Z unstable-options --output-format json ;;\nesac\n"
        ),
    )?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Traits that the compiler implements. The lists leave them out; they only say where a type lacks `Send` or `Sync`.
const AUTOMATIC: [&str; 7] =
    ["Freeze", "RefUnwindSafe", "Send", "StructuralPartialEq", "Sync", "Unpin", "UnwindSafe"];

/// A line about the implementation of a trait.
struct Implementation<'a> {
    /// Path of the trait, `!` before it where it is not implemented.
    of: &'a str,
    /// The type.
    by: &'a str,
}

impl<'a> Implementation<'a> {
    fn parse(item: &'a str) -> Option<Self> {
        let (head, by) = item.strip_prefix("impl")?.split_once(" for ")?;
        // Parameters of the implementation end where a space follows.
        let of = head.rsplit_once("> ").map_or(head, |(_, of)| of).trim_start();
        Some(Self { of, by: by.split(" where ").next().unwrap_or(by) })
    }

    fn name(&self) -> &'a str {
        self.of.rsplit("::").next().unwrap_or(self.of)
    }

    /// A trait of the standard library, without parameters.
    fn is_plain(&self) -> bool {
        ["core::", "alloc::", "std::"].iter().any(|root| self.of.starts_with(root)) && !self.of.contains('<')
    }

    fn is_noise(&self) -> bool {
        match self.of.starts_with('!') {
            true => !["Send", "Sync"].contains(&self.name()),
            false => AUTOMATIC.contains(&self.name()) || self.name() == "UnsafeUnpin",
        }
    }
}

/// One line for each item. Items that a trait declares are not repeated for its implementations. A type has one line for all traits of the
/// standard library without parameters.
fn condense<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut known = HashSet::new();
    let mut plain: HashMap<&str, usize> = HashMap::new();
    let mut implementor = None;
    for item in items {
        let Some(found) = Implementation::parse(item) else {
            if item.starts_with("impl") {
                implementor = None;
            } else if (item.starts_with("pub type ")
                || implementor.as_ref().is_none_or(|by: &String| !item.contains(by)))
                && known.insert(item)
            {
                lines.push(item.to_owned());
            }
            continue;
        };
        implementor = Some(format!(" {}::", found.by));
        if found.is_noise() || !known.insert(item) {
            continue;
        }
        match plain.get(found.by).and_then(|at| lines.get_mut(*at)) {
            Some(line) if found.is_plain() => {
                line.push_str(" + ");
                line.push_str(found.name());
            }
            _ if found.is_plain() => {
                plain.insert(found.by, lines.len());
                lines.push(format!("impl for {}: {}", found.by, found.name()));
            }
            _ => lines.push(item.to_owned()),
        }
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEMS: [&str; 16] = [
        "pub mod a",
        "pub struct a::B<T>",
        "impl<T: core::marker::Send> a::B<T>",
        "pub fn a::B<T>::open(&self)",
        "impl<T> core::clone::Clone for a::B<T>",
        "pub fn a::B<T>::clone(&self) -> Self",
        "impl<T> core::marker::Send for a::B<T> where T: core::marker::Send",
        "impl<T> !core::marker::Sync for a::B<T>",
        "impl<T> core::marker::Copy for a::B<T>",
        "impl<T> a::Disk for a::B<T>",
        "pub fn a::B<T>::read(&self)",
        "pub fn a::make() -> a::B<u8>",
        "pub mod a::spec",
        "pub const a::spec::MAGIC: u8",
        "impl<T> core::clone::Clone for a::B<T>",
        "impl core::convert::From<a::E> for a::F",
    ];

    #[test]
    fn a_list_has_one_line_for_each_thing() {
        let lines = [
            "pub mod a",
            "pub struct a::B<T>",
            "pub fn a::B<T>::open(&self)",
            "impl for a::B<T>: Clone + Copy",
            "impl<T> !core::marker::Sync for a::B<T>",
            "impl<T> a::Disk for a::B<T>",
            "pub fn a::make() -> a::B<u8>",
            "pub mod a::spec",
            "pub const a::spec::MAGIC: u8",
            "impl core::convert::From<a::E> for a::F",
        ];
        assert_eq!(condense(ITEMS.into_iter()).lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn a_difference_tells_what_went_and_what_came() {
        assert_eq!(difference("a\nb\n", "b\nc\n"), ["- a", "+ c"]);
        assert!(difference("a\nb\n", "b\na\n").is_empty());
    }
}

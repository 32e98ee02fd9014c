//! The import graph of each crate of the workspace, read from its source: no modules import each other in a circle, and no module
//! imports through the crate's root what another module owns. Such an import names the owner: `crate::memory::GuestMemory`. In the crates of
//! [`ORDERS`], no folder imports one that is right of it.
//!
//! A node is a source file; inline modules belong to their file. An edge is a path that leads from one file into another: in a private
//! `use`, or in code. A re-export (`pub use`, `pub(crate) use`) is an edge only if its own file uses the name. Test modules are not
//! looked at. Arguments of macros are checked if they are expressions.

mod graph;
mod source;

use std::path::{Path, PathBuf};

use serde::Deserialize;

use self::graph::circles;
use self::source::{Crate, SourceError};
use crate::command::output;

/// Kinds of cargo's targets whose source is checked; the others are tests, examples and benchmarks.
const KINDS: [&str; 2] = ["lib", "bin"];

/// Packages whose folders have an order: each may import those left of it alone.
const ORDERS: [(&str, &[&str]); 1] =
    [("paradisk-disk-formats", &["contract", "host", "map", "formats", "queue", "disk", "image"])];

/// What `cargo metadata` prints, as far as it is of use here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

/// # Errors
/// What is wrong with the imports of each crate, a line for each finding.
pub(crate) fn check() -> Result<Option<String>, String> {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    let metadata = output(&cargo, &["metadata", "--no-deps", "--offline", "--format-version", "1"])?;
    let metadata: Metadata =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let mut wrong = String::new();
    for package in &metadata.packages {
        let checked = |target: &&Target| target.kind.iter().any(|kind| KINDS.contains(&kind.as_str()));
        let order = ORDERS.iter().find(|(name, _)| *name == package.name).map_or(&[][..], |(_, order)| order);
        for target in package.targets.iter().filter(checked) {
            for finding in findings_of(&target.src_path, order).map_err(|error| error.to_string())? {
                wrong.push_str(&format!("\n  {}: {finding}", package.name));
            }
        }
    }
    if wrong.is_empty() { Ok(None) } else { Err(wrong) }
}

/// What is wrong with the imports of the crate whose root is the file `root`, and whose folders have this order.
fn findings_of(root: &Path, order: &[&str]) -> Result<Vec<String>, SourceError> {
    let source = Crate::read(root)?;
    let mut findings = source.through_root();
    findings.extend(source.upward(order));
    for circle in circles(&source.edges()) {
        let names: Vec<_> = circle.iter().map(|node| source.name(*node)).collect();
        findings.push(format!("circle of {}", names.join(", ")));
        findings.extend(source.edges_within(&circle).map(|edge| format!("  {edge}")));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests;

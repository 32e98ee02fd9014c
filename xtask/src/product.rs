//! `paradisk` without its feature `bench` (`run`, `image`, `serve`, `ctl`): it compiles without warnings, and neither the meter nor
//! the test guests are among its dependencies.

use std::path::Path;

use crate::command::{cargo, output};

const LINTS: &[&str] = &[
    "clippy",
    "--quiet",
    "--package",
    "paradisk",
    "--no-default-features",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];
const TREE: &[&str] =
    &["tree", "--package", "paradisk", "--no-default-features", "--edges", "normal", "--prefix", "none"];
/// How the names of packages begin that are for tests and measurements.
const NOT_PRODUCT: [&str; 2] = ["paradisk-benches", "paradisk-guest-"];

/// Its lints, for which nearly everything is compiled anew.
///
/// # Errors
/// The program does not compile without the feature, or a lint warns.
pub(crate) fn lints() -> Result<Option<String>, String> {
    cargo(Path::new("."), LINTS, &[]).map(|()| None)
}

/// # Errors
/// The program depends on a package of tests or measurements.
pub(crate) fn dependencies() -> Result<Option<String>, String> {
    let tree = output(&std::env::var("CARGO").unwrap_or("cargo".into()), TREE)?;
    depends_on_product_only(&tree)?;
    Ok(None)
}

/// `tree`: a line for each package, the first of them `paradisk`.
fn depends_on_product_only(tree: &str) -> Result<(), String> {
    if !tree.starts_with("paradisk ") {
        return Err(format!(
            "cargo {}: expected a line for each package, the first paradisk",
            TREE.join(" ")
        ));
    }
    match tree.lines().find(|line| NOT_PRODUCT.iter().any(|prefix| line.starts_with(prefix))) {
        Some(package) => Err(format!("without the feature `bench`, paradisk depends on {package}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_of_tests_in_the_tree_is_named() {
        let tree = "paradisk v0.1.0 (/w)\nparadisk-vmm v0.1.0 (/w/vmm)\n";
        assert_eq!(depends_on_product_only(tree), Ok(()));
        for package in
            ["paradisk-benches v0.1.0 (/w/benches)", "paradisk-guest-tests v0.1.0 (/w/guest-tests)"]
        {
            let error = depends_on_product_only(&format!("{tree}{package}\n")).unwrap_err();
            assert!(error.contains(package), "{error}");
        }
        assert!(depends_on_product_only("").is_err());
    }
}

//! Licences, versions and sources of the dependencies, by cargo-deny: `deny.toml` says what is allowed, and why.

use std::process::Command;

use crate::command::run;
use crate::tools::DENY;

/// # Errors
/// What is not allowed has been printed.
pub(crate) fn check() -> Result<Option<String>, String> {
    let mut deny = Command::new(DENY.path()?);
    deny.args(["--offline", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
    run(&mut deny, "cargo deny").map(|()| None)
}

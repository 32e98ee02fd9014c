//! The files that a measurement writes.

use std::path::PathBuf;

use benches::result::Document;
use benches::{csv, html};

use super::args::Args;
use crate::failure::Failure;
use crate::output;

/// Write the JSON, CSV and HTML files of the options, with the command and these notes. Returns their paths.
pub(super) fn write_results(
    args: &Args,
    document: &Document,
    notes: &[String],
    name: &str,
) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    let document = Document { command: Some(command()), notes: notes.to_vec(), ..document.clone() };
    output::json(args.json(), &document)?;
    written.extend(args.json().clone().filter(|_| !output::json_on_stdout(args.json())));
    if let Some(path) = &args.csv {
        output::file(path, &csv::render(&document))?;
        written.push(path.clone());
    }
    if let Some(path) = &args.html {
        output::file(path, &html::render(&[(name.to_owned(), document)]))?;
        written.push(path.clone());
    }
    Ok(written)
}

/// The command of this process, for a shell.
pub(super) fn command() -> String {
    let args = std::env::args_os().skip(1).map(|arg| quoted(&arg.to_string_lossy()));
    ["paradisk".to_owned()].into_iter().chain(args).collect::<Vec<_>>().join(" ")
}

/// An argument, quoted for a shell.
fn quoted(arg: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=+,./:@%".contains(&byte);
    if !arg.is_empty() && arg.bytes().all(plain) {
        arg.to_owned()
    } else {
        format!("'{}'", arg.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_where_a_shell_would_change_them() {
        let words = ["--queue-depth", "1,8", "path=/a b", "it's", "", "$HOME"].map(quoted);
        assert_eq!(words, ["--queue-depth", "1,8", "'path=/a b'", "'it'\\''s'", "''", "'$HOME'"]);
    }
}

//! Servers as scripts see them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Start it, and wait for its line.
pub(crate) fn ready(command: &mut Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line)
}

/// It does not start: the exit status, and a part of what it says.
pub(crate) fn refused(command: &mut Command, status: i32, expected: &str) {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(text.contains(expected), "`{expected}` is not in: {text}");
}

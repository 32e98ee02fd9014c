//! Other programs, run without input; what they say is kept for the error.

use std::process::{Command, Stdio};

use crate::error::Error;

/// Lines of output in an error.
const LAST_WORDS: usize = 20;

/// Run it; what it printed to standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, Error> {
    let failed = |how: String, command: &Command| Error::Command { command: format!("{command:?}"), how };
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => return Err(failed(error.to_string(), command)),
    };
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(printed);
    }
    let text = printed + &String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.iter().skip(lines.len().saturating_sub(LAST_WORDS)).copied().collect::<Vec<_>>();
    Err(failed(format!("{}\n{}", output.status, last.join("\n")), command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_or_last_words() {
        assert_eq!(run(Command::new("echo").arg("yes")).unwrap(), "yes\n");
        let error =
            run(Command::new("sh").args(["-c", "seq 100; echo why >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("\n100\nwhy"), "{error}");
        assert!(!error.contains("\n50\n"), "{error}");
        assert!(run(&mut Command::new("no-such-program-anywhere")).is_err());
    }
}

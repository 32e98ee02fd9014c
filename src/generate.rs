//! What packages of this program install beside it, made from the definition of the command line: completions and manual pages.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::failure::Failure;
use crate::output;

/// Print completions of this command line for a shell
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk completions bash > ~/.local/share/bash-completion/completions/paradisk
  paradisk completions fish > ~/.config/fish/completions/paradisk.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), Failure> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

/// Write a manual page of each command into a folder
#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// The folder
    folder: PathBuf,
}

pub(crate) fn man(args: &ManArgs, command: Command) -> Result<(), Failure> {
    // A page about `help` for each group of commands would say nothing.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    pages(&args.folder, &command)
}

/// The page of a command, and those of its subcommands.
fn pages(folder: &Path, command: &Command) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = folder.join(format!("{name}.1"));
    let text = page(command).map_err(|error| Failure::on(&path, "manual page", error))?;
    fs::write(&path, text).map_err(|error| Failure::on(&path, "cannot write", error))?;
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .try_for_each(|each| pages(folder, each))
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let page = Man::new(command.clone());
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        page.render_subcommands_section(&mut text)?;
    }
    // `Man` would fill the lines of examples.
    if let Some(examples) = command.get_after_help() {
        text.extend(unfilled("EXAMPLES", &examples.to_string()).into_bytes());
    }
    if command.get_version().is_some() {
        page.render_version_section(&mut text)?;
    }
    Ok(text)
}

/// A section of lines that stay as they are, without the heading that they have on a terminal.
fn unfilled(heading: &str, lines: &str) -> String {
    let mut text = format!(".SH {heading}\n.nf\n");
    let body = lines.lines().filter(|line| !matches!(*line, "Example:" | "Examples:"));
    for line in body {
        let line = line.strip_prefix("  ").unwrap_or(line).replace('\\', "\\e").replace('-', "\\-");
        // A line of text, whatever it begins with.
        let _ = writeln!(text, "\\&{line}");
    }
    text + ".fi\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_examples_stay_as_they_are() {
        let text = unfilled("EXAMPLES", "Example:\n  a --b \\\n    .c");
        assert_eq!(text, ".SH EXAMPLES\n.nf\n\\&a \\-\\-b \\e\n\\&  .c\n.fi\n");
    }
}

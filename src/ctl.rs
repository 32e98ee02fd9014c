//! `paradisk ctl`: send a command to a running machine or server.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use paradisk_disk_formats::escaped;
use serde_json::Value;

use crate::control::{Command, Reply};
use crate::failure::Failure;
use crate::output;

/// Send a command to a running machine (`paradisk run --control SOCKET`) or server (`paradisk serve nbd|vhost-user-blk|vfio-user --control
/// SOCKET`)
///
/// A machine takes all commands, a server those about the disks that it has.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk ctl vm.socket list
  paradisk ctl vm.socket attach path=data.vhdx,adapter=pvscsi
  paradisk ctl vm.socket detach pvscsi0:1
  paradisk ctl vm.socket resize pvscsi0:0 20G
  paradisk ctl vm.socket coalescing off --adapter pvscsi0
  paradisk ctl vm.socket stats > stats.json
  paradisk ctl disk.socket stats --latency on")]
pub(crate) struct Args {
    /// The control socket
    socket: PathBuf,
    #[command(subcommand)]
    command: Command,
    /// Print the answer as JSON
    #[arg(long, global = true)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::on(&args.socket, "control socket", error);
    let mut stream = UnixStream::connect(&args.socket).map_err(failed)?;
    let mut line = serde_json::to_vec(&args.command).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(stream).take(MOST).read_line(&mut answer).map_err(failed)?;
    let reply = serde_json::from_str(&answer).map_err(|_| {
        let why = if answer.is_empty() { "it closed the connection" } else { "no answer that could be read" };
        Failure::on(&args.socket, "control socket", why)
    })?;
    match reply {
        Reply::Error(why) => Err(Failure::Failed(shown(&why))),
        Reply::Ok(value) if args.json || matches!(args.command, Command::Stats { .. }) => {
            output::json(&Some("-".into()), &value)
        }
        Reply::Ok(value) => output::print(&text(&args.command, &value)),
    }
}

/// Longest answer in bytes.
const MOST: u64 = 16 << 20;

/// Text of the server, of one line or more, without characters that a terminal acts on.
fn shown(text: &str) -> String {
    text.lines().map(|line| escaped(line).to_string()).collect::<Vec<_>>().join("\n")
}

/// The answer as text.
fn text(command: &Command, value: &Value) -> String {
    let field = |disk: &Value, name: &str| match disk.get(name) {
        Some(Value::String(text)) => escaped(text).to_string(),
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => escaped(&other.to_string()).to_string(),
    };
    match (command, value) {
        (Command::List, Value::Array(disks)) if disks.is_empty() => "no disks\n".to_owned(),
        (Command::List, Value::Array(disks)) => {
            let mut lines = format!("{:<16} {:<14} {:>16}  {}\n", "disk", "format", "capacity", "path");
            for disk in disks {
                let format = match disk.get("subformat").and_then(Value::as_str) {
                    Some(kind) => format!("{} {}", field(disk, "format"), escaped(kind)),
                    None => field(disk, "format"),
                };
                lines += &format!(
                    "{:<16} {format:<14} {:>16}  {}\n",
                    field(disk, "id"),
                    field(disk, "capacity"),
                    field(disk, "path")
                );
            }
            lines
        }
        (Command::Attach { .. }, Value::String(id)) => format!("{}\n", escaped(id)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whoever listens at the path of a control socket may send anything.
    #[test]
    fn no_answer_controls_the_terminal() {
        const EVIL: &str = "a\u{1b}[2J\u{9b}2J\r\u{202e}b\nc";
        let disk = json!({ "id": EVIL, "format": EVIL, "subformat": EVIL, "capacity": [EVIL], "path": EVIL });
        let listed = text(&Command::List, &json!([disk]));
        let attached = text(&Command::Attach { disk: String::new() }, &json!(EVIL));
        assert_eq!((listed.lines().count(), attached.lines().count()), (2, 1), "{listed}");
        let printed = [listed, attached, shown(EVIL)];
        let acts = |character: char| character.is_control() && character != '\n' || character == '\u{202e}';
        assert!(!printed.iter().any(|text| text.contains(acts)), "{printed:?}");
        let json = output::text(&json!([EVIL])).unwrap();
        assert!(!json.contains(|character: char| character.is_control() && character != '\n'), "{json:?}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), json!([EVIL]));
    }
}

//! The control socket of `paradisk run` and `paradisk serve`, with any client; and the parsers of disks, sizes and policies in its
//! commands.
//!
//! The input is what a client sends. Where the first byte is even, it is text, and `{"command":` comes before it.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use facts::names::{Adapter, Coalescing};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::folder::temporary;
use crate::units;
use product::control::server::{Listener, PendingCommand, Server};
use product::control::{Command, Reply};
use product::disk_spec::DiskSpec;

/// Parts of the command line's source, which has no library. In a macro, since `cargo xtask imports` does not know folders of inline modules.
macro_rules! product {
    () => {
        #[allow(
            dead_code,
            unexpected_cfgs,
            unused_imports,
            unused_macros,
            reason = "the command line uses the rest"
        )]
        #[path = "../../../src"]
        mod product {
            pub(crate) mod control;
            pub(crate) mod disk_spec;
        }
    };
}
product!();

struct Rig {
    _folder: TempDir,
    _server: Server,
    path: PathBuf,
}

fn rig() -> Rig {
    let folder = temporary();
    let path = folder.path().join("socket");
    let Ok(listener) = Listener::bind(&path) else { panic!("no socket") };
    let server = listener.serve(|pending: PendingCommand| {
        let done = execute(&pending.command);
        pending.answer(done)
    });
    Rig { _folder: folder, _server: server.expect("a server"), path }
}

fn execute(command: &Command) -> Result<Value, String> {
    match command {
        Command::Attach { disk } => disk.parse::<DiskSpec>().map(|spec| json!(spec.source.to_string())),
        Command::Resize { size, .. } => units::size(size).map(Value::from),
        Command::Coalescing { policy, adapter } => {
            if let Some(adapter) = adapter {
                let _ = adapter.parse::<Adapter>();
            }
            policy.parse::<Coalescing>().map(|_| Value::Null).map_err(|error| error.to_string())
        }
        _ => Ok(Value::Null),
    }
}

thread_local! {
    // Not in a static: its folder is removed when the thread ends.
    static RIG: Rig = rig();
}

pub(crate) fn run(data: &[u8]) {
    RIG.with(|rig| run_with(rig, data));
}

fn run_with(rig: &Rig, data: &[u8]) {
    let [first, data @ ..] = data else { return };
    let mut stream = UnixStream::connect(&rig.path).expect("a server");
    let start = if first & 1 == 0 { &b"{\"command\":"[..] } else { &[] };
    // Fails if the server has disconnected.
    let _ = stream.write_all(&[start, data].concat());
    let _ = stream.shutdown(Shutdown::Write);
    let mut answers = Vec::new();
    if stream.read_to_end(&mut answers).is_ok() {
        // A line for each command, and the last one is whole.
        assert!(answers.is_empty() || answers.ends_with(b"\n"));
        for line in answers.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            serde_json::from_slice::<Reply>(line).expect("an answer");
        }
    }
}

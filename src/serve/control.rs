//! The control socket of a server: what its disks are, and that they grow.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;

use benches::subject::Subject;
use serde_json::{Value, json};

use crate::control::server::{Asked, Server};
use crate::control::{Command, Reply};
use crate::failure::Failure;
use crate::{disk, units};

/// What a server's control socket reaches.
pub(super) struct Control {
    /// Disks, and what users call them.
    pub(super) disks: Vec<(String, Subject)>,
    /// Has the server look at the capacities of its disks.
    pub(super) refresh: Box<dyn Fn() + Send + Sync>,
    /// A byte here ends the server.
    pub(super) end: UnixStream,
}

impl Control {
    /// Take commands at `path`, if there is one.
    pub(super) fn listen(self, path: Option<&Path>) -> Result<Option<Server>, Failure> {
        let listen = |path: &Path| {
            let obey = move |Asked { command, answer, .. }: Asked| {
                answer.send(Reply::from(self.obey(command))).is_ok()
            };
            Server::start(path, obey).map_err(|error| Failure::on(path, "control socket", error))
        };
        path.map(listen).transpose()
    }

    fn obey(&self, command: Command) -> Result<Value, String> {
        match command {
            Command::List => {
                let listed = |(id, subject): &(String, Subject)| {
                    let facts = subject.facts();
                    json!({
                        "id": id,
                        "serial": subject.serial,
                        "format": facts.format,
                        "subformat": facts.subformat,
                        "path": facts.path,
                        "capacity": facts.capacity,
                    })
                };
                Ok(self.disks.iter().map(listed).collect())
            }
            Command::Resize { id, size } => {
                let found = self.disks.iter().find(|(name, _)| *name == id);
                let (_, subject) = found.ok_or_else(|| format!("there is no disk `{id}`"))?;
                subject.disk.grow(units::size(&size)?).map_err(|error| error.to_string())?;
                (self.refresh)();
                Ok(json!(id))
            }
            Command::Rescan => {
                let scanned = disk::rescan_all(self.disks.iter().map(|(_, subject)| subject));
                (self.refresh)();
                scanned.map(|()| Value::Null)
            }
            Command::Stop => {
                (&self.end).write_all(&[0]).map_err(|error| error.to_string())?;
                Ok(json!("stopped"))
            }
            Command::Attach { .. } | Command::Detach { .. } | Command::Coalescing { .. } | Command::Stats => {
                Err("a server takes no such command: list, resize, rescan or stop".to_owned())
            }
        }
    }
}

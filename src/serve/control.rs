//! The control socket of a server: what its disks are, and that they grow.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
#[expect(clippy::disallowed_types, reason = "commands are no requests")]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use facts::SCHEMA;
use facts::disk::OpenDisk;
use facts::host::host;
use serde_json::{Value, json};

use crate::control::Command;
use crate::control::server::{Asked, Server};
use crate::failure::Failure;
use crate::{disk, units};

/// What a server's control socket reaches.
pub(super) struct Control {
    /// Disks, and what users call them.
    pub(super) disks: Vec<(String, OpenDisk)>,
    /// Has the server look at the capacities of its disks; none where clients cannot be told of a new capacity.
    pub(super) refresh: Option<Box<dyn Fn() + Send + Sync>>,
    /// A byte here ends the server.
    pub(super) end: UnixStream,
}

/// What obeys while there is something to reach: one command at a time.
#[expect(clippy::disallowed_types, reason = "commands are no requests")]
#[derive(Clone)]
struct Shared(Arc<Mutex<Option<Control>>>);

/// A control socket that takes commands, or none.
pub(super) struct Listening {
    shared: Shared,
    stopped: Receiver<Asked>,
    _server: Option<Server>,
}

impl Listening {
    /// No more commands are taken, and what was reached by them is given back. Who asked for the end waits for an answer.
    pub(super) fn end(self) -> Option<Asked> {
        drop(self.shared.lock().take());
        self.stopped.try_recv().ok()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Control>> {
        // It is only ever taken.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False: nobody waits for the answer.
    fn obey(&self, asked: Asked, stop: &SyncSender<Asked>) -> bool {
        let shared = self.lock();
        let Some(control) = &*shared else { return asked.answer(Err("it is ending".to_owned())) };
        if asked.command != Command::Stop {
            let done = control.obey(&asked.command);
            return asked.answer(done);
        }
        match stop.try_send(asked) {
            // It is found there when the byte is.
            Ok(()) => (&control.end).write_all(&[0]).is_ok(),
            Err(TrySendError::Full(asked) | TrySendError::Disconnected(asked)) => {
                asked.answer(Err("it is ending".to_owned()))
            }
        }
    }
}

impl Control {
    /// Take commands at `path`, if there is one.
    #[expect(clippy::disallowed_types, reason = "commands are no requests")]
    pub(super) fn listen(self, path: Option<&Path>) -> Result<Listening, Failure> {
        let (stop, stopped) = mpsc::sync_channel(1);
        let shared = Shared(Arc::new(Mutex::new(Some(self))));
        let listen = |path: &Path| {
            let shared = shared.clone();
            let obey = move |asked| shared.obey(asked, &stop);
            Server::start(path, obey).map_err(|error| Failure::on(path, "control socket", error))
        };
        let server = path.map(listen).transpose()?;
        Ok(Listening { shared, stopped, _server: server })
    }

    fn refresh(&self) -> Result<&(dyn Fn() + Send + Sync), String> {
        let refresh = self.refresh.as_deref();
        refresh.ok_or_else(|| "clients of this server cannot be told of a new capacity".to_owned())
    }

    fn obey(&self, command: &Command) -> Result<Value, String> {
        match command {
            Command::List => Ok(self.list()),
            Command::Stats => Ok(json!({ "schema": SCHEMA, "host": host(), "disks": self.list() })),
            Command::Resize { id, size } => {
                let refresh = self.refresh()?;
                let found = self.disks.iter().find(|(name, _)| name == id);
                let (_, opened) = found.ok_or_else(|| format!("there is no disk `{id}`"))?;
                opened.disk.grow(units::size(size)?).map_err(|error| error.to_string())?;
                refresh();
                Ok(json!(id))
            }
            Command::Rescan => {
                let refresh = self.refresh()?;
                let scanned = disk::rescan_all(self.disks.iter().map(|(_, opened)| opened));
                refresh();
                scanned.map(|()| Value::Null)
            }
            Command::Attach { .. } | Command::Detach { .. } | Command::Coalescing { .. } | Command::Stop => {
                Err("a server takes no such command: list, stats, resize, rescan or stop".to_owned())
            }
        }
    }

    /// The disks.
    fn list(&self) -> Value {
        let listed = |(id, opened): &(String, OpenDisk)| {
            let facts = opened.facts();
            let mut disk = json!({
                "id": id,
                "serial": opened.serial,
                "format": facts.format,
                "subformat": facts.subformat,
                "path": facts.path,
                "capacity": facts.capacity,
            });
            // As `paradisk run` has it: of disks that have a map.
            if let Some((disk, memory)) = disk.as_object_mut().zip(opened.map_memory()) {
                disk.insert("map_memory".to_owned(), json!(memory));
            }
            disk
        };
        self.disks.iter().map(listed).collect()
    }
}

//! The control socket of a server: commands about its disks, and `stop`.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
#[expect(clippy::disallowed_types, reason = "commands are no requests")]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use facts::SCHEMA;
use facts::disk::OpenDisk;
use facts::host::host;
use facts::names::Coalescing;
use paradisk_devices::Policy;
use serde_json::{Value, json};

use crate::control::Command;
use crate::control::server::{Listener, PendingCommand, Server};
use crate::failure::Failure;
use crate::metrics::{self, AdapterDocument, AdapterSnapshot, DiskSnapshot, Snapshot};
use crate::monitoring::Listeners;
use crate::{disk, units};

/// Changes the policy of interrupt moderation, and leaves its thresholds as they are.
pub(super) type SetPolicy = Box<dyn Fn(Policy) + Send + Sync>;

/// Reports what the adapter in front of disks has done.
type Report = dyn Fn(&[DiskSnapshot]) -> Option<AdapterSnapshot> + Send + Sync;

/// The state that commands act on.
pub(super) struct Control {
    /// Disks by their ids.
    pub(super) disks: Vec<(String, OpenDisk)>,
    /// The adapter or protocol in front of the disks, as statistics call it.
    pub(super) adapter: String,
    /// What the adapter has done; `None` where it does not answer.
    pub(super) report: Box<Report>,
    /// Applies new capacities of the disks; `None` where the protocol cannot report them to clients.
    pub(super) refresh: Option<Box<dyn Fn() + Send + Sync>>,
    /// Changes the policy of interrupt moderation; `None` where the protocol has no interrupts.
    pub(super) coalescing: Option<SetPolicy>,
    /// A byte written here stops the server.
    pub(super) end: UnixStream,
}

/// Shared by the connections, so that one command runs at a time; `None` when the server has stopped.
#[expect(clippy::disallowed_types, reason = "commands are no requests")]
#[derive(Clone)]
struct Shared(Arc<Mutex<Option<Control>>>);

/// The control socket, if there is one.
pub(super) struct Listening {
    shared: Shared,
    stopped: Receiver<PendingCommand>,
    _server: Option<Server>,
    _metrics: Option<metrics::Server>,
}

impl Listening {
    /// Refuse further commands and drop the disks. Returns the command `stop`, which waits for its answer, if it ended the server.
    pub(super) fn end(self) -> Option<PendingCommand> {
        drop(self.shared.lock().take());
        self.stopped.try_recv().ok()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Control>> {
        // The only change is `take`.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False: the client has disconnected.
    fn execute(&self, pending: PendingCommand, stop: &SyncSender<PendingCommand>) -> bool {
        let shared = self.lock();
        let Some(control) = &*shared else { return pending.answer(Err("it is ending".to_owned())) };
        if pending.command != Command::Stop {
            let done = control.execute(&pending.command);
            return pending.answer(done);
        }
        match stop.try_send(pending) {
            // The command is in the channel before the byte wakes the main thread.
            Ok(()) => (&control.end).write_all(&[0]).is_ok(),
            Err(TrySendError::Full(pending) | TrySendError::Disconnected(pending)) => {
                pending.answer(Err("it is ending".to_owned()))
            }
        }
    }
}

impl Control {
    /// Serve the control socket and metrics, if there are such sockets.
    #[expect(clippy::disallowed_types, reason = "commands are no requests")]
    pub(super) fn serve(self, listeners: Listeners) -> Result<Listening, Failure> {
        let (stop, stopped) = mpsc::sync_channel(1);
        let shared = Shared(Arc::new(Mutex::new(Some(self))));
        let serve = |listener: Listener| {
            let shared = shared.clone();
            listener.serve(move |pending| shared.execute(pending, &stop))
        };
        let server = listeners.control.map(serve).transpose();
        let server = server.map_err(|error| Failure::Failed(format!("control socket: {error}")))?;
        let measured = shared.clone();
        let snapshot = move || measured.lock().as_ref().map(Self::snapshot);
        let metrics = metrics::Server::start(listeners.metrics, snapshot)?;
        Ok(Listening { shared, stopped, _server: server, _metrics: metrics })
    }

    fn refresh(&self) -> Result<&(dyn Fn() + Send + Sync), String> {
        let refresh = self.refresh.as_deref();
        refresh.ok_or_else(|| "this protocol cannot report a new capacity to clients".to_owned())
    }

    fn execute(&self, command: &Command) -> Result<Value, String> {
        match command {
            Command::List => Ok(self.list()),
            Command::Stats { latency } => {
                if let Some(on) = *latency {
                    self.disks.iter().for_each(|(_, opened)| metrics::time_requests(opened, on));
                }
                Ok(self.stats())
            }
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
            Command::Coalescing { adapter: Some(_), .. } => {
                Err("--adapter: a server has one adapter at the most, which has no name".to_owned())
            }
            Command::Coalescing { policy, adapter: None } => {
                let set = self.coalescing.as_ref().ok_or("this protocol has no interrupts")?;
                let policy = policy.parse::<Coalescing>().map_err(|error| error.to_string())?;
                set(policy.into());
                Ok(json!(policy.as_str()))
            }
            Command::Attach { .. } | Command::Detach { .. } | Command::Stop => {
                Err("a server takes no such command: list, stats, resize, rescan, coalescing or stop"
                    .to_owned())
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let disks: Vec<_> =
            self.disks.iter().map(|(id, opened)| DiskSnapshot::new(id, &self.adapter, opened)).collect();
        let adapters = (self.report)(&disks).into_iter().collect();
        Snapshot { disks, adapters }
    }

    fn stats(&self) -> Value {
        let Snapshot { disks, adapters } = self.snapshot();
        let adapters: Vec<_> = adapters.iter().map(AdapterDocument::new).collect();
        json!({
            "schema": SCHEMA,
            "host": host(),
            "disks": self.list(),
            "queues": metrics::queues(&disks),
            "adapters": adapters,
        })
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
            // As in the document of `paradisk run`: for disks that have a map.
            if let Some((disk, memory)) = disk.as_object_mut().zip(opened.map_memory()) {
                disk.insert("map_memory".to_owned(), json!(memory));
            }
            disk
        };
        self.disks.iter().map(listed).collect()
    }
}

//! A server in this process, with a raw image in a temporary directory. The server's threads have the system-call filters of
//! `paradisk serve vhost-user-blk`.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use paradisk_disk_formats::{Disk, OpenOptions};
use paradisk_serve::Socket;
use paradisk_serve::vhost_user_blk::{Error, Event, Options, Server};
use sandbox::{Program, Sandbox};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct Rig {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) server: Arc<Server>,
    events: Receiver<Event>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

pub(crate) fn raw(size: u64) -> (tempfile::TempDir, Arc<dyn Disk>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.raw");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let disk = OpenOptions::new(path).open().unwrap();
    (directory, disk)
}

impl Rig {
    pub(crate) fn new(queues: u16) -> Self {
        let (directory, disk) = raw(64 * MIB);
        Self::with(directory, disk, queues)
    }

    pub(crate) fn with(directory: tempfile::TempDir, disk: Arc<dyn Disk>, queues: u16) -> Self {
        Self::with_options(
            directory,
            disk,
            Options { queues, serial: "S-1".to_owned(), ..Options::default() },
        )
    }

    pub(crate) fn with_options(directory: tempfile::TempDir, disk: Arc<dyn Disk>, options: Options) -> Self {
        let sandbox = Sandbox::of_threads(Program::VhostUser).unwrap();
        let server = Arc::new(Server::new(disk, options).unwrap());
        let socket = Socket::listen(&directory.path().join("socket")).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (sender, events) = mpsc::channel();
        #[expect(clippy::disallowed_types, reason = "a test")]
        let sender = std::sync::Mutex::new(sender);
        let serving = Arc::clone(&server);
        let thread = thread::spawn(move || {
            sandbox.close().unwrap();
            serving.run(socket.listener(), stopped.as_fd(), &|event| {
                let _ = sender.lock().unwrap().send(event);
            })
        });
        Self { directory, server, events, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Wait until the next client has connected and disconnected.
    pub(crate) fn await_end_of_client(&self) {
        let next = || self.events.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!((next(), next()), (Event::Connected, Event::Gone(None)));
    }

    /// Wait until the next client has connected and was disconnected, for a reason with this text.
    pub(crate) fn await_refusal(&self, reason: &str) {
        let next = || self.events.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(next(), Event::Connected);
        match next() {
            Event::Gone(Some(text)) if text.contains(reason) => {}
            event => panic!("expected `{reason}`: {event:?}"),
        }
    }

    /// Stop the server. No request is in flight when this returns.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.stop();
        }
    }
}

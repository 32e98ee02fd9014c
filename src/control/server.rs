//! The server of the control socket. A client may run every command, so only processes of this user may connect.

use std::convert::Infallible;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use facts::host::host;
use paradisk_disk_formats::{ThreadKind, spawn};
use paradisk_serve::{ClientSocket, Socket, client_refused, start_closer};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::sockopt::{self, Timeout};
use serde_json::{Value, json};

use super::{Command, LONGEST, Reply};
use crate::failure::Failure;

/// Connections at a time; others wait.
const CONNECTIONS: usize = 8;
/// A client that neither sends nor receives for so long is disconnected.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause after the host could not accept a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long to wait for the client of `stop` to take its answer.
const LAST_ANSWER: Duration = Duration::from_secs(2);

/// A command, and the channel for its answer.
pub(crate) struct PendingCommand {
    pub(crate) command: Command,
    pub(crate) answer: SyncSender<Reply>,
    /// Disconnected when the answer has been written.
    pub(crate) written: Receiver<Infallible>,
}

impl PendingCommand {
    /// Answer. False: the client has disconnected.
    pub(crate) fn answer(&self, done: Result<Value, String>) -> bool {
        self.answer.send(Reply::from(done)).is_ok()
    }

    /// Answer `stop` when the disks are closed, and wait until the answer has been written: the process is about to end.
    pub(crate) fn stopped(self, closed: &Result<(), String>) {
        self.answer(closed.clone().map(|()| json!("stopped")));
        let _ = self.written.recv_timeout(LAST_ANSWER);
    }
}

/// Executes a command. False: commands are no longer executed.
type Execute = Arc<dyn Fn(PendingCommand) -> bool + Send + Sync>;

/// A socket that listens. Clients that connect wait until they are served.
pub(crate) struct Listener(Socket);

/// The socket, removed when dropped.
pub(crate) struct Server {
    _socket: Socket,
}

impl Listener {
    /// Listen at `path`, where nothing may exist but the socket of a process that has ended.
    pub(crate) fn bind(path: &Path) -> Result<Self, Failure> {
        // For the command `stats`: the description of the host is read from files that cannot be opened in the sandbox.
        let _ = host();
        Socket::listen(path).map(Self).map_err(|error| Failure::on(path, "control socket", error))
    }

    /// Serve clients.
    ///
    /// # Errors
    /// The host has no threads or descriptors left.
    pub(crate) fn serve(
        self,
        execute: impl Fn(PendingCommand) -> bool + Send + Sync + 'static,
    ) -> io::Result<Server> {
        let Self(socket) = self;
        let listener = socket.listener().try_clone()?;
        start_closer()?;
        let execute: Execute = Arc::new(execute);
        // As many connections as there are tokens.
        let (token_back, tokens) = mpsc::sync_channel(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            let _ = token_back.send(());
        }
        spawn(ThreadKind::ControlListener, "control", move || {
            loop {
                let stream = match ClientSocket::accept(&listener, SocketFlags::empty()) {
                    Ok(stream) => stream,
                    // The server has ended.
                    Err(Errno::INVAL) => return,
                    Err(errno) => {
                        client_refused(&errno);
                        thread::sleep(ACCEPT_PAUSE);
                        continue;
                    }
                };
                let _ = tokens.recv();
                let (execute, back) = (Arc::clone(&execute), token_back.clone());
                let serve = move || {
                    // Fails where the client has disconnected.
                    let _ = serve(&stream, &execute);
                    let _ = back.send(());
                };
                // Without a thread, the connection is closed without an answer.
                if let Err(error) = spawn(ThreadKind::ControlClient, "control", serve) {
                    client_refused(&error);
                    let _ = token_back.send(());
                }
            }
        })?;
        Ok(Server { _socket: socket })
    }
}

fn serve(stream: &ClientSocket, execute: &Execute) -> io::Result<()> {
    sockopt::set_socket_timeout(stream, Timeout::Recv, Some(CLIENT_TIMEOUT))?;
    sockopt::set_socket_timeout(stream, Timeout::Send, Some(CLIENT_TIMEOUT))?;
    let mut input = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        input.by_ref().take(LONGEST).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let whole = line.ends_with(b"\n");
        let (writing, written) = mpsc::channel();
        let reply = match serde_json::from_slice(&line) {
            Ok(command) if whole => ask(command, written, execute),
            Ok(_) => Reply::Error("the line has no end".to_owned()),
            Err(error) => Reply::Error(format!("not a command: {error}")),
        };
        let mut text = serde_json::to_vec(&reply).map_err(io::Error::other)?;
        text.push(b'\n');
        let mut output = stream;
        output.write_all(&text)?;
        drop(writing);
        if !whole {
            return Ok(());
        }
    }
}

fn ask(command: Command, written: Receiver<Infallible>, execute: &Execute) -> Reply {
    let (answer, answered) = mpsc::sync_channel(1);
    let ended = || Reply::Error("it ends".to_owned());
    if execute(PendingCommand { command, answer, written }) {
        answered.recv().unwrap_or_else(|_| ended())
    } else {
        ended()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn start(
        path: &Path,
        execute: impl Fn(PendingCommand) -> bool + Send + Sync + 'static,
    ) -> Result<Server, Failure> {
        Ok(Listener::bind(path)?.serve(execute).unwrap())
    }

    /// What the server answers to this.
    fn talk(path: &Path, text: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(text).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn each_line_has_an_answer_and_none_ends_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let server = start(&path, |pending| {
            let text = format!("{:?}", pending.command);
            pending.answer.send(Reply::Ok(json!(text))).is_ok()
        });
        let server = server.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let answers = talk(&path, b"{\"command\":\"list\"}\nnonsense\n{\"command\":\"stop\"}\n");
        let lines: Vec<&str> = answers.lines().collect();
        assert_eq!((lines[0], lines[2]), (r#"{"ok":"List"}"#, r#"{"ok":"Stop"}"#));
        assert!(lines[1].starts_with(r#"{"error":"not a command"#), "{answers}");
        assert!(talk(&path, b"{\"command\":\"list\"}").contains("no end"));
        // Longer than any command: an error, and the connection ends.
        assert!(talk(&path, &vec![b' '; LONGEST as usize]).starts_with(r#"{"error""#));
        assert!(start(&path, |_| false).is_err());
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn the_socket_is_never_anybody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        // Else the user's mask may hide what is wrong; the other tests here do not depend on it.
        let mask = rustix::process::umask(rustix::fs::Mode::empty());
        let seen = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut seen = 0;
                while folder.path().join("end").symlink_metadata().is_err() {
                    seen |= fs::metadata(&path).map_or(0, |found| found.permissions().mode() & 0o777);
                }
                seen
            });
            for _ in 0..300 {
                drop(start(&path, |_| false).unwrap());
            }
            fs::write(folder.path().join("end"), "").unwrap();
            watch.join().unwrap()
        });
        rustix::process::umask(mask);
        assert_eq!(seen & 0o077, 0, "{seen:o}");
    }

    #[test]
    fn the_socket_of_a_machine_that_was_killed_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let server = start(&path, |_| false).unwrap();
        assert!(talk(&path, b"{\"command\":\"list\"}\n").contains("it ends"));
        drop(server);
        fs::write(&path, "precious").unwrap();
        assert!(start(&path, |_| false).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}

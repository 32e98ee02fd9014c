//! The control socket: commands in, answers out. Whoever may connect may do everything, so only the user may.

use std::convert::Infallible;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use serve::Socket;

use super::{Command, LONGEST, Reply};

/// Connections at a time; more wait.
const CONNECTIONS: usize = 8;
/// A client that says nothing for so long is hung up on.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command, and where its answer goes.
pub(crate) struct Asked {
    pub(crate) command: Command,
    pub(crate) answer: SyncSender<Reply>,
    /// Disconnected when the answer has been written.
    pub(crate) written: Receiver<Infallible>,
}

impl Asked {
    /// Answer. False: nobody waits for it.
    pub(crate) fn answer(&self, done: Result<Value, String>) -> bool {
        self.answer.send(Reply::from(done)).is_ok()
    }

    /// Answer, and wait until the client has it, at most so long: the process is about to end.
    pub(crate) fn answer_last(self, reply: Reply, timeout: Duration) {
        // A client that has gone needs no answer.
        let _ = self.answer.send(reply);
        let _ = self.written.recv_timeout(timeout);
    }
}

/// Takes a command to whoever obeys it. False: nobody does any more.
type Obey = Arc<dyn Fn(Asked) -> bool + Send + Sync>;

/// The socket, removed when dropped.
pub(crate) struct Server {
    _socket: Socket,
}

impl Server {
    /// Listen at `path`, where nothing may be but the socket of one that has ended.
    ///
    /// # Errors
    /// The path is taken, or cannot be made.
    pub(crate) fn start(
        path: &Path,
        obey: impl Fn(Asked) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let socket = Socket::listen(path)?;
        let listener = socket.listener().try_clone()?;
        let obey: Obey = Arc::new(obey);
        // As many connections as there are tokens.
        let (token_back, tokens) = mpsc::sync_channel(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            let _ = token_back.send(());
        }
        thread::Builder::new().name("control".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let _ = tokens.recv();
                let (obey, back) = (Arc::clone(&obey), token_back.clone());
                let serve = move || {
                    // A client that goes away in between is no fault of ours.
                    let _ = serve(&stream, &obey);
                    let _ = back.send(());
                };
                // Without a thread there is no answer.
                let _ = thread::Builder::new().name("control".to_owned()).spawn(serve);
            }
        })?;
        Ok(Self { _socket: socket })
    }
}

fn serve(stream: &UnixStream, obey: &Obey) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
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
            Ok(command) if whole => ask(command, written, obey),
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

fn ask(command: Command, written: Receiver<Infallible>, obey: &Obey) -> Reply {
    let (answer, answered) = mpsc::sync_channel(1);
    let ended = || Reply::Error("it ends".to_owned());
    if obey(Asked { command, answer, written }) {
        answered.recv().unwrap_or_else(|_| ended())
    } else {
        ended()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use serde_json::json;

    use super::*;

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
        let server = Server::start(&path, |asked| {
            let text = format!("{:?}", asked.command);
            asked.answer.send(Reply::Ok(json!(text))).is_ok()
        })
        .unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let answers = talk(&path, b"{\"command\":\"list\"}\nnonsense\n{\"command\":\"stop\"}\n");
        let lines: Vec<&str> = answers.lines().collect();
        assert_eq!((lines[0], lines[2]), (r#"{"ok":"List"}"#, r#"{"ok":"Stop"}"#));
        assert!(lines[1].starts_with(r#"{"error":"not a command"#), "{answers}");
        assert!(talk(&path, b"{\"command\":\"list\"}").contains("no end"));
        // Longer than any command: an error, and the connection ends.
        assert!(talk(&path, &vec![b' '; LONGEST as usize]).starts_with(r#"{"error""#));
        assert!(Server::start(&path, |_| false).is_err());
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
                drop(Server::start(&path, |_| false).unwrap());
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
        let server = Server::start(&path, |_| false).unwrap();
        assert!(talk(&path, b"{\"command\":\"list\"}\n").contains("it ends"));
        drop(server);
        fs::write(&path, "precious").unwrap();
        assert!(Server::start(&path, |_| false).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}

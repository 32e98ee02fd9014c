//! The socket's place in the file system.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// Clients that wait to be taken.
const BACKLOG: i32 = 128;

/// A socket that is listened at. Its file is removed when it is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Listen at `path`, where nothing may be but the socket of a server that has ended. Only the user may connect: who
    /// may, may do all that the server can.
    ///
    /// # Errors
    /// The path is taken, or cannot be made.
    pub fn listen(path: &Path) -> io::Result<Self> {
        let listener = match bound(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && abandoned(path) => {
                fs::remove_file(path)?;
                bound(path)
            }
            result => result,
        }?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Where clients come in.
    #[must_use]
    pub const fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = fs::remove_file(&self.path);
    }
}

/// A new socket that nobody but the user may connect to, not even at first.
fn bound(path: &Path) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Linux gives the file the mode that the socket has when it is bound.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Whether it is a socket at which nobody listens.
fn abandoned(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

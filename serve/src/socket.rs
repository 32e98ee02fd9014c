//! A listening Unix socket and its file, or one that another process has made.
//!
//! A socket file without a listener counts as left over by a server that was killed. So a new socket is bound under a temporary name and
//! listens before it gets its path. A server that replaces a leftover file holds a lock on the folder from the check to the
//! replacement. A server that ends removes the file only if it is its own.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::client_socket::refuse_clients;
use rustix::fs::{AtFlags, FlockOperation, Mode, RawDir, SeekFrom, fchmod, flock, seek, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// Clients that wait to be accepted.
const BACKLOG: i32 = 128;

/// How often a lock is tried, and the pause between.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// How many temporary names are tried, where files of other processes have them.
const NAME_TRIES: u32 = 64;

/// Sockets bound so far: makes temporary names unique in this process.
static BOUND: AtomicUsize = AtomicUsize::new(0);

/// Who may connect to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Mode of the socket's file. To connect, a process needs the permission to write.
    pub mode: u32,
    /// Group of the socket's file. `None`: that of this process.
    pub group: Option<u32>,
}

impl Permissions {
    /// This user alone.
    pub const OWNER: Self = Self { mode: 0o600, group: None };
}

/// A listening socket. Dropping it removes its file, if that is still the same.
#[derive(Debug)]
pub struct Socket {
    /// `None`: file and socket are another process's.
    file: Option<SocketFile>,
    listener: UnixListener,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // The file is removed while the socket still listens.
            drop(file);
            refuse_clients(&self.listener);
        }
    }
}

impl Socket {
    /// Listen at `path`, where nothing may exist but the socket of a server that has ended. Only this user can connect, because a client
    /// may use everything that the server offers.
    ///
    /// # Errors
    /// The path exists or cannot be created.
    pub fn listen(path: &Path) -> io::Result<Self> {
        Self::listen_for(path, Permissions::OWNER)
    }

    /// As [`listen`](Self::listen), for the processes that `permissions` admit.
    ///
    /// # Errors
    /// Also if this process may not give the file to the group.
    pub fn listen_for(path: &Path, permissions: Permissions) -> io::Result<Self> {
        let (listener, mut file) = bound(path, permissions)?;
        file.move_to(path)?;
        Ok(Self { listener, file: Some(file) })
    }

    /// A socket that listens already. Its file is left to the process that made it.
    #[must_use]
    pub const fn given(listener: UnixListener) -> Self {
        Self { listener, file: None }
    }

    /// The socket that accepts clients.
    #[must_use]
    pub const fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

/// The file of a socket, at its current path.
///
/// At the end of a server its sandbox allows no call that looks up any path, but the one that removes the file. So the folder stays open, and
/// its entries tell whether the file is still the same.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// `None`: it cannot be read. The file is then left to the next server.
    folder: Option<fs::File>,
    /// The number of its inode, as the folder has it. It is not used again while the socket lives.
    inode: Option<u64>,
}

/// The number of the inode that this name has in the folder.
fn inode(folder: &fs::File, name: &OsStr) -> Option<u64> {
    // The position belongs to the descriptor.
    seek(folder, SeekFrom::Start(0)).ok()?;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(folder, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry.ok()?;
        if entry.file_name().to_bytes() == name.as_bytes() {
            return Some(entry.ino());
        }
    }
    None
}

impl SocketFile {
    /// Give it another path. A socket that somebody else serves there is not replaced.
    fn move_to(&mut self, path: &Path) -> io::Result<()> {
        let _lock = fs::File::open(folder(path)).ok().filter(lock);
        match fs::hard_link(&self.path, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !abandoned(path) {
                    return Err(Errno::ADDRINUSE.into());
                }
                fs::remove_file(path)?;
                fs::hard_link(&self.path, path)?;
            }
            result => result?,
        }
        let old = std::mem::replace(&mut self.path, path.to_owned());
        fs::remove_file(old)
    }
}

/// Lock a folder until it is closed: one starting server at a time checks for a leftover file and replaces it. False: another process has
/// held the lock for 1 s. No server holds it for so long, so the caller continues without the lock.
fn lock(folder: &fs::File) -> bool {
    for _ in 0..LOCK_TRIES {
        if flock(folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return true;
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    false
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A starting server may be about to replace the file.
        self.folder.as_ref().map(lock);
        if let Some((folder, name)) = self.folder.as_ref().zip(self.path.file_name())
            && self.inode.is_some()
            && inode(folder, name) == self.inode
        {
            // It may have been removed already.
            let _ = unlinkat(folder, name, AtFlags::empty());
        }
    }
}

/// A new listening socket beside `path`, to which only the processes that `permissions` admit can connect from the moment it exists.
fn bound(path: &Path, permissions: Permissions) -> io::Result<(UnixListener, SocketFile)> {
    // The path must be valid for clients, too.
    SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Linux gives the file the mode that the socket has when it is bound.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    // A process that was killed may have left a file of this name: in containers, process ids repeat.
    let mut tries = 0;
    let beside = loop {
        match bind_beside(&socket, path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < NAME_TRIES => tries += 1,
            result => break result?,
        }
    };
    let folder = fs::File::open(folder(&beside)).ok();
    let inode = folder.as_ref().zip(beside.file_name()).and_then(|(folder, name)| inode(folder, name));
    let file = SocketFile { path: beside, folder, inode };
    // Nobody can connect before the socket listens.
    if permissions.group.is_some() {
        lchown(&file.path, None, permissions.group)?;
    }
    // The umask has taken bits from the mode, perhaps all.
    fs::set_permissions(&file.path, fs::Permissions::from_mode(permissions.mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((socket.into(), file))
}

/// Bind to a new name in the folder of `path`. Returns the path with that name.
fn bind_beside(socket: &OwnedFd, path: &Path) -> io::Result<PathBuf> {
    let number = format!("{}-{}", std::process::id(), BOUND.fetch_add(1, Ordering::Relaxed));
    let mut name = path.file_name().ok_or(Errno::INVAL)?.to_owned();
    name.push(format!(".{number}"));
    let beside = path.with_file_name(name);
    if let Ok(address) = SocketAddrUnix::new(&beside) {
        bind(socket, &address)?;
        return Ok(beside);
    }
    // The temporary name is too long for an address, while `path` is not.
    let name = format!(".{number}");
    let folder = fs::File::open(folder(path))?;
    let short = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
    bind(socket, &SocketAddrUnix::new(short)?)?;
    Ok(path.with_file_name(name))
}

/// Whether the file is a socket without a listener.
fn abandoned(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    // Non-blocking: with a full backlog, `connect` would block.
    let connect = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
    };
    is_socket && connect() == Err(Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;
    use std::sync::Barrier;
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_file_has_the_wanted_mode_and_group() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let metadata = || fs::metadata(&path).unwrap();
        let socket = Socket::listen(&path).unwrap();
        assert_eq!(
            (metadata().mode() & 0o777, metadata().gid()),
            (0o600, rustix::process::getegid().as_raw())
        );
        drop(socket);
        // A process may give files to its own group; the umask has no effect on the mode.
        let group = rustix::process::getegid().as_raw();
        let permissions = Permissions { mode: 0o666, group: Some(group) };
        let _socket = Socket::listen_for(&path, permissions).unwrap();
        assert_eq!((metadata().mode() & 0o777, metadata().gid()), (0o666, group));
    }

    #[test]
    fn a_given_socket_keeps_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = Socket::given(UnixListener::bind(&path).unwrap());
        UnixStream::connect(&path).unwrap();
        socket.listener().accept().unwrap();
        drop(socket);
        assert!(path.exists());
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn what_is_abandoned_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = Socket::listen(&path).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Socket::listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
        drop(first);
        assert!(names(folder.path()).is_empty());
        drop(UnixListener::bind(&path).unwrap());
        let second = Socket::listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(names(folder.path()), ["socket"]);
        drop(second);
        fs::write(&path, "a file").unwrap();
        assert_eq!(Socket::listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read(&path).unwrap(), b"a file");
        assert_eq!(names(folder.path()), ["socket"]);
    }

    #[test]
    fn only_the_own_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = Socket::listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(socket);
        UnixStream::connect(&path).unwrap();
        drop(other);
        // Renamed by somebody: it is not at its path.
        let socket = Socket::listen(&path).unwrap();
        fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        fs::write(&path, "a file").unwrap();
        drop(socket);
        assert_eq!(fs::read(&path).unwrap(), b"a file");
    }

    /// The entries of a large folder do not fit into one buffer.
    #[test]
    fn the_file_is_found_among_many() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        for number in 0..1000 {
            fs::write(folder.path().join(format!("another file of this folder, {number}")), "").unwrap();
        }
        drop(Socket::listen(&path).unwrap());
        assert_eq!(names(folder.path()).len(), 1000);
        assert!(!path.exists());
    }

    /// In a process of its own, because the umask is that of all threads.
    #[test]
    fn the_umask_takes_nothing_from_the_mode() {
        const ALONE: &str = "PARADISK_TEST_UMASK";
        if std::env::var_os(ALONE).is_none() {
            let name = "socket::tests::the_umask_takes_nothing_from_the_mode";
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            assert!(alone.args(["--exact", name]).env(ALONE, "1").status().unwrap().success());
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        rustix::process::umask(Mode::RWXU | Mode::RWXG | Mode::RWXO);
        for mode in [0o600, 0o666] {
            let _socket = Socket::listen_for(&path, Permissions { mode, group: None }).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode);
        }
    }

    /// However servers start, there is never a socket at the path at which nobody listens, and one server has it.
    #[test]
    fn servers_that_start_together_do_not_replace_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        for round in 0..100 {
            if round % 2 == 0 {
                drop(UnixListener::bind(&path).unwrap());
            }
            let start = Barrier::new(4);
            let sockets: Vec<_> = std::thread::scope(|scope| {
                let starts: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            start.wait();
                            Socket::listen(&path)
                        })
                    })
                    .collect();
                starts.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let winners: Vec<_> = sockets.into_iter().filter_map(Result::ok).collect();
            assert_eq!(winners.len(), 1, "round {round}");
            UnixStream::connect(&path).unwrap();
            winners[0].listener().accept().unwrap();
        }
    }

    /// A server ends while another one searches for abandoned files: the file stays until that search is over, and until it is removed,
    /// somebody listens there.
    #[test]
    fn a_file_is_removed_under_the_lock_and_before_its_listener_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = Socket::listen(&path).unwrap();
        let (held, begin) = (fs::File::open(folder.path()).unwrap(), Instant::now());
        assert!(lock(&held));
        let ending = std::thread::spawn(move || drop(socket));
        // The server that ends waits for the lock for a bounded time only.
        while begin.elapsed() < LOCK_TRIES * LOCK_PAUSE / 4 {
            let connected = UnixStream::connect(&path).map(drop);
            assert!(connected.is_ok() || begin.elapsed() >= LOCK_TRIES * LOCK_PAUSE, "{connected:?}");
            std::thread::sleep(LOCK_PAUSE);
        }
        drop(held);
        ending.join().unwrap();
        assert!(names(folder.path()).is_empty());
    }

    /// A process of the same number, killed while it started, has left files with the names that are tried first.
    #[test]
    fn names_that_are_taken_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let leave = |count: usize| {
            let first = BOUND.load(Ordering::Relaxed);
            for number in first..first + count {
                let name = format!("socket.{}-{number}", std::process::id());
                fs::write(folder.path().join(name), "").unwrap();
            }
        };
        leave(NAME_TRIES as usize / 2);
        drop(Socket::listen(&path).unwrap());
        // Far more than are tried, and than other tests take meanwhile.
        leave(4000);
        assert_eq!(Socket::listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(!path.exists());
    }

    /// A socket with a full backlog has a listener. The check for a leftover file finds that without blocking.
    #[test]
    fn a_server_with_a_full_backlog_is_not_abandoned() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let address = SocketAddrUnix::new(&path).unwrap();
        let connect = |flags| {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            rustix::net::connect(&socket, &address).map(|()| socket)
        };
        let server =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&server, &address).unwrap();
        rustix::net::listen(&server, 0).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match connect(SocketFlags::NONBLOCK) {
                Ok(socket) => waiting.push(socket),
                Err(errno) => break errno,
            }
        };
        assert_eq!(full, Errno::AGAIN);
        let (sender, receiver) = std::sync::mpsc::channel();
        let theirs = path.clone();
        std::thread::spawn(move || sender.send(Socket::listen(&theirs).map(drop)));
        let listened = receiver.recv_timeout(Duration::from_secs(60)).expect("it waits for the server");
        assert_eq!(listened.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(names(folder.path()), ["socket"]);
    }

    #[test]
    fn a_path_as_long_as_an_address_may_be_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let len = 107 - folder.path().as_os_str().len() - 1;
        let path = folder.path().join("s".repeat(len));
        let socket = Socket::listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(names(folder.path()).is_empty());
        let error = Socket::listen(&folder.path().join("s".repeat(len + 2))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    }
}

//! Sockets of servers: made with permissions, passed by number or by a service manager, and what the service manager is told.

mod common;

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{ready, refused};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_paradisk");
/// Each server with a small disk.
const SERVERS: [&[&str]; 3] = [
    &["serve", "nbd", "--disk", "ram=1M"],
    &["serve", "vhost-user-blk", "--disk", "ram=1M"],
    &["serve", "vfio-user", "--disk", "ram=1M"],
];

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).stdin(Stdio::null());
    command
}

fn end(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_socket_has_the_wanted_permissions() {
    let folder = tempfile::tempdir().unwrap();
    for args in SERVERS {
        let socket = folder.path().join("socket");
        let mode = || fs::metadata(&socket).unwrap().mode() & 0o777;
        let (child, _) = ready(command(args).arg("--socket").arg(&socket));
        assert_eq!(mode(), 0o600);
        end(child);
        let group = rustix::process::getegid().as_raw().to_string();
        let more = ["--socket-mode", "660", "--socket-group", &group];
        let (child, _) = ready(command(args).arg("--socket").arg(&socket).args(more));
        assert_eq!(mode(), 0o660);
        end(child);
    }
    refused(
        command(SERVERS[0]).args(["--socket", "x", "--socket-mode", "999"]),
        2,
        "octal number of 0 to 777",
    );
    refused(&mut command(SERVERS[0]), 2, "expected a path or fd=N, as no service manager passes a socket");
}

/// A shell gives the server its socket as descriptor 3.
fn with_descriptor(socket: &impl AsFd, script: &str, args: &[&str]) -> Command {
    // The server's copy; in this process no other program is started in between that would mind.
    fcntl_setfd(socket.as_fd(), FdFlags::empty()).unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{script} exec \"$0\" \"$@\" 3<&{}", socket.as_fd().as_raw_fd()), PROGRAM])
        .args(args);
    command.stdin(Stdio::null());
    command
}

#[test]
fn a_passed_socket_is_served_and_its_file_stays() {
    let folder = tempfile::tempdir().unwrap();
    for args in SERVERS {
        for (script, more) in [("", &["--socket", "fd=3"][..]), ("LISTEN_PID=$$ LISTEN_FDS=1", &[])] {
            let path = folder.path().join("socket");
            let socket = UnixListener::bind(&path).unwrap();
            let mut server = with_descriptor(&socket, script, &[args, more].concat());
            let (child, line) = ready(&mut server);
            assert!(line.ends_with(" at fd=3\n"), "{line}");
            UnixStream::connect(&path).unwrap();
            end(child);
            assert!(path.exists(), "the file is its owner's");
            fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn a_descriptor_that_is_no_listening_socket_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let nbd = SERVERS[0];
    refused(
        command(nbd).args(["--socket", "fd=9"]),
        2,
        "fd=9: not a descriptor that this process was started with",
    );
    refused(
        command(nbd).args(["--socket", "fd=1"]),
        2,
        "fd=1: not a descriptor that this process was started with",
    );
    let socket = UnixListener::bind(folder.path().join("socket")).unwrap();
    let args = [nbd, &["--socket", "fd=4"]].concat();
    refused(
        &mut with_descriptor(&socket, "exec 4</dev/null;", &args),
        2,
        "fd=4 is not a listening Unix stream socket",
    );
    // Passed to another process.
    refused(
        &mut with_descriptor(&socket, "LISTEN_PID=1 LISTEN_FDS=1", nbd),
        2,
        "no service manager passes a socket",
    );
}

/// Options that QEMU and libvirt pass to any vhost-user back end.
#[test]
fn a_vhost_user_back_end_follows_the_conventions() {
    let blk = ["serve", "vhost-user-blk"];
    let folder = tempfile::tempdir().unwrap();
    let [path, image] = ["socket", "disk=1.raw"].map(|name| folder.path().join(name));
    // Other options have no effect.
    for more in [&[][..], &["--socket-path", "x"], &["--disk", "/nowhere", "--fd=9"]] {
        let output = command(&blk).arg("--print-capabilities").args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(printed, serde_json::json!({"type": "block", "features": ["read-only", "blk-file"]}));
    }
    // A path, whatever is in its name.
    fs::write(&image, [0; 4096]).unwrap();
    let file = format!("--blk-file={}", image.display());
    let at = format!("--socket-path={}", path.display());
    let (child, line) = ready(command(&blk).args([&file, &at]));
    assert_eq!(line, format!("serving {} at {}\n", image.display(), path.display()));
    refused(command(&["image", "resize", "--shrink"]).arg(&image).arg("2K"), 1, "busy");
    end(child);
    // Two may read.
    let (child, _) = ready(command(&blk).args([&file, &at, "--read-only"]));
    let (other, _) =
        ready(command(&blk).args([&file, "--socket", &format!("{}2", path.display()), "--read-only"]));
    end(child);
    end(other);
    for wrong in
        [&["--disk", "ram=1M", &*file][..], &["--disk", "ram=1M", "--read-only"], &[&*file, "--fd=3"]]
    {
        refused(command(&blk).args(wrong).arg(&at), 2, "");
    }
    refused(command(&blk).arg(&at), 2, "one of --disk and --blk-file is needed");
}

#[test]
fn the_descriptor_of_a_vhost_user_back_end_listens_or_is_connected() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["serve", "vhost-user-blk", "--disk", "ram=1M", "--fd=3"];
    let path = folder.path().join("socket");
    let listening = UnixListener::bind(&path).unwrap();
    let (child, line) = ready(&mut with_descriptor(&listening, "", &args));
    assert_eq!(line, "serving ram=1048576 at fd=3\n");
    UnixStream::connect(&path).unwrap();
    end(child);
    // The only client: the server ends with it, or before it by a signal.
    for signal in [false, true] {
        let (client, server) = UnixStream::pair().unwrap();
        let (mut child, _) = ready(&mut with_descriptor(&server, "", &args));
        drop(server);
        if signal {
            end(child);
        } else {
            drop(client);
            assert!(child.wait().unwrap().success());
        }
    }
    let file = fs::File::create(folder.path().join("file")).unwrap();
    refused(&mut with_descriptor(&file, "", &args), 2, "--fd: 3 is not a Unix stream socket");
    let args = ["serve", "vhost-user-blk", "--disk", "ram=1M", "--fd=99"];
    refused(&mut command(&args), 2, "--fd: fd=99: not a descriptor that this process was started with");
}

/// The images' paths are gone: only the descriptors lead to them.
#[test]
fn disks_are_passed_by_number() {
    let folder = tempfile::tempdir().unwrap();
    for format in ["raw", "vhd", "vhdx"] {
        let (image, socket) = (folder.path().join(format), folder.path().join("socket"));
        let image = image.to_str().unwrap();
        let made = command(&["image", "create", image, "--format", format, "--size", "8M"]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let script = format!("exec 4<>{image}; rm {image}; exec \"$0\" \"$@\"");
        let mut server = Command::new("sh");
        // A fixed VHD looks like a raw file, but for its name.
        let disk = format!("fd=4,format={format}");
        server.args(["-c", &script, PROGRAM, "serve", "nbd", "--disk", &disk, "--socket"]).arg(&socket);
        let (child, line) = ready(server.stdin(Stdio::null()));
        assert_eq!(line, format!("serving fd=4 at {}\n", socket.display()));
        end(child);
    }
    let nbd = ["serve", "nbd", "--socket", "x", "--disk", "fd=4"];
    refused(&mut command(&nbd), 2, "--disk: fd=4: not a descriptor that this process was started with");
}

#[test]
fn the_service_manager_is_told_of_start_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let told = || {
        let mut message = [0; 4096];
        let len = manager.recv(&mut message).unwrap();
        String::from_utf8(message[..len].to_vec()).unwrap()
    };
    for args in SERVERS {
        let socket = folder.path().join("socket");
        let mut server = command(args);
        let (child, line) = ready(server.arg("--socket").arg(&socket).env("NOTIFY_SOCKET", &path));
        assert_eq!(told(), format!("READY=1\nSTATUS={line}"));
        end(child);
        assert_eq!(told(), "STOPPING=1\n");
    }
}

#[test]
fn a_server_may_end_with_its_client() {
    let folder = tempfile::tempdir().unwrap();
    let connect = |socket: &Path| UnixStream::connect(socket).unwrap();
    for args in &SERVERS[1..] {
        let socket = folder.path().join("socket");
        let (mut child, _) = ready(command(args).arg("--exit-on-disconnect").arg("--socket").arg(&socket));
        drop(connect(&socket));
        assert!(child.wait().unwrap().success());
        assert!(!socket.exists());
    }
}

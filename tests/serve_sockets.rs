//! Sockets of servers: made with permissions, passed by number or by a service manager, and what the service manager is told.

mod common;
#[path = "common/control.rs"]
#[expect(dead_code, reason = "disks of these servers do not grow")]
mod control;
#[path = "../serve/tests/nbd/client.rs"]
#[allow(dead_code, reason = "the tests of the server use all of it")]
mod nbd_client;
#[path = "../serve/tests/vhost_user_blk/client.rs"]
#[allow(dead_code, reason = "the tests of the server use all of it")]
mod vhost_client;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Running, ended, ready, refused};
use rustix::process::{Pid, Resource, Rlimit, Signal, getegid, geteuid, getgroups, prlimit};
use vhost_client::{FLUSH, Guest, IN, OUT, Shape};

const PROGRAM: &str = env!("CARGO_BIN_EXE_paradisk");
/// A user without permissions.
const NOBODY: u32 = 65534;
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

#[test]
fn the_socket_has_the_wanted_permissions() {
    let folder = tempfile::tempdir().unwrap();
    for args in SERVERS {
        let socket = folder.path().join("socket");
        let mode = || fs::metadata(&socket).unwrap().mode() & 0o777;
        let (mut child, _) = ready(command(args).arg("--socket").arg(&socket));
        assert_eq!(mode(), 0o600);
        ended(&mut child, Signal::TERM);
        let more = ["--socket-mode", "660"];
        let (mut child, _) = ready(command(args).arg("--socket").arg(&socket).args(more));
        assert_eq!(mode(), 0o660);
        ended(&mut child, Signal::TERM);
    }
    for (option, wrong, expected) in [
        ("--socket-mode", "999", "octal number of 0 to 777"),
        ("--socket-group", "no such group", "expected the number of a group, or its name in /etc/group"),
    ] {
        refused(command(SERVERS[0]).args(["--socket", "x", option, wrong]), 2, expected);
    }
    refused(&mut command(SERVERS[0]), 2, "expected a path or fd=N, as no service manager passes a socket");
}

/// A group that this process may give its files to, and that they do not have anyway; and its name in /etc/group.
fn other_group() -> Option<(u32, Option<String>)> {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let named = groups.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?.to_owned(), fields.nth(1)?.parse::<u32>().ok()?))
    });
    let named: Vec<_> = named.collect();
    let mine: Vec<u32> = if geteuid().is_root() {
        named.iter().map(|(_, number)| *number).chain([1]).collect()
    } else {
        getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect()
    };
    let other = mine.into_iter().find(|number| *number != getegid().as_raw())?;
    Some((other, named.into_iter().find(|(_, number)| *number == other).map(|(name, _)| name)))
}

#[test]
fn the_socket_has_the_wanted_group() {
    let Some((group, name)) = other_group() else {
        println!("SKIP: the_socket_has_the_wanted_group: this user is in one group alone");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (socket, metrics) = (folder.path().join("socket"), folder.path().join("metrics"));
    let gid = |path: &Path| fs::metadata(path).unwrap().gid();
    for args in SERVERS {
        for wanted in [Some(group.to_string()), name.clone()].into_iter().flatten() {
            let mut server = command(args);
            server.arg("--socket").arg(&socket).arg("--metrics").arg(&metrics);
            server.args(["--socket-group", &wanted, "--metrics-group", &wanted]);
            let (mut child, _) = ready(&mut server);
            assert_eq!((gid(&socket), gid(&metrics)), (group, group), "{args:?}: {wanted}");
            ended(&mut child, Signal::TERM);
        }
    }
}

/// A shell gives the server its socket as descriptor 3. The shell itself gets it as its standard input: not every shell takes descriptors
/// above 9.
fn with_descriptor(socket: &impl AsFd, script: &str, args: &[&str]) -> Command {
    let script = format!("exec 3<&0 </dev/null; {script} exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, PROGRAM]).args(args).stdin(socket.as_fd().try_clone_to_owned().unwrap());
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
            let (mut child, line) = ready(&mut server);
            assert!(line.ends_with(" at fd=3\n"), "{line}");
            UnixStream::connect(&path).unwrap();
            ended(&mut child, Signal::TERM);
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

/// A socket of the service manager that nobody would serve.
#[test]
fn every_passed_socket_is_served_or_refused() {
    const PASSED: &str = "LISTEN_PID=$$ LISTEN_FDS=1";
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own");
    let path = own.to_str().unwrap();
    let passed = UnixListener::bind(folder.path().join("passed")).unwrap();
    // The same again.
    let other = format!("exec 4<&3; {PASSED}");
    let both = "exec 4<&3; LISTEN_PID=$$ LISTEN_FDS=2";
    let unused = "LISTEN_FDS: fd=3 is passed, and no option uses it";
    for args in SERVERS {
        let server = |script: &str, more: &[&str]| with_descriptor(&passed, script, &[args, more].concat());
        refused(&mut server(both, &[]), 2, "LISTEN_FDS: 2 sockets are passed, and one is needed");
        refused(&mut server(PASSED, &["--socket", path]), 2, unused);
        refused(&mut server(&other, &["--socket", "fd=4"]), 2, unused);
        assert!(!own.exists());
        // By its number, too.
        let (mut child, line) = ready(&mut server(PASSED, &["--socket", "fd=3"]));
        assert!(line.ends_with(" at fd=3\n"), "{line}");
        ended(&mut child, Signal::TERM);
    }
    let server = |script: &str, args: &[&str]| with_descriptor(&passed, script, args);
    let tcp = [SERVERS[0], &["--listen", "127.0.0.1:0"]].concat();
    refused(&mut server(PASSED, &tcp), 2, unused);
    refused(&mut server(&other, &[SERVERS[1], &["--fd=4"]].concat()), 2, unused);
    // One is a disk, as systemd's OpenFile= passes it; the other one is the socket.
    let image = folder.path().join("image");
    fs::write(&image, [0; 4096]).unwrap();
    let script = format!("exec 4<>{}; LISTEN_PID=$$ LISTEN_FDS=2", image.display());
    let (mut child, line) = ready(&mut server(&script, &["serve", "nbd", "--disk", "fd=4"]));
    assert_eq!(line, "serving fd=4 at fd=3\n");
    ended(&mut child, Signal::TERM);
}

/// Numbers of one open file description, in one process or in two: the locks of the image keep two writers apart, or the number of its inode
/// does, where this user may not open it.
#[test]
fn one_passed_file_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let (image, socket) = (folder.path().join("image"), folder.path().join("socket"));
    fs::write(&image, [0; 4096]).unwrap();
    let file = fs::File::options().read(true).write(true).open(&image).unwrap();
    let start = |script: &str, disks: &[&str]| {
        let args = ["serve", "nbd", "--export", "a", "--export", "b", "--socket"];
        let disks = disks.iter().flat_map(|disk| ["--disk", disk]);
        let args: Vec<&str> = args.into_iter().chain([socket.to_str().unwrap()]).chain(disks).collect();
        with_descriptor(&file, script, &args)
    };
    let twice = "exec 4<&3;";
    refused(
        &mut start(twice, &["fd=3", "fd=3"]),
        2,
        "fd=3: not a descriptor that this process was started with, or",
    );
    refused(&mut start(twice, &["fd=3", "fd=4"]), 1, "has it open for writing");
    refused(&mut start(twice, &["fd=3,readonly=on", "fd=4"]), 1, "/proc/self/fd/4: busy");
    let (mut both, _) = ready(&mut start(twice, &["fd=3,readonly=on", "fd=4,readonly=on"]));
    ended(&mut both, Signal::TERM);
    let (mut first, _) = ready(&mut start("", &["fd=3", "ram=1M"]));
    refused(&mut start("", &["fd=3,readonly=on", "ram=1M"]), 1, "has it open for writing");
    ended(&mut first, Signal::TERM);
    // Nobody may open the file now, but root.
    fs::set_permissions(&image, fs::Permissions::from_mode(0o0)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let start = |disks: &[&str]| {
        let mut server = start(twice, disks);
        if geteuid().is_root() {
            server.uid(NOBODY).gid(NOBODY);
        }
        server
    };
    if geteuid().is_root() && Command::new(PROGRAM).arg("--version").uid(NOBODY).output().is_err() {
        println!("SKIP: one_passed_file_has_one_writer: the program can be executed by this user alone");
        return;
    }
    refused(&mut start(&["fd=3", "fd=4"]), 2, "fd=4: the same file as fd=3, and one of the two is written");
    refused(&mut start(&["fd=3", "fd=4,readonly=on"]), 2, "fd=4: the same file as fd=3");
    let (mut both, _) = ready(&mut start(&["fd=3,readonly=on", "fd=4,readonly=on"]));
    ended(&mut both, Signal::TERM);
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
    let (mut child, line) = ready(command(&blk).args([&file, &at]));
    assert_eq!(line, format!("serving {} at {}\n", image.display(), path.display()));
    refused(command(&["image", "resize", "--shrink"]).arg(&image).arg("2K"), 1, "busy");
    ended(&mut child, Signal::TERM);
    // Two may read.
    let (mut child, _) = ready(command(&blk).args([&file, &at, "--read-only"]));
    let (mut other, _) =
        ready(command(&blk).args([&file, "--socket", &format!("{}2", path.display()), "--read-only"]));
    ended(&mut child, Signal::TERM);
    ended(&mut other, Signal::TERM);
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
    let (mut child, line) = ready(&mut with_descriptor(&listening, "", &args));
    assert_eq!(line, "serving ram=1048576 at fd=3\n");
    UnixStream::connect(&path).unwrap();
    ended(&mut child, Signal::TERM);
    // The only client: the server ends with it, or before it by a signal.
    for signal in [false, true] {
        let (client, server) = UnixStream::pair().unwrap();
        let (mut child, _) = ready(&mut with_descriptor(&server, "", &args));
        drop(server);
        if signal {
            ended(&mut child, Signal::TERM);
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

/// Bytes of a disk of [`image`].
const SIZE: u64 = 8 << 20;

/// An image of this format with data in all of it, and the data.
fn image(folder: &Path, format: &str) -> (String, Vec<u8>) {
    let content: Vec<u8> = (0..SIZE).map(|at| (at / 512 % 251) as u8).collect();
    let [raw, path] = ["content", format].map(|name| folder.join(name).to_str().unwrap().to_owned());
    fs::write(&raw, &content).unwrap();
    paradisk(&["image", "convert", &raw, &path, "--format", format]);
    (path, content)
}

#[track_caller]
fn paradisk(args: &[&str]) {
    let output = command(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
}

/// Start a server at `socket` with the image as descriptor 4. The path of the image is gone: only the descriptor leads to it, and the link
/// that is returned.
#[track_caller]
fn with_disk(args: &[&str], format: &str, image: &str, socket: &Path) -> (Running, String, String) {
    let link = format!("{image}.link");
    let script = format!("exec 4<>{image}; ln {image} {link}; rm {image}; exec \"$0\" \"$@\"");
    let mut server = Command::new("sh");
    // A fixed VHD looks like a raw file, but for its name.
    let disk = format!("fd=4,format={format}");
    server.args(["-c", &script, PROGRAM]).args(args).args(["--disk", &disk, "--socket"]).arg(socket);
    let (child, line) = ready(server.stdin(Stdio::null()));
    (child, line, link)
}

/// The image has this content.
#[track_caller]
fn has_content(link: &str, format: &str, content: &[u8]) {
    let raw = format!("{link}.raw");
    paradisk(&["image", "convert", "--from-format", format, link, &raw, "--format", "raw"]);
    let found = fs::read(&raw).unwrap();
    assert_eq!(found.len(), content.len());
    let differs = found.iter().zip(content).position(|(found, expected)| found != expected);
    assert_eq!(differs, None, "{format}");
}

#[test]
fn disks_are_passed_by_number() {
    for format in ["raw", "vhd", "vhdx"] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let (image, mut content) = image(folder.path(), format);
        let (mut child, line, link) = with_disk(&["serve", "nbd"], format, &image, &socket);
        assert_eq!(line, format!("serving fd=4 at {}\n", socket.display()));
        let mut client = nbd_client::Client::of(&socket, "", true);
        assert_eq!(client.size, SIZE);
        assert_eq!(client.read(1 << 20, 65536).unwrap(), content[1 << 20..][..65536]);
        let written = &mut content[3 << 20..][..8192];
        written.fill(0xA5);
        client.write(0, 3 << 20, written).unwrap();
        assert_eq!(client.read(3 << 20, 8192).unwrap(), written);
        drop(client);
        ended(&mut child, Signal::TERM);
        has_content(&link, format, &content);
    }
    let nbd = ["serve", "nbd", "--socket", "x", "--disk", "fd=4"];
    refused(&mut command(&nbd), 2, "--disk: fd=4: not a descriptor that this process was started with");
}

#[test]
fn servers_of_adapters_take_disks_by_number_too() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, control] = ["socket", "control"].map(|name| folder.path().join(name));
    let (path, mut content) = image(folder.path(), "vhdx");
    let (mut child, line, link) = with_disk(&["serve", "vhost-user-blk"], "vhdx", &path, &socket);
    assert_eq!(line, format!("serving fd=4 at {}\n", socket.display()));
    let mut client = vhost_client::Client::connect(&socket, Guest::new(Shape::default()));
    let guest = &mut client.guest;
    assert_eq!(guest.run(0, IN, 2048, 4096), 0);
    assert_eq!(guest.bytes(0, 0, 4096), content[1 << 20..][..4096]);
    guest.fill(0, 0, 0xA5, 4096);
    assert_eq!(guest.run(0, OUT, 4096, 4096), 0);
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    content[2 << 20..][..4096].fill(0xA5);
    drop(client);
    ended(&mut child, Signal::TERM);
    has_content(&link, "vhdx", &content);

    let (path, _) = image(folder.path(), "vhd");
    let vfio = ["serve", "vfio-user", "--control", control.to_str().unwrap()];
    let (mut child, ..) = with_disk(&vfio, "vhd", &path, &socket);
    let disk = &control::answer(&control, &["list"])[0];
    assert_eq!((&disk["format"], &disk["capacity"]), (&"vhd".into(), &SIZE.into()), "{disk}");
    ended(&mut child, Signal::TERM);
}

#[test]
fn the_service_manager_is_told_of_start_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let path = path.to_str().unwrap();
    // An abstract name is not a path, and nobody else has it.
    let name = format!("@{path}");
    let abstract_name = SocketAddr::from_abstract_name(path).unwrap();
    let managers = [UnixDatagram::bind(path), UnixDatagram::bind_addr(&abstract_name)];
    for (manager, address) in managers.into_iter().zip([path, &name]) {
        let manager = manager.unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let told = || {
            let mut message = [0; 4096];
            let len = manager.recv(&mut message).unwrap();
            String::from_utf8(message[..len].to_vec()).unwrap()
        };
        for args in SERVERS {
            let socket = folder.path().join("socket");
            let mut server = command(args);
            let (mut child, line) = ready(server.arg("--socket").arg(&socket).env("NOTIFY_SOCKET", address));
            assert_eq!(told(), format!("READY=1\nSTATUS={line}"));
            ended(&mut child, Signal::TERM);
            assert_eq!(told(), "STOPPING=1\n");
        }
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

/// A client that the host has too few descriptors for was not served, and does not end a server that ends with its client.
#[test]
fn a_client_that_was_not_served_ends_no_server() {
    for args in &SERVERS[1..] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let mut server = command(args);
        server.arg("--exit-on-disconnect").arg("--socket").arg(&socket);
        let (mut child, _) = ready(&mut server);
        let pid = Pid::from_child(&child);
        let fds = format!("/proc/{}/fd", child.id());
        let open = || -> Vec<u64> {
            let names = fs::read_dir(&fds).unwrap().map(|entry| entry.unwrap().file_name());
            names.map(|name| name.to_str().unwrap().parse().unwrap()).collect()
        };
        let limit = |current| {
            let limit = Rlimit { current: Some(current), maximum: Some(1024) };
            prlimit(Some(pid), Resource::Nofile, limit).unwrap();
        };
        // The first message of vfio-user is VERSION; of vhost-user, GET_FEATURES.
        let hello: &[u8] = if args.contains(&"vfio-user") {
            b"\0\0\x01\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0"
        } else {
            b"\x01\0\0\0\x01\0\0\0\0\0\0\0"
        };
        let before = open();
        for free in 1.. {
            assert!(free < 20, "no client is served");
            // So many numbers below the limit are free.
            let highest = (0..).filter(|number| !before.contains(number)).nth(free - 1).unwrap();
            limit(highest + 1);
            let mut client = UnixStream::connect(&socket).unwrap();
            // The server may have disconnected already.
            let _ = client.write_all(hello);
            let served = matches!(client.read(&mut [0; 64]), Ok(1..));
            if served {
                break;
            }
            drop(client);
            soon("the client's descriptors are closed", || open().len() == before.len());
            assert!(child.try_wait().unwrap().is_none(), "{args:?}: it ends with {free} descriptors");
        }
        assert!(child.wait().unwrap().success());
    }
}

/// Wait until a condition holds.
#[track_caller]
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(120), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A line says why clients are not served. When there are descriptors again, they are.
#[test]
fn a_server_without_descriptors_says_so_and_goes_on() {
    for args in SERVERS {
        let folder = tempfile::tempdir().unwrap();
        let [socket, control, said] = &["socket", "control", "said"].map(|name| folder.path().join(name));
        let mut server = command(args);
        server.arg("--socket").arg(socket).arg("--control").arg(control);
        server.stdout(Stdio::null()).stderr(fs::File::create(said).unwrap());
        let mut child = Running(server.spawn().unwrap());
        let text = || fs::read_to_string(said).unwrap();
        // From now on, its start needs no more descriptors.
        soon("the server is ready", || text().contains("serving "));
        drop(UnixStream::connect(socket).unwrap());
        assert_eq!(control::answer(control, &["list"])[0]["id"], "disk0");
        let limit = |current| {
            let pid = Some(Pid::from_child(&child));
            let before = prlimit(pid, Resource::Nofile, Rlimit { current, maximum: Some(1024) }).unwrap();
            assert!(before.current > Some(3) || current > Some(3));
        };
        // Those that are open stay open.
        limit(Some(3));
        let waiting = [socket, control].map(|path| UnixStream::connect(path).unwrap());
        soon("it says so", || text().contains("warning: a client could not be served: Too many open files"));
        limit(Some(1024));
        drop(waiting);
        assert_eq!(control::answer(control, &["list"])[0]["id"], "disk0");
        assert_eq!(text().matches("warning: a client").count(), 1, "{}", text());
        assert!(child.try_wait().unwrap().is_none(), "{}", text());
        ended(&mut child, Signal::TERM);
    }
}

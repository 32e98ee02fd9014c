//! `paradisk serve nbd` with the clients that others wrote: qemu-img, qemu-io, nbdinfo, nbdcopy, nbdfuse, nbdkit.

mod common;
#[path = "common/control.rs"]
#[expect(dead_code, reason = "disks of this server do not grow")]
mod control;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{Folder, Running, ended, ready};
use rustix::process::Signal;

const PARADISK: &str = env!("CARGO_BIN_EXE_paradisk");
/// Not a whole number of blocks of any format.
const SIZE: u64 = (48 << 20) + (1 << 20) + 4096;

#[track_caller]
fn run(program: &str, args: &[&str]) -> Output {
    // A client that hangs must not hang the tests.
    let limited = [&["60", program][..], args].concat();
    Command::new("timeout").args(&limited).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

#[track_caller]
fn good(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        println!("SKIP: {test}: {program} is not installed");
    }
    found
}

struct Served {
    child: Running,
    address: String,
}

impl Served {
    #[track_caller]
    fn start(args: &[&str]) -> Self {
        let (child, line) = ready(Command::new(PARADISK).args([&["serve", "nbd"], args].concat()));
        let address = line.rsplit(" at ").next().unwrap().trim().to_owned();
        Self { child, address }
    }

    /// As a service manager ends it.
    #[track_caller]
    fn end(mut self, signal: Signal) {
        ended(&mut self.child, signal);
    }
}

impl Folder {
    /// With a raw disk in it: data here and there.
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let raw = File::create(folder.path("a.raw")).unwrap();
        raw.set_len(SIZE).unwrap();
        for (number, at) in [0, 5 << 20, (5 << 20) + 8192, 17 << 20, SIZE - 4096].into_iter().enumerate() {
            raw.write_all_at(&[number as u8 + 1; 4096], at).unwrap();
        }
        folder
    }

    /// The raw disk as an image of each kind.
    fn images(&self) -> [String; 3] {
        let raw = self.name("a.raw");
        let convert = |name: &str, format: &str, subformat: &str| {
            let options = ["--format", format, "--subformat", subformat];
            good(PARADISK, &[&["image", "convert", &raw, &self.name(name)][..], &options].concat());
        };
        convert("a.vhd", "vhd", "dynamic");
        convert("base.vhdx", "vhdx", "dynamic");
        let (child, base) = (self.name("child.vhdx"), self.name("base.vhdx"));
        good(PARADISK, &["image", "create", &child, "--format", "vhdx", "--parent", &base]);
        std::fs::copy(&raw, self.path("copy.raw")).unwrap();
        [self.name("copy.raw"), self.name("a.vhd"), child]
    }
}

#[test]
fn qemu_reads_and_writes_every_kind_of_image() {
    if !there("qemu-img") {
        return;
    }
    let folder = Folder::new();
    let (raw, socket) = (folder.name("a.raw"), folder.name("socket"));
    let uri = format!("nbd+unix:///?socket={socket}");
    for image in folder.images() {
        let served = Served::start(&["--socket", &socket, "--disk", &image]);
        assert_eq!(served.address, socket);
        good("qemu-img", &["compare", "-f", "raw", "-F", "raw", &raw, &uri]);
        let commands = [
            "write -P 0x51 1M 700k",
            "write -f -P 0x52 6M 64k",
            "write -z -u 5M 8k",
            "write -z 17M 1k",
            "flush",
            "read -P 0x51 1M 700k",
            "read -P 0x52 6M 64k",
            "read -P 0 5M 8k",
            "read -P 3 5251072 4k",
            "read -P 0 17M 1k",
            "read -P 4 17826816 3k",
            "discard 30M 1M",
            // Parts of sectors.
            "write -P 0x53 2000001 777",
            "write -f -P 0x54 7000000 70001",
            "write -z 7000003 5",
            "write -z -u 7010001 20000",
            "read -P 0x53 2000001 777",
            "read -P 0 7000003 5",
            "read -P 0x54 7000008 9993",
            "read -P 0 7010001 20000",
            "discard 31000001 20000",
        ];
        let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
        let text = good("qemu-io", &[&["-f", "raw", &uri][..], &commands].concat());
        assert!(!text.contains("fail"), "{image}: {text}");
        // The same, converted by QEMU.
        let mirror = folder.name("mirror.raw");
        std::fs::copy(&raw, &mirror).unwrap();
        good("qemu-io", &[&["-f", "raw", &mirror][..], &commands].concat());
        good("qemu-img", &["compare", "-f", "raw", "-F", "raw", &mirror, &uri]);
        served.end(Signal::TERM);
        assert!(!Path::new(&socket).exists());
        if !image.ends_with(".raw") {
            good(PARADISK, &["image", "check", &image]);
        }
        good(PARADISK, &["image", "compare", &image, &mirror]);
    }
}

/// Writes of any offset and size, which do not end where sectors do.
const WRITES: [(u64, usize); 5] = [(1, 1), (511, 2), (4095, 70_000), ((17 << 20) + 700, 100), (SIZE - 5, 5)];

/// The raw disk, and what is in it after [`WRITES`].
fn expect_writes(folder: &Folder, write: impl Fn(u64, &[u8])) -> String {
    let mirror = folder.name("mirror.raw");
    std::fs::copy(folder.path("a.raw"), &mirror).unwrap();
    let file = File::options().write(true).open(&mirror).unwrap();
    for ((offset, len), value) in WRITES.into_iter().zip(0x61..) {
        let data = vec![value; len];
        write(offset, &data);
        file.write_all_at(&data, offset).unwrap();
    }
    mirror
}

/// A FUSE file system, unmounted when dropped.
struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run("fusermount3", &["-u", &self.0]);
    }
}

#[test]
fn the_image_is_a_file_of_fuse() {
    if !there("nbdfuse") || !there("fusermount3") {
        return;
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        println!("SKIP: the_image_is_a_file_of_fuse: /dev/fuse: {error}");
        return;
    }
    let folder = Folder::new();
    let socket = folder.name("socket");
    for image in folder.images() {
        let served = Served::start(&["--socket", &socket, "--disk", &image]);
        let place = folder.name("mounted");
        std::fs::create_dir_all(&place).unwrap();
        let uri = format!("nbd+unix:///?socket={socket}");
        let nbdfuse = Command::new("nbdfuse").args([&format!("{place}/"), &uri]).spawn().unwrap();
        let (mut nbdfuse, mounted) = (Running(nbdfuse), Mounted(place.clone()));
        let begin = Instant::now();
        while !Path::new(&format!("{place}/nbd")).exists() {
            assert_eq!(nbdfuse.try_wait().unwrap(), None, "nbdfuse does not mount");
            assert!(begin.elapsed() < Duration::from_secs(60), "nbdfuse hangs");
            std::thread::sleep(Duration::from_millis(10));
        }
        let file = File::options().read(true).write(true).open(format!("{place}/nbd")).unwrap();
        let mirror = expect_writes(&folder, |offset, data| {
            file.write_all_at(data, offset).unwrap();
            let mut found = vec![0; data.len()];
            file.read_exact_at(&mut found, offset).unwrap();
            assert!(found == data, "{image}: {offset}");
        });
        file.sync_all().unwrap();
        drop(file);
        drop(mounted);
        assert!(nbdfuse.wait().unwrap().success());
        served.end(Signal::TERM);
        good(PARADISK, &["image", "compare", &image, &mirror]);
    }
}

#[test]
fn nbdkit_passes_requests_of_any_size_on() {
    if !there("nbdkit") || !there("qemu-img") {
        return;
    }
    let folder = Folder::new();
    let socket = folder.name("socket");
    let upstream = format!("socket={socket}");
    for image in folder.images() {
        let served = Served::start(&["--socket", &socket, "--disk", &image]);
        let through_nbdkit = |commands: &str| {
            let run = format!("qemu-io -f raw {commands} \"$uri\"");
            let text = good("nbdkit", &["-U", "-", "nbd", &upstream, "--run", &run]);
            assert!(!text.contains("fail"), "{image}: {text}");
        };
        let mirror = expect_writes(&folder, |offset, data| {
            let (value, len) = (data[0], data.len());
            through_nbdkit(&format!(
                "-c 'write -P {value} {offset} {len}' -c 'read -P {value} {offset} {len}'"
            ));
        });
        served.end(Signal::TERM);
        good(PARADISK, &["image", "compare", &image, &mirror]);
    }
}

#[test]
fn qemu_sees_what_is_stored_and_copies_to_and_fro() {
    if !there("qemu-img") {
        return;
    }
    let folder = Folder::new();
    let socket = folder.name("socket");
    let uri = format!("nbd+unix:///?socket={socket}");
    let [_, _, child] = folder.images();
    let served = Served::start(&["--socket", &socket, "--disk", &child]);
    let map = good("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let zeros = |piece: &&serde_json::Value| piece["zero"] == true;
    let found: u64 =
        map.as_array().unwrap().iter().filter(zeros).filter_map(|piece| piece["length"].as_u64()).sum();
    assert!(found > SIZE - (4 << 20) && found < SIZE, "{found} bytes of zeros: {map}");
    let (copy, raw) = (folder.name("out.raw"), folder.name("a.raw"));
    good("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, &copy]);
    good("qemu-img", &["compare", &raw, &copy]);
    File::options().write(true).open(&copy).unwrap().write_all_at(&[0xEE; 1 << 20], 9 << 20).unwrap();
    good("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &copy, &uri]);
    served.end(Signal::INT);
    good(PARADISK, &["image", "compare", &child, &copy]);
    good(PARADISK, &["image", "check", &child]);
}

#[test]
fn libnbd_sees_the_exports_and_copies_over_several_connections() {
    if !there("nbdinfo") || !there("nbdcopy") {
        return;
    }
    let folder = Folder::new();
    let [raw, vhd, child] = folder.images();
    let (vhd_spec, raw_spec) = (format!("path={vhd},readonly=on"), format!("path={raw},direct=on"));
    let disks = ["--disk", &vhd_spec, "--disk", &child, "--disk", &raw_spec];
    let names = ["--export", "old", "--export", "new", "--export", "raw"];
    let served = Served::start(&[&["--listen", "127.0.0.1:0"], &disks[..], &names].concat());
    let uri = |name: &str| format!("nbd://{}/{name}", served.address);
    let told = good("nbdinfo", &["--json", "--list", &uri("")]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let exports = told["exports"].as_array().unwrap();
    let of = |key: &str| exports.iter().map(|export| export[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("export-name"), ["old", "new", "raw"]);
    assert_eq!(of("description"), ["vhd, dynamic", "vhdx, differencing", "raw"]);
    assert_eq!(of("is_read_only"), [true, false, false]);
    assert_eq!(of("can_multi_conn"), [true; 3]);
    assert_eq!(of("can_fua"), [false, true, true]);
    assert!(of("export-size").iter().skip(1).all(|size| *size == SIZE), "{told}");

    let out = folder.name("out.raw");
    for name in ["new", "raw"] {
        good("nbdcopy", &["--connections=4", &uri(name), &out]);
        good("cmp", &[&folder.name("a.raw"), &out]);
    }
    File::options().write(true).open(&out).unwrap().write_all_at(&[0xEE; 1 << 20], 9 << 20).unwrap();
    for name in ["new", "raw"] {
        good("nbdcopy", &["--connections=4", "--flush", &out, &uri(name)]);
    }
    let refused = run("nbdcopy", &[&out, &uri("old")]);
    assert!(!refused.status.success(), "written to a read-only disk");
    assert!(!run("nbdinfo", &[&uri("none")]).status.success());
    served.end(Signal::TERM);
    good(PARADISK, &["image", "check", &child]);
    good(PARADISK, &["image", "compare", &child, &out]);
    good("cmp", &[&raw, &out]);
}

/// A certificate authority, and certificates by it for a server and a client, named as libnbd and QEMU look for them.
fn make_certificates(folder: &Folder) {
    let openssl = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| arg.replace("@", &folder.name(""))).collect();
        good("openssl", &args.iter().map(String::as_str).collect::<Vec<_>>());
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout"];
    let new = |args: &[&str]| openssl(&[&["req", "-x509", "-days", "2"], &key[..], args].concat());
    new(&["@ca-key.pem", "-out", "@ca-cert.pem", "-subj", "/CN=authority"]);
    for (who, purpose) in [("server", "serverAuth"), ("client", "clientAuth")] {
        let (key, cert) = (format!("@{who}-key.pem"), format!("@{who}-cert.pem"));
        let authority = ["-CA", "@ca-cert.pem", "-CAkey", "@ca-key.pem", "-subj", "/CN=localhost"];
        let purpose = format!("extendedKeyUsage={purpose}");
        let names = ["-addext", "subjectAltName=DNS:localhost", "-addext", &purpose];
        let plain = ["-addext", "basicConstraints=critical,CA:FALSE"];
        new(&[&[&key[..], "-out", &cert], &authority[..], &names, &plain].concat());
    }
}

#[test]
fn tls_is_asked_for_and_clients_can_be_known_by_their_certificates() {
    let openssl = Command::new("openssl").arg("version").output().is_ok_and(|output| output.status.success());
    if !there("nbdinfo") || !there("nbdcopy") || !there("qemu-img") || !openssl {
        println!(
            "SKIP: tls_is_asked_for_and_clients_can_be_known_by_their_certificates: nbdinfo, nbdcopy, qemu-img and openssl are needed"
        );
        return;
    }
    let folder = Folder::new();
    make_certificates(&folder);
    let [raw, _, child] = folder.images();
    let [certificate, key, authority] =
        ["server-cert.pem", "server-key.pem", "ca-cert.pem"].map(|name| folder.name(name));
    let disks = ["--disk", &raw, "--disk", &child, "--export", "raw", "--export", "new"];
    let tls = ["--tls-certificate", &certificate, "--tls-key", &key, "--tls-client-ca", &authority];
    let served = Served::start(&[&["--listen", "127.0.0.1:0"], &disks[..], &tls].concat());
    let port = served.address.rsplit(':').next().unwrap();
    let certificates = folder.name("");
    let uri = |name: &str| format!("nbds://localhost:{port}/{name}?tls-certificates={certificates}");
    let out = folder.name("out.raw");
    for name in ["raw", "new"] {
        let told = good("nbdinfo", &[&uri(name)]);
        assert!(told.contains("with TLS"), "{told}");
        good("nbdcopy", &["--connections=4", &uri(name), &out]);
        good("cmp", &[&folder.name("a.raw"), &out]);
    }
    File::options().write(true).open(&out).unwrap().write_all_at(&[0xEE; 3 << 20], 9 << 20).unwrap();
    good("nbdcopy", &["--connections=4", "--flush", &out, &uri("new")]);
    let object = format!("tls-creds-x509,id=tls0,dir={certificates},endpoint=client");
    let image = format!("driver=nbd,host=localhost,port={port},export=new,tls-creds=tls0");
    good(
        "qemu-img",
        &[
            "compare",
            "--object",
            &object,
            "--image-opts",
            &image,
            &format!("driver=raw,file.driver=file,file.filename={out}"),
        ],
    );

    // In clear text, and without a certificate of one's own.
    let refused = |uri: &str, expected: &str| {
        let output = run("nbdinfo", &[uri]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(expected), "{text}");
    };
    refused(&format!("nbd://localhost:{port}/raw"), "not supported");
    std::fs::remove_file(folder.path("client-key.pem")).unwrap();
    std::fs::remove_file(folder.path("client-cert.pem")).unwrap();
    refused(&uri("raw"), "");
    served.end(Signal::TERM);
    good(PARADISK, &["image", "compare", &child, &out]);
}

#[test]
fn fio_finds_what_it_wrote() {
    let engines = Command::new("fio").arg("--enghelp").output();
    if !engines
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).lines().any(|line| line.trim() == "nbd"))
    {
        println!("SKIP: fio_finds_what_it_wrote: fio with its nbd engine is not installed");
        return;
    }
    let folder = Folder::new();
    let socket = folder.name("socket");
    let uri = format!("--uri=nbd+unix:///?socket={socket}");
    for image in folder.images() {
        let served = Served::start(&["--socket", &socket, "--disk", &image]);
        // Without state, which it would leave as a file where it runs.
        let job =
            ["--name=verify", "--verify_state_save=0", "--ioengine=nbd", &uri, "--size=32M", "--iodepth=32"];
        let load = ["--rw=randwrite", "--bsrange=512-128k", "--bs_unaligned=0", "--fsync=100"];
        let verify = ["--verify=crc32c", "--verify_backlog=256", "--verify_fatal=1", "--randseed=7"];
        good("fio", &[&job[..], &load, &verify].concat());
        // What is read back later, by another connection, is the same.
        good("fio", &[&job[..], &["--rw=randrw", "--bs=4k", "--verify=md5", "--verify_fatal=1"]].concat());
        served.end(Signal::TERM);
        if !image.ends_with(".raw") {
            good(PARADISK, &["image", "check", &image]);
        }
    }
}

#[test]
fn a_second_writer_is_refused_and_arguments_are_checked() {
    let folder = Folder::new();
    let [_, vhd, child] = folder.images();
    let socket = folder.name("socket");
    let served = Served::start(&["--socket", &socket, "--disk", &vhd]);
    let other = folder.name("other");
    let fails = |args: &[&str], status: i32, expected: &str| {
        let output = run(PARADISK, &[&["serve", "nbd"], args].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    };
    fails(&["--socket", &other, "--disk", &vhd], 1, &vhd);
    fails(&["--socket", &socket, "--disk", &child], 1, &socket);
    fails(&["--disk", &child], 2, "--socket");
    fails(&["--socket", &other, "--listen", "127.0.0.1:0", "--disk", &child], 2, "--listen");
    fails(&["--socket", &other, "--disk", &child, "--disk", "ram=1M"], 2, "a name for each disk");
    let none = folder.name("none.pem");
    let tls = ["--tls-certificate", &none, "--tls-key", &none];
    fails(&[&["--socket", &other, "--disk", &child], &tls[..]].concat(), 1, "none.pem");
    let twice = ["--disk", &child, "--disk", "ram=1M", "--export", "a", "--export", "a"];
    fails(&[&["--socket", &other], &twice[..]].concat(), 2, "two exports are called \"a\"");
    served.end(Signal::TERM);
}

#[test]
fn the_control_socket_tells_the_memory_of_maps_and_ends_it() {
    let folder = Folder::new();
    let [socket, image, control] = ["socket", "disk.vhdx", "control"].map(|name| folder.path(name));
    control::vhdx(&image);
    let mut server = Command::new(PARADISK);
    server.args(["serve", "nbd", "--export", "a", "--export", "b", "--disk", "ram=1M"]);
    server.arg("--socket").arg(&socket);
    // Connected clients get no message about a new capacity.
    let (mut child, _) = ready(server.arg("--disk").arg(&image).arg("--control").arg(&control));
    let ctl = |command: &[&str]| {
        let mut paradisk = Command::new(PARADISK);
        paradisk.arg("ctl").arg(&control).args(command);
        paradisk
    };
    common::refused(&mut ctl(&["resize", "disk0", "2M"]), 1, "cannot report a new capacity");
    common::refused(&mut ctl(&["rescan"]), 1, "cannot report a new capacity");
    assert!(ctl(&["stop"]).status().unwrap().success());
    assert!(child.wait().unwrap().success() && !socket.exists());
    control::map_memory_is_told(|socket, image| {
        let mut server = Command::new(PARADISK);
        server.args(["serve", "nbd", "--export", "a", "--export", "b"]).arg("--socket").arg(socket);
        server.args(["--disk", image, "--disk", "ram=1M"]);
        server
    });
}

#[test]
fn a_server_may_end_with_its_last_client() {
    if !there("qemu-img") {
        return;
    }
    let folder = Folder::new();
    let (socket, raw) = (folder.name("socket"), folder.name("a.raw"));
    let mut served = Served::start(&["--exit-on-disconnect", "--socket", &socket, "--disk", &raw]);
    // It negotiates nothing, so the server stays for the next client.
    drop(std::os::unix::net::UnixStream::connect(&socket).unwrap());
    good("qemu-img", &["info", &format!("nbd+unix:///?socket={socket}")]);
    assert!(served.child.wait().unwrap().success() && !Path::new(&socket).exists());
}

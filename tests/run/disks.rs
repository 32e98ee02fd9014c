//! Disks that a machine gets by descriptor, or while it runs.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use crate::machine::*;

#[test]
fn disks_come_and_go_over_the_control_socket() {
    if !kvm("disks_come_and_go_over_the_control_socket") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("metrics");
    let places = ["--metrics", metrics.to_str().unwrap()];
    let disks = ["--disk", "ram=1M,adapter=lsi-sas", "--adapter", "pvscsi"];
    let idle = Idle::start(&[&disks[..], &places].concat(), Stdio::null());
    let image = idle.path("images/a.vhd");
    image_tool(&["create", &image, "--format", "vhd", "--size", "8M"]);
    let spec = format!("path={image},adapter=pvscsi,serial=HOT");
    assert_eq!(idle.json(&["attach", &spec]), "pvscsi0:0");
    // The main thread takes no command before its filter.
    idle.is_confined();
    let disks = idle.json(&["list"]);
    let of = |key: &str| disks.as_array().unwrap().iter().map(|disk| disk[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("id"), ["pvscsi0:0", "lsi-sas0:0"]);
    assert_eq!(of("format"), ["vhd", "ram"]);
    assert!(text(&idle.ctl(&["list"]).stdout).contains("pvscsi0:0"));
    idle.refused(&["attach", &spec], "a.vhd");
    assert_eq!(idle.json(&["coalescing", "off", "--adapter", "pvscsi0"]), "off");
    idle.refused(&["coalescing", "never"], "is not one of: off, batch, oio, oio-iops");
    idle.refused(&["coalescing", "off", "--adapter", "ide0"], "no adapter `ide0`");
    idle.refused(&["attach", "ram=1M,adapter=lsi"], "no lsi adapter with a free target");
    idle.refused(&["attach", "path=absent,adapter=pvscsi"], "absent: cannot open");
    idle.refused(&["detach", "pvscsi0:7"], "no disk `pvscsi0:7`");
    idle.refused(&["resize", "pvscsi0:0", "9M"], "cannot be resized while they are in use");
    idle.refused(&["resize", "pvscsi0:7", "9M"], "no disk `pvscsi0:7`");
    idle.json(&["detach", "pvscsi0:0"]);
    idle.refused(&["detach", "pvscsi0:0"], "no disk");
    // It is closed: others can open it.
    image_tool(&["resize", &image, "9M"]);
    let raw = idle.path("images/a.raw");
    fs::File::create(&raw).unwrap().set_len(1 << 20).unwrap();
    // Beside the folder that was granted.
    fs::copy(&raw, idle.path("other.raw")).unwrap();
    let other = format!("path={},adapter=pvscsi", idle.path("other.raw"));
    idle.refused(&["attach", &other], "the sandbox opens files of `paradisk run --sandbox-path` alone");
    assert_eq!(idle.json(&["attach", &format!("path={raw},adapter=pvscsi")]), "pvscsi0:0");
    assert_eq!(idle.json(&["resize", "pvscsi0:0", "2M"]), "pvscsi0:0");
    fs::File::options().write(true).open(&raw).unwrap().set_len(3 << 20).unwrap();
    assert_eq!(idle.json(&["list"])[0]["capacity"], 2 << 20);
    idle.json(&["rescan"]);
    assert_eq!(idle.json(&["list"])[0]["capacity"], 3 << 20);
    let stats = idle.json(&["stats"]);
    let of = |list: &str, key: &str| {
        stats[list].as_array().unwrap().iter().map(|one| one[key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of("adapters", "name"), ["pvscsi0", "lsi-sas0"]);
    assert_eq!(stats["adapters"][1]["moderation"][0]["policy"], "oio-iops");
    assert_eq!((of("queues", "disk"), of("queues", "adapter")), (of("disks", "id"), of("adapters", "name")));
    assert_eq!(stats["queues"][0]["read"]["count"], 0);
    let mut stream = UnixStream::connect(&metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.ends_with("# EOF\n"), "{response}");
    for sample in [
        r#"paradisk_disk_reads_total{disk="pvscsi0:0",adapter="pvscsi0",queue="0"} 0"#,
        r#"paradisk_adapter_moderation_info{adapter="lsi-sas0",vector="0",policy="oio-iops"} 1"#,
        r#"paradisk_adapter_requests_total{adapter="pvscsi0"} 0"#,
    ] {
        assert!(response.lines().any(|line| line == sample), "{sample}: {response}");
    }
    // A second machine cannot replace the socket of one that runs.
    let kernel = idle.path("kernel");
    let second = run(Path::new(&kernel), &["--control", &idle.path("socket")]);
    assert_eq!(second.status.code(), Some(1), "{}", text(&second.stderr));
    assert!(text(&second.stderr).contains("Address already in use"));
    assert!(idle.ctl(&["stop"]).status.success());
    let (output, folder) = idle.end();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let gone = paradisk(&["ctl", folder.path().join("socket").to_str().unwrap(), "list"]).output().unwrap();
    assert_eq!(gone.status.code(), Some(1));
}

/// A differencing disk in a folder of `--sandbox-path`, with its parent in another folder.
#[test]
fn a_parent_is_opened_where_the_sandbox_allows_it() {
    if !kvm("a_parent_is_opened_where_the_sandbox_allows_it") {
        return;
    }
    let parents = tempfile::tempdir().unwrap();
    let parent = parents.path().join("parent.vhdx");
    let [folder, parent] = [parents.path(), &parent].map(|path| path.to_str().unwrap());
    image_tool(&["create", parent, "--format", "vhdx", "--size", "8M"]);
    for granted in [true, false] {
        let more = ["--adapter", "pvscsi", "--sandbox-path", folder];
        let idle = Idle::start(if granted { &more } else { &more[..2] }, Stdio::null());
        let child = idle.path("images/child.vhdx");
        image_tool(&["create", &child, "--format", "vhdx", "--parent", parent]);
        let spec = format!("path={child},parent-dir={folder},adapter=pvscsi");
        if granted {
            assert_eq!(idle.json(&["attach", &spec]), "pvscsi0:0");
            assert_eq!(idle.json(&["list"])[0]["subformat"], "differencing");
            // Granted, but no place where the disk's parents may be.
            let spec = format!("path={child},adapter=pvscsi");
            idle.json(&["detach", "pvscsi0:0"]);
            idle.refused(&["attach", &spec], &format!("its parent {parent} is outside of"));
        } else {
            idle.refused(&["attach", &spec], &format!("{parent}: cannot open: Permission denied"));
            let hint = "the sandbox opens files of `paradisk run --sandbox-path` alone";
            idle.refused(&["attach", &spec], hint);
            assert_eq!(idle.json(&["list"]), serde_json::json!([]));
        }
        assert!(idle.ctl(&["stop"]).status.success());
        assert_eq!(idle.end().0.status.code(), Some(0));
    }
}

/// The ports of the first IDE channel: data, count, address, device, status and command.
const DATA: u16 = 0x1f0;
const COUNT: u16 = 0x1f2;
const LBA: [u16; 3] = [0x1f3, 0x1f4, 0x1f5];
const DEVICE: u16 = 0x1f6;
const STATUS: u16 = 0x1f7;
const READ_SECTORS: u8 = 0x20;
const WRITE_SECTORS: u8 = 0x30;
const FLUSH_CACHE: u8 = 0xe7;

/// mov dx, port
fn port(port: u16) -> Vec<u8> {
    [&[0x66, 0xba][..], &port.to_le_bytes()].concat()
}

/// Start an ATA command of one sector on the first drive, and wait until it is not busy.
fn ata(command: u8, sector: u8) -> Vec<u8> {
    let registers =
        [(COUNT, 1), (LBA[0], sector), (LBA[1], 0), (LBA[2], 0), (DEVICE, 0xe0), (STATUS, command)];
    // mov al, value; out dx, al
    let out = |(to, value): (u16, u8)| [port(to), vec![0xb0, value, 0xee]].concat();
    let mut code: Vec<u8> = registers.into_iter().flat_map(out).collect();
    // in al, dx; test al, 0x80; jnz
    code.extend([0xec, 0xa8, 0x80, 0x75, 0xfb]);
    code
}

/// The guest says the first byte of its disk, and writes the second sector. Nobody can open the image by its path.
#[test]
fn a_disk_is_passed_by_number() {
    if !kvm("a_disk_is_passed_by_number") {
        return;
    }
    for format in ["raw", "vhd", "vhdx"] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let [raw, disk, link, copy] = ["content", "disk", "link", "copy"].map(path);
        let mut content: Vec<u8> = (0..8 << 20).map(|at: u32| b'Q' ^ (at / 512 % 251) as u8).collect();
        content[..512].fill(b'D');
        fs::write(&raw, &content).unwrap();
        image_tool(&["convert", &raw, &disk, "--format", format]);
        let code = [
            &ata(READ_SECTORS, 0)[..],
            &port(DATA),
            // in ax, dx; then out to the console; then 255 times: in ax, dx; loop
            &[0x66, 0xed],
            &port(0x3f8),
            &[0xee],
            &port(DATA),
            &[0xb9, 255, 0, 0, 0, 0x66, 0xed, 0xe2, 0xfc],
            &ata(WRITE_SECTORS, 1),
            &port(DATA),
            // mov ax, "WW"; 256 times: out dx, ax; loop
            &[0x66, 0xb8, b'W', b'W', 0xb9, 0, 1, 0, 0, 0x66, 0xef, 0xe2, 0xfc],
            &ata(FLUSH_CACHE, 0),
            POWER_OFF,
            IDLE,
        ];
        let kernel = kernel(folder.path(), &code);
        let script = format!("exec 4<>{disk}; ln {disk} {link}; rm {disk}; exec \"$@\"");
        let spec = format!("fd=4,format={format},adapter=ide");
        let run = ["run", "--memory", "64M", "--kernel", kernel.to_str().unwrap(), "--disk", &spec];
        let output = paradisk_by(&["sh", "-c", &script, "sh"], &run).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "D".to_owned()), "{error}");
        assert!(!Path::new(&disk).exists());
        image_tool(&["convert", &link, &copy, "--from-format", format, "--format", "raw"]);
        content[512..1024].fill(b'W');
        assert!(fs::read(&copy).unwrap() == content, "{format}");
    }
    let folder = tempfile::tempdir().unwrap();
    let kernel = kernel(folder.path(), &[POWER_OFF, IDLE]);
    let output = run(&kernel, &["--disk", "fd=4"]);
    assert_eq!(output.status.code(), Some(2));
    let expected = "--disk: fd=4: not a descriptor that this process was started with";
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
}

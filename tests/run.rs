//! `paradisk run` and `paradisk ctl` as scripts see them, with kernels of a few instructions.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use serde_json::Value;

/// The folder of the kernels.
const LOAD: u64 = 1 << 20;
/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(120);

const SAY_R: &[u8] = &[0x66, 0xba, 0xf8, 0x03, 0xb0, b'R', 0xee];
/// A 16-bit write to the power management port.
const POWER_OFF: &[u8] = &[0x66, 0xba, 0x04, 0x06, 0x66, 0xb8, 0x00, 0x20, 0x66, 0xef];
/// The keyboard controller's reset command.
const RESET: &[u8] = &[0xb0, 0xfe, 0xe6, 0x64];
/// Reset control.
const RESET_CONTROL: &[u8] = &[0x66, 0xba, 0xf9, 0x0c, 0xb0, 0x06, 0xee];
/// An undefined instruction, without anything to handle it.
const TRIPLE_FAULT: &[u8] = &[0x0f, 0x0b];
/// sti; hlt; jmp: wait for interrupts, none of which comes.
const IDLE: &[u8] = &[0xfb, 0xf4, 0xeb, 0xfd];
/// cli; hlt; jmp: what Linux does at its end where it knows no power-off.
const HALT: &[u8] = &[0xfa, 0xf4, 0xeb, 0xfd];

/// An ELF kernel of this code.
fn kernel(folder: &Path, code: &[&[u8]]) -> PathBuf {
    let code = code.concat();
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // Executable for x86-64; entry, program headers at 64, no sections.
    file.extend([2u16, 62].map(u16::to_le_bytes).concat());
    file.extend(1u32.to_le_bytes());
    file.extend([LOAD, 64, 0].map(u64::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    // One segment, loaded, readable and executable.
    file.extend([1u32, 5].map(u32::to_le_bytes).concat());
    file.extend([4096, LOAD, LOAD, code.len() as u64, 4096, 4096].map(u64::to_le_bytes).concat());
    file.resize(4096, 0);
    file.extend(code);
    let path = folder.join("kernel");
    fs::write(&path, file).unwrap();
    path
}

fn paradisk(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The same, started by another program.
fn paradisk_by(program: &[&str], args: &[&str]) -> Command {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(env!("CARGO_BIN_EXE_paradisk")).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Both ends of a new terminal, that of programs the second.
fn terminal() -> (fs::File, fs::File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = std::ffi::OsString::from_vec(ptsname(&master, Vec::new()).unwrap().into_bytes());
    let slave = rustix::fs::open(
        PathBuf::from(name),
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY,
        rustix::fs::Mode::empty(),
    );
    (master.into(), slave.unwrap().into())
}

/// Whether lines are edited there, as shells have it.
fn is_cooked(terminal: &fs::File) -> bool {
    tcgetattr(terminal.as_fd()).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether machines can be made here.
fn kvm(test: &str) -> bool {
    let open = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if let Err(error) = &open {
        println!("SKIP: {test}: /dev/kvm: {error}");
    }
    open.is_ok()
}

fn run(kernel: &Path, more: &[&str]) -> Output {
    let kernel = kernel.to_str().unwrap();
    paradisk(&[&["run", "--kernel", kernel, "--memory", "64M"], more].concat()).output().unwrap()
}

/// A machine that says R and idles.
struct Idle {
    child: Option<Child>,
    folder: tempfile::TempDir,
}

impl Idle {
    fn start(more: &[&str], stdin: Stdio) -> Self {
        Self::start_by(&["env"], &[SAY_R, IDLE], more, stdin)
    }

    /// By another program, and with more code.
    fn start_by(program: &[&str], code: &[&[u8]], more: &[&str], stdin: Stdio) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kernel = kernel(folder.path(), code);
        let socket = folder.path().join("socket");
        let args = ["run", "--memory", "64M", "--kernel", kernel.to_str().unwrap()];
        let images = folder.path().join("images");
        fs::create_dir(&images).unwrap();
        let control = ["--control", socket.to_str().unwrap(), "--sandbox-path", images.to_str().unwrap()];
        let mut command = paradisk_by(program, &[&args[..], &control, more].concat());
        let mut child = command.stdin(stdin).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let (sender, said) = mpsc::channel();
        std::thread::spawn(move || {
            let mut said = [0];
            let _ = sender.send(output.read_exact(&mut said).map(|()| (said, output)));
        });
        let mut idle = Self { child: Some(child), folder };
        let (said, output) = said.recv_timeout(SOON).expect("it says nothing").unwrap();
        assert_eq!(said, *b"R");
        idle.child.as_mut().unwrap().stdout = Some(output);
        idle
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn ctl(&self, args: &[&str]) -> Output {
        paradisk(&[&["ctl", &self.path("socket")], args].concat()).output().unwrap()
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        let output = self.ctl(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    #[track_caller]
    fn refused(&self, args: &[&str], expected: &str) {
        let output = self.ctl(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
    }

    /// Every thread has a filter of system calls, and no privileges: KVM's own one, too.
    #[track_caller]
    fn is_confined(&self) {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.as_ref().unwrap().id())).unwrap();
        for task in tasks {
            // The thread of a command may have ended.
            let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
            for line in ["Seccomp:\t2\n", "NoNewPrivs:\t1\n", "CapPrm:\t0000000000000000\n"] {
                assert!(status.contains(line), "{status}");
            }
        }
    }

    fn stdin(&mut self, bytes: &[u8]) {
        let child = self.child.as_mut().unwrap();
        child.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Wait for its end.
    fn end(mut self) -> (Output, tempfile::TempDir) {
        let mut child = self.child.take().unwrap();
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > SOON {
                child.kill().unwrap();
                panic!("it does not end");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        (child.wait_with_output().unwrap(), folder)
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn the_exit_status_says_how_the_guest_ended() {
    if !kvm("the_exit_status_says_how_the_guest_ended") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let stats = folder.path().join("stats.json");
    let reset = "the guest reset the machine";
    for (code, status, said) in [
        (POWER_OFF, 0, ""),
        (RESET, 3, reset),
        (RESET_CONTROL, 3, reset),
        (TRIPLE_FAULT, 3, "rip 0x1000"),
        (HALT, 4, "halted for good"),
    ] {
        let kernel = kernel(folder.path(), &[SAY_R, code, IDLE]);
        let output = run(&kernel, &["--disk", "ram=1M", "--cpus", "2", "--stats", stats.to_str().unwrap()]);
        let error = text(&output.stderr);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(status), &b"R"[..]), "{error}");
        assert!(error.contains(said), "{error}");
        let document: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        assert_eq!(document["schema"], 1);
        assert_eq!(document["adapters"][0]["name"], "pvscsi0");
        assert!(
            document["exits"]["pio"].as_u64() >= Some(1) && document["cycles"]["total"].as_u64() > Some(0)
        );
        fs::remove_file(&stats).unwrap();
    }
}

#[test]
fn what_cannot_boot_says_why() {
    if !kvm("what_cannot_boot_says_why") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let good = kernel(folder.path(), &[SAY_R, POWER_OFF, IDLE]);
    let none = folder.path().join("none");
    fs::write(&none, "no kernel").unwrap();
    let initrd = folder.path().join("initrd");
    fs::File::create(&initrd).unwrap().set_len(128 << 20).unwrap();
    let initrd = initrd.to_str().unwrap();
    let long = "x".repeat(5000);
    for (kernel, more, expected) in [
        (&none, &[][..], "neither ELF nor bzImage"),
        (&folder.path().join("absent"), &[], "No such file"),
        (&good, &["--initrd", initrd], "initrd of 134217728 bytes, expected at most"),
        (&good, &["--memory", "1M"], "guest memory"),
        (&good, &["--memory", "1000"], "1000"),
        (&good, &["--cmdline", &long], "command line of"),
        (&good, &["--protocol", "pvh"], "no PVH entry point"),
        (&good, &["--disk", "absent.vhd"], "absent.vhd: cannot open"),
        (&good, &["--control", initrd], "control socket"),
    ] {
        let kernel = kernel.to_str().unwrap();
        let arguments: &[&str] = if more.contains(&"--memory") { &[] } else { &["--memory", "64M"] };
        let output = paradisk(&[&["run", "--kernel", kernel], arguments, more].concat()).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{more:?}: {error}");
        assert!(error.contains(expected) && output.stdout.is_empty(), "{more:?}: {error}");
    }
    let output = run(&good, &["--protocol", "bios"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn ctrl_a_x_ends_it() {
    if !kvm("ctrl_a_x_ends_it") {
        return;
    }
    let mut idle = Idle::start(&[], Stdio::piped());
    idle.stdin(b"x\x01\x01x\x01x");
    let (output, folder) = idle.end();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!folder.path().join("socket").exists());
}

#[test]
fn a_signal_ends_it_with_its_disks_closed() {
    if !kvm("a_signal_ends_it_with_its_disks_closed") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("a.vhdx");
    let image = image.to_str().unwrap();
    let create = ["image", "create", image, "--format", "vhdx", "--size", "64M"];
    assert!(paradisk(&create).status().unwrap().success());
    for (signal, number) in [("TERM", 15), ("HUP", 1), ("INT", 2)] {
        // Whatever this test's parent has its children ignore.
        let by = ["env", "--default-signal=TERM,HUP,INT"];
        let idle = Idle::start_by(&by, &[SAY_R, IDLE], &["--disk", image], Stdio::null());
        // Another machine cannot open the image meanwhile.
        let output = paradisk(&["image", "resize", image, "65M"]).output().unwrap();
        assert!(!output.status.success(), "{}", text(&output.stderr));
        idle.signal(signal);
        let (output, _folder) = idle.end();
        assert_eq!(output.status.code(), Some(128 + number), "{}", text(&output.stderr));
        assert_eq!(output.status.signal(), None);
        assert!(paradisk(&["image", "check", image]).status().unwrap().success());
    }
}

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
    assert!(
        paradisk(&["image", "create", &image, "--format", "vhd", "--size", "8M"]).status().unwrap().success()
    );
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
    assert!(paradisk(&["image", "resize", &image, "9M"]).status().unwrap().success());
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

#[test]
fn output_that_nobody_takes_stops_nothing() {
    if !kvm("output_that_nobody_takes_stops_nothing") {
        return;
    }
    // Five thousand times: out dx, al
    const SAY_MUCH: &[u8] = &[0x66, 0xba, 0xf8, 0x03, 0xb9, 0x88, 0x13, 0x00, 0x00, 0xee, 0xe2, 0xfd];
    let folder = tempfile::tempdir().unwrap();
    let kernel = kernel(folder.path(), &[SAY_MUCH, POWER_OFF, IDLE]);
    let args = ["run", "--memory", "64M", "--kernel", kernel.to_str().unwrap()];
    let mut child = paradisk(&args).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(error.contains("5000 bytes of the console's output were lost"), "{error}");
}

#[test]
fn the_users_options_come_last() {
    if !kvm("the_users_options_come_last") {
        return;
    }
    // mov esi, 0x20000; mov dx, 0x3f8; lodsb; out dx, al; test al, al; jnz: the command line, with its zero byte.
    const SAY_OPTIONS: &[u8] =
        &[0xbe, 0x00, 0x00, 0x02, 0x00, 0x66, 0xba, 0xf8, 0x03, 0xac, 0xee, 0x84, 0xc0, 0x75, 0xfa];
    let folder = tempfile::tempdir().unwrap();
    let kernel = kernel(folder.path(), &[SAY_OPTIONS, POWER_OFF, IDLE]);
    let said = |more: &[&str]| text(&run(&kernel, more).stdout);
    let options = said(&["--cmdline", "quiet -- x"]);
    assert!(options.contains("console=ttyS0 ") && options.ends_with(" quiet -- x\0"), "{options}");
    assert!(!said(&["--cmdline", "console=tty0"]).contains("ttyS0"));
    assert_eq!(said(&["--cmdline", "quiet", "--exact-cmdline"]), "quiet\0");
}

#[test]
fn the_terminal_is_raw_meanwhile_and_as_before_in_the_end() {
    if !kvm("the_terminal_is_raw_meanwhile_and_as_before_in_the_end") {
        return;
    }
    let (mut user, terminal) = terminal();
    for (what, status) in [("keys", 0), ("stop", 0), ("TERM", 143)] {
        assert!(is_cooked(&terminal), "before {what}");
        let by = ["env", "--default-signal=TERM"];
        let idle = Idle::start_by(&by, &[SAY_R, IDLE], &[], terminal.try_clone().unwrap().into());
        assert!(!is_cooked(&terminal), "{what}");
        match what {
            "keys" => user.write_all(b"x\x01x").unwrap(),
            "stop" => assert!(idle.ctl(&["stop"]).status.success()),
            signal => idle.signal(signal),
        }
        let (output, _folder) = idle.end();
        assert_eq!(output.status.code(), Some(status), "{what}: {}", text(&output.stderr));
    }
    let folder = tempfile::tempdir().unwrap();
    for (code, status) in [(POWER_OFF, 0), (RESET, 3), (TRIPLE_FAULT, 3), (HALT, 4)] {
        let kernel = kernel(folder.path(), &[code, IDLE]);
        let mut command = paradisk(&["run", "--memory", "64M", "--kernel", kernel.to_str().unwrap()]);
        let output = command.stdin(terminal.try_clone().unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
        assert!(is_cooked(&terminal), "{status}");
    }
}

#[test]
fn keys_end_a_guest_that_reads_nothing() {
    if !kvm("keys_end_a_guest_that_reads_nothing") {
        return;
    }
    let (mut user, terminal) = terminal();
    let idle = Idle::start(&[], terminal.into());
    // More than waits for a guest.
    std::thread::spawn(move || {
        user.write_all(&[b'y'; 70_000]).unwrap();
        user.write_all(b"\x01x").unwrap();
        std::thread::sleep(SOON);
    });
    let (output, _folder) = idle.end();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn in_the_background_it_leaves_the_terminal_alone() {
    if !kvm("in_the_background_it_leaves_the_terminal_alone") {
        return;
    }
    let (mut user, terminal) = terminal();
    // As a shell with a terminal of its own starts it.
    let by = ["setsid", "--ctty", "sh", "-c", "set -m; \"$@\" & wait $!", "sh"];
    let idle = Idle::start_by(&by, &[SAY_R, IDLE], &[], terminal.try_clone().unwrap().into());
    assert!(is_cooked(&terminal));
    user.write_all(b"\x01x\n").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(idle.json(&["list"]), Value::Array(Vec::new()), "the keys were the shell's");
    assert!(idle.ctl(&["stop"]).status.success());
    let (output, _folder) = idle.end();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_signal_that_is_ignored_stays_so() {
    if !kvm("a_signal_that_is_ignored_stays_so") {
        return;
    }
    let by = ["env", "--ignore-signal=HUP"];
    let idle = Idle::start_by(&by, &[SAY_R, IDLE], &[], Stdio::null());
    idle.signal("HUP");
    std::thread::sleep(Duration::from_millis(300));
    idle.json(&["list"]);
    assert!(idle.ctl(&["stop"]).status.success());
    assert_eq!(idle.end().0.status.code(), Some(0));
}

#[test]
fn stop_is_answered_when_the_disks_are_closed() {
    if !kvm("stop_is_answered_when_the_disks_are_closed") {
        return;
    }
    // Eighty thousand times: out dx, al. More than a pipe takes that nobody reads.
    const SAY_MUCH: &[u8] = &[0x66, 0xba, 0xf8, 0x03, 0xb9, 0x80, 0x38, 0x01, 0x00, 0xee, 0xe2, 0xfd];
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("a.vhdx");
    let image = image.to_str().unwrap();
    let create = ["image", "create", image, "--format", "vhdx", "--size", "64M"];
    assert!(paradisk(&create).status().unwrap().success());
    let mut idle = Idle::start_by(&["env"], &[SAY_R, SAY_MUCH, IDLE], &["--disk", image], Stdio::null());
    let start = Instant::now();
    while idle.json(&["stats"])["exits"]["pio"].as_u64() < Some(80_001) {
        assert!(start.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(idle.ctl(&["stop"]).status.success());
    let output = paradisk(&["image", "resize", image, "65M"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    drop(idle.child.as_mut().unwrap().stdout.take());
    assert_eq!(idle.end().0.status.code(), Some(0));
}

#[test]
fn questions_do_not_keep_a_guest_that_has_halted() {
    if !kvm("questions_do_not_keep_a_guest_that_has_halted") {
        return;
    }
    let idle = Idle::start_by(&["env"], &[SAY_R, HALT], &[], Stdio::null());
    let start = Instant::now();
    while idle.ctl(&["list"]).status.success() {
        assert!(start.elapsed() < SOON, "it does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(idle.end().0.status.code(), Some(4));
}

#[test]
fn all_that_went_wrong_is_said() {
    if !kvm("all_that_went_wrong_is_said") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let kernel = kernel(folder.path(), &[SAY_R, RESET, IDLE]);
    let output = run(&kernel, &["--stats", "/dev/full"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("the guest reset the machine") && error.contains("/dev/full"), "{error}");
    // Before the guest runs.
    let output = run(&kernel, &["--stats", "/absent/stats.json"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]));
    assert!(text(&output.stderr).contains("/absent/stats.json: cannot write"), "{output:?}");
}

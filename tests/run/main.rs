//! `paradisk run` and `paradisk ctl` as scripts see them, with kernels of a few instructions.

mod disks;
mod machine;

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use machine::*;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use serde_json::Value;

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
    image_tool(&["create", image, "--format", "vhdx", "--size", "64M"]);
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
        image_tool(&["check", image]);
    }
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
    image_tool(&["create", image, "--format", "vhdx", "--size", "64M"]);
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

#[test]
fn the_service_manager_is_told_of_start_and_end() {
    if !kvm("the_service_manager_is_told_of_start_and_end") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let told = || {
        let mut message = [0; 4096];
        let len = manager.recv(&mut message).unwrap();
        text(&message[..len])
    };
    let by = format!("NOTIFY_SOCKET={}", path.display());
    let idle = Idle::start_by(&["env", &by], &[SAY_R, IDLE], &[], Stdio::null());
    assert_eq!(told(), "READY=1\nSTATUS=the guest runs\n");
    assert!(idle.ctl(&["stop"]).status.success());
    assert_eq!(told(), "STOPPING=1\n");
    assert_eq!(idle.end().0.status.code(), Some(0));
}

//! Files that a tool must not replace, cannot reach or must not wait for, and their names.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Child;

use paradisk_disk_formats::OpenOptions;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use super::*;

/// A folder for images.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A base, and children over each other, by these names.
    fn chain(&self, names: &[&str]) {
        for (number, name) in names.iter().enumerate() {
            let (file, format) = (self.name(name), name.rsplit_once('.').unwrap().1);
            match number.checked_sub(1) {
                None if format == "vhd" => {
                    done(&["create", &file, "--format", format, "--subformat", "dynamic", "--size", "8M"]);
                }
                None => {
                    done(&["create", &file, "--format", format, "--size", "8M"]);
                }
                Some(below) => {
                    done(&["create", &file, "--format", format, "--parent", &self.name(names[below])]);
                }
            }
        }
    }

    fn make(&self, folder: &str) {
        fs::create_dir(self.path(folder)).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// `paradisk image`, which must succeed: what it prints.
#[track_caller]
fn done(args: &[&str]) -> String {
    let output = paradisk(&[&["image"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn results_replace_no_file_of_another_kind() {
    let folder = Folder::new();
    folder.chain(&["a.vhd", "b.vhd"]);
    let [a, b, raw] = ["a.vhd", "b.vhd", "c.raw"].map(|name| folder.name(name));
    fs::write(&raw, vec![0; 8 << 20]).unwrap();
    let before = [&a, &b, &raw].map(|file| fs::read(file).unwrap());
    let kept = "it exists, and is not";
    refused(
        &["image", "check", "--json", &a, &b],
        &[&a, kept, "`--json` alone, for standard output, comes last"],
    );
    let new = folder.name("new.raw");
    let measure = ["bench", "--engine", "harness", "--disk", "null=1G", "--duration", "5ms", "--runs", "1"];
    for image in [&a, &raw] {
        for args in [
            &["image", "info", &b, "--json", image][..],
            &["image", "compare", &b, &b, "--json", image],
            &["image", "convert", &b, &new, "--format", "raw", "--json", image],
            &["image", "bench", &b, "--csv", image],
            &["image", "bench", &b, "--json", image],
            &["run", "--kernel", "x", "--stats", image],
            &["report", "x.json", "--html", image],
            &[&measure[..], &["--json", image]].concat(),
            &[&measure[..], &["--csv", image]].concat(),
            &[&measure[..], &["--html", image]].concat(),
        ] {
            refused(args, &[image, kept, "it is not replaced"]);
        }
        // The page of a measurement that is resumed, and its runs until then.
        fs::copy(image, folder.path("d.json.partial")).unwrap();
        let json = folder.name("d.json");
        let args = [&measure[..], &["--json", &json]].concat();
        failed(&args, &["d.json.partial: cannot write", kept]);
        fs::remove_file(folder.path("d.json.partial")).unwrap();
    }
    assert!([&a, &b, &raw].map(|file| fs::read(file).unwrap()) == before);
    assert!(!Path::new(&new).exists());
    // A document of ours is replaced.
    let json = folder.name("r.json");
    for file in [&a, &b] {
        done(&["check", file, "--json", &json]);
        let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        assert_eq!(report["path"], file.as_str());
    }
}

/// `--parent-file` is of the first image alone, and images in between may lie elsewhere.
#[test]
fn a_merge_of_several_steps_finds_each_parent() {
    for format in ["vhd", "vhdx"] {
        let folder = Folder::new();
        let of = |name: &str| format!("{name}.{format}");
        for name in ["here", "away", "here/sub"] {
            folder.make(name);
        }
        // Named outright, with its own parent beside it.
        let [base, middle, top] = ["here/base", "here/middle", "here/top"].map(of);
        folder.chain(&[&base, &middle, &top]);
        let [far, moved] = ["away/base", "away/moved"].map(of);
        fs::rename(folder.path(&base), folder.path(&far)).unwrap();
        fs::rename(folder.path(&middle), folder.path(&moved)).unwrap();
        let [far, moved, top] = [far, moved, top].map(|name| folder.name(&name));
        let said = done(&["merge", &top, "--into", &far, "--parent-file", &moved]);
        assert_eq!(said.lines().count(), 2, "{said}");
        assert!(!Path::new(&top).exists() && !Path::new(&moved).exists() && Path::new(&far).exists());
        // In a folder below, over a base beside the first.
        let [base, middle, top] = ["here/b", "here/sub/m", "here/t"].map(of);
        folder.chain(&[&base, &middle, &top]);
        let [base, middle, top] = [base, middle, top].map(|name| folder.name(&name));
        done(&["rebase", &top, "--parent", &middle]);
        done(&["rebase", &top, "--parent", &middle, "--safe"]);
        done(&["merge", &top, "--into", &base]);
        assert!(!Path::new(&top).exists() && !Path::new(&middle).exists() && Path::new(&base).exists());
    }
}

#[test]
fn a_named_parent_is_that_of_one_disk() {
    let folder = Folder::new();
    folder.make("away");
    folder.chain(&["one.vhd", "a.vhd"]);
    folder.chain(&["two.vhd", "b.vhd"]);
    for name in ["one.vhd", "two.vhd"] {
        fs::rename(folder.path(name), folder.path("away").join(name)).unwrap();
    }
    let [a, b, one, two] = ["a.vhd", "b.vhd", "away/one.vhd", "away/two.vhd"].map(|name| folder.name(name));
    refused(
        &["image", "compare", &a, &b, "--parent-file", &one],
        &["a similar argument exists: '--parent-file-"],
    );
    let both = ["compare", &a, &b, "--parent-file-a", &one, "--parent-file-b", &two];
    assert_eq!(done(&both), "the same\n");
    assert_eq!(done(&["compare", &one, &b, "--parent-file-b", &two]), "the same\n");
    failed(
        &["image", "compare", &a, &b, "--parent-file-a", &one],
        &["b.vhd: parent is missing", "--parent-file-b FILE"],
    );
    refused(
        &["image", "check", &a, &b, "--parent-file", &one],
        &["--parent-file names the parent of one image"],
    );
    done(&["check", &a, "--parent-file", &one]);
    // That of the source, not of the new parent.
    let new = folder.name("new.vhd");
    done(&["convert", &a, &new, "--format", "vhd", "--parent", &two, "--parent-file", &one]);
    fs::remove_file(&new).unwrap();
    let elsewhere = ["image", "convert", &a, &new, "--format", "vhd", "--parent", &b, "--parent-file", &one];
    failed(&elsewhere, &["b.vhd: parent is missing", "(--parent-dir DIR)"]);
}

#[test]
fn messages_name_options_that_the_command_has() {
    let folder = Folder::new();
    folder.make("away");
    for format in ["vhd", "vhdx"] {
        let [base, child, moved] = ["base", "child", "away/base"].map(|name| format!("{name}.{format}"));
        folder.chain(&[&base, &child]);
        let [base, child, moved] = [base, child, moved].map(|name| folder.name(&name));
        let serve = ["serve", "nbd", "--socket", "x", "--disk", &child];
        let bench = ["image", "bench", &child, "--runs", "1", "--duration", "5ms"];
        fs::rename(&base, &moved).unwrap();
        failed(
            &["image", "info", &child, "--chain"],
            &["or name it (--parent-dir DIR, --parent-file FILE)\n"],
        );
        for args in [&serve[..], &bench] {
            failed(args, &["or name it (parent-dir=DIR, parent=FILE)\n"]);
        }
        fs::rename(&moved, &base).unwrap();
        // A parent that was changed.
        done(&["bench", &base, "--rw", "randwrite", "--destroy", "--runs", "1", "--duration", "5ms"]);
        failed(&["image", "map", &child], &["(accept it with `image rebase`) (--any-parent-time)\n"]);
        failed(&["image", "merge", &child], &["(accept it with `image rebase`) (--any-parent-time)\n"]);
        done(&["map", &child, "--any-parent-time"]);
        for args in [&serve[..], &bench] {
            failed(args, &["(accept it with `image rebase`)\n"]);
        }
    }
}

/// What cannot be opened is not damaged.
#[test]
fn a_parent_that_cannot_be_read_is_no_damage() {
    for format in ["vhd", "vhdx"] {
        let folder = Folder::new();
        let [base, child] = ["base", "child"].map(|name| format!("{name}.{format}"));
        folder.chain(&[&base, &child]);
        let [base, child] = [base, child].map(|name| folder.name(&name));
        let check = |command: &mut Command, reason: &str| {
            let output = command.args(["image", "check", &child]).output().unwrap();
            assert_eq!(output.status.code(), Some(1));
            let (said, error) = (stdout(&output), stderr(&output));
            assert!(said.starts_with(&format!("{child}: good, its parents unknown")), "{said}");
            let wanted = format!("error: {child}: its parents were not checked: {reason}");
            assert!(error.contains(&wanted), "{error}");
        };
        let program = || Command::new(env!("CARGO_BIN_EXE_paradisk"));
        let writer = OpenOptions::new(&base).open().unwrap();
        check(&mut program(), &format!("{base}: busy: process {} (", std::process::id()));
        let busy = format!("{base}: busy: process {} (", std::process::id());
        failed(&["image", "map", &child], &[&busy]);
        let output = paradisk(&["image", "check", &child, "--json"]);
        let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert!(report["parents_not_checked"].as_str().unwrap().starts_with(&busy), "{report}");
        assert_eq!((&report["ok"], report["findings"].as_array().unwrap().len()), (&true.into(), 0));
        drop(writer);
        failed(
            &["image", "check", &child, "--parent-dir", "/nonexistent"],
            &["/nonexistent: cannot resolve the directory: No such file"],
        );
        // Root may read everything.
        if !geteuid().is_root() {
            continue;
        }
        for (path, mode) in [(folder.0.path(), 0o755), (Path::new(&child), 0o644), (Path::new(&base), 0o600)]
        {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut nobody = program();
        nobody.uid(65534).gid(65534);
        if nobody.arg("--version").output().is_err() {
            println!("SKIP: a_parent_that_cannot_be_read_is_no_damage: others may not run the program");
            continue;
        }
        let mut nobody = program();
        nobody.uid(65534).gid(65534);
        check(&mut nobody, &format!("{base}: cannot open: Permission denied"));
    }
}

/// The open of a pipe without a writer would wait for ever.
#[test]
fn special_files_are_refused_at_once() {
    let folder = Folder::new();
    folder.chain(&["base.vhd", "child.vhd"]);
    folder.chain(&["base.vhdx", "child.vhdx"]);
    let [pipe, socket] = ["pipe.vhd", "socket.vhd"].map(|name| folder.path(name));
    mkfifoat(CWD, &pipe, Mode::RWXU).unwrap();
    let _listener = UnixListener::bind(&socket).unwrap();
    let [base, child, new] = ["base.vhd", "child.vhd", "new.vhd"].map(|name| folder.name(name));
    let specials = [
        (folder.name("pipe.vhd"), "a pipe"),
        (folder.name("socket.vhd"), "a socket"),
        (folder.name(""), "a directory"),
        ("/dev/null".to_owned(), "a character device"),
    ];
    for (special, kind) in &specials {
        let wanted = format!("type of file is {kind}, expected a regular file or a block device");
        for args in [
            &["info", special][..],
            &["check", special],
            &["check", special, "--format", "vhdx", "--repair"],
            &["map", special, "--format", "raw"],
            &["compare", &base, special],
            &["convert", special, &new, "--format", "raw"],
            &["resize", special, "1M", "--format", "raw"],
            &["compact", special, "--format", "vhd"],
            &["merge", special, "--format", "vhd"],
            &["rebase", special, "--format", "vhd", "--parent", &base],
            &["rebase", &child, "--parent", special],
            &["rebase", &child, "--parent", special, "--safe"],
            &["create", &new, "--format", "vhd", "--parent", special],
            &["create", &new, "--format", "vhdx", "--parent", special],
            &["info", &child, "--chain", "--parent-file", special],
            &["map", &child, "--parent-file", special],
        ] {
            failed(&[&["image"], args].concat(), &[&wanted]);
        }
        failed(&["serve", "nbd", "--socket", "x", "--disk", special], &[&wanted]);
    }
    // Found by the name that the child has recorded.
    for format in ["vhd", "vhdx"] {
        let [base, child] = ["base", "child"].map(|name| folder.name(&format!("{name}.{format}")));
        fs::remove_file(&base).unwrap();
        mkfifoat(CWD, Path::new(&base), Mode::RWXU).unwrap();
        failed(&["image", "map", &child], &[&format!("{base}: type of file is a pipe")]);
    }
    assert!(!Path::new(&new).exists());
}

#[test]
fn names_need_not_be_utf_8() {
    let folder = Folder::new();
    let path = |name: &[u8]| folder.0.path().join(OsStr::from_bytes(name)).into_os_string();
    let run = |args: &[&OsStr]| {
        Command::new(env!("CARGO_BIN_EXE_paradisk")).arg("image").args(args).output().unwrap()
    };
    let good = |args: &[&OsStr]| {
        let output = run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    };
    let text = OsStr::new;
    let [disk, copy, child, base, json] =
        [&b"a\xff.vhd"[..], b"\xfe.vhdx", b"child\xfd.vhd", b"base.vhd", b"\xfc.json"].map(path);
    let shown = format!("{}/a\\xff.vhd", folder.0.path().display());
    good(&[
        text("create"),
        &disk,
        text("--format"),
        text("vhd"),
        text("--subformat"),
        text("dynamic"),
        text("--size"),
        text("8M"),
    ]);
    assert!(good(&[text("info"), &disk]).starts_with(&format!("image: {shown}\n")));
    assert!(good(&[text("check"), &disk]).starts_with(&format!("{shown}: good")));
    good(&[text("convert"), &disk, &copy, text("--format"), text("vhdx")]);
    assert_eq!(good(&[text("compare"), &disk, &copy]), "the same\n");
    good(&[text("resize"), &copy, text("16M")]);
    good(&[text("compact"), &copy]);
    good(&[text("bench"), &disk, text("--duration"), text("5ms"), text("--runs"), text("1")]);
    let mut spec = OsString::from("readonly=on,path=");
    spec.push(&disk);
    good(&[text("bench"), &spec, text("--duration"), text("5ms"), text("--runs"), text("1")]);
    // JSON is UTF-8.
    good(&[text("info"), &disk, text("--json"), &json]);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert!(report["path"].as_str().unwrap().ends_with("/a\u{fffd}.vhd"), "{report}");
    // A child may have such a name, and a parent may not: its child records it.
    good(&[text("create"), &base, text("--format"), text("vhd"), text("--size"), text("8M")]);
    good(&[text("create"), &child, text("--format"), text("vhd"), text("--parent"), &base]);
    good(&[text("map"), &child, text("--json")]);
    good(&[text("rebase"), &child, text("--parent"), &base, text("--safe")]);
    for (format, parent) in [("vhd", &disk), ("vhdx", &copy)] {
        let new = path(format!("new.{format}").as_bytes());
        let output = run(&[text("create"), &new, text("--format"), text(format), text("--parent"), parent]);
        let name = if format == "vhd" { "a\\xff.vhd" } else { "\\xfe.vhdx" };
        let wanted = format!("{name} has characters that a parent locator cannot hold");
        assert!(output.status.code() == Some(1) && stderr(&output).contains(&wanted), "{}", stderr(&output));
        assert!(!Path::new(&new).exists());
    }
    // Where the name is that of a missing file, it is escaped, too.
    let output = run(&[text("info"), &path(b"\x1b\xff")]);
    assert!(stderr(&output).contains("\\x1b\\xff: cannot open: No such file"), "{}", stderr(&output));
}

/// Its list ends only after the last range.
#[test]
fn a_map_that_fails_is_no_document() {
    let folder = Folder::new();
    let [raw, disk] = ["a.raw", "a.vhd"].map(|name| folder.name(name));
    fs::write(&raw, vec![7; 16 << 20]).unwrap();
    done(&["convert", &raw, &disk, "--format", "vhd"]);
    let mut bytes = fs::read(&disk).unwrap();
    let table = u64::from_be_bytes(bytes[512 + 16..512 + 24].try_into().unwrap()) as usize;
    // The fifth of eight blocks.
    bytes[table + 16..table + 20].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF]);
    fs::write(&disk, bytes).unwrap();
    let output = paradisk(&["image", "map", &disk, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("a.vhd: cannot map byte"), "{}", stderr(&output));
    let printed = stdout(&output);
    assert!(serde_json::from_str::<serde_json::Value>(&printed).is_err(), "{printed}");
}

#[test]
fn a_directory_is_no_name_for_an_image() {
    let folder = Folder::new();
    folder.make("there");
    let [raw, there, absent] = ["a.raw", "there", "absent/"].map(|name| folder.name(name));
    fs::write(&raw, [0; 4096]).unwrap();
    for target in [".", "..", "/", &there, &absent] {
        let wanted = format!("{target}: path is that of a directory, expected the name of a new file");
        failed(&["image", "create", target, "--format", "raw", "--size", "1M"], &[&wanted]);
        failed(&["image", "convert", &raw, target, "--format", "vhdx"], &[&wanted]);
    }
    assert_eq!(folder.names(), ["a.raw", "there"]);
}

/// A process that has its temporary file, and is stopped before it has finished.
fn stopped_halfway(folder: &Folder, args: &[&str]) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_paradisk"))
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    loop {
        if folder.names().iter().any(|name| name.contains(".part-")) {
            kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
            return child;
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended before its file was seen");
        std::thread::yield_now();
    }
}

#[test]
fn a_signal_leaves_no_incomplete_file() {
    let folder = Folder::new();
    let [raw, new] = ["a.raw", "new.vhd"].map(|name| folder.name(name));
    // Large enough not to be copied before the process is stopped.
    let mut file = fs::File::create(&raw).unwrap();
    for number in 0..256u32 {
        let part: Vec<u8> = (0..1u32 << 20).map(|at| (at ^ number) as u8 | 1).collect();
        std::io::Write::write_all(&mut file, &part).unwrap();
    }
    let convert = ["image", "convert", &raw, &new, "--format", "vhd", "--subformat", "dynamic"];
    for signal in [Signal::HUP, Signal::TERM, Signal::INT] {
        let child = stopped_halfway(&folder, &convert);
        let id = Pid::from_child(&child);
        kill_process(id, signal).unwrap();
        kill_process(id, Signal::CONT).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{signal:?}: {text}");
        assert!(text.contains("stopped: nothing was created"), "{signal:?}: {text}");
        assert_eq!(folder.names(), ["a.raw"], "{signal:?}");
    }
    // What is ignored stays so: `nohup`.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; kill -HUP $$; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_paradisk")]);
    let mut child = shell.args(convert).stdout(Stdio::null()).spawn().unwrap();
    while folder.names().len() < 2 && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    // Once it has ended, there is nobody to signal.
    let _ = kill_process(Pid::from_child(&child), Signal::HUP);
    assert!(child.wait().unwrap().success());
    assert_eq!(folder.names(), ["a.raw", "new.vhd"]);
}

/// What is said of a repair is what it does.
#[test]
fn a_vhdx_with_an_invalid_entry_says_what_a_repair_does() {
    // {2dc27766-f623-4200-9d64-115e9bfd4a08}, the region of the BAT.
    const BAT: [u8; 16] = *b"\x66\x77\xc2\x2d\x23\xf6\x00\x42\x9d\x64\x11\x5e\x9b\xfd\x4a\x08";
    let folder = Folder::new();
    let [raw, disk] = ["a.raw", "a.vhdx"].map(|name| folder.name(name));
    fs::write(&raw, vec![7; 8 << 20]).unwrap();
    done(&["convert", &raw, &disk, "--format", "vhdx", "--block-size", "1M"]);
    let good = fs::read(&disk).unwrap();
    let at = good.windows(16).position(|window| window == BAT).unwrap() + 16;
    let table = u64::from_le_bytes(good[at..at + 8].try_into().unwrap()) as usize;
    let mut bad = good.clone();
    // Block 3 is far beyond the end.
    bad[table + 24..table + 32].copy_from_slice(&(0x1000_0000_0000_0006u64).to_le_bytes());
    fs::write(&disk, &bad).unwrap();
    let hint = "(`image check --repair` clears such entries: the data of their blocks are lost)";
    failed(&["image", "compact", &disk], &["BAT entry", "of block 3", hint]);
    failed(&["serve", "nbd", "--socket", "x", "--disk", &disk], &["of block 3", hint]);
    let output = paradisk(&["image", "check", &disk]);
    assert!(output.status.code() == Some(1) && !stdout(&output).contains("--repair"), "{}", stdout(&output));
    let output = paradisk(&["image", "check", &disk, "--repair"]);
    assert!(stdout(&output).contains("(repaired: unallocated: its data is lost)"), "{}", stdout(&output));
    done(&["check", &disk]);
    done(&["compact", &disk]);
    // Without a header there is nothing that a repair could do, and nothing says so.
    let mut lost = good;
    lost[64 << 10..192 << 10].fill(0);
    fs::write(&disk, &lost).unwrap();
    for args in [&["check", &disk][..], &["check", &disk, "--repair"]] {
        let output = paradisk(&[&["image"], args].concat());
        let text = stdout(&output) + &stderr(&output);
        assert!(
            output.status.code() == Some(1) && text.contains("NOT good") && !text.contains("repair"),
            "{text}"
        );
    }
    assert!(fs::read(&disk).unwrap() == lost);
}

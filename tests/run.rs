//! `paradisk run` with kernels of a few bytes. Without `/dev/kvm` each test says why it is skipped.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Where the kernels lie.
const AT: u64 = 16 << 20;
/// mov dx, 0x604; mov ax, 0x2000; out dx, ax
const POWER_OFF: [u8; 10] = [0x66, 0xba, 0x04, 0x06, 0x66, 0xb8, 0x00, 0x20, 0x66, 0xef];

/// An ELF kernel of this 64-bit code.
fn elf(code: &[u8]) -> Vec<u8> {
    let halves = |values: &[u16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let words = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let len = code.len() as u64;
    [
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
        // Executable, x86-64, version 1; entry, program headers, no section headers, no flags.
        halves(&[2, 62, 1, 0]),
        words(&[AT, 64, 0]),
        halves(&[0, 0, 64, 56, 1, 0, 0, 0]),
        // To be loaded, with all rights: offset, addresses, lengths, alignment.
        halves(&[1, 0, 7, 0]),
        words(&[120, AT, AT, len, len, 0]),
        code.to_vec(),
    ]
    .concat()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// `None`: no KVM here.
    fn run(&self, kernel: &[u8], args: &[&str]) -> Option<Output> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
        command.arg("run").arg("--kernel").arg(self.file("kernel", kernel)).args(args).stdin(Stdio::null());
        if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
            eprintln!("skipped: /dev/kvm: {error}");
            return None;
        }
        Some(command.output().unwrap())
    }
}

/// Exit status, standard output and standard error, without the note about nested KVMs.
fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let errors = text(&output.stderr);
    let errors = errors.lines().filter(|line| !line.starts_with("note: KVM interprets")).collect::<Vec<_>>();
    (output.status.code(), text(&output.stdout), errors.join("\n"))
}

/// Code that writes to the serial port.
fn print(text: &str) -> Vec<u8> {
    let bytes = text.bytes().flat_map(|byte| [0xb0, byte, 0xee]);
    [0x66, 0xba, 0xf8, 0x03].into_iter().chain(bytes).collect()
}

#[test]
fn a_guest_that_powers_off_ends_it_well() {
    let code = [print("hello\n").as_slice(), &POWER_OFF].concat();
    let Some(output) = Folder::new().run(&elf(&code), &["--memory", "64M", "--cpus", "2"]) else { return };
    assert_eq!(told(&output), (Some(0), "hello\n".to_owned(), String::new()));
}

#[test]
fn a_guest_that_resets_ends_it_with_a_status_of_its_own() {
    let keyboard_controller = [0xb0, 0xfe, 0xe6, 0x64]; // mov al, 0xfe; out 0x64, al
    let reset_control = [0x66, 0xba, 0xf9, 0x0c, 0xb0, 0x06, 0xee]; // mov dx, 0xcf9; mov al, 6; out dx, al
    for code in [&keyboard_controller[..], &reset_control] {
        let Some(output) = Folder::new().run(&elf(code), &["--memory", "64M"]) else { return };
        let expected = "note: the guest reset the machine".to_owned();
        assert_eq!(told(&output), (Some(3), String::new(), expected));
    }
    // ud2, without an interrupt descriptor table.
    let Some(output) = Folder::new().run(&elf(&[0x0f, 0x0b]), &["--memory", "64M"]) else { return };
    let (status, _, text) = told(&output);
    assert_eq!(status, Some(3));
    assert!(text.starts_with("note: the guest reset the machine: virtual CPU 0: triple fault"), "{text}");
    assert!(text.contains("rip 0x1000000 ") && text.contains("instruction 0f 0b"), "{text}");
}

#[test]
fn a_reader_that_goes_away_does_not_stop_the_guest() {
    // mov dx, 0x3f8; mov ecx, 5000; out dx, al; loop
    let endless = [0x66, 0xba, 0xf8, 0x03, 0xb9, 0x88, 0x13, 0x00, 0x00, 0xee, 0xe2, 0xfd];
    let folder = Folder::new();
    let kernel = folder.file("kernel", &elf(&[&endless[..], &POWER_OFF].concat()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    command.arg("run").arg("--kernel").arg(kernel).args(["--memory", "64M"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let (status, _, text) = told(&child.wait_with_output().unwrap());
    if text.contains("/dev/kvm") {
        return eprintln!("skipped: {text}");
    }
    assert_eq!((status, text.as_str()), (Some(0), "note: 5000 bytes of the console's output were lost"));
}

#[test]
fn what_cannot_be_booted_is_named() {
    let folder = Folder::new();
    let failed = |kernel: &[u8], args: &[&str], expected: &str| {
        let Some(output) = folder.run(kernel, args) else { return };
        let (status, stdout, text) = told(&output);
        assert_eq!((status, stdout.as_str()), (Some(1), ""), "{args:?}: {text}");
        assert!(text.starts_with("error: ") && text.contains(expected), "{args:?}: {text}");
    };
    let kernel = elf(&POWER_OFF);
    let initrd = folder.file("initrd", &vec![0; 1 << 20]).display().to_string();
    failed(b"#!/bin/sh", &[], "kernel: no Linux kernel for x86-64: neither ELF nor bzImage");
    failed(&kernel, &["--memory", "8M"], "needs 0x100000a bytes of guest memory");
    failed(
        &kernel,
        &["--memory", "17M", "--initrd", &initrd],
        "initrd: initrd of 1048576 bytes, expected at most",
    );
    failed(&kernel, &["--memory", "17M", "--cmdline", &"x".repeat(2048)], "expected at most 2047");
    failed(&kernel, &["--memory", "1000"], "whole pages of 4096 bytes");
    failed(&kernel, &["--pvh"], "no PVH entry point");
}

#[test]
fn the_users_options_come_last() {
    // mov esi, 0x20000; mov dx, 0x3f8; lodsb; out dx, al; test al, al; jnz: the command line, with its zero byte.
    let code = [
        &[0xbe, 0x00, 0x00, 0x02, 0x00, 0x66, 0xba, 0xf8, 0x03, 0xac, 0xee, 0x84, 0xc0, 0x75, 0xfa][..],
        &POWER_OFF,
    ];
    let kernel = elf(&code.concat());
    let run = |args: &[&str]| Some(told(&Folder::new().run(&kernel, args)?));
    let Some((status, text, _)) = run(&["--cmdline", "quiet -- x"]) else { return };
    assert!(
        status == Some(0) && text.starts_with("console=ttyS0 ") && text.ends_with(" quiet -- x\0"),
        "{text}"
    );
    let alone = run(&["--cmdline", "quiet", "--no-default-cmdline"]).unwrap();
    assert_eq!(alone, (Some(0), "quiet\0".to_owned(), String::new()));
}

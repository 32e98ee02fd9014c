//! A client of a served disk: QEMU, whose firmware boots from the disk.

use std::fmt::Write;
use std::process::Command;

/// Is in the group of the socket.
pub(super) const MEMBER: &str = "alice";
/// Is not.
pub(super) const OTHER: &str = "bob";

/// Protocols with QEMU's options for a disk that is served at the socket of the unit.
pub(super) const PROTOCOLS: [(&str, &[&str]); 3] = [
    (
        "vhost-user-blk",
        &[
            "-chardev",
            "socket,id=disk,path=/run/paradisk/scratch.socket",
            "-device",
            "vhost-user-blk-pci,chardev=disk",
        ],
    ),
    (
        "nbd",
        &[
            "-drive",
            "file.driver=nbd,file.server.type=unix,file.server.path=/run/paradisk/scratch.socket,if=virtio,format=raw",
        ],
    ),
    (
        "vfio-user",
        &[
            "-device",
            r#"{"driver":"vfio-user-pci","socket":{"type":"unix","path":"/run/paradisk/scratch.socket"}}"#,
        ],
    ),
];

/// A machine whose memory the server can map.
const MACHINE: [&str; 14] = [
    "-machine",
    "q35,memory-backend=ram",
    "-accel",
    "tcg",
    "-m",
    "64M",
    "-object",
    "memory-backend-memfd,id=ram,size=64M,share=on",
    "-nodefaults",
    "-display",
    "none",
    "-no-reboot",
    "-device",
    "isa-debug-exit",
];

/// A boot sector that ends QEMU by its debug exit.
const BOOT_SECTOR: [u8; 7] = [
    0xba, 0x01, 0x05, // mov dx, 501h
    0xb0, EXIT, //       mov al, EXIT
    0xee, //             out dx, al
    0xf4, //             hlt
];
const EXIT: u8 = 42;
/// The status with which QEMU then ends, and otherwise never does.
pub(super) const BOOTED: u8 = 2 * EXIT + 1;
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
const SECTOR: usize = 512;
const CAPACITY: usize = 1 << 20;

/// The bytes of a disk that boots.
pub(super) fn disk() -> Vec<u8> {
    let mut disk = vec![0; CAPACITY];
    disk[..BOOT_SECTOR.len()].copy_from_slice(&BOOT_SECTOR);
    disk[SECTOR - SIGNATURE.len()..SECTOR].copy_from_slice(&SIGNATURE);
    disk
}

/// The two users, for systemd-sysusers.
pub(super) fn users() -> String {
    format!("u {MEMBER} -\nm {MEMBER} kvm\nu {OTHER} -\n")
}

/// The file that the clients of a protocol append their output to, below the root folder.
pub(super) fn result(protocol: &str) -> String {
    format!("result-{protocol}")
}

/// A unit each of whose instances is a client and runs as the user of its name.
pub(super) fn unit(protocol: &str) -> String {
    let result = result(protocol);
    format!(
        "[Service]\nType=oneshot\nUser=%i\nExecStart=/bin/sh /client-{protocol}\n\
         StandardOutput=append:/{result}\nStandardError=append:/{result}\n"
    )
}

/// A script that starts QEMU, by this beginning of a line, with the options of a protocol, and prints how it ends.
pub(super) fn script(qemu: &str, options: &[&str]) -> String {
    let mut line = qemu.to_owned();
    for option in MACHINE.iter().chain(options) {
        let _ = write!(line, " '{option}'");
    }
    format!("timeout 60 {line}\necho \"$USER: QEMU ends with $?\"\n")
}

/// A command as a line of a shell. No word has a quotation mark of the kind that encloses it there.
pub(super) fn shell(command: &Command) -> String {
    let mut line = String::from("env");
    for (name, value) in command.get_envs() {
        let _ = write!(line, " '{}={}'", name.display(), value.unwrap_or_default().display());
    }
    for word in [command.get_program()].into_iter().chain(command.get_args()) {
        let _ = write!(line, " '{}'", word.display());
    }
    line
}

//! QEMU's iotests over NBD, with `paradisk serve nbd` in place of qemu-nbd. QEMU's programs are the clients. The tests expect a raw image
//! behind the server; here the image is a VHDX or a VHD.

use std::path::Path;
use std::process::{Command, Stdio};

const PARADISK: &str = env!("CARGO_BIN_EXE_paradisk");
/// Folder of the scripts that run in place of QEMU's programs.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/iotests");
/// Tests for `-raw -nbd` that pass with qemu-nbd and need no virtual machine. Left out are 197 and 215 (a minute each), 083 (a server
/// of its own) and 241 (a raw file that is not whole sectors, which QEMU rounds up and this project refuses).
const TESTS: [&str; 15] =
    ["001", "002", "003", "004", "008", "009", "010", "011", "021", "032", "033", "077", "104", "123", "259"];
/// Tests at a time. They mostly sleep.
const JOBS: &str = "6";

#[test]
fn qemus_tests_pass_over_a_vhdx() {
    check("qemus_tests_pass_over_a_vhdx", "vhdx");
}

#[test]
fn qemus_tests_pass_over_a_vhd() {
    check("qemus_tests_pass_over_a_vhd", "vpc");
}

fn check(test: &str, format: &str) {
    let iotests = match prepared() {
        Ok(iotests) => iotests,
        Err(reason) => return println!("SKIP: {test}: {reason}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let program = |name: &str| Path::new(PROGRAMS).join(name);
    let output = Command::new("timeout")
        .args(["300", "python3", "-B", "check", "-raw", "-nbd", "-j", JOBS])
        .args(TESTS)
        .current_dir(iotests)
        .env("TEST_DIR", folder.path().join("images"))
        .env("SOCK_DIR", folder.path().join("sockets"))
        .env("QEMU_IMG_PROG", program("qemu-img"))
        .env("QEMU_NBD_PROG", program("qemu-nbd"))
        .env("QEMU_IO_PROG", "/usr/bin/qemu-io")
        .env("QEMU_PROG", "/usr/bin/qemu-system-x86_64")
        .env("QSD_PROG", "/usr/bin/qemu-storage-daemon")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PARADISK", PARADISK)
        .env("SERVED_FORMAT", format)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let all = format!("Passed all {} iotests", TESTS.len());
    assert!(
        output.status.success() && text.contains(&all),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The folder of the tests, or why they cannot run here.
fn prepared() -> Result<std::path::PathBuf, String> {
    // The program that runs them looks for all of them, if it uses them or not.
    for program in ["qemu-img", "qemu-io", "qemu-nbd", "qemu-system-x86_64", "qemu-storage-daemon"] {
        let output = Command::new(program).arg("--version").output();
        let output = output.map_err(|_| format!("{program} is not installed"))?;
        let version = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
        if !version.contains(&format!(" {}.", guest_linux::QEMU_VERSION)) {
            return Err(format!("{version}: the tests are those of {}", guest_linux::QEMU_VERSION));
        }
    }
    guest_linux::qemu_iotests().map_err(|error| error.to_string())
}

//! libiscsi's conformance suite for SCSI targets, where the initramfs has it: it sends commands with the ioctl SG_IO.

use std::process::{Command, Stdio};

use guest_init::{Disk, Tested, cunit};

const FOLDER: &str = "/libiscsi";

/// Run all tests on a disk, which loses what it holds.
pub(crate) fn run(disk: &Disk) -> Result<Vec<Tested>, String> {
    let mut command = Command::new(format!("{FOLDER}/ld-linux-x86-64.so.2"));
    command.args(["--library-path", FOLDER]).arg(format!("{FOLDER}/iscsi-test-cu"));
    command.args(["--dataloss", "--test=ALL"]).arg(format!("/dev/{}", disk.name)).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("iscsi-test-cu: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    // A test that fails is status 1.
    match output.status.code() {
        Some(0 | 1) => cunit::parse(&printed),
        _ => Err(format!("iscsi-test-cu: {}: {printed}", output.status)),
    }
}

//! Compiles the bare-metal guest with the compiler that Cargo uses: the driver crate first, then the guest as a flat
//! image. Cargo has no stable way to build a dependency as a freestanding image for the same target.

use std::env;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=baremetal");
    // Of the package `paradisk-guest-driver`, wherever that is.
    let source = env::var("DEP_PARADISK_GUEST_DRIVER_SOURCE").expect("the driver's build script sets it");
    println!("cargo::rerun-if-changed={source}");
    let target = env::var("TARGET").expect("Cargo sets TARGET");
    assert!(target.starts_with("x86_64-"), "the bare-metal guest is x86-64 code, the target is {target}");
    let out = env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR");
    let out = Path::new(&out);
    let driver = out.join("libguest_driver.rlib");
    // Panics name places in the source: the image is the same wherever the package is.
    let remap = format!("--remap-path-prefix={source}=driver/src");
    let image = out.join("baremetal.bin");
    compile(&[
        "--crate-name=guest_driver".as_ref(),
        "--crate-type=rlib".as_ref(),
        remap.as_ref(),
        format!("{source}/lib.rs").as_ref(),
        "-o".as_ref(),
        driver.as_ref(),
    ]);
    let external = format!("--extern=guest_driver={}", driver.display());
    let mut bin: Vec<&OsStr> = vec![
        "--crate-name=baremetal".as_ref(),
        "--crate-type=bin".as_ref(),
        remap.as_ref(),
        "baremetal/main.rs".as_ref(),
        external.as_ref(),
        "-o".as_ref(),
        image.as_ref(),
    ];
    let link_arguments = [
        "-Clink-arg=-nostdlib",
        "-Clink-arg=-nostartfiles",
        "-Clink-arg=-static",
        "-Clink-arg=-Wl,--script=baremetal/link.ld,--oformat=binary,--build-id=none",
    ];
    bin.extend(link_arguments.map(OsStr::new));
    compile(&bin);
}

fn compile(arguments: &[&OsStr]) {
    let rustc = env::var_os("RUSTC").expect("Cargo sets RUSTC");
    let mut command = Command::new(rustc);
    // No unwinding, fixed addresses, and vectors no wider than every x86-64 has.
    command.args(["--edition=2024", "-Cpanic=abort", "-Copt-level=3", "-Crelocation-model=static"]);
    command.args(["-Ccodegen-units=1", "-Cembed-bitcode=no", "-Dwarnings"]);
    let output = command.args(arguments).output().expect("the compiler starts");
    if !output.status.success() {
        panic!("the bare-metal guest does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

//! VHDX.

use super::{
    SIZE, chains_that_libvhdi_reads, good, paradisk, qemu_compares, qemu_reads, qemu_wrote, there, write_into,
};
use crate::Bench;

fn qemu_checks(image: &str) {
    good("qemu-img", &["check", "-f", "vhdx", image]);
}

#[test]
fn qemu_img_reads_what_we_write() {
    let kinds: [&[&str]; 3] = [
        &["--subformat", "fixed", "--block-size", "1M"],
        &["--subformat", "dynamic", "--block-size", "32M"],
        &["--subformat", "dynamic", "--block-size", "2M"],
    ];
    let Some((bench, image)) = qemu_reads("vhdx", "vhdx", &kinds, qemu_checks) else { return };
    // Our tools accept what QEMU has written, and QEMU what they have.
    paradisk(&["image", "resize", &image, "5T"]);
    qemu_checks(&image);
    paradisk(&["image", "resize", &image, "--shrink", &SIZE.to_string()]);
    paradisk(&["image", "compact", &image]);
    qemu_checks(&image);
    qemu_compares(&bench.name("a.raw"), "vhdx", &image);
}

#[test]
fn we_read_what_qemu_img_writes() {
    let kinds = [
        "subformat=dynamic",
        "subformat=dynamic,block_state_zero=off",
        "subformat=dynamic,block_size=1M,log_size=2M",
        "subformat=fixed",
        "subformat=fixed,block_state_zero=off",
    ];
    qemu_wrote("vhdx", "vhdx", &kinds, |child| write_into(child, 300, 40));
}

/// Data beyond 4 GiB, where the first bitmap block's entry lies between those of the blocks.
#[test]
fn both_agree_beyond_the_first_chunk() {
    if !there("qemu-io", &["--version"]) {
        return;
    }
    let bench = Bench::new();
    let (ours, theirs) = (bench.name("ours.vhdx"), bench.name("theirs.vhdx"));
    paradisk(&["image", "create", &ours, "--format", "vhdx", "--size", "20G", "--block-size", "1M"]);
    good("qemu-img", &["create", "-f", "vhdx", "-o", "block_size=1M", &theirs, "20G"]);
    for (number, at) in ["0", "4095M", "4096M", "8191M", "12G", "20479M"].into_iter().enumerate() {
        let write = format!("write -P {} {at} 64k", number + 1);
        good("qemu-io", &["-f", "vhdx", "-c", &write, &theirs]);
        good("qemu-io", &["-f", "vhdx", "-c", &write, &ours]);
    }
    paradisk(&["image", "compare", &ours, &theirs]);
    let copy = bench.name("copy.vhdx");
    paradisk(&["image", "convert", &theirs, &copy, "--format", "vhdx", "--block-size", "1M"]);
    good("qemu-img", &["compare", "-f", "vhdx", "-F", "vhdx", &copy, &ours]);
}

#[test]
fn libvhdi_reads_our_chains() {
    chains_that_libvhdi_reads("vhdx", &["--block-size", "2M"], &["--block-size", "1M"]);
}

//! VHD.

use super::{chains_that_libvhdi_reads, paradisk, qemu_reads, qemu_wrote};

#[test]
fn qemu_img_reads_what_we_write() {
    qemu_reads("vhd", "vpc", &[&["--subformat", "fixed"], &["--subformat", "dynamic"]], |_| ());
}

#[test]
fn we_read_what_qemu_img_writes() {
    // In the first, blocks lie as QEMU packs them, unaligned.
    let kinds = [
        "subformat=dynamic,force_size=on",
        "subformat=dynamic,force_size=off",
        "subformat=fixed,force_size=on",
        "subformat=fixed,force_size=off",
    ];
    qemu_wrote("vhd", "vpc", &kinds, |child| {
        let guest = ["bench", "--engine", "harness", "--adapter", "pvscsi", "--workload", "verify"];
        paradisk(&[&guest[..], &["--block-size", "8K", "--disk", child]].concat());
    });
}

#[test]
fn libvhdi_reads_our_chains() {
    chains_that_libvhdi_reads("vhd", &[], &[]);
}

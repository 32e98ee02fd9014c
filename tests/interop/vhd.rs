//! VHD.

use super::{Bench, SIZE, chains_that_libvhdi_reads, good, paradisk, there};

#[test]
fn qemu_img_reads_what_we_write() {
    if !there("qemu-img", &["--version"]) {
        return;
    }
    let bench = Bench::new();
    let raw = bench.name("a.raw");
    for (subformat, block_size) in [("fixed", None), ("dynamic", None)] {
        let vhd = bench.name(&format!("{subformat}.vhd"));
        let mut args = vec!["image", "convert", &raw, &vhd, "--format", "vhd", "--subformat", subformat];
        args.extend(block_size.iter().flat_map(|size: &&str| ["--block-size", size]));
        paradisk(&args);
        good("qemu-img", &["compare", "-f", "raw", "-F", "vpc", &raw, &vhd]);
        let info = good("qemu-img", &["info", "-f", "vpc", "--output=json", &vhd]);
        assert!(info.contains(&format!("\"virtual-size\": {SIZE}")), "to the byte: {info}");
    }
    // What QEMU writes into our image, we read.
    let vhd = bench.name("dynamic.vhd");
    if there("qemu-io", &["--version"]) {
        good("qemu-io", &["-f", "vpc", "-c", "write -P 0x5A 10M 64k", &vhd]);
        good("qemu-io", &["-f", "raw", "-c", "write -P 0x5A 10M 64k", &raw]);
        paradisk(&["image", "compare", &raw, &vhd]);
        paradisk(&["image", "check", &vhd]);
    }
}

#[test]
fn we_read_what_qemu_img_writes() {
    if !there("qemu-img", &["--version"]) {
        return;
    }
    let bench = Bench::new();
    let raw = bench.name("a.raw");
    for (subformat, forced) in [("dynamic", "on"), ("dynamic", "off"), ("fixed", "on"), ("fixed", "off")] {
        let vhd = bench.name(&format!("{subformat}-{forced}.vhd"));
        let options = format!("subformat={subformat},force_size={forced}");
        good("qemu-img", &["convert", "-f", "raw", "-O", "vpc", "-o", &options, &raw, &vhd]);
        paradisk(&["image", "compare", &raw, &vhd]);
        paradisk(&["image", "check", &vhd]);
        let info = paradisk(&["image", "info", &vhd, "--json"]);
        let theirs = good("qemu-img", &["info", "-f", "vpc", "--output=json", &vhd]);
        let size = theirs.split("\"virtual-size\": ").nth(1).unwrap().split(',').next().unwrap();
        assert!(info.contains(&format!("\"capacity\": {size}")), "{info} {theirs}");
    }
    // Blocks that lie as QEMU packs them, unaligned, take our writes and our tools.
    let vhd = bench.name("dynamic-on.vhd");
    let child = bench.name("child.vhd");
    paradisk(&["image", "create", &child, "--format", "vhd", "--parent", &vhd]);
    paradisk(&["image", "compare", &raw, &child]);
    paradisk(&[
        "bench",
        "--engine",
        "harness",
        "--adapter",
        "pvscsi",
        "--workload",
        "verify",
        "--block-size",
        "8K",
        "--disk",
        &child,
    ]);
    let merged = bench.name("merged.raw");
    paradisk(&["image", "convert", &child, &merged, "--format", "raw"]);
    paradisk(&["image", "merge", &child]);
    paradisk(&["image", "compact", &vhd]);
    paradisk(&["image", "check", &vhd]);
    good("qemu-img", &["compare", "-f", "raw", "-F", "vpc", &merged, &vhd]);
}

#[test]
fn libvhdi_reads_our_chains() {
    chains_that_libvhdi_reads("vhd", &[], &[]);
}

//! VHDX.

use super::{Bench, SIZE, chains_that_libvhdi_reads, good, paradisk, there, write_into};

#[test]
fn qemu_img_reads_what_we_write() {
    if !there("qemu-img", &["--version"]) {
        return;
    }
    let bench = Bench::new();
    let raw = bench.name("a.raw");
    for (subformat, block_size) in [("fixed", "1M"), ("dynamic", "2M"), ("dynamic", "32M")] {
        let vhdx = bench.name(&format!("{subformat}-{block_size}.vhdx"));
        let to = ["--format", "vhdx", "--subformat", subformat, "--block-size", block_size];
        paradisk(&[&["image", "convert", &raw, &vhdx], &to[..]].concat());
        good("qemu-img", &["check", "-f", "vhdx", &vhdx]);
        good("qemu-img", &["compare", "-f", "raw", "-F", "vhdx", &raw, &vhdx]);
        let info = good("qemu-img", &["info", "-f", "vhdx", "--output=json", &vhdx]);
        assert!(info.contains(&format!("\"virtual-size\": {SIZE}")), "to the byte: {info}");
    }
    // What QEMU writes into our image, we read; and our tools take it.
    let vhdx = bench.name("dynamic-2M.vhdx");
    if there("qemu-io", &["--version"]) {
        good("qemu-io", &["-f", "vhdx", "-c", "write -P 0x5A 10M 64k", &vhdx]);
        good("qemu-io", &["-f", "raw", "-c", "write -P 0x5A 10M 64k", &raw]);
        paradisk(&["image", "compare", &raw, &vhdx]);
        paradisk(&["image", "check", &vhdx]);
        paradisk(&["image", "resize", &vhdx, "5T"]);
        good("qemu-img", &["check", "-f", "vhdx", &vhdx]);
        paradisk(&["image", "resize", &vhdx, "--shrink", &SIZE.to_string()]);
        paradisk(&["image", "compact", &vhdx]);
        good("qemu-img", &["check", "-f", "vhdx", &vhdx]);
        good("qemu-img", &["compare", "-f", "raw", "-F", "vhdx", &raw, &vhdx]);
    }
}

#[test]
fn we_read_what_qemu_img_writes() {
    if !there("qemu-img", &["--version"]) {
        return;
    }
    let bench = Bench::new();
    let raw = bench.name("a.raw");
    let kinds = [
        "subformat=dynamic",
        "subformat=dynamic,block_state_zero=off",
        "subformat=dynamic,block_size=1M,log_size=2M",
        "subformat=fixed",
        "subformat=fixed,block_state_zero=off",
    ];
    for (number, options) in kinds.into_iter().enumerate() {
        let vhdx = bench.name(&format!("{number}.vhdx"));
        good("qemu-img", &["convert", "-f", "raw", "-O", "vhdx", "-o", options, &raw, &vhdx]);
        paradisk(&["image", "compare", &raw, &vhdx]);
        paradisk(&["image", "check", &vhdx]);
        let info = paradisk(&["image", "info", &vhdx, "--json"]);
        assert!(info.contains(&format!("\"capacity\": {SIZE}")), "{info}");
    }
    // It takes our writes and our tools, and QEMU reads what they leave.
    let [vhdx, child, merged] = ["0.vhdx", "child.vhdx", "merged.raw"].map(|name| bench.name(name));
    paradisk(&["image", "create", &child, "--format", "vhdx", "--parent", &vhdx]);
    paradisk(&["image", "compare", &raw, &child]);
    write_into(&child, 300, 40);
    paradisk(&["image", "convert", &child, &merged, "--format", "raw"]);
    paradisk(&["image", "merge", &child]);
    paradisk(&["image", "compact", &vhdx]);
    paradisk(&["image", "check", &vhdx]);
    good("qemu-img", &["compare", "-f", "raw", "-F", "vhdx", &merged, &vhdx]);
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

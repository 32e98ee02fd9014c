//! VHDs between us and others: what we write reads the same with qemu-img and libvhdi, and the other way round.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Bytes of the disks: not a whole number of blocks, nor a geometry's product.
const SIZE: u64 = (21 << 20) + 512 * 3;
/// Debian's Python, which has its modules.
const PYTHON: &str = "/usr/bin/python3";

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

#[track_caller]
fn good(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[track_caller]
fn paradisk(args: &[&str]) -> String {
    good(env!("CARGO_BIN_EXE_paradisk"), args)
}

fn there(program: &str, args: &[&str]) -> bool {
    let found = Command::new(program).args(args).output().is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIP: interop: {program} {} does not work here", args.join(" "));
    }
    found
}

/// A folder with a raw disk in it: data here and there, zeros between.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        File::create(bench.path("a.raw")).unwrap().set_len(SIZE).unwrap();
        bench.scatter("a.raw", 7, 60, 1);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Write `count` runs of whole units of `unit` sectors to places that follow from `seed`, to a raw file.
    fn scatter(&self, name: &str, seed: u64, count: u64, unit: u64) {
        let file = File::options().write(true).open(self.path(name)).unwrap();
        for (offset, data) in scattered(seed, count, unit) {
            file.write_all_at(&data, offset).unwrap();
        }
    }
}

fn scattered(seed: u64, count: u64, unit: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        state >> 33
    };
    (0..count).map(move |number| {
        let sectors = (1 + next() % (300 / unit)) * unit;
        let offset = next() % ((SIZE / 512 - sectors) / unit) * unit * 512;
        let data = (0..sectors * 512).map(|at| (at % 251) as u8 ^ (number + seed) as u8 | 1).collect();
        (offset, data)
    })
}

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

/// A chain as libvhdi reads it: each image opened by hand, from the base up.
const READ_CHAIN: &str = "
import sys, pyvhdi
out, images = sys.argv[1], sys.argv[2:]
files = []
for path in images:
    file = pyvhdi.file()
    file.open(path)
    if files:
        file.set_parent(files[-1])
    files.append(file)
top = files[-1]
with open(out, 'wb') as raw:
    left = top.get_media_size()
    while left:
        data = top.read_buffer(min(left, 1 << 20))
        assert data
        raw.write(data)
        left -= len(data)
";

#[test]
fn libvhdi_reads_our_chains() {
    if !there(PYTHON, &["-c", "import pyvhdi"]) {
        return;
    }
    let bench = Bench::new();
    let raw = bench.name("a.raw");
    for (name, base) in [("over-dynamic", "dynamic"), ("over-fixed", "fixed")] {
        let images = ["base", "middle", "top"].map(|part| bench.name(&format!("{name}-{part}.vhd")));
        let [first, middle, top] = &images;
        paradisk(&["image", "convert", &raw, first, "--format", "vhd", "--subformat", base]);
        paradisk(&["image", "create", middle, "--format", "vhd", "--parent", first]);
        write_into(middle, 100, 20);
        paradisk(&["image", "create", top, "--format", "vhd", "--parent", middle]);
        write_into(top, 200, 20);
        for depth in 1..=3 {
            let read = bench.name(&format!("{name}-{depth}.raw"));
            let mut args = vec!["-c", READ_CHAIN, &read];
            args.extend(images.iter().take(depth).map(String::as_str));
            good(PYTHON, &args);
            paradisk(&["image", "compare", &read, &images[depth - 1]]);
        }
        // What stands on a chain is what was written to it, by our own reckoning too.
        let flat = bench.name(&format!("{name}-flat.raw"));
        std::fs::copy(&raw, &flat).unwrap();
        bench.scatter(&format!("{name}-flat.raw"), 100, 20, BYTE);
        bench.scatter(&format!("{name}-flat.raw"), 200, 20, BYTE);
        paradisk(&["image", "compare", &flat, top]);
    }
}

/// Bits of a byte of a bitmap. libvhdi (20210425) takes the clear bits behind a run that ends inside a byte for set ones, so
/// whole bytes are written.
const BYTE: u64 = 8;

/// Write scattered runs to a VHD, through its format.
fn write_into(path: &str, seed: u64, count: u64) {
    let format = disk_formats::OpenOptions::new(Path::new(path)).open_format().unwrap();
    let content = disk_formats::image::Content::new(&*format);
    for (offset, data) in scattered(seed, count, BYTE) {
        content.write_at(&data, offset).unwrap();
    }
    format.flush().unwrap();
}

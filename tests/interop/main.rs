//! Images between us and others: what we write reads the same with qemu-img and libvhdi, and the other way round.

mod table;
mod vhd;
mod vhdx;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Bytes of the disks: not a whole number of blocks, nor a geometry's product.
pub(crate) const SIZE: u64 = (21 << 20) + 512 * 3;
/// Debian's Python, which has its modules.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

pub(crate) fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

#[track_caller]
pub(crate) fn good(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[track_caller]
pub(crate) fn paradisk(args: &[&str]) -> String {
    good(env!("CARGO_BIN_EXE_paradisk"), args)
}

pub(crate) fn there(program: &str, args: &[&str]) -> bool {
    let found = Command::new(program).args(args).output().is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIP: interop: {program} {} does not work here", args.join(" "));
    }
    found
}

/// A folder with a raw disk in it: data here and there, zeros between.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        File::create(bench.path("a.raw")).unwrap().set_len(SIZE).unwrap();
        bench.scatter("a.raw", 7, 60, 1);
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Write `count` runs of whole units of `unit` sectors to places that follow from `seed`, to a raw file.
    pub(crate) fn scatter(&self, name: &str, seed: u64, count: u64, unit: u64) {
        let file = File::options().write(true).open(self.path(name)).unwrap();
        for (offset, data) in scattered(seed, count, unit) {
            file.write_all_at(&data, offset).unwrap();
        }
    }
}

pub(crate) fn scattered(seed: u64, count: u64, unit: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(move |number| {
        let sectors = random.u64(1..=300 / unit) * unit;
        let offset = random.u64(..(SIZE / 512 - sectors) / unit) * unit * 512;
        let data = (0..sectors * 512).map(|at| (at % 251) as u8 ^ (number + seed) as u8 | 1).collect();
        (offset, data)
    })
}

/// A fresh bench if `qemu-img` is there.
fn qemu_bench() -> Option<Bench> {
    there("qemu-img", &["--version"]).then(Bench::new)
}

#[track_caller]
pub(crate) fn qemu_compares(raw: &str, qemu_name: &str, image: &str) {
    good("qemu-img", &["compare", "-f", "raw", "-F", qemu_name, raw, image]);
}

/// The size of a disk, as QEMU sees it.
#[track_caller]
fn qemu_size(qemu_name: &str, image: &str) -> u64 {
    let info = good("qemu-img", &["info", "-f", qemu_name, "--output=json", image]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    info["virtual-size"].as_u64().unwrap_or_else(|| panic!("no size: {info}"))
}

/// QEMU reads what we convert, with each of these options, and `then` is called for each image. Then QEMU writes to all
/// images, and we read them. Returns the bench, with what QEMU has written in `a.raw`, and the last image; `None` without QEMU's
/// tools.
pub(crate) fn qemu_reads(
    format: &str,
    qemu_name: &str,
    kinds: &[&[&str]],
    then: impl Fn(&str),
) -> Option<(Bench, String)> {
    let bench = qemu_bench()?;
    let raw = bench.name("a.raw");
    let mut images = Vec::new();
    for (number, options) in kinds.iter().enumerate() {
        let image = bench.name(&format!("{number}.{format}"));
        paradisk(&[&["image", "convert", &raw, &image, "--format", format], *options].concat());
        qemu_compares(&raw, qemu_name, &image);
        assert_eq!(qemu_size(qemu_name, &image), SIZE, "to the byte: {options:?}");
        then(&image);
        images.push(image);
    }
    if !there("qemu-io", &["--version"]) {
        return None;
    }
    // Parts of blocks that were allocated and of blocks that were not, whose rest reads as zeros.
    let writes = ["3M 512", "10M 64k", "15M 512", "20M 512"].map(|range| format!("write -P 0x5A {range}"));
    let writes: Vec<&str> = writes.iter().flat_map(|write| ["-c", write]).collect();
    good("qemu-io", &[&["-f", "raw"], &writes[..], &[&raw]].concat());
    for image in &images {
        good("qemu-io", &[&["-f", qemu_name], &writes[..], &[image]].concat());
        paradisk(&["image", "compare", &raw, image]);
        paradisk(&["image", "check", image]);
    }
    Some((bench, images.pop()?))
}

/// We read what QEMU converts, with each of these options. Then a child of the first image is written to by `write`, and
/// merged, and QEMU reads the result. Does nothing without `qemu-img`.
pub(crate) fn qemu_wrote(format: &str, qemu_name: &str, kinds: &[&str], write: impl Fn(&str)) {
    let Some(bench) = qemu_bench() else { return };
    let raw = bench.name("a.raw");
    for (number, options) in kinds.iter().enumerate() {
        let image = bench.name(&format!("{number}.{format}"));
        good("qemu-img", &["convert", "-f", "raw", "-O", qemu_name, "-o", options, &raw, &image]);
        paradisk(&["image", "compare", &raw, &image]);
        paradisk(&["image", "check", &image]);
        let info = paradisk(&["image", "info", &image, "--json"]);
        let size = qemu_size(qemu_name, &image);
        // With this option, QEMU writes a VHD of a geometry's product.
        assert!(size == SIZE || options.contains("force_size=off"), "{options}: {size}");
        assert!(info.contains(&format!("\"capacity\": {size}")), "{options}: {info} {size}");
    }
    let [image, child] = ["0", "child"].map(|name| bench.name(&format!("{name}.{format}")));
    let merged = bench.name("merged.raw");
    paradisk(&["image", "create", &child, "--format", format, "--parent", &image]);
    paradisk(&["image", "compare", &raw, &child]);
    write(&child);
    paradisk(&["image", "convert", &child, &merged, "--format", "raw"]);
    paradisk(&["image", "merge", &child]);
    paradisk(&["image", "compact", &image]);
    paradisk(&["image", "check", &image]);
    qemu_compares(&merged, qemu_name, &image);
}

/// A chain as libvhdi reads it: each image opened by hand, from the base up.
pub(crate) const READ_CHAIN: &str = "
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

/// Bits of a byte of a bitmap. libvhdi (20210425) takes the clear bits behind a run that ends inside a byte for set ones, so
/// whole bytes are written.
pub(crate) const BYTE: u64 = 8;

/// Write scattered runs to a VHD, through its format.
pub(crate) fn write_into(path: &str, seed: u64, count: u64) {
    let format = paradisk_disk_formats::OpenOptions::new(Path::new(path)).open_format().unwrap();
    let content = paradisk_disk_formats::image::Content::new(&*format);
    for (offset, data) in scattered(seed, count, BYTE) {
        content.write_at(&data, offset).unwrap();
    }
    format.flush().unwrap();
}

/// libvhdi reads chains of three images as we do, over a dynamic and over a fixed one. The options are those of the first image
/// and of the last.
pub(crate) fn chains_that_libvhdi_reads(format: &str, first_has: &[&str], last_has: &[&str]) {
    if !there(PYTHON, &["-c", "import pyvhdi"]) {
        return;
    }
    let bench = Bench::new();
    let raw = bench.name("a.raw");
    for base in ["dynamic", "fixed"] {
        let images =
            ["base", "middle", "top"].map(|part| bench.name(&format!("over-{base}-{part}.{format}")));
        let [first, middle, top] = &images;
        let to = ["--format", format, "--subformat", base];
        paradisk(&[&["image", "convert", &raw, first], &to[..], first_has].concat());
        paradisk(&["image", "create", middle, "--format", format, "--parent", first]);
        write_into(middle, 100, 20);
        paradisk(&[&["image", "create", top, "--format", format, "--parent", middle], last_has].concat());
        write_into(top, 200, 20);
        for depth in 1..=3 {
            let read = bench.name(&format!("{base}-{depth}.raw"));
            let mut args = vec!["-c", READ_CHAIN, &read];
            args.extend(images.iter().take(depth).map(String::as_str));
            good(PYTHON, &args);
            paradisk(&["image", "compare", &read, &images[depth - 1]]);
        }
        // A chain holds what was written to it, as our own tools read it, too.
        let flat = bench.name(&format!("{base}-flat.raw"));
        std::fs::copy(&raw, &flat).unwrap();
        bench.scatter(&format!("{base}-flat.raw"), 100, 20, BYTE);
        bench.scatter(&format!("{base}-flat.raw"), 200, 20, BYTE);
        paradisk(&["image", "compare", &flat, top]);
    }
}

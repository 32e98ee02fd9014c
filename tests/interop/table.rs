//! The table of `docs/images.md`: which program reads and writes images of each kind with us.
//!
//! [`the_table_is_what_the_programs_do`] computes it with the programs themselves, and compares. With the variable
//! `PARADISK_WRITE_TABLE` it writes the table. The row of a program that cannot be had here stays as it is.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest_linux::Qemu;
use paradisk_disk_formats::OpenOptions;
use paradisk_disk_formats::image::Content;

use super::{PYTHON, paradisk, there};

/// Bytes of the disks: a geometry has exactly this size, which is what some programs go by; below the 16 MiB that pyvhd can write.
const SIZE: usize = 10 << 20;
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/images.md");
const BEGIN: &str = "<!-- Programs: made by tests/interop/table.rs -->\n";
const END: &str = "<!-- End -->\n";
/// Packages of PyPI, in these versions.
const PACKAGES: [&str; 2] = ["dissect.hypervisor==3.21", "pyvhd==0.0.1"];

/// Kinds of images, in the order of the columns.
const KINDS: [(&str, &str); 6] = [
    ("vhd", "fixed"),
    ("vhd", "dynamic"),
    ("vhd", "differencing"),
    ("vhdx", "fixed"),
    ("vhdx", "dynamic"),
    ("vhdx", "differencing"),
];

/// What a program makes of an image of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// The same data as we.
    Right,
    /// Other data, without an error.
    Wrong,
    Refused,
}

/// A cell of the table.
struct Cell {
    reads: Option<Reads>,
    /// The same, for a program that leaves it to its caller to open the parent, without doing that.
    alone: Option<Reads>,
    /// Whether we read what the program writes.
    writes: Option<bool>,
}

impl Cell {
    fn text(&self) -> String {
        let word = |reads: Reads| match reads {
            Reads::Right => "reads",
            Reads::Wrong => "**other data**",
            Reads::Refused => "refuses",
        };
        let reads = self.reads.map(|reads| match self.alone {
            Some(alone) => format!("{} if given the parent, {} if not", word(reads), word(alone)),
            None => word(reads).to_owned(),
        });
        let writes =
            self.writes.map(|good| if good { "writes" } else { "**writes what we refuse**" }.to_owned());
        let parts: Vec<String> = [reads, writes].into_iter().flatten().collect();
        if parts.is_empty() { "–".to_owned() } else { parts.join(", ") }
    }
}

/// Images of ours, and what they read.
struct Images {
    folder: tempfile::TempDir,
}

impl Images {
    fn new() -> Self {
        let images = Self { folder: tempfile::tempdir().unwrap() };
        let mut data = vec![0; SIZE];
        // In three blocks of 2 MiB of five, runs of sectors that begin and end anywhere.
        for (sector, count) in [(0, 3), (9, 200), (4090, 13), (4104, 80), (16_500, 1)] {
            fill(&mut data, sector, count, 1);
        }
        fs::write(images.path("whole.raw"), &data).unwrap();
        for (sector, count) in OWN {
            fill(&mut data, sector, count, 2);
        }
        fs::write(images.path("child.raw"), &data).unwrap();
        for (format, kind) in KINDS {
            let image = images.image(format, kind);
            if kind != "differencing" {
                let to = ["--format", format, "--subformat", kind];
                paradisk(&[&["image", "convert", &images.name("whole.raw"), &image], &to[..]].concat());
                continue;
            }
            paradisk(&[
                "image",
                "create",
                &image,
                "--format",
                format,
                "--parent",
                &images.image(format, "dynamic"),
            ]);
            let disk = OpenOptions::new(&image).open_format().unwrap();
            for (sector, count) in OWN {
                let run = sector * 512..(sector + count) * 512;
                Content::new(&*disk).write_at(&data[run.clone()], run.start as u64).unwrap();
            }
            disk.flush().unwrap();
        }
        images
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn image(&self, format: &str, kind: &str) -> String {
        self.name(&format!("{kind}.{format}"))
    }

    /// The data that an image of this kind has.
    fn expected(&self, kind: &str) -> Vec<u8> {
        let name = if kind == "differencing" { "child.raw" } else { "whole.raw" };
        fs::read(self.path(name)).unwrap()
    }

    /// What a program reads, if it writes the disk to the file that is the argument of `read`, and succeeds.
    fn reads(&self, kind: &str, read: impl FnOnce(&str) -> bool) -> Reads {
        let out = self.name("out.raw");
        let _ = fs::remove_file(&out);
        match read(&out) {
            true => self.judge(kind, &fs::read(&out).unwrap_or_default()),
            false => Reads::Refused,
        }
    }

    fn judge(&self, kind: &str, data: &[u8]) -> Reads {
        if data == self.expected(kind) { Reads::Right } else { Reads::Wrong }
    }

    /// Whether we read the image `new` that a program wrote from `whole.raw`.
    fn written(&self, new: &str) -> bool {
        let reads = |args: &[&str]| {
            Command::new(env!("CARGO_BIN_EXE_paradisk")).arg("image").args(args).output().unwrap()
        };
        reads(&["compare", &self.name("whole.raw"), new]).status.success()
            && reads(&["check", new]).status.success()
    }
}

/// What a child has itself: sectors and their number.
const OWN: [(usize, usize); 4] = [(5, 1), (100, 16), (4095, 3), (9000, 333)];

fn fill(data: &mut [u8], sector: usize, count: usize, seed: u8) {
    let run = &mut data[sector * 512..(sector + count) * 512];
    run.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8 ^ seed << 5 | 1);
}

/// Whether the program ends with success.
fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// The cells of a program with these formats. `reads` is called with the kind and the image, and what it is to write the disk to;
/// `writes` with format and kind, what it is to convert, and the new image: `None` if it cannot write this kind.
fn row(
    images: &Images,
    formats: &[&str],
    reads: impl Fn(&str, &str, &str) -> bool,
    writes: impl Fn(&str, &str, &str, &str) -> Option<bool>,
) -> Vec<Cell> {
    let cell = |(format, kind): (&str, &str)| {
        if !formats.contains(&format) {
            return Cell { reads: None, alone: None, writes: None };
        }
        let image = images.image(format, kind);
        let new = images.name(&format!("new.{format}"));
        let _ = fs::remove_file(&new);
        let written = writes(format, kind, &images.name("whole.raw"), &new);
        Cell {
            reads: Some(images.reads(kind, |out| reads(kind, &image, out))),
            alone: None,
            writes: written.map(|done| done && images.written(&new)),
        }
    };
    KINDS.map(cell).into()
}

fn no_writes(_format: &str, _kind: &str, _raw: &str, _new: &str) -> Option<bool> {
    None
}

fn qemu(images: &Images, qemu: Result<Qemu, guest_linux::Error>) -> Option<Vec<Cell>> {
    let qemu = qemu.inspect_err(|error| println!("SKIP: interop: {error}")).ok()?;
    let driver = |format: &str| if format == "vhd" { "vpc" } else { "vhdx" };
    let format_of = |image: &str| driver(image.rsplit_once('.').unwrap().1);
    Some(row(
        images,
        &["vhd", "vhdx"],
        |_, image, out| {
            let mut command = qemu.program("qemu-img");
            succeeds(command.args(["convert", "-f", format_of(image), "-O", "raw", image, out]))
        },
        |format, kind, raw, new| {
            let options = format!("subformat={kind}");
            let mut command = qemu.program("qemu-img");
            command.args(["convert", "-f", "raw", "-O", driver(format), "-o", &options, raw, new]);
            (kind != "differencing").then(|| succeeds(&mut command))
        },
    ))
}

fn bochs(images: &Images) -> Option<Vec<Cell>> {
    Command::new("bximage")
        .arg("--help")
        .output()
        .inspect_err(|_| println!("SKIP: interop: no bximage"))
        .ok()?;
    let convert = |mode: &str, from: &str, to: &str| {
        let mode = format!("-imgmode={mode}");
        succeeds(Command::new("bximage").args(["-q", "-func=convert", &mode, from, to]))
    };
    Some(row(
        images,
        &["vhd"],
        |_, image, out| convert("flat", image, out),
        |_, kind, raw, new| (kind == "dynamic").then(|| convert("vpc", raw, new)),
    ))
}

fn seven_zip(images: &Images) -> Option<Vec<Cell>> {
    let read = |_: &str, image: &str, out: &str| {
        let output = Command::new("7z").args(["e", "-so", image]).output().unwrap();
        fs::write(out, &output.stdout).unwrap();
        output.status.success()
    };
    there("7z", &["i"]).then(|| row(images, &["vhd", "vhdx"], read, no_writes))
}

/// The images of a chain, from the base up, or the image alone.
const LIBVHDI: &str = super::READ_CHAIN;

/// What a program reads that leaves parents to its caller: `read` gets the images of the chain, from the base up.
fn by_caller(images: &Images, formats: &[&str], read: impl Fn(&[&str], &str) -> bool) -> Vec<Cell> {
    let mut cells = row(images, formats, |_, image, out| read(&[image], out), no_writes);
    for (cell, (format, kind)) in cells.iter_mut().zip(KINDS) {
        if kind == "differencing" && formats.contains(&format) {
            let chain = [images.image(format, "dynamic"), images.image(format, kind)];
            let given = images.reads(kind, |out| read(&[&chain[0], &chain[1]], out));
            (cell.alone, cell.reads) = (cell.reads, Some(given));
        }
    }
    cells
}

fn libvhdi(images: &Images) -> Option<Vec<Cell>> {
    let read = |chain: &[&str], out: &str| {
        succeeds(Command::new(PYTHON).args([&["-c", LIBVHDI, out], chain].concat()))
    };
    there(PYTHON, &["-c", "import pyvhdi"]).then(|| by_caller(images, &["vhd", "vhdx"], read))
}

/// Python with the packages, in the cache.
fn python() -> Option<PathBuf> {
    let made = guest_linux::cached(&format!("python-{}", PACKAGES.join("-")), |folder| {
        let run = |command: &mut Command| {
            let output = command.output().map_err(|error| error.to_string())?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            output.status.success().then_some(()).ok_or(said)
        };
        // Without an environment of its own, which would have this folder's name in it.
        run(Command::new(PYTHON)
            .args(["-m", "pip", "install", "--quiet", "--target"])
            .arg(folder)
            .args(PACKAGES))
    });
    made.inspect_err(|error| println!("SKIP: interop: {error}")).ok()
}

/// A script that gets these arguments.
fn script(packages: &Path, script: &str, args: &[&str]) -> bool {
    succeeds(Command::new(PYTHON).args(["-c", script]).args(args).env("PYTHONPATH", packages))
}

fn dissect(images: &Images, packages: &Path) -> Vec<Cell> {
    const READ: &str = "
import shutil, sys
from pathlib import Path
if sys.argv[1].endswith('.vhd'):
    from dissect.hypervisor.disk.vhd import VHD
    disk = VHD(open(sys.argv[1], 'rb'))
else:
    from dissect.hypervisor.disk.vhdx import VHDX
    disk = VHDX(Path(sys.argv[1]))
with open(sys.argv[2], 'wb') as out:
    shutil.copyfileobj(disk, out)
";
    row(images, &["vhd", "vhdx"], |_, image, out| script(packages, READ, &[image, out]), no_writes)
}

/// It only writes.
fn pyvhd(images: &Images, packages: &Path) -> Vec<Cell> {
    const WRITE: &str = "
import pyvhd, sys
with open(sys.argv[1], 'rb') as raw, open(sys.argv[2], 'wb') as new:
    pyvhd.do_vhd_convert(raw, new)
";
    let write = |_: &str, kind: &str, raw: &str, new: &str| {
        (kind == "dynamic").then(|| script(packages, WRITE, &[raw, new]))
    };
    let cells = row(images, &["vhd"], |_, _, _| false, write);
    cells.into_iter().map(|cell| Cell { reads: None, ..cell }).collect()
}

fn copied(mut disk: impl Read, out: &str) -> bool {
    fs::File::create(out).and_then(|mut out| std::io::copy(&mut disk, &mut out)).is_ok()
}

fn crate_vhd(images: &Images) -> Vec<Cell> {
    let read = |_: &str, image: &str, out: &str| {
        ::vhd::VhdReader::open(Path::new(image)).is_ok_and(|disk| copied(disk, out))
    };
    row(images, &["vhd"], read, no_writes)
}

fn crate_vhdx_core(images: &Images) -> Vec<Cell> {
    use ::vhdx::{Backing, VhdxReader};
    let read = |chain: &[&str], out: &str| {
        let open = |path: &&str| fs::File::open(path).map(Backing::File).unwrap();
        let disk = match chain {
            [image] => VhdxReader::open(Path::new(image)),
            [base, child] => VhdxReader::from_backing(open(base), None)
                .and_then(|base| VhdxReader::from_backing_with_parent(open(child), base)),
            _ => unreachable!(),
        };
        disk.is_ok_and(|disk| copied(disk, out))
    };
    by_caller(images, &["vhdx"], read)
}

fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

#[test]
fn the_table_is_what_the_programs_do() {
    let images = Images::new();
    let packages = python();
    let packages = packages.as_deref();
    let rows: [(&str, Option<Vec<Cell>>); 9] = [
        ("QEMU 7.2", qemu(&images, Qemu::bookworm())),
        ("QEMU 11", qemu(&images, Qemu::backported())),
        ("Bochs 2.7 (`bximage`)", bochs(&images)),
        ("libvhdi 20210425", libvhdi(&images)),
        ("7-Zip", seven_zip(&images)),
        ("dissect.hypervisor 3.21", packages.map(|packages| dissect(&images, packages))),
        ("crate `vhd` 0.1.1", Some(crate_vhd(&images))),
        ("crate `vhdx-core` 0.4.1", Some(crate_vhdx_core(&images))),
        ("pyvhd 0.0.1", packages.map(|packages| pyvhd(&images, packages))),
    ];
    let page = fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the table begins");
    let (old, after) = rest.split_once(END).expect("the table ends");
    let mut head = vec!["program".to_owned()];
    head.extend(KINDS.map(|(format, kind)| format!("{} {kind}", format.to_uppercase())));
    let mut table = line(&head) + &line(&vec!["---".to_owned(); head.len()]);
    for (name, cells) in rows {
        let known = old.lines().find(|line| line.starts_with(&format!("| {name} |")));
        match cells {
            Some(cells) => {
                let cells: Vec<String> =
                    std::iter::once(name.to_owned()).chain(cells.iter().map(Cell::text)).collect();
                table += &line(&cells);
            }
            // It cannot be had here, which was printed.
            None => table += &known.map(|line| format!("{line}\n")).unwrap_or_default(),
        }
    }
    if std::env::var_os("PARADISK_WRITE_TABLE").is_some() {
        return fs::write(PAGE, [before, BEGIN, &table, END, after].concat()).unwrap();
    }
    assert!(
        old == table,
        "docs/images.md has\n{old}and this is found (PARADISK_WRITE_TABLE=1 writes it):\n{table}"
    );
}

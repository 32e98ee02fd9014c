//! VHD.

use std::os::unix::fs::FileExt;
use std::process::Command;

use super::{Bench, PYTHON, chains_that_libvhdi_reads, good, paradisk, qemu_reads, qemu_wrote, run, there};

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

/// Every program sees the same size, whatever it derives it from. The second value: the geometry is exact, so that Bochs
/// sees that size, too; it refuses the geometry of the largest disks.
#[test]
fn every_reader_sees_the_whole_size() {
    const SIZES: [(u64, Option<bool>); 12] = [
        (512, Some(false)),
        (3 << 20, Some(true)),
        (10 << 20, Some(true)),
        (64 << 20, Some(true)),
        (963 * 8 * 17 * 512, Some(true)),
        (1_000_003 * 512, Some(false)),
        (1 << 30, Some(true)),
        (10_007 << 20, Some(true)),
        (40 << 30, Some(false)),
        ((130_557 << 20) + 512, Some(false)),
        (200 << 30, None),
        (2040 << 30, None),
    ];
    let bench = Bench::new();
    let qemu = there("qemu-img", &["--version"]);
    // It has no option that succeeds without an image.
    let bochs = Command::new("bximage").arg("--help").output().is_ok();
    if !bochs {
        println!("SKIP: interop: bximage is not installed");
    }
    let (libvhdi, zip) = (there(PYTHON, &["-c", "import pyvhdi"]), there("7z", &["i"]));
    for (number, (size, exact)) in SIZES.into_iter().enumerate() {
        for kind in ["dynamic", "fixed"] {
            if kind == "fixed" && size > 100 << 20 {
                continue;
            }
            let name = bench.name(&format!("{number}-{kind}.vhd"));
            paradisk(&[
                "image",
                "create",
                &name,
                "--format",
                "vhd",
                "--subformat",
                kind,
                "--size",
                &size.to_string(),
            ]);
            let bytes = format!("({size} bytes)");
            if qemu {
                let info = good("qemu-img", &["info", "-f", "vpc", &name]);
                assert!(info.contains(&bytes), "{kind}, {size}: {info}");
            }
            if libvhdi {
                let script =
                    "import pyvhdi, sys; f = pyvhdi.file(); f.open(sys.argv[1]); print(f.get_media_size())";
                assert_eq!(good(PYTHON, &["-c", script, &name]).trim(), size.to_string(), "{kind}");
            }
            if zip {
                let list = good("7z", &["l", "-slt", &name]);
                assert!(list.contains(&format!("\nSize = {size}\n")), "{kind}, {size}: {list}");
            }
            let file = std::fs::File::open(&name).unwrap();
            let mut geometry = [0; 4];
            file.read_exact_at(&mut geometry, file.metadata().unwrap().len() - 512 + 56).unwrap();
            let [high, low, heads, sectors] = geometry;
            let cylinders = u16::from_be_bytes([high, low]);
            let product = u64::from(cylinders) * u64::from(heads) * u64::from(sectors) * 512;
            assert_eq!(product == size, exact == Some(true), "{size}: {cylinders}/{heads}/{sectors}");
            if bochs && kind == "dynamic" {
                let info = run("bximage", &["-q", "-func=info", &name]);
                let info = String::from_utf8_lossy(&info.stdout).into_owned();
                let wanted = format!("geometry = {cylinders}/{heads}/{sectors}");
                assert_eq!(info.contains(&wanted), exact.is_some(), "{size}: {info}");
            }
        }
    }
}

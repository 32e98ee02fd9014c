//! CPU time for each I/O of a Linux guest in QEMU: QEMU's own adapters and formats, and ours over vfio-user and vhost-user-blk,
//! with the same images, guest and fio job: 4 KiB random reads, then random writes, 32 in flight, past the page cache.
//!
//! `cargo bench -p paradisk-guest-tests --bench qemu_peers [-- SECONDS [ROUNDS]]`
//!
//! The guest's CPUs are interpreted, so the rates compare devices only roughly. A side's time is that of all threads of its
//! server; of QEMU all but those that run guest CPUs. What QEMU's device does on these, when the guest writes to a register,
//! cannot be told from the guest and is missing: nothing much for virtio, whose queues an I/O thread serves; for pvscsi the taking
//! and submission of requests; for mptsas1068 the registers.

mod cpu;
mod image;
mod side;

use std::path::Path;
use std::time::Duration;

use facts::tsc::tsc_hz;
use guest_init::{Fio, Job};
use guest_linux::{Error, Qemu, StockKernel};
use guest_tests::linux::{Report, System};
use guest_tests::qemu::Vm;

use cpu::Sampler;
use image::Image;
use side::{Adapter, Side};

const MEMORY: u64 = 256 << 20;
/// For boot and all that is not fio.
const BOOT: Duration = Duration::from_secs(180);
const TRIES: u32 = 2;
const LOADS: [&str; 2] = ["read", "write"];

/// One run of fio.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Nanoseconds of CPU time for an I/O: of the server, and of QEMU beside it.
    server: f64,
    beside: f64,
    iops: f64,
}

fn main() {
    if let Some(served) = std::env::var_os(side::SERVE) {
        return side::serve(&served.to_string_lossy());
    }
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<u32>().ok());
    let (seconds, rounds) = (numbers.next().unwrap_or(10), numbers.next().unwrap_or(1));
    let (qemu, system) = match prepared(seconds) {
        Ok(prepared) => prepared,
        Err(reason) => return println!("SKIP: {reason}"),
    };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let images = Image::all(folder.path());
    println!(
        "QEMU {}, {seconds} s a run, {rounds} rounds; cycles are CPU time x {} Hz",
        qemu.version().unwrap(),
        tsc_hz()
    );
    println!(
        "| adapter | disk | 4 KiB random | ours, cycles per I/O (QEMU beside it) | QEMU's, cycles per I/O | ours / QEMU's | IOPS, ours and QEMU's |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for adapter in Adapter::ALL {
        let mut pairs = Vec::new();
        for round in 0..rounds {
            // The sides take turns at going first, because the state of the host that the first leaves may help the second.
            let first = [Side::Ours, Side::Theirs][round as usize % 2];
            let one = runs(&qemu, &system, adapter, first, &images, seconds, folder.path());
            let other = runs(&qemu, &system, adapter, first.other(), &images, seconds, folder.path());
            pairs.push(if first == Side::Ours { (one, other) } else { (other, one) });
        }
        for (index, image) in images.iter().enumerate() {
            for (load, name) in LOADS.iter().enumerate() {
                let at = index * LOADS.len() + load;
                let of_row: Vec<_> = pairs.iter().map(|(ours, theirs)| (ours[at], theirs[at])).collect();
                row(adapter, image.name, name, &of_row);
            }
        }
    }
}

fn prepared(seconds: u32) -> Result<(Qemu, System), Error> {
    let (qemu, stock) = (Qemu::backported()?, StockKernel::newest()?);
    let job = Job { disks: image::COUNT, fio: Some(Fio::Rates { seconds }), ..Job::default() };
    let initrd = Some(guest_linux::initramfs_with_fio(&stock)?);
    Ok((qemu, System { kernel: stock.image()?, initrd, cmdline: job.to_string(), memory: MEMORY }))
}

/// Boot once; the runs on all images, in their order, each with its loads in theirs.
fn runs(
    qemu: &Qemu,
    system: &System,
    adapter: Adapter,
    side: Side,
    images: &[Image],
    seconds: u32,
    folder: &Path,
) -> Vec<Run> {
    let timeout = BOOT + Duration::from_secs(u64::from(seconds) * (images.len() * LOADS.len()) as u64 * 2);
    for _ in 0..TRIES {
        let server = side.start(qemu, adapter, images, folder);
        let options = side.options(adapter, images, folder);
        let vm = Vm::boot(qemu.system(), "q35", system, &options, folder.join("console")).unwrap();
        let mut sampler = Sampler::new(server.as_ref().map(side::Server::process), vm.process());
        match vm.output_within(timeout, |vm| sampler.look(&vm.printed().unwrap())) {
            Ok(printed) => return evaluate(&Report::parse(&printed).unwrap(), &sampler, side),
            Err(error) => println!("{adapter:?}, {side:?}: {error}"),
        }
    }
    panic!("{adapter:?}, {side:?}: no run ended");
}

/// The guest names the disks as it likes; their sizes say which is which.
fn evaluate(report: &Report, sampler: &Sampler, side: Side) -> Vec<Run> {
    let (spent, mut disks) = (sampler.spent(), Vec::new());
    for (index, disk) in report.disks.iter().enumerate() {
        assert_eq!(disk.error, None);
        assert_eq!(disk.fio.len(), LOADS.len());
        let runs = disk.fio.iter().zip(&spent[index * LOADS.len()..]).map(|(fio, spent)| {
            let each = |nanoseconds: u64| nanoseconds as f64 / (fio.reads + fio.writes) as f64;
            let (server, beside) = match side {
                Side::Ours => (spent.server, spent.qemu),
                Side::Theirs if spent.server > 0 => (spent.server, spent.qemu),
                Side::Theirs => (spent.qemu, 0),
            };
            Run { server: each(server), beside: each(beside), iops: fio.iops }
        });
        disks.push((disk.size, runs.collect::<Vec<_>>()));
    }
    disks.sort_by_key(|(size, _)| *size);
    disks.into_iter().flat_map(|(_, runs)| runs).collect()
}

fn row(adapter: Adapter, image: &str, load: &str, pairs: &[(Run, Run)]) {
    let of = |value: &dyn Fn(&(Run, Run)) -> f64| {
        let mut values: Vec<_> = pairs.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        (values[values.len() / 2], values[0], values[values.len() - 1])
    };
    let cycles = |value: &dyn Fn(&(Run, Run)) -> f64| of(value).0 * tsc_hz() as f64 / 1e9;
    let (ratio, least, most) = of(&|(ours, theirs)| ours.server / theirs.server);
    println!(
        "| {} | {image} | {load} | {:.0} ({:.0}) | {:.0} | {ratio:.2} ({least:.2} to {most:.2}) | {:.0}, {:.0} |",
        adapter.name(),
        cycles(&|(ours, _)| ours.server),
        cycles(&|(ours, _)| ours.beside),
        cycles(&|(_, theirs)| theirs.server),
        of(&|(ours, _)| ours.iops).0,
        of(&|(_, theirs)| theirs.iops).0,
    );
}

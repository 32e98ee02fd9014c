//! The options of `paradisk bench`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use benches::axes::Engine;
use benches::mix::Mix;
use benches::mix::fio::Jobs;
use benches::suite::{Form, Suite, Wanted};
use facts::names::{Adapter, Coalescing};

use super::suites::Suites;
use super::workload::{self, Workload};
use crate::coalescing::Thresholds;
use crate::disk_spec::{DiskSpec, disk_help};
use crate::failure::Failure;
use crate::load::Load;
use crate::{output, units};

/// Measure the cost of an I/O through each adapter over each disk, compared with the same disk without an adapter.
///
/// Without --disk, temporary disks are measured: RAM, null, a raw file, pass-through of a loop device (if permitted), VHDs of each kind,
/// and a dynamic and a differencing VHDX. Options with a list are dimensions: all combinations run, interleaved in rounds. Each is compared
/// with the row `native`, which drives the same disk without adapter and guest.
///
/// Workloads that write (--rw randwrite, write, randrw, mix, and most of --workload and --fio) OVERWRITE the disks given with --disk.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  paradisk bench
  paradisk bench --engine harness --disk null=1G --queue-depth 1,8,32,128 --html depth.html
  paradisk bench --disk path=/dev/sdb,readonly=on --block-size 512,4K,64K --json results.json
  paradisk bench --workload verify --disk scratch.vhd
  paradisk bench --workload oltp,exchange --disk scratch.vhdx --queue-depth 1,8,64
  paradisk bench --fio job.fio --disk path=scratch.img,direct=on
  paradisk bench --suite pvscsi-vs-lsi --json results.json --plots plots
  paradisk bench --suite pvscsi-vs-lsi --resume results.json --plots plots
  paradisk bench --suite coalescing --serve 127.0.0.1:8080
  paradisk bench --suite all --quick
  paradisk bench compare before.json after.json")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    /// How the guest runs: kvm, or harness (in this process, without a virtual CPU) [default: kvm if /dev/kvm opens]
    #[arg(long)]
    pub(super) engine: Option<Engine>,
    /// Adapters: pvscsi, lsi (LSI53C1030), lsi-sas (SAS1068), buslogic (BT-958), ide, ide-native,
    /// virtio-blk, virtio-scsi, storvsc (VMBus) [default: pvscsi,lsi,virtio-blk; pvscsi for --suite vhd-workloads, the only suite with a
    /// choice]
    #[arg(long, value_delimiter = ',')]
    pub(super) adapter: Vec<Adapter>,
    /// A disk, as a path or KEY=VALUE,...; may be repeated
    #[arg(long, value_name = "SPEC", long_help = disk_help!("A disk, as a path or KEY=VALUE,...; may be repeated"))]
    pub(super) disk: Vec<DiskSpec>,
    /// The load of an application: a name of `--workload list`, or a file with the keys that it prints; separate several by commas. Or
    /// verify: write every block with its address and generation, and check each when it is read; by default with every power of two from
    /// 512 to 1M as block size, over a whole disk of up to 32M, else over 16M at each end
    #[arg(long, value_name = "NAME|FILE", value_parser = Workload::parse, conflicts_with_all = ["rw", "read_percent", "random_percent"])]
    pub(super) workload: Option<Workload>,
    /// The loads of a job file of fio, with the keys rw, bs, blockalign, iodepth, rwmixread, rwmixwrite, percentage_random, size, runtime,
    /// numjobs, thinktime, random_distribution (zipf) and stonewall; other keys that change the load are refused by name
    #[arg(long, value_name = "FILE", value_parser = workload::jobs, conflicts_with_all = ["workload", "rw", "read_percent", "random_percent", "block_size", "queue_depth", "workers"])]
    pub(super) fio: Option<Jobs>,
    /// An experiment with its own dimensions and disks, on every available engine (or --engine), with plots; pvscsi-vs-lsi: cached
    /// random reads of 1K to 512K through both adapters, 4 minutes; coalescing: all policies at depths 1 to 256 on fast and slow storage, 8
    /// minutes; chain: VHD and VHDX chains of 1 to 1,024 images, 5 minutes; vhd-workloads: raw disks, VHDs and VHDX files under sequential,
    /// random and twelve application loads at depths 1 to 256, and at two of them in a guest, an hour; creation: creation of images of up
    /// to 16 TiB, merge, compaction and conversion on ext4, XFS and btrfs, 10 minutes; hyperv-analysis, adapters: see docs/measuring.md,
    /// and --list for all. all: one after another, their results and one page of all in a folder (--plots)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["disk", "workload", "fio", "rw", "read_percent", "random_percent", "block_size", "queue_depth", "workers", "coalescing"])]
    pub(super) suite: Option<Suites>,
    /// Print what --suite, or each suite, would run, and for how long; run nothing
    #[arg(long)]
    pub(super) list: bool,
    /// A form of --suite that takes under 3 minutes: two short runs of each combination, and fewer combinations of large suites
    #[arg(long, requires = "suite")]
    quick: bool,
    /// Folder for the plots of --suite, as SVG files [default: the suite's name], and for all files of --suite all [default: suites]
    #[arg(long, value_name = "DIR", requires = "suite")]
    pub(super) plots: Option<PathBuf>,
    #[command(flatten)]
    pub(super) load: Load,
    /// Independent streams of accesses, 1 to 16 [default: 1]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=16))]
    workers: Vec<u32>,
    /// Length of a run, such as 500ms or 2s [default: 2s; 200ms without --disk, 300ms for suites, 200ms for vhd-workloads, 25ms with --quick]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(super) duration: Option<Duration>,
    /// Runs of each combination [default: 5; 3 for the suites coalescing, vhd-workloads and creation; 2 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) runs: Option<u32>,
    /// When completions are signalled: off (each), batch (once for those reaped together), oio (by outstanding I/Os), oio-iops (by
    /// outstanding I/Os and rate)
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "oio-iops")]
    pub(super) coalescing: Vec<Coalescing>,
    #[command(flatten)]
    pub(super) thresholds: Thresholds,
    /// Write the results as JSON to FILE, or to standard output in place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", value_parser = output::json_target())]
    json: Option<PathBuf>,
    /// Continue an interrupted measurement: in place of its --json FILE, with the other options as before. Until FILE of --json is written,
    /// its runs are in FILE.partial. For --suite all: its folder, in place of --plots DIR
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "list"])]
    pub(super) resume: Option<PathBuf>,
    /// Write the results as CSV
    #[arg(long, value_name = "FILE", value_parser = output::csv_target())]
    pub(super) csv: Option<PathBuf>,
    /// Write the results as one self-contained page: claims, charts, tables
    #[arg(long, value_name = "FILE", value_parser = output::html_target())]
    pub(super) html: Option<PathBuf>,
    /// Serve the page at this address during the measurement, such as 127.0.0.1:8080. It has no password: anyone who can connect can read
    /// it
    #[arg(long, value_name = "ADDR")]
    pub(super) serve: Option<SocketAddr>,
}

/// Subcommands other than a measurement.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    Compare(super::compare::Args),
}

impl Args {
    /// The form of a suite.
    pub(super) const fn form(&self) -> Form {
        if self.quick { Form::Quick } else { Form::Full }
    }

    /// The adapters of the options, or the default ones.
    pub(super) fn adapters(&self) -> &[Adapter] {
        const USUAL: &[Adapter] = &[Adapter::Pvscsi, Adapter::Lsi, Adapter::VirtioBlk];
        if self.adapter.is_empty() { USUAL } else { &self.adapter }
    }

    /// The options of a suite.
    pub(super) fn wanted(&self, form: Form, suite: Suite) -> Wanted<'_> {
        let usual = suite.adapters().unwrap_or_default();
        let adapters = if self.adapter.is_empty() { usual } else { &self.adapter };
        Wanted { form, adapters, duration: self.duration, runs: self.runs }
    }

    /// Checks of `--suite` that clap cannot express.
    pub(super) fn check_suite(&self, suite: Suite) -> Result<(), Failure> {
        if self.adapter.is_empty() || suite.adapters().is_some() {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "the argument --adapter cannot be used with --suite {suite}, which has its own"
        )))
    }

    /// The file for the results as JSON.
    pub(super) const fn json(&self) -> &Option<PathBuf> {
        if self.resume.is_some() { &self.resume } else { &self.json }
    }

    /// Independent streams.
    pub(super) fn workers(&self) -> Vec<u32> {
        if self.workers.is_empty() { vec![1] } else { self.workers.clone() }
    }

    /// Loads of applications, from `--workload` or `--fio`.
    pub(super) fn mixes(&self) -> &[Mix] {
        match (&self.workload, &self.fio) {
            (Some(Workload::Mixes(mixes)), _) => mixes,
            (_, Some(jobs)) => &jobs.mixes,
            _ => &[],
        }
    }

    /// Checks of `--workload` that clap cannot express.
    pub(super) fn check_workload(&self) -> Result<(), Failure> {
        let given = match &self.workload {
            Some(Workload::Verify) => [
                ("--workers", !self.workers.is_empty()),
                ("--duration", self.duration.is_some()),
                ("--runs", self.runs.is_some()),
                ("--csv", self.csv.is_some()),
                ("--html", self.html.is_some()),
                ("--serve", self.serve.is_some()),
                ("--resume", self.resume.is_some()),
            ]
            .into_iter()
            .find_map(|(option, given)| given.then_some(option)),
            Some(Workload::Mixes(_)) => self.load.has_block_sizes().then_some("--block-size"),
            _ => None,
        };
        given.map_or(Ok(()), |option| {
            Err(Failure::Usage(format!("the argument {option} cannot be used with this --workload")))
        })
    }
}

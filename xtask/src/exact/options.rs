//! Options of `cargo xtask exact`.

use guest_init::Rw;

const ADAPTERS: &str = "pvscsi,lsi,lsi-sas,buslogic,virtio-scsi,virtio-blk,ide,storvsc";

/// Suites that run on the emulated host. Others take hours there.
const SUITES: [&str; 4] = ["adapters", "hyperv-analysis", "pvscsi-vs-lsi", "chain"];
/// Options that are allowed with `--suite`.
const OF_SUITES: [&str; 3] = ["--suite", "--host-cpus", "--json"];

/// The text of `--help`.
pub(super) const HELP: &str = "usage: cargo xtask exact [OPTIONS]

Instructions per I/O, executed by host and guest, on a Linux host with KVM inside QEMU.

  --guest baremetal|linux   the bare-metal test guest (default), or Debian's kernel with its own drivers and fio
  --adapter A,...           pvscsi, lsi, lsi-sas, buslogic, virtio-scsi, virtio-blk, ide, storvsc; default: all
  --disk D                  null (default); ram; passthrough: of a block device in the host's memory; iscsi: passthrough of the same device behind
                            the kernel's iSCSI target and initiator; async: passthrough of a block device that completes each request 50 us
                            later; file, file-cached, vhd, vhdx: an image on ext4 on such a device, with direct I/O (but for file-cached and vhd);
                            qcow2: the same, for QEMU alone
  --disks N                 Linux: disks (null or async), which fio accesses in turns; of SCSI as many as fit on one adapter; default 1
  --rw R,...                Linux: randread (default), randwrite, read, write, mixed, flush (a flush after each write), discard
  --block-size N,...        bytes, or with K; default 4K
  --queue-depth N,...       requests in flight; default 1,8,32
  --batch N,...             Linux: requests that fio submits and reaps at once, up to the queue depth; default 1,32
  --after-singles N         Linux: figures of the requests 3,201 to 6,400 after N requests with one in flight
  --cpus N                  Linux: virtual CPUs, each with fio at this queue depth, and queues of virtio; default 1
  --host-cpus N             CPUs of the host; default 1 for baremetal, 2 for linux
  --halt-poll NS            Linux: how long the host's KVM polls when a virtual CPU halts (halt_poll_ns); default: that of its kernel
  --peer P,...              Linux: also measure, with the same guest on the same KVM: qemu (QEMU's own devices), qemu-iothread (its virtio
                            devices with an I/O thread that does not poll), qemu-polling (with one that polls, as by default),
                            vfio-user (QEMU with the adapter served by `paradisk serve vfio-user`), vhost-user (virtio-blk only: QEMU with
                            the disk served by `paradisk serve vhost-user-blk`), qemu-storage-daemon (virtio-blk only: QEMU with the disk
                            served by qemu-storage-daemon, whose I/O thread does not poll), no-sandbox
                            (`paradisk run --sandbox off`), statistics (`paradisk run --control`, which counts requests), polling
                            (`paradisk run --poll 100us`)
  --suite NAME              a suite of `paradisk bench` on the emulated host, three runs of each combination (only with --host-cpus, --json)
  --profile                 Linux: for each row, the functions of the host's kernel with the most instructions
  --json FILE               write the figures as JSON, after each adapter
  --resume FILE             as --json, and go on with the adapters that FILE lacks; options and program must be the same
  --check                   fail where a path is more than 1% (Linux: 5%) longer than in benches/exact.json
  --update                  store the figures in benches/exact.json
";

/// The guest that drives the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guest {
    BareMetal,
    Linux,
}

/// The VMM that runs the guest, and the source of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vmm {
    Paradisk,
    Qemu,
    /// QEMU's virtio devices with an I/O thread that does not poll.
    QemuIoThread,
    /// The same with QEMU's adaptive polling.
    QemuPolling,
    /// QEMU with an adapter that `paradisk serve vfio-user` serves.
    VfioUser,
    /// QEMU with virtio-blk that `paradisk serve vhost-user-blk` serves.
    VhostUser,
    /// QEMU with virtio-blk that its storage daemon serves, with an I/O thread that does not poll.
    StorageDaemon,
    /// Ours without the sandbox.
    NoSandbox,
    /// Ours with statistics of each request.
    Statistics,
    /// Ours with polling I/O threads.
    Polling,
}

/// The values of `--peer`.
const PEERS: [Vmm; 9] = [
    Vmm::Qemu,
    Vmm::QemuIoThread,
    Vmm::QemuPolling,
    Vmm::VfioUser,
    Vmm::VhostUser,
    Vmm::StorageDaemon,
    Vmm::NoSandbox,
    Vmm::Statistics,
    Vmm::Polling,
];

impl Vmm {
    /// Whether the disk is QEMU's.
    pub(super) fn is_qemu(self) -> bool {
        matches!(self, Self::Qemu | Self::QemuIoThread | Self::QemuPolling | Self::StorageDaemon)
    }

    /// The name in the results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Paradisk => "paradisk",
            Self::Qemu => "qemu",
            Self::QemuIoThread => "qemu-iothread",
            Self::QemuPolling => "qemu-polling",
            Self::VfioUser => "vfio-user",
            Self::VhostUser => "vhost-user",
            Self::StorageDaemon => "qemu-storage-daemon",
            Self::NoSandbox => "no-sandbox",
            Self::Statistics => "statistics",
            Self::Polling => "polling",
        }
    }
}

/// The disk behind the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    /// The null disk: requests complete at once, and no data are transferred.
    Null,
    /// Memory of the VMM.
    Ram,
    /// Pass-through of a RAM disk of the host's kernel.
    PassThrough,
    /// Pass-through of an iSCSI disk. Its target, in the same kernel, exports that RAM disk.
    Iscsi,
    /// Pass-through of a block device that completes each request 50 us later.
    Async,
    /// A raw file on ext4 on such a device, with direct I/O.
    File,
    /// The same through the page cache.
    FileCached,
    /// A dynamic VHD in place of the raw file, through the page cache.
    Vhd,
    /// A dynamic VHDX in place of the raw file, with direct I/O.
    Vhdx,
    /// The same as qcow2, which only QEMU has.
    Qcow2,
}

/// The values of `--disk`.
const DISKS: [(&str, Disk); 10] = [
    ("null", Disk::Null),
    ("ram", Disk::Ram),
    ("passthrough", Disk::PassThrough),
    ("iscsi", Disk::Iscsi),
    ("async", Disk::Async),
    ("file", Disk::File),
    ("file-cached", Disk::FileCached),
    ("vhd", Disk::Vhd),
    ("vhdx", Disk::Vhdx),
    ("qcow2", Disk::Qcow2),
];

impl Disk {
    /// The argument of `--disk` of `paradisk`; also the name in the results.
    pub(super) fn spec(self) -> &'static str {
        match self {
            Self::Null => "null=64M",
            Self::Ram => "ram=16M",
            Self::PassThrough => "path=/dev/ram0,format=passthrough",
            Self::Iscsi => "path=/dev/sda,format=passthrough",
            Self::Async => "path=/dev/nullb0,format=passthrough",
            Self::File => "path=/timed/disk.raw,format=raw,direct=on",
            Self::FileCached => "path=/timed/disk.raw,format=raw",
            Self::Vhd => "path=/timed/disk.vhd",
            Self::Vhdx => "path=/timed/disk.vhdx,direct=on",
            Self::Qcow2 => "path=/timed/disk.qcow2,direct=on",
        }
    }

    /// Whether it is an image on the file system of a timed disk.
    pub(super) fn is_image(self) -> bool {
        matches!(self, Self::File | Self::FileCached | Self::Vhd | Self::Vhdx | Self::Qcow2)
    }

    /// [`spec`](Self::spec) of one of several disks.
    pub(super) fn spec_of(self, index: u32) -> String {
        self.spec().replace("nullb0", &format!("nullb{index}"))
    }
}

fn disk(name: &str) -> Option<Disk> {
    DISKS.into_iter().find_map(|(known, disk)| (known == name).then_some(disk))
}

/// What to do with the baseline in `benches/exact.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BaselineMode {
    Ignore,
    Check,
    Update,
}

/// The measurements to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) guest: Guest,
    pub(super) adapters: Vec<String>,
    pub(super) disk: Disk,
    pub(super) disks: u32,
    pub(super) rws: Vec<Rw>,
    pub(super) block_sizes: Vec<u32>,
    pub(super) depths: Vec<u32>,
    pub(super) batches: Vec<u32>,
    /// Requests before each counted run that are in flight one at a time.
    pub(super) after_singles: Option<u32>,
    pub(super) guest_cpus: u32,
    pub(super) host_cpus: u8,
    /// Nanoseconds.
    pub(super) halt_poll: Option<u32>,
    pub(super) peers: Vec<Vmm>,
    pub(super) profile: bool,
    pub(super) suite: Option<String>,
    pub(super) json: Option<String>,
    /// `json` has figures to keep.
    pub(super) resume: bool,
    pub(super) baseline: BaselineMode,
}

impl Options {
    pub(super) fn parse(args: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            guest: Guest::BareMetal,
            adapters: adapters(ADAPTERS)?,
            disk: Disk::Null,
            disks: 1,
            rws: vec![Rw::RandRead],
            block_sizes: vec![4096],
            depths: vec![1, 8, 32],
            batches: vec![1, 32],
            after_singles: None,
            guest_cpus: 1,
            host_cpus: 0,
            halt_poll: None,
            peers: Vec::new(),
            profile: false,
            suite: None,
            json: None,
            resume: false,
            baseline: BaselineMode::Ignore,
        };
        let mut words = args.iter();
        while let Some(name) = words.next() {
            match *name {
                "--check" => options.baseline = BaselineMode::Check,
                "--update" => options.baseline = BaselineMode::Update,
                "--profile" => options.profile = true,
                _ => {
                    let value = words.next().ok_or_else(|| format!("{name} is unknown, or needs a value"))?;
                    options.set(name, value)?;
                }
            }
        }
        let of_suites = |word: &&str| !word.starts_with("--") || OF_SUITES.contains(word);
        if options.suite.is_some() && !args.iter().all(of_suites) {
            return Err(format!("--suite: only with {}", OF_SUITES[1..].join(" and ")));
        }
        let linux =
            ["--after-singles", "--batch", "--cpus", "--disks", "--halt-poll", "--peer", "--profile", "--rw"];
        let of_linux = |name: &&&str| linux.contains(*name);
        if let Some(name) = args.iter().find(of_linux).filter(|_| options.guest != Guest::Linux) {
            return Err(format!("{name}: only with --guest linux"));
        }
        if options.disks > 1
            && !([Disk::Null, Disk::Async].contains(&options.disk) && options.peers.is_empty())
        {
            return Err("--disks: only null and async disks, without peers".to_owned());
        }
        if options.disk == Disk::Qcow2 && !options.peers.iter().any(|peer| peer.is_qemu()) {
            return Err("--disk qcow2: only for QEMU (--peer)".to_owned());
        }
        if options.rws.contains(&Rw::Discard) && !options.disk.is_image() {
            return Err("--rw discard: only on images".to_owned());
        }
        if options.after_singles.is_some() && options.guest_cpus > 1 {
            return Err("--after-singles: only with one virtual CPU".to_owned());
        }
        if options.host_cpus == 0 {
            options.host_cpus = if options.guest == Guest::Linux { 2 } else { 1 };
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wrong = |known: &str| Err(format!("{name} {value}: not one of {known}"));
        match (name, value) {
            ("--adapter", _) => self.adapters = adapters(value)?,
            ("--block-size", _) => self.block_sizes = numbers(name, value)?,
            ("--queue-depth", _) => self.depths = numbers(name, value)?,
            ("--batch", _) => self.batches = numbers(name, value)?,
            ("--after-singles", _) => self.after_singles = Some(number(name, value)?),
            ("--disks", _) => self.disks = number(name, value)?,
            ("--cpus", _) => self.guest_cpus = number(name, value)?,
            ("--json" | "--resume", _) => {
                (self.json, self.resume) = (Some(value.to_owned()), name == "--resume");
            }
            ("--suite", _) if SUITES.contains(&value) => self.suite = Some(value.to_owned()),
            ("--suite", _) => return wrong(&SUITES.join(", ")),
            ("--disk", _) => match disk(value) {
                Some(disk) => self.disk = disk,
                None => return wrong(&DISKS.map(|(name, _)| name).join(", ")),
            },
            ("--rw", _) => match value.split(',').map(Rw::named).collect() {
                Some(rws) => self.rws = rws,
                None => return wrong(&Rw::ALL.map(Rw::name).join(", ")),
            },
            ("--halt-poll", _) => {
                self.halt_poll = Some(value.parse().map_err(|_| format!("{name} {value}: not nanoseconds"))?);
            }
            ("--guest", "baremetal") => self.guest = Guest::BareMetal,
            ("--guest", "linux") => self.guest = Guest::Linux,
            ("--guest", _) => return wrong("baremetal, linux"),
            ("--peer", _) => match value.split(',').map(peer).collect() {
                Some(peers) => self.peers = peers,
                None => return wrong(&PEERS.map(Vmm::name).join(", ")),
            },
            ("--host-cpus", "1") => self.host_cpus = 1,
            ("--host-cpus", "2") => self.host_cpus = 2,
            ("--host-cpus", _) => return wrong("1, 2"),
            _ => return Err(format!("{name} is unknown; --help lists the options")),
        }
        Ok(())
    }
}

fn peer(name: &str) -> Option<Vmm> {
    PEERS.into_iter().find(|vmm| vmm.name() == name)
}

fn adapters(text: &str) -> Result<Vec<String>, String> {
    let known: Vec<_> = ADAPTERS.split(',').collect();
    match text.split(',').find(|name| !known.contains(name)) {
        Some(name) => Err(format!("--adapter {name}: not one of {}", known.join(","))),
        None => Ok(text.split(',').map(str::to_owned).collect()),
    }
}

fn number(name: &str, text: &str) -> Result<u32, String> {
    match numbers(name, text)?[..] {
        [number] => Ok(number),
        _ => Err(format!("{name} {text}: not a number")),
    }
}

/// Numbers above zero; K is 1,024.
fn numbers(name: &str, text: &str) -> Result<Vec<u32>, String> {
    let number = |word: &str| {
        let (digits, unit) = word.strip_suffix('K').map_or((word, 1), |digits| (digits, 1024));
        digits.parse().ok().and_then(|number: u32| number.checked_mul(unit)).filter(|number| *number > 0)
    };
    text.split(',').map(number).collect::<Option<_>>().ok_or_else(|| format!("{name} {text}: not numbers"))
}

#[cfg(test)]
mod tests {
    use guest_linux::KvmHost;

    use super::*;

    #[test]
    fn options_are_checked() {
        let words = "--adapter lsi,pvscsi --check --queue-depth 1,4 --guest linux --block-size 512,4K --peer qemu,no-sandbox";
        let options = Options::parse(&words.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!((options.guest, options.baseline), (Guest::Linux, BaselineMode::Check));
        assert_eq!(options.peers, [Vmm::Qemu, Vmm::NoSandbox]);
        assert_eq!(options.adapters, ["lsi", "pvscsi"]);
        assert_eq!((options.depths, options.block_sizes), (vec![1, 4], vec![512, 4096]));
        assert_eq!((options.host_cpus, Options::parse(&[]).unwrap().host_cpus), (2, 1));
        assert!(Disk::Iscsi.spec().contains(KvmHost::ISCSI_DISK));
        assert!(Disk::Async.spec().contains(KvmHost::TIMED_DISK));
        for (name, disk) in DISKS {
            assert_eq!(disk.spec().contains(KvmHost::TIMED_FOLDER), disk.is_image());
            let words = ["--guest", "linux", "--peer", "qemu", "--disk", name];
            assert_eq!(Options::parse(&words).unwrap().disk, disk);
        }
        assert_eq!(Disk::Async.spec_of(7), "path=/dev/nullb7,format=passthrough");
        let words = "--guest linux --rw flush,mixed --halt-poll 0 --cpus 4 --disks 256 --resume figures.json";
        let options = Options::parse(&words.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!((&options.rws[..], options.halt_poll), (&[Rw::Flush, Rw::Mixed][..], Some(0)));
        assert_eq!((options.guest_cpus, options.disks), (4, 256));
        let words = "--guest linux --after-singles 3200 --disk file --rw discard";
        assert_eq!(Options::parse(&words.split(' ').collect::<Vec<_>>()).unwrap().after_singles, Some(3200));
        assert!(options.resume && options.json.as_deref() == Some("figures.json"));
        for wrong in [
            "--guest dos",
            "--queue-depth x",
            "--batch 0",
            "--block-size 8388608K",
            "--adapter a;b",
            "--json",
            "--what 1",
            "--peer qemu",
            "--guest linux --peer paradisk",
            "--rw read",
            "--batch 1",
            "--halt-poll 0",
            "--after-singles 1",
            "--guest linux --after-singles 1,2",
            "--profile",
            "--guest linux --rw copy",
            "--halt-poll -1",
            "--host-cpus 3",
            "--disk tape",
            "--guest linux --disk qcow2 --peer polling",
            "--guest linux --rw discard",
            "--guest linux --after-singles 8 --cpus 2",
            "--disks 2",
            "--guest linux --disks 2 --disk vhdx",
            "--guest linux --disks 2 --peer qemu",
            "--cpus 2",
            "--suite everything",
            "--suite adapters --check",
            "--suite adapters --adapter ide",
        ] {
            assert!(Options::parse(&wrong.split(' ').collect::<Vec<_>>()).is_err(), "{wrong:?}");
        }
    }
}

//! A Linux host with KVM for machines that have none, or one that cannot run stock kernels: Debian's kernel in a QEMU whose TCG
//! emulates AMD SVM with nested paging.
//!
//! QEMU's guest is called L1 here, and the guest of L1's KVM L2. L1's initramfs holds busybox, dmsetup, KVM's modules and an `/init` that
//! runs the job. The files of a job are a second archive behind it, so they are in memory before the first process runs. What the job
//! leaves in `/out` comes back as a tar archive on a disk that is written when the job has ended.
//!
//! A plugin for QEMU, `kvm_host/count.c`, repairs two faults of it that break guests of L1, and L1.
//! With [`Clock::Instructions`] L1's time is the number of instructions that it has executed (QEMU's `-icount`), and the plugin
//! counts those of L1 and L2, of user space and kernels. The same job takes the same instructions each time, most of the time to the last
//! one.
//!
//! The images depend on nothing but the packages: no times, owners or orders of this machine are in them.

mod bundle;
mod iscsi;
mod timed;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::cargo::{self, Program};
use crate::cpio::Cpio;
use crate::error::Error;
use crate::qemu::Qemu;
use crate::run::run;
use crate::stock::StockKernel;
use crate::with_libraries::{self, DMSETUP};
use crate::{cache, initramfs, root};

/// What L1 needs: its disk, KVM, and disks for L2 that can be stalled or take their time.
const MODULES: [&str; 7] = ["virtio_pci", "virtio_blk", "kvm_amd", "loop", "brd", "dm_mod", "dm_delay"];
const INIT: &[u8] = include_bytes!("kvm_host/init");
/// dmsetup and its libraries; `/init` makes a command of them.
const DMSETUP_FOLDER: &str = "dmsetup";
/// Of a job's programs; `/init` has it too.
const LIBRARIES: &str = "lib";
/// A CPU of AMD's, for KVM's module. TCG lacks some features of this model, which QEMU says on its console.
const CPU: &str = "EPYC,+svm,+npt";
/// SeaBIOS as built for QEMU's microvm, which loads the kernel and looks at no disk. The usual SeaBIOS reads the disk of the results, and
/// how long that takes depends on this machine.
const FIRMWARE: &str = "bios-microvm.bin";
/// Without mitigations: nobody attacks this machine, and they would be counted. With the TSC as its clock, which Linux does not trust on an
/// emulated machine: else each reading of a clock is a system call, in L1 and L2.
const CMDLINE: &str = "console=ttyS0 panic=-1 quiet mitigations=off nokaslr norandmaps tsc=reliable";
/// With the host's time: where the machine around QEMU is busy, L1's kernel misses the ticks of the timer that it tests, and panics.
const NO_TIMER_CHECK: &str = " no_timer_check";
const COUNT: &str = include_str!("kvm_host/count.c");
const COUNT_FLAGS: [&str; 8] =
    ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"];
/// QEMU's options for [`Clock::Instructions`]: an instruction takes 1 ns, idle time takes none of the host's, and nothing depends on
/// when the machine was started.
const EXACT: [&str; 6] =
    ["-icount", "shift=0,sleep=off", "-seed", "1", "-rtc", "base=2026-01-01T00:00:00,clock=vm"];
/// Bytes of the disk that the job's result is written to; the file is sparse.
const RESULT: u64 = 4 << 30;
/// Where the job's exit status is, in the archive.
const STATUS: &str = ".status";
/// A file of L1 that exists if the job has disks.
const HAS_DISKS: &str = "has-disks";
/// Bytes of console in an error.
const LAST_OUTPUT: usize = 4096;
/// Between two looks at whether QEMU has ended.
const PAUSE: Duration = Duration::from_millis(20);

/// A Linux host with KVM, ready to be started.
#[derive(Clone, Debug)]
pub struct KvmHost {
    qemu: Qemu,
    kernel: PathBuf,
    initramfs: Vec<u8>,
}

/// What L1's time is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The host's.
    #[default]
    Host,
    /// One nanosecond for each instruction of any CPU; QEMU runs the CPUs in turns.
    Instructions,
    /// The same, and a profile of L1's kernel.
    Profiled,
}

/// What is to be run on it.
#[derive(Clone, Debug)]
pub struct HostJob {
    /// A script for busybox's `sh`. It runs in the folder with the files; `/out` is for results.
    pub script: String,
    /// Files and folders of this machine, with their names in the script's folder or in a folder there.
    pub files: Vec<(String, PathBuf)>,
    /// Files of this machine that L1 has as disks and cannot write to, `/dev/vdb` and so on: what is too large for `files`. With some, L1's
    /// driver of disks is loaded before the script runs.
    pub disks: Vec<PathBuf>,
    /// L1's CPUs.
    pub cpus: u8,
    /// L1's time.
    pub clock: Clock,
    /// Bytes of L1's memory. The files take twice their size of it.
    pub memory: u64,
    /// Time after which QEMU is killed.
    pub timeout: Duration,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The script's exit status.
    pub status: i32,
    /// What the script and L1's kernel printed.
    pub console: String,
    /// Unless the clock is the host's, what the plugin counted: a JSON document a line, one for each mark and one for the end.
    pub counts: String,
    /// With [`Clock::Profiled`], for each mark a line `ADDRESS COUNT` for each block of L1's kernel, in hexadecimal and decimal: instructions
    /// that it executed so far; and a line `mark`.
    pub profile: String,
}

impl KvmHost {
    /// How a script starts QEMU, if it has the files of [`peer`](Self::peer); options follow.
    pub const QEMU: &str = "qemu/ld-linux-x86-64.so.2 --library-path qemu qemu/qemu-system-x86_64 -L qemu";
    /// The same for its storage daemon.
    pub const STORAGE_DAEMON: &str = "qemu/ld-linux-x86-64.so.2 --library-path qemu qemu/qemu-storage-daemon";
    /// The same for its tool for images.
    pub const IMAGE_TOOL: &str = "qemu/ld-linux-x86-64.so.2 --library-path qemu qemu/qemu-img";

    /// QEMU and L1's images, in the cache or from Debian's archive: QEMU 11.1, or where this is not to be had 7.2, with which L1 has one
    /// CPU.
    ///
    /// # Errors
    /// A package is not to be had.
    pub fn prepare() -> Result<Self, Error> {
        Self::prepare_in(Qemu::any()?)
    }

    /// [`prepare`](Self::prepare) for jobs on so many CPUs.
    ///
    /// # Errors
    /// The same, and [`Error::Cpus`] where this QEMU cannot emulate so many.
    pub fn prepare_with(cpus: u8) -> Result<Self, Error> {
        let host = Self::prepare()?;
        host.emulates(cpus).map(|()| host)
    }

    /// That L1 can have so many CPUs.
    ///
    /// # Errors
    /// [`Error::Cpus`] where QEMU cannot emulate so many.
    pub fn emulates(&self, cpus: u8) -> Result<(), Error> {
        self.qemu.emulates(cpus)
    }

    /// L1's images for this QEMU.
    ///
    /// # Errors
    /// A package is not to be had.
    pub fn prepare_in(qemu: Qemu) -> Result<Self, Error> {
        let kernel = StockKernel::cloud()?;
        let busybox = root::busybox()?;
        let mut archive = Cpio::default();
        ["bin", "dev", DMSETUP_FOLDER, "proc", "sys"].iter().for_each(|name| archive.directory(name));
        archive.device("dev/console", 5, 1);
        archive.file("bin/busybox", &fs::read(&busybox).map_err(Error::file(&busybox))?);
        archive.file("init", INIT);
        for (name, content) in DMSETUP.contents()? {
            archive.file(&format!("{DMSETUP_FOLDER}/{name}"), &content);
        }
        initramfs::add_modules(&mut archive, &kernel.modules(&MODULES)?);
        Ok(Self { qemu, kernel: kernel.image()?, initramfs: archive.finish() })
    }

    /// [`stock_guest_of`](Self::stock_guest_of) with the newest kernel.
    ///
    /// # Errors
    /// The same.
    pub fn stock_guest() -> Result<Vec<(String, PathBuf)>, Error> {
        Self::stock_guest_of(&StockKernel::newest()?)
    }

    /// What a job needs to boot Debian's kernel: the files of [`program`](Self::program); `vmlinuz`; and `initramfs`, whose
    /// `paradisk-guest-init` has fio.
    ///
    /// # Errors
    /// A package is not to be had, or a program does not compile.
    pub fn stock_guest_of(kernel: &StockKernel) -> Result<Vec<(String, PathBuf)>, Error> {
        Ok([Self::program()?, guest_of(kernel)?].concat())
    }

    /// [`stock_guest`](Self::stock_guest) with the program as it is released, to measure it.
    ///
    /// # Errors
    /// The same.
    pub fn measured_guest() -> Result<Vec<(String, PathBuf)>, Error> {
        let program = vec![("paradisk".to_owned(), Self::released()?)];
        Ok([program, guest_of(&StockKernel::newest()?)?].concat())
    }

    /// A fingerprint of the program of [`measured_guest`](Self::measured_guest).
    ///
    /// # Errors
    /// It does not compile.
    pub fn measured_program() -> Result<String, Error> {
        let path = Self::released()?;
        Ok(cache::fingerprint(&[&fs::read(&path).map_err(Error::file(&path))?]))
    }

    /// `paradisk` as it was built with the tests.
    ///
    /// # Errors
    /// It does not compile.
    pub fn paradisk() -> Result<PathBuf, Error> {
        cargo::tested()
    }

    /// [`paradisk`](Self::paradisk), and this machine's libraries for it in a folder where L1's `/init` looks for them.
    ///
    /// # Errors
    /// It does not compile, or a library is missing.
    pub fn program() -> Result<Vec<(String, PathBuf)>, Error> {
        let program = Self::paradisk()?;
        let libraries = with_libraries::of_this_machine(&program)?;
        let named = |path: PathBuf| (format!("{LIBRARIES}/{}", with_libraries::name(&path)), path);
        Ok([("paradisk".to_owned(), program)].into_iter().chain(libraries.into_iter().map(named)).collect())
    }

    /// The versions that instruction counts depend on, beside `paradisk`: of both kernels, QEMU and the compiler. Name and version of each.
    ///
    /// # Errors
    /// A package is not to be had, or a program does not say its version.
    pub fn versions() -> Result<Vec<(&'static str, String)>, Error> {
        let compiler = run(Command::new("rustc").arg("--version"))?;
        Ok(vec![
            ("host kernel", StockKernel::cloud()?.version()),
            ("guest kernel", StockKernel::newest()?.version()),
            ("QEMU", Qemu::any()?.version()?),
            ("compiler", compiler.trim().to_owned()),
        ])
    }

    /// QEMU's machine emulator, to run on the same KVM.
    ///
    /// # Errors
    /// A package is not to be had.
    pub fn peer() -> Result<Vec<(String, PathBuf)>, Error> {
        let files = Qemu::any()?.files()?;
        Ok(files.into_iter().map(|(name, path)| (format!("qemu/{name}"), path)).collect())
    }

    /// `paradisk` as it is released, without libraries. Built where that is needed, which takes minutes.
    ///
    /// # Errors
    /// It does not compile.
    fn released() -> Result<PathBuf, Error> {
        const FLAGS: &str = "-Ctarget-feature=+crt-static -Cstrip=symbols";
        cargo::build(Program { package: "paradisk", folder: "svm-rig", flags: FLAGS })
    }

    /// Start L1, let it run `job`, and unpack what the job left in `/out` into the folder `results`.
    ///
    /// # Errors
    /// [`Error::Cpus`] where QEMU cannot emulate so many CPUs; [`Error::Host`] where L1 does not end in time or leaves no result;
    /// [`Error::File`] for the files of the job.
    pub fn run(&self, job: &HostJob, results: &Path) -> Result<Ended, Error> {
        self.emulates(job.cpus)?;
        let folder = tempfile::tempdir().map_err(Error::file(std::env::temp_dir()))?;
        let [initramfs, result, console, counts, profile] =
            ["initramfs", "result", "console", "counts", "profile"].map(|name| folder.path().join(name));
        let mut bytes = self.initramfs.clone();
        bytes.extend(job.archive()?);
        fs::write(&initramfs, bytes).map_err(Error::file(&initramfs))?;
        File::create_new(&result).and_then(|file| file.set_len(RESULT)).map_err(Error::file(&result))?;
        let output = File::create_new(&console).map_err(Error::file(&console))?;

        let mut qemu = self.qemu.system();
        qemu.args(["-machine", "q35", "-accel", "tcg", "-cpu", CPU, "-nodefaults", "-display", "none"]);
        qemu.args(["-bios", FIRMWARE]);
        qemu.args(["-smp", &job.cpus.to_string(), "-m", &format!("{}M", job.memory >> 20), "-no-reboot"]);
        let more = if job.clock == Clock::Host { NO_TIMER_CHECK } else { "" };
        qemu.args(["-serial", "stdio", "-append", &format!("{CMDLINE}{more}")]);
        qemu.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&initramfs);
        qemu.args(["-drive", &format!("file={},format=raw,if=virtio,cache=unsafe", result.display())]);
        for disk in &job.disks {
            qemu.args(["-drive", &format!("file={},format=raw,if=virtio,readonly=on", disk.display())]);
        }
        // It repairs QEMU, whatever the clock.
        let mut plugin = count(self.qemu.plugin_api())?.display().to_string();
        if job.clock != Clock::Host {
            qemu.args(EXACT);
            plugin += &format!(",out={}", counts.display());
        }
        if job.clock == Clock::Profiled {
            plugin += &format!(",profile={}", profile.display());
        }
        qemu.args(["-plugin", &plugin]);
        let ended = ends_within(qemu, output, job.timeout)?;
        let console = fs::read(&console).map_err(Error::file(&console))?;
        let console = String::from_utf8_lossy(&console).into_owned();
        let failed = |why: String| Error::Host { why, console: last(&console).to_owned() };
        if !ended {
            return Err(failed(format!("L1 has not ended within {} s", job.timeout.as_secs())));
        }
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(&result).arg("-C").arg(results);
        run(&mut unpack).map_err(|error| failed(format!("L1 left no result ({error})")))?;
        let status = fs::read_to_string(results.join(STATUS)).ok().and_then(|text| text.trim().parse().ok());
        let status = status.ok_or_else(|| failed("L1 left no exit status".to_owned()))?;
        let counted = |path: &Path, clocks: &[Clock]| match clocks.contains(&job.clock) {
            true => fs::read_to_string(path).map_err(Error::file(path)),
            false => Ok(String::new()),
        };
        let counts = counted(&counts, &[Clock::Instructions, Clock::Profiled])?;
        let profile = counted(&profile, &[Clock::Profiled])?;
        Ok(Ended { status, console, counts, profile })
    }
}

/// Debian's kernel as `vmlinuz`, and `initramfs`.
fn guest_of(kernel: &StockKernel) -> Result<Vec<(String, PathBuf)>, Error> {
    let files = [("vmlinuz", kernel.image()?), ("initramfs", initramfs::initramfs_with_fio(kernel)?)];
    Ok(files.map(|(name, path)| (name.to_owned(), path)).into())
}

/// The plugin for this version of QEMU's interface, compiled where the cache has none.
fn count(api: u8) -> Result<PathBuf, Error> {
    let version = format!("-DPLUGIN_API={api}");
    let inputs = COUNT_FLAGS.into_iter().chain([&*version, COUNT]).map(str::as_bytes).collect::<Vec<_>>();
    let directory = cache::directory(&format!("count-{}", cache::fingerprint(&inputs)), |directory| {
        let source = directory.join("count.c");
        fs::write(&source, COUNT).map_err(Error::file(&source))?;
        let mut compiler = Command::new("cc");
        compiler.args(COUNT_FLAGS).arg(&version).arg("-o").arg(directory.join("count.so")).arg(&source);
        run(&mut compiler).map(drop)
    })?;
    Ok(directory.join("count.so"))
}

impl HostJob {
    /// The script and the files, for the folder `job`.
    fn archive(&self) -> Result<Vec<u8>, Error> {
        let mut archive = Cpio::default();
        archive.directory("job");
        archive.file("job/run", self.script.as_bytes());
        let mut folders: Vec<_> =
            self.files.iter().filter_map(|(name, _)| Some(name.rsplit_once('/')?.0)).collect();
        folders.dedup();
        folders.iter().for_each(|folder| archive.directory(&format!("job/{folder}")));
        if !self.disks.is_empty() {
            archive.file(HAS_DISKS, &[]);
        }
        for (name, path) in &self.files {
            add(&mut archive, &format!("job/{name}"), path)?;
        }
        Ok(archive.finish())
    }
}

/// A file, or a folder with all that is in it, in the order of the names.
fn add(archive: &mut Cpio, name: &str, path: &Path) -> Result<(), Error> {
    if !path.is_dir() {
        archive.file(name, &fs::read(path).map_err(Error::file(path))?);
        return Ok(());
    }
    archive.directory(name);
    let mut inside: Vec<_> =
        fs::read_dir(path).map_err(Error::file(path))?.flatten().map(|entry| entry.file_name()).collect();
    inside.sort();
    inside
        .iter()
        .try_for_each(|file| add(archive, &format!("{name}/{}", file.to_string_lossy()), &path.join(file)))
}

/// Whether `command` ends within `time`. Killed if it does not.
fn ends_within(mut command: Command, output: File, time: Duration) -> Result<bool, Error> {
    let failed =
        |error: std::io::Error| Error::Command { command: "QEMU".to_owned(), how: error.to_string() };
    command.stdin(Stdio::null()).stderr(output.try_clone().map_err(failed)?).stdout(output);
    let mut child = Killed(command.spawn().map_err(failed)?);
    let end = Instant::now() + time;
    while Instant::now() < end {
        if child.0.try_wait().map_err(failed)?.is_some() {
            return Ok(true);
        }
        thread::sleep(PAUSE);
    }
    Ok(false)
}

/// A process that does not outlive this value.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn last(text: &str) -> &str {
    let start = text.len().saturating_sub(LAST_OUTPUT);
    let start = (start..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(start);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_the_same_bytes_each_time() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b", "a", "c/d"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let job = HostJob {
            script: "true".to_owned(),
            files: vec![("files".to_owned(), folder.path().to_owned())],
            disks: Vec::new(),
            cpus: 1,
            clock: Clock::Host,
            memory: 1 << 30,
            timeout: Duration::from_secs(1),
        };
        let first = job.archive().unwrap();
        let text = String::from_utf8(first.clone()).unwrap();
        let at = |name: &str| text.find(&format!("job/{name}\0")).unwrap_or_else(|| panic!("no {name}"));
        assert!(at("run") < at("files/a") && at("files/a") < at("files/b"));
        assert!(at("files/b") < at("files/c") && at("files/c") < at("files/c/d"));
        // Written again, in another order and at another time.
        for name in ["a", "b"] {
            fs::remove_file(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name), name).unwrap();
        }
        assert_eq!(job.archive().unwrap(), first);
    }

    #[test]
    fn the_plugin_compiles_for_both_versions() {
        if Command::new("cc").arg("--version").output().is_err() {
            return println!("SKIP: the_plugin_compiles_for_both_versions: no cc");
        }
        let built = [1, 7].map(|api| count(api).unwrap());
        assert!(built[0] != built[1] && built.iter().all(|path| path.exists()));
        assert!(count(2).unwrap_err().to_string().contains("PLUGIN_API is 1 or 7"));
    }

    #[test]
    fn what_takes_too_long_is_killed() {
        let sleep = |time: &str| {
            let mut command = Command::new("sleep");
            command.arg(time);
            command
        };
        let output = || tempfile::tempfile().unwrap();
        assert!(ends_within(sleep("0"), output(), Duration::from_secs(60)).unwrap());
        assert!(!ends_within(sleep("1000"), output(), Duration::from_millis(50)).unwrap());
    }
}

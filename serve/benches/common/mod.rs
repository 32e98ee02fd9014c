//! What comparisons of servers have in common: one image for all, a process for each server, and the spread of the results.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::{FormatName, OpenOptions, Raw, vhdx};

/// The content of an image repeats itself after this number of bytes.
pub(crate) const PIECE: usize = 1 << 20;

/// The content that an image is filled with, repeatedly.
pub(crate) fn piece() -> Vec<u8> {
    (0..PIECE as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
}

/// An image of `size` bytes, every block of which is written.
pub(crate) fn image(folder: &Path, format: FormatName, size: u64) -> PathBuf {
    let path = folder.join(if format == FormatName::Raw { "disk.raw" } else { "disk.vhdx" });
    match format {
        FormatName::Raw => Raw::create(&path, size).unwrap(),
        _ => vhdx::create_dynamic(&path, size, vhdx::CreateOptions::default()).unwrap(),
    }
    let opened = OpenOptions { format: Some(format), ..OpenOptions::new(&path) }.open_format().unwrap();
    let content = Content::new(&*opened);
    let piece = piece();
    (0..size).step_by(PIECE).for_each(|at| content.write_at(&piece, at).unwrap());
    drop(opened);
    rustix::fs::fsync(std::fs::File::open(&path).unwrap()).unwrap();
    path
}

/// Where an image is served.
pub(crate) fn socket(image: &Path) -> PathBuf {
    image.with_extension("socket")
}

/// A server, killed when dropped.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Start it, and wait until it listens.
    pub(crate) fn start(server: &mut Command, socket: &Path) -> Self {
        let _ = std::fs::remove_file(socket);
        let process = Self(server.stdout(Stdio::null()).spawn().unwrap());
        let start = Instant::now();
        // Only check for the file: a connection that is closed again would end the daemon's export.
        while !socket.exists() {
            assert!(start.elapsed() < Duration::from_secs(20), "no server");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
        process
    }

    /// Nanoseconds on a CPU so far, of all threads including those that have ended. The resolution is a hundredth of a second
    /// (proc_pid_stat(5)).
    #[allow(dead_code, reason = "not every comparison has threads that end")]
    pub(crate) fn spent_by_all(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
        ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second())
    }

    /// Nanoseconds on a CPU so far, of the threads that have not ended.
    pub(crate) fn spent(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let of = |task: std::fs::DirEntry| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
        };
        tasks.flatten().map(of).sum()
    }
}

/// What a server did.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// CPU time of an I/O.
    pub(crate) nanoseconds: f64,
    pub(crate) iops: f64,
}

/// Median, smallest and largest.
pub(crate) fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

//! The time that a server or a machine may take to end.
//!
//! Whatever its threads wait for (a client, storage that does not answer), the process ends. What the disks have completed is flushed
//! before, as far as the storage answers.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Weak;
use std::sync::mpsc::{self, Receiver, Sender};
#[expect(clippy::disallowed_types, reason = "disks come and go rarely")]
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use facts::disk::OpenDisk;
use paradisk_disk_formats::{Disk, EngineKind, ThreadKind, spawn};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};

use crate::failure::Failure;
use crate::flush::flush_disk;
use crate::tell;
use crate::units;

/// How long the end may take.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct StopTimeout {
    /// When told to end, wait so long for clients, guests and storage. Then flush the disks, for which the storage has the same time
    /// again, and exit with status 1
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    stop_timeout: Duration,
}

/// A disk that may have to be flushed.
struct Opened {
    /// The deadline keeps no disk open.
    disk: Weak<dyn Disk>,
    engine: EngineKind,
    name: String,
}

/// The disks of this process.
#[expect(clippy::disallowed_types, reason = "disks come and go rarely")]
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// Have a disk flushed at a deadline, as long as it is open.
pub(crate) fn watch(opened: &OpenDisk) {
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|opened| opened.disk.strong_count() > 0);
    let disk = std::sync::Arc::downgrade(&opened.disk);
    all.push(Opened { disk, engine: opened.engine, name: opened.name() });
}

/// Where the end of the process is announced.
#[derive(Clone)]
pub(crate) struct Deadline(Sender<()>);

impl Deadline {
    /// The end begins: the time runs from the first call.
    pub(crate) fn announce(&self) {
        // Fails only if the process is about to exit.
        let _ = self.0.send(());
    }
}

impl StopTimeout {
    /// Wait for the begin of the end on a thread, and exit if it takes too long.
    pub(crate) fn start(self) -> Result<Deadline, Failure> {
        let (begin, begun) = mpsc::channel();
        self.wait_for(move || begun.recv().is_ok())?;
        Ok(Deadline(begin))
    }

    /// As [`start`](Self::start); the end begins when there is a byte in `stop`, which is left there.
    pub(crate) fn start_at(self, stop: &UnixStream) -> Result<(), Failure> {
        let stop = stop.try_clone().map_err(failed)?;
        self.wait_for(move || wait_for_byte(&stop).is_ok())
    }

    fn wait_for(self, begins: impl FnOnce() -> bool + Send + 'static) -> Result<(), Failure> {
        let timeout = self.stop_timeout;
        let run = move || {
            if begins() {
                thread::sleep(timeout);
                exit(timeout);
            }
        };
        spawn(ThreadKind::Deadline, "deadline", run).map(drop).map_err(failed)
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::Failed(format!("--stop-timeout: {error}"))
}

/// Wait until there is a byte, and leave it there.
pub(crate) fn wait_for_byte(stop: &UnixStream) -> Result<(), Errno> {
    retry_on_intr(|| recv(stop, &mut [0; 1], RecvFlags::PEEK)).map(drop)
}

/// Flush the disks, for at most `timeout`, and exit.
fn exit(timeout: Duration) -> ! {
    let mut all = std::mem::take(&mut *OPENED.lock().unwrap_or_else(PoisonError::into_inner));
    all.retain(|opened| opened.disk.strong_count() > 0);
    tell!("error: the end takes longer than {timeout:?} (--stop-timeout): flushing the disks, then exiting");
    let names: Vec<String> = all.iter().map(|opened| opened.name.clone()).collect();
    let flushes: Vec<Receiver<_>> = all.into_iter().map(start_flush).collect();
    let end = Instant::now() + timeout;
    for (name, flush) in names.iter().zip(flushes) {
        match flush.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tell!("error: {name}: flush: {error}"),
            Err(_) => tell!("error: {name}: the storage has not completed the flush within {timeout:?}"),
        }
    }
    tell::finish();
    std::process::exit(1)
}

/// Flush a disk on a thread of its own, which may never end.
fn start_flush(opened: Opened) -> Receiver<Result<(), String>> {
    let (done, result) = mpsc::sync_channel(1);
    let flush = move || {
        let disk = opened.disk.upgrade();
        let flushed = disk.map_or(Ok(()), |disk| flush_disk(&*disk, opened.engine));
        let _ = done.send(flushed);
    };
    // If the host refuses the thread, the receiver reports a flush that has not completed.
    let _ = spawn(ThreadKind::Deadline, "flush", flush);
    result
}

//! Every job that a helper thread accepts ends, and wakes the queue; a flush covers what was written before its job was sent.

use std::sync::Arc;

use interleave::shuttle::sync::atomic::{AtomicU32, Ordering};
use interleave::shuttle::sync::{Condvar, Mutex};
use interleave::{Fault, sample, sample_finds};

use crate::contract::disk::Disk;
use crate::contract::error::IoError;
use crate::contract::info::{DiskInfo, SectorSize};
use crate::disk::memory::NullDisk;
use crate::host::backing::BackingFile;
use crate::map::extent::Extents;
use crate::map::format::{Flush, Format, Mapping};

use super::part;
use helper::{Helper, Job, JobKind};

#[allow(dead_code, reason = "the model does not use everything")]
#[path = "helper.rs"]
mod helper;

mod thread {
    pub(super) use interleave::shuttle::thread::JoinHandle;
}

mod threads {
    use interleave::shuttle::thread::{JoinHandle, spawn as spawn_thread};

    use crate::host::threads::ThreadKind;

    pub(super) fn spawn(
        _: ThreadKind,
        _: &'static str,
        run: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        Ok(spawn_thread(run))
    }
}

mod sync {
    #[expect(clippy::disallowed_types, reason = "a model, whose messages are delayed")]
    pub(super) mod mpsc {
        use std::sync::Mutex;

        use interleave::shuttle::sync::mpsc;
        use interleave::{Fault, seeded};

        pub(in super::super) use mpsc::{Receiver, SendError, TryRecvError};

        pub(in super::super) fn channel<T>() -> (Sender<T>, Receiver<T>) {
            let (sender, receiver) = mpsc::channel();
            (Sender(sender, Mutex::new(None)), receiver)
        }

        /// With [`Fault::Own`], a message is published by the next one, as if the thread raised the signal first.
        #[derive(Debug)]
        #[allow(clippy::disallowed_types, reason = "a test")]
        pub(in super::super) struct Sender<T>(mpsc::Sender<T>, Mutex<Option<T>>);

        impl<T> Sender<T> {
            pub(in super::super) fn send(&self, message: T) -> Result<(), SendError<T>> {
                if !seeded(Fault::Own) {
                    return self.0.send(message);
                }
                let before = self.1.lock().unwrap().replace(message);
                before.map_or(Ok(()), |message| self.0.send(message))
            }
        }
    }
}

/// A signal without an eventfd: level-triggered.
#[derive(Default)]
struct Signal {
    raised: Mutex<bool>,
    wake: Condvar,
}

impl Signal {
    fn raise(&self) {
        *self.raised.lock().unwrap() = true;
        self.wake.notify_one();
    }

    /// Sleep until the signal is raised, and lower it.
    fn sleep(&self) {
        let mut raised = self.raised.lock().unwrap();
        while !std::mem::take(&mut *raised) {
            raised = self.wake.wait(raised).unwrap();
        }
    }
}

/// Counts writes, and those that are on stable storage.
struct Model {
    info: DiskInfo,
    written: AtomicU32,
    stable: AtomicU32,
}

impl Format for Model {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        &[]
    }

    fn map_read(&self, _: u64, _: u64, _: &mut Extents) -> Result<Mapping, IoError> {
        Ok(Mapping::Blocked)
    }

    fn map_write(&self, _: u64, _: u64, _: &mut Extents) -> Result<Mapping, IoError> {
        Ok(Mapping::Blocked)
    }

    fn flush_kind(&self) -> Flush {
        Flush::Format
    }

    fn flush(&self) -> Result<(), IoError> {
        let written = self.written.load(Ordering::SeqCst);
        self.stable.store(written, Ordering::SeqCst);
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), IoError> {
        Ok(())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: bool) -> Result<(), IoError> {
        Ok(())
    }
}

/// A write completes before each of three flushes. The queue sleeps while jobs are outstanding. If a wake-up is lost, it sleeps for ever,
/// which the checker reports.
fn flush() {
    let info = NullDisk::new(1 << 20, SectorSize::B512).unwrap().info().clone();
    let model = Arc::new(Model { info, written: AtomicU32::new(0), stable: AtomicU32::new(0) });
    let signal = Arc::new(Signal::default());
    let format: Arc<dyn Format> = Arc::<Model>::clone(&model);
    let mut helper = Helper::start("flusher", format, Arc::clone(&signal)).unwrap();
    for slot in 0..3 {
        model.written.store(slot + 1, Ordering::SeqCst);
        assert!(helper.send(Job { slot, kind: JobKind::Flush, offset: 0, len: 0 }));
    }
    let mut ended = Vec::new();
    while helper.outstanding() > 0 {
        signal.sleep();
        while let Some((job, result)) = helper.next() {
            assert_eq!(result.map(drop), Ok(()));
            assert!(model.stable.load(Ordering::SeqCst) > job.slot, "flush {} has missed a write", job.slot);
            ended.push(job.slot);
        }
    }
    assert_eq!(ended, [0, 1, 2]);
}

/// The protections: the thread sends a result before it raises the signal, and takes further flushes before it performs the first.
#[test]
fn every_job_ends_and_a_flush_covers_earlier_writes() {
    sample(2_000, flush);
    sample_finds(Fault::Own, 2_000, flush);
}

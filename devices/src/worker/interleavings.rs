//! No job is lost, and the end of the worker is not missed.

use std::sync::Arc;

use interleave::shuttle::sync::{Condvar, Mutex};
use interleave::shuttle::thread;
use interleave::{Fault, sample, sample_finds};

use jobs::{Inbox, Wake};

#[allow(dead_code, reason = "the model does not use everything")]
#[path = "jobs.rs"]
mod jobs;

mod sync {
    pub(super) mod mpsc {
        use std::cell::Cell;

        use interleave::shuttle::sync::mpsc;
        use interleave::{Fault, seeded};

        pub(in super::super) use mpsc::{Sender, TryRecvError};

        pub(in super::super) fn channel<T>() -> (Sender<T>, Receiver<T>) {
            let (sender, receiver) = mpsc::channel();
            (sender, Receiver(receiver, Cell::new(false)))
        }

        /// With [`Fault::Own`], the thread takes one job for each wake-up.
        #[derive(Debug)]
        pub(in super::super) struct Receiver<T>(mpsc::Receiver<T>, Cell<bool>);

        impl<T> Receiver<T> {
            pub(in super::super) fn try_recv(&self) -> Result<T, TryRecvError> {
                if seeded(Fault::Own) && self.1.replace(!self.1.get()) {
                    return Err(TryRecvError::Empty);
                }
                self.0.try_recv()
            }
        }
    }
}

/// An eventfd whose edges a thread waits for: several writes before a wait are one edge.
#[derive(Clone, Default)]
struct Edges(Arc<(Mutex<bool>, Condvar)>);

impl Wake for Edges {
    fn wake(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_one();
    }
}

impl Edges {
    fn wait(&self) {
        let mut edge = self.0.0.lock().unwrap();
        while !std::mem::take(&mut *edge) {
            edge = self.0.1.wait(edge).unwrap();
        }
    }
}

/// As the loop of [`Worker`](super::Worker), with no other events. Returns the jobs in the order in which they ran.
fn serve(edges: &Edges, inbox: &Inbox<u32>) -> Vec<u32> {
    let mut ran = Vec::new();
    loop {
        edges.wait();
        if !inbox.run(|job| ran.push(job)) {
            return ran;
        }
    }
}

/// Three jobs are sent, and the worker is dropped. If a wake-up is lost, the thread sleeps for ever,
/// which the checker reports.
fn send_and_close() {
    let edges = Edges::default();
    let (mut outbox, inbox) = jobs::channel(edges.clone());
    let thread = thread::spawn(move || serve(&edges, &inbox));
    for job in 0..3 {
        outbox.send(job).unwrap();
    }
    outbox.close();
    assert_eq!(thread.join().unwrap(), [0, 1, 2]);
}

/// The protections: `Outbox::send` and `close` wake after the change of the channel, and `Inbox::run` takes all jobs.
#[test]
fn no_job_is_lost() {
    sample(2_000, send_and_close);
    sample_finds(Fault::Own, 2_000, send_and_close);
}

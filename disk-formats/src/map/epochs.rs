//! Epoch-based reclamation: freed blocks are reused only when no request in flight can use the old mapping.
//!
//! If a freed block were reused while a request that was mapped before the free is in flight, that request would read
//! or overwrite other data. Each queue publishes whether it has requests of the current epoch and of the previous epoch
//! in flight. The epoch advances when no queue has requests of the previous epoch. Space that was freed in epoch N is
//! reusable from epoch N + 2 on.

use super::sync::Arc;
use super::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

#[allow(clippy::disallowed_types, reason = "taken when a queue is made and when space is reclaimed")]
type Mutex<T> = super::sync::Mutex<T>;

/// For each parity of the epoch, whether a queue has requests of such an epoch in flight.
#[derive(Debug, Default)]
struct Busy([AtomicBool; 2]);

/// The epochs of a disk, shared by its queues. A clone refers to the same epochs: a nested disk shares the epochs of
/// the outer disk, because a request in flight may use space of both.
#[derive(Clone, Debug, Default)]
pub struct Epochs(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    epoch: AtomicU64,
    queues: Mutex<Vec<Arc<Busy>>>,
}

impl Epochs {
    /// Register a queue.
    #[must_use]
    pub(crate) fn enter(&self) -> Participant {
        let busy = Arc::new(Busy::default());
        if let Ok(mut queues) = self.0.queues.lock() {
            queues.push(Arc::clone(&busy));
        }
        Participant { busy, counts: [0; 2] }
    }

    /// The current epoch. Blocks that are unmapped now are reusable when this epoch [has ended](Self::has_ended).
    pub(crate) fn current(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.0.epoch.load(Ordering::SeqCst)
    }

    /// Whether every request that was mapped before `epoch` was returned by [`current`](Self::current) has completed.
    /// Does not wait.
    pub(crate) fn has_ended(&self, epoch: u64) -> bool {
        let Ok(mut queues) = self.0.queues.lock() else { return false };
        // A dropped queue has no requests in flight.
        queues.retain(|busy| Arc::strong_count(busy) > 1);
        fence(Ordering::SeqCst);
        loop {
            let now = self.0.epoch.load(Ordering::SeqCst);
            if now >= epoch + 2 {
                return true;
            }
            // The parity of the previous epoch. New requests have the other parity.
            let old = (now as usize + 1) % 2;
            if queues.iter().any(|busy| busy.0.get(old).is_none_or(|busy| busy.load(Ordering::SeqCst))) {
                return false;
            }
            self.0.epoch.store(now + 1, Ordering::SeqCst);
        }
    }
}

/// A registered queue.
#[derive(Debug)]
pub(crate) struct Participant {
    busy: Arc<Busy>,
    counts: [u32; 2],
}

impl Participant {
    /// Call this before a request is mapped. Returns the parity of its epoch, for [`end`](Self::end).
    #[inline]
    pub(crate) fn begin(&mut self, epochs: &Epochs) -> u8 {
        let parity = (epochs.0.epoch.load(Ordering::Relaxed) % 2) as usize;
        if let (Some(count), Some(busy)) = (self.counts.get_mut(parity), self.busy.0.get(parity)) {
            *count += 1;
            if *count == 1 {
                busy.store(true, Ordering::SeqCst);
                // The flag must be visible before the map is read.
                fence(Ordering::SeqCst);
            }
        }
        parity as u8
    }

    /// Call this when a request with this parity has completed.
    #[inline]
    pub(crate) fn end(&mut self, parity: u8) {
        let parity = usize::from(parity);
        if let (Some(count), Some(busy)) = (self.counts.get_mut(parity), self.busy.0.get(parity)) {
            *count -= 1;
            if *count == 0 {
                busy.store(false, Ordering::SeqCst);
            }
        }
    }
}

//! Space that was freed is not reused while a request may use its old mapping.

use interleave::sync::Arc;
use interleave::sync::atomic::{AtomicBool, Ordering};
use interleave::{Fault, explore, finds, sync, thread};

use epochs::Epochs;

#[allow(unreachable_pub, reason = "the type is public where it is not a model")]
#[path = "epochs.rs"]
mod epochs;

struct Model {
    epochs: Epochs,
    /// The block map has the block.
    mapped: AtomicBool,
    /// The block has other data.
    reused: AtomicBool,
}

/// A queue makes two requests. Another thread unmaps the block, and reuses it once its epoch has ended.
fn reuse() {
    let model = Arc::new(Model {
        epochs: Epochs::default(),
        mapped: AtomicBool::new(true),
        reused: AtomicBool::new(false),
    });
    let mut queue = model.epochs.enter();
    let requests = Arc::clone(&model);
    let requests = thread::spawn(move || {
        for _ in 0..2 {
            let parity = queue.begin(&requests.epochs);
            if requests.mapped.load(Ordering::Acquire) {
                assert!(
                    !requests.reused.load(Ordering::Relaxed),
                    "a request uses the block of another mapping"
                );
            }
            queue.end(parity);
        }
        queue
    });
    model.mapped.store(false, Ordering::Release);
    let epoch = model.epochs.current();
    for _ in 0..2 {
        if model.epochs.has_ended(epoch) {
            model.reused.store(true, Ordering::Relaxed);
            break;
        }
    }
    drop(requests.join().unwrap());
    assert!(model.epochs.has_ended(epoch));
}

/// The protections: the fences of `Participant::begin` and `Epochs::current`, and the two epochs that `Epochs::has_ended` waits for.
#[test]
fn space_is_reused_only_after_the_requests_that_may_use_it() {
    explore(3, reuse);
    finds(Fault::NoFences, 3, reuse);
}

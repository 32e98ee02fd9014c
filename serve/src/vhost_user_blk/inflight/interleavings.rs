//! A server is killed after any of its stores: the next one finds the requests that were taken and not completed, in their order.

use std::cell::Cell;
use std::sync::Arc;

use interleave::{Fault, finds_by, seeded};
use vm_memory::{AtomicAccess, Bytes, MmapRegion, VolatileMemory};

use record::InflightRecord;

#[allow(dead_code, reason = "the model does not use everything")]
#[path = "record.rs"]
mod record;

const SIZE: u16 = 3;
const STEPS: u32 = 6;

/// Memory that outlives a server, which is killed after a number of stores.
#[derive(Debug)]
struct Mapping {
    region: MmapRegion<()>,
    stores: Cell<u32>,
    /// With [`Fault::Own`], each store of 8 bytes takes effect after the next store, as if that did not release.
    delayed: Cell<Option<(usize, u64)>>,
}

impl Mapping {
    fn lives(&self) -> bool {
        self.stores.get() > 0
    }

    /// Whether the server makes this store.
    fn count(&self) -> bool {
        let lives = self.lives();
        self.stores.set(self.stores.get().saturating_sub(1));
        lives
    }

    fn put<T: AtomicAccess>(&self, at: usize, value: T) {
        let order = std::sync::atomic::Ordering::Relaxed;
        self.region.as_volatile_slice().store(value, at, order).unwrap();
    }

    fn load<T: AtomicAccess + Default>(&self, at: usize) -> T {
        self.region.as_volatile_slice().load(at, std::sync::atomic::Ordering::Relaxed).unwrap()
    }

    fn store<T: AtomicAccess>(&self, at: usize, value: T) {
        if !self.count() {
            return;
        }
        if seeded(Fault::Own) && size_of::<T>() == 8 {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(value.as_slice());
            self.delayed.set(Some((at, u64::from_ne_bytes(bytes))));
            return;
        }
        self.put(at, value);
        if let Some((at, value)) = self.delayed.take()
            && self.lives()
        {
            self.put(at, value);
        }
    }
}

/// The numbers of `script` are heads: one that is not in flight is taken, one that is in flight completes. The server is killed after so
/// many stores. Returns whether it was.
#[allow(clippy::arc_with_non_send_sync, reason = "one thread; the record takes an Arc")]
fn killed(script: [u16; STEPS as usize], stores: u32) -> bool {
    let region = MmapRegion::new(4096).unwrap();
    let mapping = Arc::new(Mapping { region, stores: Cell::new(u32::MAX), delayed: Cell::new(None) });
    let mut used = 0xfffe_u16;
    let mut server = InflightRecord::new(&mapping, 0, SIZE);
    assert_eq!(server.open(used), None);
    mapping.stores.set(stores);
    let mut in_flight: Vec<u16> = Vec::new();
    // A request whose mark may or may not have been stored.
    let mut taking = None;
    for head in script {
        if let Some(index) = in_flight.iter().position(|other| *other == head) {
            server.posting(head);
            // The used index in guest memory is a store, too.
            if !mapping.count() {
                break;
            }
            used = used.wrapping_add(1);
            in_flight.remove(index);
            server.posted(head, used);
        } else {
            server.taken(head);
            if !mapping.lives() {
                taking = Some(head);
                break;
            }
            in_flight.push(head);
        }
        if !mapping.lives() {
            break;
        }
    }
    let killed = !mapping.lives();
    mapping.stores.set(u32::MAX);
    let left = InflightRecord::new(&mapping, 0, SIZE).open(used).expect("a record");
    if left.heads.len() > in_flight.len() {
        in_flight.extend(taking);
    }
    assert_eq!(left.heads, in_flight, "{script:?}, killed after {stores} stores");
    assert_eq!(left.next_avail, used.wrapping_add(in_flight.len() as u16), "{script:?}");
    killed
}

fn every_script() {
    let base = u32::from(SIZE);
    for script in 0..base.pow(STEPS) {
        let script = std::array::from_fn(|step| (script / base.pow(step as u32) % base) as u16);
        let _stores = (0..).find(|stores| !killed(script, *stores));
    }
}

/// The protections: `taken` stores the counter before the mark, `posting` the head before the used index, and `posted` clears the mark
/// before the recorded used index.
#[test]
fn the_next_server_finds_the_requests_after_any_store() {
    every_script();
    finds_by(Fault::Own, every_script);
}

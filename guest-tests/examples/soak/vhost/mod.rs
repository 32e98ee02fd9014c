//! Vhost-user-blk servers: front-ends come, disconnect with requests in flight, see the disk grow, and outlive servers that are killed.

mod killed;
mod steady;

use vm_memory::Bytes;

use crate::pattern::{BLOCK, Model};
use crate::vhost_client::{Guest, IN, OUT, Shape};

pub(crate) use killed::Killed;
pub(crate) use steady::Steady;

const QUEUES: u16 = 2;
/// Requests in flight in a queue.
const DEPTH: u16 = 32;
const SECTORS: u64 = BLOCK as u64 / 512;

/// What the client of a cycle negotiates.
fn shape(cycle: u64) -> Shape {
    Shape {
        queues: QUEUES,
        event_index: cycle.is_multiple_of(2),
        indirect: !cycle.is_multiple_of(3),
        ..Shape::default()
    }
}

/// Add a write of a block to the ring.
fn add_write(model: &mut Model, guest: &mut Guest, (queue, slot): (usize, u16), block: u64) {
    let data = model.write(block);
    guest.memory.write_slice(&data, guest.data(queue, slot)).unwrap();
    guest.add(queue, slot, OUT, block * SECTORS, BLOCK as u32);
}

/// Read blocks, as many as there are slots at the most, and verify them.
fn verify(model: &mut Model, guest: &mut Guest, queue: usize, blocks: &[u64]) -> u64 {
    for (block, slot) in blocks.iter().zip(0..DEPTH) {
        guest.add(queue, slot, IN, block * SECTORS, BLOCK as u32);
    }
    guest.publish(queue);
    let ended = guest.wait(queue, blocks.len());
    assert!(ended.len() == blocks.len() && ended.iter().all(|(_, status)| *status == 0), "{ended:?}");
    let pairs = blocks.iter().zip(0..DEPTH);
    pairs.map(|(block, slot)| model.verify(*block, &guest.bytes(queue, slot, BLOCK))).sum()
}

//! Blocks that are written while a server, a client or an adapter is stopped: each of their sectors is old or new afterwards.

use std::time::{Duration, Instant};

use guest_driver::adapter::{Buffer, Completion, Op, Request};
use guest_driver::{Adapter, DmaRegion, Driver, Platform};

use crate::pattern::{BLOCK, SECTOR, fill};

/// First byte on the disk: behind the span of the verifying jobs.
const START: u64 = 4 << 20;
const COUNT: u32 = 32;
/// Time for a completion.
const TIMEOUT: Duration = Duration::from_secs(60);
/// What memory holds before a read.
const SPOILT: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// Evaluate `$call` with `$name` as the driver, of whichever adapter it is.
macro_rules! with {
    ($driver:expr, $name:ident => $call:expr) => {
        match $driver {
            Driver::Pvscsi($name) => $call,
            Driver::Lsi($name) => $call,
            Driver::Ide($name) => $call,
            Driver::BusLogic($name) => $call,
            Driver::VirtioBlk($name) => $call,
            Driver::VirtioScsi($name) => $call,
            Driver::Storvsc($name) => $call,
        }
    };
}

/// Generations of the blocks in a cycle: written and flushed, and in flight when the cycle ends.
pub(crate) const fn generations(cycle: u64) -> [u32; 2] {
    [2 * cycle as u32 + 2, 2 * cycle as u32 + 3]
}

/// Wait for so many completions.
pub(crate) fn collect<A: Adapter, P: Platform>(
    adapter: &mut A,
    platform: &mut P,
    count: u32,
) -> Vec<Completion> {
    let begin = Instant::now();
    let mut ended: Vec<Completion> = Vec::new();
    while ended.len() < count as usize {
        let seen = platform.interrupts();
        adapter.interrupted(platform);
        match adapter.poll(platform) {
            Some(end) => {
                assert!(ended.iter().all(|other| other.tag != end.tag), "tag {} ended twice", end.tag);
                ended.push(end);
            }
            None => platform.wait_interrupt(seen),
        }
        assert!(begin.elapsed() < TIMEOUT, "{} of {count} requests ended", ended.len());
    }
    ended
}

/// The blocks, with memory for the requests.
pub(crate) struct Contested {
    memory: DmaRegion,
}

impl Contested {
    pub(crate) fn new<P: Platform>(platform: &mut P) -> Self {
        // A block is written and read at the same time, so each has two pages.
        let memory = platform.dma(2 * COUNT as usize * BLOCK, BLOCK).expect("DMA memory");
        Self { memory }
    }

    const fn page(op: Op, block: u32) -> usize {
        (if matches!(op, Op::Read) { COUNT + block } else { block }) as usize * BLOCK
    }

    fn request(&self, op: Op, tag: u32, block: u32) -> Request {
        let (lba, blocks) = (START / 512 + u64::from(block) * 8, BLOCK as u32 / 512);
        let data = Buffer::contiguous(self.memory.address() + Self::page(op, block) as u64, BLOCK as u32);
        Request { tag, target: 0, op, lba, blocks, data }
    }

    fn prepare(&self, generation: u32) {
        let mut data = [0; BLOCK];
        for block in 0..COUNT {
            fill(block.into(), generation, &mut data);
            for (word, at) in data.chunks(8).zip((Self::page(Op::Write, block)..).step_by(8)) {
                self.memory.write(at, u64::from_le_bytes(word.try_into().unwrap()));
            }
        }
    }

    /// Overwrite all memory of the requests. From now on the device must not write to it.
    pub(crate) fn spoil(&self) {
        (0..self.memory.len()).step_by(8).for_each(|at| self.memory.write(at, SPOILT));
    }

    /// Whether the memory is as `spoil` left it.
    pub(crate) fn is_spoilt(&self) -> bool {
        (0..self.memory.len()).step_by(8).all(|at| self.memory.read::<u64>(at) == SPOILT)
    }

    /// Read or write all blocks.
    fn transfer<A: Adapter, P: Platform>(&self, adapter: &mut A, platform: &mut P, op: Op) {
        // Unit attentions are over after this.
        adapter.geometry(platform, 0).unwrap();
        let depth = adapter.slots().min(COUNT);
        for first in (0..COUNT).step_by(depth as usize) {
            let count = depth.min(COUNT - first);
            for tag in 0..count {
                assert!(adapter.submit(platform, &self.request(op, tag, first + tag)), "no free slot");
            }
            adapter.kick(platform);
            for end in collect(adapter, platform, count) {
                assert_eq!(end.status, 0, "{op:?}: {end:?}");
            }
        }
    }

    /// Write all blocks and flush the disk.
    pub(crate) fn write<P: Platform>(&self, driver: &mut Driver, platform: &mut P, generation: u32) {
        self.prepare(generation);
        with!(driver, adapter => {
            self.transfer(adapter, platform, Op::Write);
            let flush = Request { tag: 0, target: 0, op: Op::Flush, lba: 0, blocks: 0, data: Buffer::NONE };
            assert!(adapter.submit(platform, &flush), "no free slot");
            adapter.kick(platform);
            assert_eq!(collect(adapter, platform, 1)[0].status, 0, "flush");
        });
    }

    /// Read all blocks: each sector is of one of the generations.
    pub(crate) fn verify<P: Platform>(
        &self,
        driver: &mut Driver,
        platform: &mut P,
        generations: [u32; 2],
    ) -> u64 {
        self.spoil();
        with!(driver, adapter => self.transfer(adapter, platform, Op::Read));
        for block in 0..COUNT {
            let words = (Self::page(Op::Read, block)..).step_by(8).take(BLOCK / 8);
            let data: Vec<u8> = words.flat_map(|at| self.memory.read::<u64>(at).to_le_bytes()).collect();
            check(block, &data, generations);
        }
        u64::from(COUNT) * BLOCK as u64
    }

    /// Submit writes of a generation, and reads; their number.
    pub(crate) fn begin<A: Adapter, P: Platform>(
        &self,
        adapter: &mut A,
        platform: &mut P,
        generation: u32,
    ) -> u32 {
        self.prepare(generation);
        let count = adapter.slots().min(COUNT);
        for tag in 0..count {
            assert!(adapter.submit(platform, &self.request(Self::op(tag), tag, tag)), "no free slot");
        }
        adapter.kick(platform);
        count
    }

    const fn op(tag: u32) -> Op {
        if tag.is_multiple_of(2) { Op::Write } else { Op::Read }
    }

    /// Keep as many requests in flight as `begin` submits, for so long.
    pub(crate) fn churn<P: Platform>(
        &self,
        driver: &mut Driver,
        platform: &mut P,
        generation: u32,
        time: Duration,
    ) {
        with!(driver, adapter => {
            let count = self.begin(adapter, platform, generation);
            let mut blocks: Vec<u32> = (0..count).collect();
            let begin = Instant::now();
            while begin.elapsed() < time {
                for Completion { tag, status, .. } in collect(adapter, platform, 1) {
                    assert_eq!(status, 0, "tag {tag}");
                    let block = &mut blocks[tag as usize];
                    *block = (*block + count) % COUNT;
                    let request = self.request(Self::op(tag), tag, *block);
                    assert!(adapter.submit(platform, &request), "no free slot");
                }
                adapter.kick(platform);
            }
        });
    }
}

fn check(block: u32, data: &[u8], generations: [u32; 2]) {
    let candidates = generations.map(|generation| {
        let mut data = [0; BLOCK];
        fill(block.into(), generation, &mut data);
        data
    });
    for (sector, found) in data.chunks(SECTOR).enumerate() {
        let at = sector * SECTOR..(sector + 1) * SECTOR;
        let good = candidates.iter().any(|candidate| candidate[at.clone()] == *found);
        assert!(good, "contested block {block}, sector {sector}: generation is none of {generations:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_of_one_of_two_generations() {
        let data = |generation| {
            let mut data = [0; BLOCK];
            fill(3, generation, &mut data);
            data
        };
        let torn = [&data(6)[..SECTOR], &data(7)[SECTOR..]].concat();
        check(3, &torn, [6, 7]);
        let wrong =
            |block, generations| std::panic::catch_unwind(|| check(block, &torn, generations)).is_err();
        assert!(wrong(3, [7, 8]) && wrong(3, [5, 6]) && wrong(2, [6, 7]));
    }
}

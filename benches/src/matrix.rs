//! The combinations of dimensions, and the order in which they run.
//!
//! The speed of a machine drifts. So the meter runs in rounds (A B A B): each round visits every combination once, and only runs of
//! the same round are compared.

use std::collections::HashSet;

use facts::names::{Adapter, Coalescing};

use crate::axes::Access;
use crate::mix::Mix;

/// Values of each dimension.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Whether each load also runs with no adapter.
    pub native: bool,
    /// Adapters.
    pub adapters: Vec<Adapter>,
    /// Number of disks; a disk is identified by its index.
    pub disks: usize,
    /// Access patterns.
    pub access: Vec<Access>,
    /// Percentage of reads for mixed patterns.
    pub read_percent: u32,
    /// Percentage of random offsets for [`Access::Mix`].
    pub random_percent: u32,
    /// Loads of applications, each with its own pattern and size, in addition to those of patterns and block sizes.
    pub mixes: Vec<Mix>,
    /// Bytes of an access.
    pub block_sizes: Vec<u32>,
    /// Accesses in flight of each worker.
    pub queue_depths: Vec<u32>,
    /// Independent streams.
    pub workers: Vec<u32>,
    /// Coalescing policies.
    pub coalescing: Vec<Coalescing>,
    /// Selects the combinations to run; usually [`every`](Self::every).
    pub wanted: fn(&Combination) -> bool,
}

/// The path between load generator and disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Candidate {
    /// Nothing: the disk's queue is driven directly.
    Native,
    /// An adapter with a coalescing policy.
    Adapter(Adapter, Coalescing),
}

/// A load on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Load {
    /// Index of the disk.
    pub disk: usize,
    /// Access pattern.
    pub access: Access,
    /// Percentage of reads.
    pub read_percent: u32,
    /// Percentage of random offsets.
    pub random_percent: u32,
    /// Index in [`Matrix::mixes`], for an application's load.
    pub mix: Option<usize>,
    /// Bytes of an access.
    pub block_size: u32,
    /// Accesses in flight of each worker.
    pub queue_depth: u32,
    /// Independent streams.
    pub workers: u32,
}

/// A row: a load and a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Combination {
    /// The candidate.
    pub candidate: Candidate,
    /// The load.
    pub load: Load,
}

impl Matrix {
    /// Random reads through PVSCSI with default coalescing, by one worker: the load that most suites vary.
    pub(crate) fn random_reads(disks: usize, block_sizes: &[u32], queue_depths: &[u32]) -> Self {
        Self {
            native: false,
            adapters: vec![Adapter::Pvscsi],
            disks,
            access: vec![Access::RandRead],
            read_percent: 100,
            random_percent: 50,
            mixes: Vec::new(),
            block_sizes: block_sizes.to_vec(),
            queue_depths: queue_depths.to_vec(),
            workers: vec![1],
            coalescing: vec![Coalescing::OioIops],
            wanted: Self::every,
        }
    }

    /// Every combination runs.
    #[must_use]
    pub const fn every(_: &Combination) -> bool {
        true
    }

    /// All combinations. For each load, `native` (if selected) is before the adapters.
    #[must_use]
    pub fn combinations(&self) -> Vec<Combination> {
        let mut all = Vec::new();
        for load in self.loads() {
            if self.native {
                all.push(Combination { candidate: Candidate::Native, load });
            }
            for &adapter in &self.adapters {
                for &coalescing in &self.coalescing {
                    all.push(Combination { candidate: Candidate::Adapter(adapter, coalescing), load });
                }
            }
        }
        all.retain(self.wanted);
        all
    }

    /// The matrix without the depths that have no adapter.
    #[must_use]
    pub fn of_guests(&self) -> Self {
        let depths: HashSet<u32> = self.guests().map(|row| row.load.queue_depth).collect();
        let queue_depths = self.queue_depths.iter().copied().filter(|depth| depths.contains(depth)).collect();
        Self { queue_depths, ..self.clone() }
    }

    fn guests(&self) -> impl Iterator<Item = Combination> {
        self.combinations().into_iter().filter(|row| row.candidate != Candidate::Native)
    }

    /// The application, for an application's load.
    #[must_use]
    pub fn mix_of(&self, load: &Load) -> Option<&Mix> {
        self.mixes.get(load.mix?)
    }

    /// Bytes of the largest access through an adapter, and the maximum number of accesses in flight there over all workers.
    #[must_use]
    pub fn largest(&self) -> (u32, u32) {
        let loads = || self.guests().map(|row| row.load);
        let block_size = loads().map(|load| load.block_size).max().unwrap_or(0);
        (block_size, loads().map(|load| load.queue_depth * load.workers).max().unwrap_or(0))
    }

    fn loads(&self) -> Vec<Load> {
        let mut loads = Vec::new();
        for &access in &self.access {
            for &block_size in &self.block_sizes {
                for &queue_depth in &self.queue_depths {
                    for &workers in &self.workers {
                        let read_percent = access.read_percent(self.read_percent);
                        loads.extend((0..self.disks).map(|disk| Load {
                            disk,
                            access,
                            read_percent,
                            random_percent: access.random_percent(self.random_percent),
                            mix: None,
                            block_size,
                            queue_depth,
                            workers,
                        }));
                    }
                }
            }
        }
        for (index, mix) in self.mixes.iter().enumerate() {
            let depths = if mix.queue_depths.is_empty() { &self.queue_depths } else { &mix.queue_depths };
            let workers = if mix.workers.is_empty() { &self.workers } else { &mix.workers };
            for (&queue_depth, &workers) in
                depths.iter().flat_map(|depth| workers.iter().map(move |workers| (depth, workers)))
            {
                loads.extend((0..self.disks).map(|disk| Load {
                    disk,
                    access: mix.access(),
                    read_percent: mix.read_percent,
                    random_percent: mix.random_percent,
                    mix: Some(index),
                    block_size: mix.block_size,
                    queue_depth,
                    workers,
                }));
            }
        }
        loads
    }
}

/// The order of all runs: `rounds` times every combination once. Pairs are (round, index of the combination).
pub fn schedule(combinations: usize, rounds: u32) -> impl Iterator<Item = (u32, usize)> {
    (0..rounds).flat_map(move |round| (0..combinations).map(move |index| (round, index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Matrix {
        Matrix {
            native: true,
            adapters: vec![Adapter::Pvscsi],
            disks: 3,
            access: vec![Access::RandRead, Access::RandRw],
            read_percent: 70,
            random_percent: 50,
            mixes: Vec::new(),
            block_sizes: vec![512, 4096],
            queue_depths: vec![1, 32],
            workers: vec![1, 2],
            coalescing: vec![Coalescing::Off, Coalescing::Batch],
            wanted: Matrix::every,
        }
    }

    #[test]
    fn every_combination_once_beside_its_baseline() {
        let all = matrix().combinations();
        let loads = 3 * 2 * 2 * 2 * 2;
        assert_eq!(all.len(), loads * (1 + 2));
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        for group in all.chunks(3) {
            assert_eq!(group[0].candidate, Candidate::Native);
            assert!(group.iter().all(|row| row.load == group[0].load));
        }
        assert!(all.iter().all(|row| row.load.read_percent
            == match row.load.access {
                Access::RandRead => 100,
                _ => 70,
            }));
    }

    #[test]
    fn without_native_there_are_adapters_alone() {
        let all = Matrix { native: false, ..matrix() }.combinations();
        assert_eq!(all.len(), 3 * 2 * 2 * 2 * 2 * 2);
        assert!(all.iter().all(|row| row.candidate != Candidate::Native));
    }

    #[test]
    fn guests_may_have_fewer_depths() {
        let wanted = |row: &Combination| row.candidate == Candidate::Native || row.load.queue_depth == 32;
        let matrix = Matrix { wanted, block_sizes: vec![4096], ..matrix() };
        let depths = |matrix: &Matrix, native: bool| {
            let rows = matrix.combinations().into_iter();
            let of = rows.filter(|row| (row.candidate == Candidate::Native) == native);
            let mut depths: Vec<u32> = of.map(|row| row.load.queue_depth).collect();
            depths.sort_unstable();
            depths.dedup();
            depths
        };
        assert_eq!((depths(&matrix, true), depths(&matrix, false)), (vec![1, 32], vec![32]));
        // Another engine repeats only the native rows that its guests are compared with.
        let of_guests = matrix.of_guests();
        assert_eq!((depths(&of_guests, true), depths(&of_guests, false)), (vec![32], vec![32]));
        assert_eq!(matrix.largest(), (4096, 64));
    }

    #[test]
    fn rounds_interleave() {
        let order: Vec<_> = schedule(3, 2).collect();
        assert_eq!(order, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }
}

//! A server that is killed with requests in flight. Its front-end lives on and connects to the next server, which repeats the requests that it
//! finds in the memory of in-flight tracking.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{DEPTH, QUEUES, SECTORS, add_write, shape, verify};
use crate::images::Kind;
use crate::load::Load;
use crate::nbd::Disk;
use crate::pattern::{BLOCK, Model};
use crate::server::{Place, Process};
use crate::vhost_client::{Client, FLUSH, Guest, IN};

/// Blocks of a disk that are used: so few that most are written often.
const BLOCKS: u64 = 1024;
/// Requests in flight of a front-end. Each writes blocks of its own: those whose number has the same remainder.
const COLUMNS: u64 = QUEUES as u64 * DEPTH as u64;
/// The slots of a queue from here on read.
const READERS: u16 = DEPTH - 4;
/// Servers that are killed in a cycle.
const KILLS: u64 = 2;

pub(crate) struct Killed {
    place: Place,
    socket: PathBuf,
    disks: Vec<Disk>,
    kills: u64,
    repeated: u64,
}

/// The requests of a front-end.
struct Requests<'a> {
    model: &'a mut Model,
    /// Blocks written since the last flush, with the generation that was flushed.
    unflushed: BTreeMap<u64, u32>,
    /// The block that each request in flight writes; `None`: it reads.
    in_flight: BTreeMap<(usize, u16), Option<u64>>,
}

impl Requests<'_> {
    fn issue(&mut self, guest: &mut Guest, queue: usize, slot: u16) {
        let block = if slot >= READERS {
            guest.add(queue, slot, IN, self.model.block() * SECTORS, BLOCK as u32);
            None
        } else {
            let column = queue as u64 * u64::from(DEPTH) + u64::from(slot);
            let block = column + COLUMNS * self.model.below(BLOCKS / COLUMNS);
            self.unflushed.entry(block).or_insert(self.model.certain(block));
            add_write(self.model, guest, (queue, slot), block);
            Some(block)
        };
        assert_eq!(self.in_flight.insert((queue, slot), block), None, "one request in a slot");
    }

    /// A request has ended; each ends once.
    fn ended(&mut self, queue: usize, (slot, status): (u16, u8)) {
        let block = self.in_flight.remove(&(queue, slot));
        assert!(block.is_some() && status == 0, "queue {queue}, slot {slot}: status {status}, {block:?}");
        block.flatten().into_iter().for_each(|block| self.model.written(block));
    }

    /// Have all slots busy for some time.
    fn churn(&mut self, guest: &mut Guest, time: Duration) {
        let queues = 0..usize::from(QUEUES);
        for queue in queues.clone() {
            (0..DEPTH).for_each(|slot| self.issue(guest, queue, slot));
            guest.publish(queue);
        }
        let begin = Instant::now();
        while begin.elapsed() < time {
            for queue in queues.clone() {
                for end in guest.wait(queue, 1) {
                    self.ended(queue, end);
                    self.issue(guest, queue, end.0);
                }
                guest.publish(queue);
            }
        }
    }

    /// What has ended before the server was killed; the number of requests that the next server has to repeat.
    fn killed(&mut self, guest: &mut Guest) -> u64 {
        for queue in 0..usize::from(QUEUES) {
            guest.take(queue).into_iter().for_each(|end| self.ended(queue, end));
        }
        let repeated: BTreeSet<u64> = self.in_flight.values().copied().flatten().collect();
        for (block, before) in std::mem::take(&mut self.unflushed) {
            // Space that was allocated and not flushed may be lost with the data in it.
            if !repeated.contains(&block) {
                self.model.unflushed(block, before);
            }
        }
        self.in_flight.len() as u64
    }

    /// Wait until nothing is in flight, and verify all blocks.
    fn settle(&mut self, guest: &mut Guest) -> u64 {
        for queue in 0..usize::from(QUEUES) {
            let left = self.in_flight.keys().filter(|(of, _)| *of == queue).count();
            guest.wait(queue, left).into_iter().for_each(|end| self.ended(queue, end));
        }
        assert_eq!(guest.run(0, FLUSH, 0, 0), 0, "flush");
        let blocks: Vec<u64> = (0..BLOCKS).collect();
        blocks.chunks(DEPTH.into()).map(|blocks| verify(self.model, guest, 1, blocks)).sum()
    }
}

impl Killed {
    pub(crate) fn new(place: &Place) -> Self {
        let disks =
            Kind::ALL.into_iter().zip(31..).map(|(kind, seed)| Disk::new(place, kind, seed)).collect();
        Self { place: place.clone(), socket: place.file("socket"), disks, kills: 0, repeated: 0 }
    }
}

fn serve(place: &Place, socket: &Path, image: &str) -> Process {
    place.serve("vhost-user-blk", socket, &["--queues", "2", "--disk", image])
}

impl Load for Killed {
    fn cycle(&mut self, number: u64) -> u64 {
        let index = number as usize % self.disks.len();
        let disk = &mut self.disks[index];
        let mut process = serve(&self.place, &self.socket, &disk.disk);
        let mut client = Client::connect(&self.socket, Guest::new(shape(number)));
        client.track();
        let mut verified = 0;
        for kill in 0..KILLS {
            let mut requests =
                Requests { model: &mut disk.model, unflushed: BTreeMap::new(), in_flight: BTreeMap::new() };
            requests.churn(&mut client.guest, Duration::from_millis(5 + 7 * (number % 8) + kill));
            drop(process);
            self.kills += 1;
            self.repeated += requests.killed(&mut client.guest);
            process = serve(&self.place, &self.socket, &disk.disk);
            client = Client::connect(&self.socket, client.guest);
            verified += requests.settle(&mut client.guest);
        }
        drop(client);
        process.end();
        self.place.check(disk.kind, &disk.disk);
        verified
    }

    fn events(&self) -> String {
        format!("{} servers killed, {} requests repeated", self.kills, self.repeated)
    }
}

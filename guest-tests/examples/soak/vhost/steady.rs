//! A server that lives on.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::{DEPTH, QUEUES, add_write, shape, verify};
use crate::images::Kind;
use crate::pattern::{BLOCK, Model};
use crate::server::{Place, Process};
use crate::vhost_client::{Client, FLUSH, Guest};
use crate::watch::Watch;

const MIB: u64 = 1 << 20;
/// Time for a guest to see a new capacity.
const RESIZE_TIMEOUT: Duration = Duration::from_secs(10);
const SIZE: u64 = 8 * MIB;
/// The disk grows up to here.
const MOST: u64 = 64 * MIB;

pub(crate) struct Steady {
    socket: PathBuf,
    process: Process,
    watch: Watch,
    model: Model,
    capacity: u64,
    verified: u64,
    vanished: u64,
}

impl Steady {
    pub(crate) fn new(place: &Place) -> Self {
        let (socket, watch) = (place.file("socket"), Watch::new(place));
        let image = place.image(Kind::Raw, SIZE, |_| ());
        let args = [&["--queues", "2", "--disk", &image][..], &watch.args()].concat();
        let process = place.serve("vhost-user-blk", &socket, &args);
        let model = Model::new(SIZE / BLOCK as u64, 3);
        Self { socket, process, watch, model, capacity: SIZE, verified: 0, vanished: 0 }
    }

    /// Blocks of one batch: none twice.
    fn blocks(&mut self) -> Vec<u64> {
        let mut blocks: Vec<u64> = (0..DEPTH).map(|_| self.model.block()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    fn put(&mut self, guest: &mut Guest, queue: usize, blocks: &[u64]) {
        for (block, slot) in blocks.iter().zip(0..) {
            add_write(&mut self.model, guest, (queue, slot), *block);
        }
        guest.publish(queue);
    }
}

impl crate::load::Load for Steady {
    fn cycle(&mut self, number: u64) -> u64 {
        let mut client = Client::connect(&self.socket, Guest::new(shape(number)));
        let mut verified = 0;
        for round in 0..20 {
            let queue = round % usize::from(QUEUES);
            let guest = &mut client.guest;
            let blocks = self.blocks();
            self.put(guest, queue, &blocks);
            let ended = guest.wait(queue, blocks.len());
            assert!(ended.iter().all(|(_, status)| *status == 0), "{ended:?}");
            blocks.iter().for_each(|block| self.model.written(*block));
            let blocks = self.blocks();
            verified += verify(&mut self.model, guest, queue, &blocks);
        }
        assert_eq!(client.guest.run(0, FLUSH, 0, 0), 0);
        if self.capacity < MOST {
            self.capacity += MIB;
            self.watch.resize(self.capacity);
            let begin = Instant::now();
            while client.config(8) != (self.capacity / 512).to_le_bytes() {
                assert!(begin.elapsed() < RESIZE_TIMEOUT, "the guest does not see {} bytes", self.capacity);
                thread::sleep(Duration::from_millis(20));
            }
            self.model.grow(self.capacity / BLOCK as u64);
        }
        self.verified += verified;
        self.watch.take(self.verified);
        // Gone with requests in flight in both queues: different blocks, because queues are independent.
        let mut blocks = self.blocks();
        let others = blocks.split_off(blocks.len() / 2);
        self.put(&mut client.guest, 0, &blocks);
        self.put(&mut client.guest, 1, &others);
        self.vanished += 1;
        verified
    }

    fn process(&self) -> Option<u32> {
        Some(self.process.0.id())
    }

    fn events(&self) -> String {
        format!("{} clients vanished, grown {} times", self.vanished, (self.capacity - SIZE) / MIB)
    }
}

//! A vhost-user-blk server: front-ends come, go with requests in flight, and see the disk grow.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use vm_memory::Bytes;

use crate::pattern::{BLOCK, Model};
use crate::server::{Place, Process};
use crate::vhost_client::{Client, FLUSH, Guest, IN, OUT, Shape};

const QUEUES: u16 = 2;
const DEPTH: u16 = 32;
const MIB: u64 = 1 << 20;
const SECTORS: u64 = BLOCK as u64 / 512;
/// Time for a guest to see a new capacity.
const RESIZE_TIMEOUT: Duration = Duration::from_secs(10);
/// The disk grows up to here.
const MOST: u64 = 64 * MIB;

pub(crate) struct Load {
    place: Place,
    socket: PathBuf,
    control: String,
    process: Process,
    model: Model,
    capacity: u64,
    grown: u64,
}

impl Load {
    pub(crate) fn new(place: &Place) -> Self {
        let capacity = 8 * MIB;
        let (image, socket) = (place.image("raw", "8M"), place.file("socket"));
        let control = place.file("control").display().to_string();
        let args = ["--queues", "2", "--disk", &image, "--control", &control];
        let process = place.serve("vhost-user-blk", &socket, &args);
        let model = Model::new(capacity / BLOCK as u64, 3);
        Self { place: place.clone(), socket, control, process, model, capacity, grown: 0 }
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
            let data = self.model.write(*block);
            guest.memory.write_slice(&data, guest.data(queue, slot)).unwrap();
            guest.add(queue, slot, OUT, block * SECTORS, BLOCK as u32);
        }
        guest.publish(queue);
    }
}

impl crate::Load for Load {
    fn cycle(&mut self, number: u64) -> u64 {
        let shape = Shape {
            queues: QUEUES,
            event_index: number.is_multiple_of(2),
            indirect: !number.is_multiple_of(3),
            ..Shape::default()
        };
        let mut client = Client::connect(&self.socket, Guest::new(shape));
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
            for (block, slot) in blocks.iter().zip(0..) {
                guest.add(queue, slot, IN, block * SECTORS, BLOCK as u32);
            }
            guest.publish(queue);
            let ended = guest.wait(queue, blocks.len());
            assert!(ended.iter().all(|(_, status)| *status == 0), "{ended:?}");
            for (block, slot) in blocks.iter().zip(0..) {
                verified += self.model.verify(*block, &guest.bytes(queue, slot, BLOCK));
            }
        }
        assert_eq!(client.guest.run(0, FLUSH, 0, 0), 0);
        if self.capacity < MOST {
            self.capacity += MIB;
            self.grown += 1;
            self.place.run(&["ctl", &self.control, "resize", "disk0", &self.capacity.to_string()]);
            let begin = Instant::now();
            while client.config(8) != (self.capacity / 512).to_le_bytes() {
                assert!(begin.elapsed() < RESIZE_TIMEOUT, "the guest does not see {} bytes", self.capacity);
                thread::sleep(Duration::from_millis(20));
            }
            self.model.grow(self.capacity / BLOCK as u64);
        }
        // Gone with requests in flight.
        let blocks = self.blocks();
        self.put(&mut client.guest, 0, &blocks);
        verified
    }

    fn process(&self) -> Option<u32> {
        Some(self.process.0.id())
    }

    fn events(&self) -> String {
        format!("grown {} times", self.grown)
    }
}

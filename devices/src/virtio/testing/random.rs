//! The actions of a guest that writes random values anywhere, for any virtio device.

use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::device::PciDevice;
use crate::moderation::Coalescing;
use crate::testing::{MIB, Random};

/// Buffers are in the second half of memory; rings, headers and answers before it.
const DATA: u64 = MIB;

/// A piece of data, hardly ever damaged.
pub(in super::super) fn piece(random: &mut Random) -> Piece {
    let address = random.data_address();
    let len = if random.below(2) == 0 { 4096 } else { random.below(9) * 512 } as u32;
    let mut piece = if random.below(2) == 0 { reads(address, len) } else { writes(address, len) };
    match random.below(30) {
        0 => piece.address = random.value(),
        1 => piece.len = random.value() as u32,
        2 => piece.flags = random.value() as u16,
        3 => piece.flags |= INDIRECT,
        _ => {}
    }
    piece
}

impl<D: PciDevice> Driver<D> {
    /// Put a chain in, direct or not, seldom with a piece left out.
    pub(in super::super) fn put_random(&mut self, queue: u16, mut pieces: Vec<Piece>, random: &mut Random) {
        if random.below(40) == 0 {
            let at = random.below(pieces.len() as u64) as usize;
            pieces.remove(at);
        }
        if pieces.is_empty() || self.rings[usize::from(queue)].size == 0 {
            return;
        }
        if random.below(3) == 0 && pieces.len() < 16 {
            self.put_indirect(queue, &pieces);
        } else {
            self.put(queue, &pieces);
        }
    }

    /// 50,000 steps, of which more than half are `own`; then the device comes up as if nothing had happened.
    pub(in super::super) fn do_anything(
        &mut self,
        random: &mut Random,
        mut own: impl FnMut(&mut Self, &mut Random),
    ) {
        let mut longest = Duration::ZERO;
        for _ in 0..50_000 {
            let begin = Instant::now();
            self.step(random, &mut own);
            longest = longest.max(begin.elapsed());
        }
        assert!(longest.as_secs() < 60, "a step took {longest:?}");
        let stats = self.device.stats();
        let (requests, completions) = if self.tasks > 4 { (5_000, 4_000) } else { (2_000, 1_500) };
        let enough = stats.requests > requests && stats.completions > completions;
        assert!(enough, "the test lost its guest: {stats:?}");
        assert!(stats.errors > 500 && stats.interrupts > 500, "the test lost its teeth: {stats:?}");
        self.hold.set(false);
        self.device.reset(self.now);
        self.device.config_write(4, &6u16.to_le_bytes());
        self.bring_up(ALL, 64);
    }

    /// Whether the device may take requests.
    fn live(&mut self) -> bool {
        let (status, mut command) = (self.status(), [0; 2]);
        self.device.config_read(4, &mut command);
        let stopped = DeviceStatus::DEVICE_NEEDS_RESET | DeviceStatus::FAILED;
        status.contains(DeviceStatus::DRIVER_OK) && !status.intersects(stopped) && command[0] & 4 != 0
    }

    fn step(&mut self, random: &mut Random, own: &mut impl FnMut(&mut Self, &mut Random)) {
        let queue = random.below(self.rings.len() as u64) as u16;
        match random.below(100) {
            0..58 => own(self, random),
            58..70 => self.kick(queue),
            70..75 => self.device.on_completions(self.now),
            75..79 => drop(self.completions(queue)),
            79..82 => {
                let _ = self.device.before_sleep(self.now);
            }
            82..84 => self.hold.set(random.below(3) == 0),
            84 => {
                // Descriptors, rings, headers full of anything.
                let address = (RINGS + random.below(DATA - RINGS)) & !7;
                self.memory.write_obj(random.value(), GuestAddress(address)).unwrap();
            }
            85 => self.set_used_event(queue, random.value() as u16),
            86..89 => self.random_access(random),
            89 => self.device.set_coalescing(Coalescing::policy(random.policy())),
            90 => {
                self.write(QUEUE_SELECT, 2, random.below(self.rings.len() as u64 + 1));
                let register = random.pick(&[QUEUE_RESET, QUEUE_MSIX_VECTOR]);
                self.write(register, 2, random.below(4));
            }
            91 => self.device.quiesce(self.now),
            92 => self.device.config_write(4, &[random.below(8) as u8, 0]),
            93..96 => {
                if random.below(4) == 0 || !self.live() {
                    self.up_again(random);
                }
            }
            _ => self.now.0 += random.below(5_000_000),
        }
    }

    /// The driver again, with any features and sizes.
    fn up_again(&mut self, random: &mut Random) {
        self.device.config_write(4, &6u16.to_le_bytes());
        self.write(DEVICE_STATUS, 1, 0);
        if self.status().is_empty() {
            // What the disks complete from here on, the guest does not see.
            self.writes_nothing(|guest| {
                guest.hold.set(false);
                guest.device.on_completions(guest.now);
            });
        }
        self.bring_up(random.next() | Features::VERSION_1.bits(), 4 << random.below(5));
        if random.below(2) == 0 {
            self.enable_msix();
        }
    }

    /// Any write to registers or configuration space, and any read.
    fn random_access(&mut self, random: &mut Random) {
        let len = random.pick(&[1, 2, 4, 8]);
        let bar = random.below(3) as u8;
        match random.below(4) {
            0 => {
                let data = random.value().to_le_bytes();
                self.device.bar_write(bar, random.below(0x8100), &data[..len], self.now);
            }
            1 => self.write(random.below(64) & !1, len, random.value()),
            2 => {
                let mut data = [0; 8];
                self.device.bar_read(bar, random.below(0x8100), &mut data[..len], self.now);
            }
            _ => {
                random.write_config(&mut self.device, 256);
                self.device.config_write(4, &6u16.to_le_bytes());
            }
        }
    }
}

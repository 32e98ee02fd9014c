//! A guest under the test's control, which may break the rules, and disks that complete requests on the test's command.

mod bringup;
mod commands;
mod dma;
mod faults;
mod interrupts;
mod pio;
mod random;
mod reset;
mod trim;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use paradisk_disk_formats::{DiscardLimits, Disk, QueueConfig, SectorSize};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::IntoBytes;

use super::spec::*;
use super::{Config, Ide, IdeDisk, MAX_DRIVES, Mode, identify, settings};
use crate::device::{IoDevice, PciDevice, Sleep};
use crate::interrupt::{InterruptSink, MsiMessage};
use crate::moderation::Coalescing;
use crate::testing::{Counts, Hold, MEMORY, MEMORY_END, MIB, Owner, Sink, TestDisk};
use crate::time::Time;

const TABLE: u64 = 0x1000;
const DATA: u64 = 0x10_0000;
/// Sectors of the disks.
const SECTORS: u64 = MIB / 512;
const GOOD: u8 = 0x50;
const FAILED: u8 = 0x51;

/// Levels of the two ISA lines, and how many times each was raised.
#[derive(Default)]
struct IsaLines {
    levels: [AtomicU32; 2],
    raised: [AtomicU32; 2],
}

struct IsaSink(Arc<IsaLines>);

impl InterruptSink for IsaSink {
    fn route(&mut self, _vector: u16, _message: Option<MsiMessage>) {}
    fn message(&mut self, _vector: u16) {
        panic!("a message in compatibility mode");
    }
    fn line(&mut self, _asserted: bool) {
        panic!("INTx in compatibility mode");
    }
    fn isa_line(&mut self, irq: u8, asserted: bool) {
        let channel = usize::from(irq - 14);
        let before = self.0.levels[channel].swap(asserted.into(), Ordering::Relaxed);
        assert_ne!(before, u32::from(asserted), "an edge");
        self.0.raised[channel].fetch_add(u32::from(asserted), Ordering::Relaxed);
    }
}

/// Drives, mode, and properties of the disks.
#[derive(Clone, Copy)]
struct Setup {
    drives: [bool; MAX_DRIVES],
    mode: Mode,
    volatile_cache: bool,
    read_only: bool,
    discard: bool,
}

const USUAL: Setup = Setup {
    drives: [true, true, true, false],
    mode: Mode::Compatibility,
    volatile_cache: true,
    read_only: false,
    discard: true,
};

struct Guest {
    device: Ide<Arc<GuestMemoryMmap>>,
    memory: Arc<GuestMemoryMmap>,
    lines: Arc<IsaLines>,
    /// Interrupts in native mode.
    counts: Arc<Counts>,
    hold: Hold,
    disks: Vec<Arc<TestDisk>>,
    mode: Mode,
    now: Time,
    /// Which channel's ports are used.
    channel: u8,
    /// DEV in the device register.
    slave: bool,
}

impl Owner for Guest {
    fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }
}

impl Guest {
    fn new() -> Self {
        Self::with(USUAL)
    }

    fn with(setup: Setup) -> Self {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&MEMORY).unwrap());
        let (lines, counts) = (Arc::new(IsaLines::default()), Arc::new(Counts::default()));
        let sink: Box<dyn InterruptSink> = match setup.mode {
            Mode::Compatibility => Box::new(IsaSink(lines.clone())),
            Mode::Native => Box::new(Sink(counts.clone())),
        };
        let hold = Hold::default();
        let mut disks = Vec::new();
        let drives = setup.drives.map(|there| {
            there.then(|| {
                let mut disk = TestDisk::new(MIB, hold.clone());
                disk.info.volatile_cache = setup.volatile_cache;
                disk.info.read_only = setup.read_only;
                let limits = DiscardLimits { granularity: 4096, reads_zero: true };
                disk.info.discard = setup.discard.then_some(limits);
                let disk = Arc::new(disk);
                disks.push(disk.clone());
                let queue = disk.queue(&QueueConfig { depth: 1, ..QueueConfig::default() }).unwrap();
                IdeDisk { disk, queue, serial: "SN".to_owned() }
            })
        });
        let config = Config { mode: setup.mode, ..Config::default() };
        let device = Ide::new(memory.clone(), drives, sink, config).unwrap();
        let mut guest = Self {
            device,
            memory,
            lines,
            counts,
            hold,
            disks,
            mode: setup.mode,
            now: Time(0),
            channel: 0,
            slave: false,
        };
        guest.device.config_write(4, &5u16.to_le_bytes());
        guest
    }

    fn in_byte(&mut self, offset: u64) -> u8 {
        let mut data = [0];
        self.device.bar_read(2 * self.channel, offset, &mut data, self.now);
        data[0]
    }

    fn out_byte(&mut self, offset: u64, value: u8) {
        self.device.bar_write(2 * self.channel, offset, &[value], self.now);
    }

    fn control_at(&self) -> u64 {
        if self.mode == Mode::Native { NATIVE_CONTROL } else { 0 }
    }

    fn control(&mut self, value: u8) {
        let at = self.control_at();
        self.device.bar_write(2 * self.channel + 1, at, &[value], self.now);
    }

    fn alternate_status(&mut self) -> u8 {
        let (at, mut data) = (self.control_at(), [0]);
        self.device.bar_read(2 * self.channel + 1, at, &mut data, self.now);
        data[0]
    }

    fn bm_read(&mut self, offset: u64) -> u8 {
        let mut data = [0];
        self.device.bar_read(4, 8 * u64::from(self.channel) + offset, &mut data, self.now);
        data[0]
    }

    fn bm_write(&mut self, offset: u64, data: &[u8]) {
        self.device.bar_write(4, 8 * u64::from(self.channel) + offset, data, self.now);
    }

    fn line(&self) -> bool {
        match self.mode {
            Mode::Native => self.counts.line(),
            Mode::Compatibility => self.lines.levels[usize::from(self.channel)].load(Ordering::Relaxed) == 1,
        }
    }

    /// How many times the channel's line was raised since the last call.
    fn raised(&self) -> u32 {
        self.lines.raised[usize::from(self.channel)].swap(0, Ordering::Relaxed)
    }

    fn select(&mut self, target: usize) {
        (self.channel, self.slave) = ((target / 2) as u8, target % 2 == 1);
        let device = self.device_bits();
        self.out_byte(reg::DEVICE, device);
    }

    fn device_bits(&self) -> u8 {
        0xa0 | if self.slave { DEVICE_DEV } else { 0 }
    }

    /// Write the registers of a command with 28 bits of address, and the command.
    fn command28(&mut self, code: u8, features: u8, lba: u32, count: u8) {
        let device = self.device_bits() | DEVICE_LBA | (lba >> 24) as u8;
        self.out_byte(reg::DEVICE, device);
        self.out_byte(reg::ERROR, features);
        self.out_byte(reg::COUNT, count);
        self.out_byte(reg::LBA_LOW, lba as u8);
        self.out_byte(reg::LBA_MID, (lba >> 8) as u8);
        self.out_byte(reg::LBA_HIGH, (lba >> 16) as u8);
        self.out_byte(reg::STATUS, code);
    }

    /// The same with 48 bits.
    fn command48(&mut self, code: u8, features: u16, lba: u64, count: u16) {
        let device = self.device_bits() | DEVICE_LBA;
        self.out_byte(reg::DEVICE, device);
        for (offset, previous, current) in [
            (reg::ERROR, features >> 8, features),
            (reg::COUNT, count >> 8, count),
            (reg::LBA_LOW, (lba >> 24) as u16, lba as u16),
            (reg::LBA_MID, (lba >> 32) as u16, (lba >> 8) as u16),
            (reg::LBA_HIGH, (lba >> 40) as u16, (lba >> 16) as u16),
        ] {
            self.out_byte(offset, previous as u8);
            self.out_byte(offset, current as u8);
        }
        self.out_byte(reg::STATUS, code);
    }

    /// Run a command without data. Returns its status.
    #[track_caller]
    fn simple(&mut self, code: u8, features: u8, count: u8) -> u8 {
        self.command28(code, features, 0, count);
        assert!(self.line(), "an interrupt at its end");
        self.in_byte(reg::STATUS)
    }

    fn error(&mut self) -> u8 {
        self.in_byte(reg::ERROR)
    }

    /// LBA and count in the registers after a command with 48-bit addresses.
    fn shown48(&mut self) -> (u64, u16) {
        let mut bytes = [0; 4];
        let mut previous = [0; 4];
        for (index, offset) in [reg::COUNT, reg::LBA_LOW, reg::LBA_MID, reg::LBA_HIGH].into_iter().enumerate()
        {
            self.control(0);
            bytes[index] = self.in_byte(offset);
            self.control(Control::HOB.bits());
            previous[index] = self.in_byte(offset);
        }
        let [count, low, mid, high] = bytes.map(u64::from);
        let [count2, low2, mid2, high2] = previous.map(u64::from);
        let lba = low | mid << 8 | high << 16 | low2 << 24 | mid2 << 32 | high2 << 40;
        (lba, (count | count2 << 8) as u16)
    }

    /// Read a block from the data port.
    fn read_block(&mut self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.device.port_read_string(2 * self.channel, reg::DATA, 2, &mut data, self.now);
        data
    }

    fn write_block(&mut self, data: &[u8]) {
        self.device.port_write_string(2 * self.channel, reg::DATA, 4, data, self.now);
    }

    /// Write a table of regions to memory, and its address to the bus master. The last region is marked as the end.
    fn set_table(&mut self, regions: &[(u64, u64)]) {
        for (index, (address, len)) in regions.iter().enumerate() {
            let last = index + 1 == regions.len();
            let prd = Prd {
                address: (*address as u32).into(),
                count: (*len as u16).into(),
                flags: if last { PRD_LAST } else { 0 }.into(),
            };
            self.memory.write_slice(prd.as_bytes(), GuestAddress(TABLE + 8 * index as u64)).unwrap();
        }
        self.bm_write(bm::TABLE, &(TABLE as u32).to_le_bytes());
    }

    fn start_engine(&mut self, write: bool) {
        let way = if write { BmCommand::empty() } else { BmCommand::TO_MEMORY };
        self.bm_write(bm::COMMAND, &[way.bits()]);
        self.bm_write(bm::COMMAND, &[(way | BmCommand::START).bits()]);
    }

    /// What Linux does after the interrupt of a transfer. Returns bus master status and status.
    fn end_dma(&mut self) -> (u8, u8) {
        let bus = self.bm_read(bm::STATUS);
        self.bm_write(bm::COMMAND, &[0]);
        let status = self.in_byte(reg::STATUS);
        self.bm_write(bm::STATUS, &[bus]);
        (bus & 7, status)
    }

    /// Start a DMA command with this table.
    fn start_dma(&mut self, write: bool, lba: u64, count: u16, regions: &[(u64, u64)]) {
        self.set_table(regions);
        let code = if write { command::WRITE_DMA_EXT } else { command::READ_DMA_EXT };
        self.command48(code, 0, lba, count);
        self.start_engine(write);
    }

    /// Run a DMA command to its end. Returns bus master status and status.
    #[track_caller]
    fn run_dma(&mut self, write: bool, lba: u64, count: u16, regions: &[(u64, u64)]) -> (u8, u8) {
        self.start_dma(write, lba, count, regions);
        self.serve();
        assert!(self.line(), "an interrupt at its end");
        self.end_dma()
    }

    /// Run the owner's loop until the device sleeps.
    fn serve(&mut self) {
        for _ in 0..100 {
            self.device.on_completions(self.now);
            if self.device.before_sleep(self.now) != Sleep::No {
                return;
            }
        }
        panic!("never sleeps");
    }

    /// A software reset as drivers make it, until SRST is cleared.
    fn software_reset(&mut self) {
        self.control(8);
        self.control(0xc);
        assert_ne!(self.alternate_status() & 0x80, 0, "busy while SRST is set");
        self.control(8);
        self.slave = false;
    }

    /// IDENTIFY DEVICE, polled.
    #[track_caller]
    fn identify(&mut self) -> Vec<u16> {
        self.control(0xa);
        let device = self.device_bits();
        self.out_byte(reg::DEVICE, device);
        self.out_byte(reg::STATUS, command::IDENTIFY);
        assert_eq!(self.in_byte(reg::STATUS), 0x58);
        let data = self.read_block(512);
        assert_eq!(self.in_byte(reg::STATUS), GOOD);
        self.control(8);
        data.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
    }

    /// Check that the function works: write sectors, and read them back to another buffer.
    #[track_caller]
    fn check_io(&mut self) {
        let data = self.fill(DATA, 4096, 0x5a);
        assert_eq!(self.run_dma(true, 8, 8, &[(DATA, 4096)]), (4, GOOD));
        let elsewhere = DATA + 0x2_0000;
        assert_eq!(self.run_dma(false, 8, 8, &[(elsewhere, 4096)]), (4, GOOD));
        assert_eq!(self.bytes(elsewhere, 4096), data);
    }

    /// The requests of a disk since the last call.
    fn log(&self, disk: usize) -> Vec<paradisk_disk_formats::Op> {
        self.disks[disk].log.take()
    }
}

#[test]
fn a_guest_does_io_with_each_drive() {
    for mode in [Mode::Compatibility, Mode::Native] {
        let mut guest = Guest::with(Setup { drives: [true; 4], mode, ..USUAL });
        for target in 0..MAX_DRIVES {
            guest.select(target);
            guest.check_io();
            assert_eq!(guest.log(target).len(), 2);
        }
        let stats = guest.device.stats();
        assert_eq!((stats.requests, stats.completions, stats.errors, stats.interrupts), (8, 8, 0, 8));
    }
}

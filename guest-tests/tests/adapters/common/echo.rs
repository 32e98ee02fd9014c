//! A PCI function that tries a machine: each doorbell is answered with a message.

#[path = "../../../../vmm/tests/common/no_io.rs"]
mod no_io;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use no_io::no_io;
use paradisk_devices::{Bar, BarKind, Doorbell, InterruptSink, IoDevice, MsiMessage, PciDevice, Stats, Time};

/// Registers in BAR 0.
pub(crate) const SCRATCH: u64 = 0x00;
pub(crate) const DOORBELL: u64 = 0x1000;
pub(crate) const SILENT_DOORBELL: u64 = 0x1008;
pub(crate) const MESSAGE_ADDRESS: u64 = 0x10;
pub(crate) const MESSAGE_DATA: u64 = 0x14;
/// A write panics.
pub(crate) const PANIC: u64 = 0x18;
pub(crate) const BAR_SIZE: u64 = 0x2000;

/// What the test looks at from outside.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) rung: AtomicU64,
    pub(crate) silent: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) last: AtomicU64,
}

pub(crate) struct Echo {
    config: [u8; 256],
    scratch: [u8; 8],
    message: MsiMessage,
    sink: Box<dyn InterruptSink>,
    seen: Arc<Seen>,
}

impl Echo {
    pub(crate) fn boxed(sink: Box<dyn InterruptSink>, seen: Arc<Seen>) -> Box<dyn PciDevice> {
        let mut config = [0; 256];
        for (index, byte) in config.iter_mut().enumerate().skip(0x40) {
            *byte = index as u8;
        }
        config[..4].copy_from_slice(&[0x36, 0x1b, 0x05, 0x00]);
        let message = MsiMessage { address: 0, data: 0 };
        Box::new(Self { config, scratch: [0; 8], message, sink, seen })
    }

    fn address(&self) -> u64 {
        u32::from_le_bytes(self.config[0x10..0x14].try_into().unwrap()).into()
    }
}

impl PciDevice for Echo {
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        data.fill(0);
        if let Some(bytes) = self.config.get(usize::from(offset)..usize::from(offset) + data.len()) {
            data.copy_from_slice(bytes);
        }
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        match offset {
            0x04 => self.config[4] = data[0] & 7,
            0x10 if data.len() == 4 => {
                let value = u32::from_le_bytes(data.try_into().unwrap()) & !(BAR_SIZE as u32 - 1);
                self.config[0x10..0x14].copy_from_slice(&value.to_le_bytes());
            }
            0x3c => self.config[0x3c] = data[0],
            _ => {}
        }
    }

    fn bars(&self) -> Vec<Bar> {
        let address = (self.config[4] & 2 != 0).then(|| self.address());
        vec![Bar { index: 0, kind: BarKind::Memory32, size: BAR_SIZE, address }]
    }

    fn bar_read(&mut self, _: u8, offset: u64, data: &mut [u8], _: Time) {
        data.fill(0);
        if offset == SCRATCH {
            data.copy_from_slice(&self.scratch[..data.len()]);
        }
    }

    fn bar_write(&mut self, _: u8, offset: u64, data: &[u8], _: Time) {
        self.seen.writes.fetch_add(1, Ordering::Relaxed);
        let mut bytes = [0; 8];
        bytes[..data.len()].copy_from_slice(data);
        let value = u64::from_le_bytes(bytes);
        self.seen.last.store(value, Ordering::Relaxed);
        match offset {
            SCRATCH => self.scratch = bytes,
            MESSAGE_ADDRESS => self.message.address = value,
            MESSAGE_DATA => {
                self.message.data = value as u32;
                self.sink.route(0, Some(self.message));
            }
            PANIC => panic!("asked to"),
            _ => {}
        }
    }

    fn doorbells(&self) -> &[Doorbell] {
        const ALL: [Doorbell; 2] = [
            Doorbell { bar: 0, offset: DOORBELL, len: 4 },
            Doorbell { bar: 0, offset: SILENT_DOORBELL, len: 4 },
        ];
        &ALL
    }
}

impl IoDevice for Echo {
    fn on_doorbell(&mut self, index: usize, _: Time) {
        if index == 0 {
            self.seen.rung.fetch_add(1, Ordering::Relaxed);
            self.sink.message(0);
        } else {
            self.seen.silent.fetch_add(1, Ordering::Relaxed);
        }
    }

    no_io! {}

    /// One message, for tests that call the device through its mailbox.
    fn quiesce(&mut self, _: Time) {
        self.sink.message(0);
    }

    fn stats(&self) -> Stats {
        Stats { doorbells: self.seen.rung.load(Ordering::Relaxed), ..Stats::default() }
    }
}

//! A synchronous PVSCSI over a byte array: just enough to try the driver on.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use devices::{Bar, BarKind, Doorbell, InterruptSink, MsiMessage, PciDevice, Sleep, Stats, Time};
use guest_driver::pvscsi::spec;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

pub struct Mock {
    memory: Arc<GuestMemoryMmap>,
    sink: Box<dyn InterruptSink>,
    config: [u8; 256],
    msix: [u32; 4],
    command: Vec<u32>,
    status: u32,
    rings: Option<Vec<u64>>,
    log2: (u32, u32),
    state: u64,
    cons: u32,
    prod: u32,
    intr_status: u32,
    intr_mask: u32,
    disk: Vec<u8>,
    stats: Stats,
    attention: bool,
    pub null: bool,
}

const DOORBELLS: [Doorbell; 2] = [
    Doorbell { bar: 0, offset: spec::KICK_RW_IO, len: 4 },
    Doorbell { bar: 0, offset: spec::KICK_NON_RW_IO, len: 4 },
];

impl Mock {
    pub fn new(memory: Arc<GuestMemoryMmap>, sink: Box<dyn InterruptSink>, len: usize) -> Self {
        let mut config = [0; 256];
        config[..4].copy_from_slice(&[0xad, 0x15, 0xc0, 0x07]);
        config[6] = 0x10;
        config[0x34] = 0x40;
        config[0x40..0x4c].copy_from_slice(&[0x11, 0x50, 0, 0, 0, 0x60, 0, 0, 0, 0x70, 0, 0]);
        config[0x50..0x54].copy_from_slice(&[0x05, 0, 0x80, 0]);
        Self {
            memory,
            sink,
            config,
            msix: [0, 0, 0, 1],
            command: Vec::new(),
            status: 0,
            rings: None,
            log2: (0, 0),
            state: 0,
            cons: 0,
            prod: 0,
            intr_status: 0,
            intr_mask: 0,
            disk: vec![0; len],
            stats: Stats::default(),
            attention: true,
            null: false,
        }
    }
    fn r32(&self, at: u64) -> u32 {
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }
    fn w32(&self, at: u64, v: u32) {
        self.memory.write_obj(v, GuestAddress(at)).unwrap();
    }
    fn msix_on(&self) -> bool {
        self.config[0x43] & 0xc0 == 0x80
    }
    fn msi_on(&self) -> bool {
        self.config[0x52] & 1 != 0
    }
    fn update(&mut self) {
        let c = &self.config;
        let dword = |at: usize| u32::from_le_bytes(c[at..at + 4].try_into().unwrap());
        let message = if self.msix_on() && self.msix[3] & 1 == 0 {
            Some(MsiMessage { address: self.msix[0].into(), data: self.msix[2] })
        } else if self.msi_on() {
            Some(MsiMessage { address: dword(0x54).into(), data: dword(0x5c) })
        } else {
            None
        };
        self.sink.route(0, message);
    }
    fn line(&mut self) {
        if !self.msix_on() && !self.msi_on() {
            self.sink.line(self.intr_status & self.intr_mask != 0);
        }
    }
    fn run_command(&mut self) {
        let len = match self.command[0] {
            3 => 132,
            5 => 3,
            6 => 4,
            7 => 6,
            8 => 34,
            10 => 1,
            _ => 0,
        };
        if self.command.len() <= len {
            self.status = 0xffff_fffe;
            return;
        }
        self.status = 0;
        let c = std::mem::take(&mut self.command);
        let q = |i: usize| (u64::from(c[i]) | u64::from(c[i + 1]) << 32) << 12;
        match c[0] {
            1 => self.rings = None,
            3 => {
                self.state = q(3);
                (self.cons, self.prod) = (0, 0);
                self.log2 = ((c[1] * 32).ilog2(), (c[2] * 128).ilog2());
                self.w32(self.state + spec::REQ_NUM_ENTRIES_LOG2 as u64, self.log2.0);
                self.w32(self.state + spec::CMP_NUM_ENTRIES_LOG2 as u64, self.log2.1);
                self.rings = Some((0..64).map(|page| q(5 + 2 * page)).collect());
            }
            8 => self.w32(self.state + spec::MSG_NUM_ENTRIES_LOG2 as u64, (c[1] * 32).ilog2()),
            10 => self.status = 1,
            4..=7 => {}
            _ => self.status = u32::MAX,
        }
    }
    fn process(&mut self, now: Time) {
        let _ = now;
        self.stats.doorbells += 1;
        let Some(rings) = self.rings.clone() else { return };
        let before = self.prod;
        while self.r32(self.state) != self.cons {
            let slot = u64::from(self.cons & ((1 << self.log2.0) - 1));
            let at = rings[(slot / 32) as usize] + slot % 32 * 128;
            let d: [u8; 128] = self.memory.read_obj::<[u64; 16]>(GuestAddress(at)).map(bytes).unwrap();
            self.cons = self.cons.wrapping_add(1);
            self.w32(self.state + 4, self.cons);
            self.stats.requests += 1;
            let q = |i: usize| u64::from_le_bytes(d[i..i + 8].try_into().unwrap());
            let cdb = &d[40..56];
            let (mut len, mut scsi, mut sense) = (q(16), 0u32, 0u32);
            let be32 = |i: usize| u32::from_be_bytes(cdb[i..i + 4].try_into().unwrap());
            match cdb[0] {
                0x00 if std::mem::take(&mut self.attention) => {
                    self.memory
                        .write_slice(
                            &[0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0],
                            GuestAddress(q(24)),
                        )
                        .unwrap();
                    (scsi, sense) = (2, 18);
                }
                0x00 | 0x35 => {}
                0x9e => {
                    let mut data = [0; 32];
                    data[..8].copy_from_slice(&(self.disk.len() as u64 / 512 - 1).to_be_bytes());
                    data[10] = 2;
                    self.memory.write_slice(&data, GuestAddress(q(8))).unwrap();
                }
                0x28 | 0x2a if self.null => {}
                0x28 | 0x2a => {
                    let mut at = be32(2) as usize * 512;
                    let mut left = len as usize;
                    let mut element = q(8);
                    while left > 0 {
                        let (address, part) = if q(32) >> 32 & 1 != 0 {
                            let address = self.memory.read_obj::<u64>(GuestAddress(element)).unwrap();
                            let part = self.r32(element + 8) as usize;
                            element += 16;
                            (address, part)
                        } else {
                            (q(8), left)
                        };
                        let disk = &mut self.disk[at..at + part];
                        if cdb[0] == 0x28 {
                            self.memory.write_slice(disk, GuestAddress(address)).unwrap();
                        } else {
                            self.memory.read_slice(disk, GuestAddress(address)).unwrap();
                        }
                        at += part;
                        left -= part;
                    }
                }
                _ => (scsi, len) = (2, 0),
            }
            let slot = u64::from(self.prod & ((1 << self.log2.1) - 1));
            let at = rings[32 + (slot / 128) as usize] + slot % 128 * 32;
            let end = [q(0), len, u64::from(sense) | u64::from(scsi) << 48, 0];
            self.memory.write_obj(end, GuestAddress(at)).unwrap();
            self.prod = self.prod.wrapping_add(1);
            self.w32(self.state + 12, self.prod);
            self.stats.completions += 1;
        }
        if self.prod != before {
            self.stats.interrupts += 1;
            self.intr_status |= 1;
            if self.msix_on() || self.msi_on() {
                if self.intr_mask & 1 != 0 {
                    self.sink.message(0);
                }
            } else {
                self.line();
            }
        }
    }
}

fn bytes(words: [u64; 16]) -> [u8; 128] {
    let mut out = [0; 128];
    for (i, w) in words.iter().enumerate() {
        out[i * 8..i * 8 + 8].copy_from_slice(&w.to_le_bytes());
    }
    out
}

impl PciDevice for Mock {
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        let at = usize::from(offset);
        data.copy_from_slice(&self.config[at..at + data.len()]);
    }
    fn config_write(&mut self, offset: u16, data: &[u8]) {
        let at = usize::from(offset);
        for (i, &byte) in data.iter().enumerate() {
            let mask: u8 = match at + i {
                4 => 7,
                5 => 4,
                0x11 => 0x80,
                0x12 | 0x13 | 0x54..0x60 => 0xff,
                0x43 => 0xc0,
                0x52 => 1,
                _ => 0,
            };
            self.config[at + i] = self.config[at + i] & !mask | byte & mask;
        }
        self.update();
        self.line();
    }
    fn bars(&self) -> Vec<Bar> {
        vec![Bar { index: 0, kind: BarKind::Memory32, size: 0x8000, address: None }]
    }
    fn bar_read(&mut self, _: u8, offset: u64, data: &mut [u8], _: Time) {
        let value = match offset {
            8 => self.status,
            0x100c => self.intr_status,
            _ => 0,
        };
        data.copy_from_slice(&value.to_le_bytes());
    }
    fn bar_write(&mut self, _: u8, offset: u64, data: &[u8], now: Time) {
        let value = u32::from_le_bytes(data.try_into().unwrap());
        match offset {
            0 => {
                self.command = vec![value];
                self.run_command();
            }
            4 => {
                self.command.push(value);
                self.run_command();
            }
            0x100c => self.intr_status &= !value,
            0x2010 => self.intr_mask = value,
            0x6000..0x6010 => self.msix[(offset as usize - 0x6000) / 4] = value,
            _ => {}
        }
        let _ = now;
        self.update();
        self.line();
    }
    fn doorbells(&self) -> &[Doorbell] {
        &DOORBELLS
    }
    fn on_doorbell(&mut self, _: usize, now: Time) {
        self.process(now);
    }
    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    fn on_completions(&mut self, _: Time) {}
    fn before_sleep(&mut self, _: Time) -> Sleep {
        Sleep::Forever
    }
    fn reset(&mut self, _: Time) {
        self.rings = None;
    }
    fn quiesce(&mut self, _: Time) {}
    fn stats(&self) -> Stats {
        self.stats
    }
}

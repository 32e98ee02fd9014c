//! The MSI-X table and pending bits inside a base address register (PCI Local Bus 3.0, 6.8.2).

use super::spec::*;
use crate::interrupt::MsiMessage;

#[derive(Clone, Copy)]
struct Entry {
    address: u64,
    data: u32,
    control: u32,
}

impl Entry {
    const RESET: Self = Self { address: 0, data: 0, control: MSIX_VECTOR_MASKED };

    const fn dword(&self, index: u64) -> u32 {
        match index {
            0 => self.address as u32,
            1 => (self.address >> 32) as u32,
            2 => self.data,
            _ => self.control,
        }
    }

    fn set_dword(&mut self, index: u64, value: u32) {
        match index {
            0 => self.address = self.address & !0xffff_ffff | u64::from(value & !3),
            1 => self.address = self.address & 0xffff_ffff | u64::from(value) << 32,
            2 => self.data = value,
            _ => self.control = value & MSIX_VECTOR_MASKED,
        }
    }
}

/// Table and pending bits.
pub(super) struct Msix {
    /// Offset of the capability in configuration space.
    pub(super) capability: usize,
    bar: u8,
    table_offset: u64,
    pba_offset: u64,
    entries: Vec<Entry>,
    pending: Vec<bool>,
}

impl Msix {
    pub(super) fn new(capability: usize, bar: u8, table_offset: u64, pba_offset: u64, vectors: u16) -> Self {
        let vectors = usize::from(vectors);
        let (entries, pending) = (vec![Entry::RESET; vectors], vec![false; vectors]);
        Self { capability, bar, table_offset, pba_offset, entries, pending }
    }

    /// Sizes in bytes of the table and of the pending bits.
    pub(super) fn sizes(vectors: u16) -> (u64, u64) {
        (u64::from(vectors) * MSIX_ENTRY_SIZE, u64::from(vectors.div_ceil(64)) * 8)
    }

    pub(super) fn vectors(&self) -> usize {
        self.entries.len()
    }

    /// The message of a vector; `None` if it is masked.
    pub(super) fn message(&self, vector: usize) -> Option<MsiMessage> {
        let entry = self.entries.get(vector)?;
        (entry.control & MSIX_VECTOR_MASKED == 0)
            .then_some(MsiMessage { address: entry.address, data: entry.data })
    }

    pub(super) fn set_pending(&mut self, vector: usize) {
        if let Some(pending) = self.pending.get_mut(vector) {
            *pending = true;
        }
    }

    pub(super) fn take_pending(&mut self, vector: usize) -> bool {
        self.pending.get_mut(vector).is_some_and(std::mem::take)
    }

    pub(super) fn reset(&mut self) {
        self.entries.fill(Entry::RESET);
        self.pending.fill(false);
    }

    /// Read. False: the access is not to table or pending bits. Only aligned dwords and qwords have an effect.
    pub(super) fn read(&self, bar: u8, offset: u64, data: &mut [u8]) -> bool {
        if bar != self.bar {
            return false;
        }
        let (table_size, pba_size) = Self::sizes(self.entries.len() as u16);
        if let Some(at) = inside(offset, self.table_offset, table_size) {
            for_dwords(at, data, |at, bytes| {
                let entry = self.entries.get((at / MSIX_ENTRY_SIZE) as usize);
                let value = entry.map_or(0, |entry| entry.dword(at % MSIX_ENTRY_SIZE / 4));
                bytes.copy_from_slice(&value.to_le_bytes());
            });
            return true;
        }
        if let Some(at) = inside(offset, self.pba_offset, pba_size) {
            for_dwords(at, data, |at, bytes| {
                let first = at as usize * 8;
                let bits = self.pending.iter().skip(first).take(32);
                let value =
                    (0..).zip(bits).fold(0u32, |value, (bit, &pending)| value | u32::from(pending) << bit);
                bytes.copy_from_slice(&value.to_le_bytes());
            });
            return true;
        }
        false
    }

    /// Write. False: the access is not to table or pending bits. Pending bits are read-only.
    pub(super) fn write(&mut self, bar: u8, offset: u64, data: &[u8]) -> bool {
        if bar != self.bar {
            return false;
        }
        let (table_size, pba_size) = Self::sizes(self.entries.len() as u16);
        if let Some(at) = inside(offset, self.table_offset, table_size) {
            let mut copy = [0; 8];
            if let Some(copy) = copy.get_mut(..data.len()) {
                copy.copy_from_slice(data);
                for_dwords(at, copy, |at, bytes| {
                    if let Some(entry) = self.entries.get_mut((at / MSIX_ENTRY_SIZE) as usize) {
                        let value = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                        entry.set_dword(at % MSIX_ENTRY_SIZE / 4, value);
                    }
                });
            }
            return true;
        }
        inside(offset, self.pba_offset, pba_size).is_some()
    }
}

fn inside(offset: u64, start: u64, size: u64) -> Option<u64> {
    offset.checked_sub(start).filter(|&at| at < size)
}

/// Call `each` for the dwords of an aligned access of four or eight bytes. Other accesses read as zeros.
fn for_dwords(at: u64, data: &mut [u8], mut each: impl FnMut(u64, &mut [u8])) {
    let len = data.len() as u64;
    if !matches!(len, 4 | 8) || !at.is_multiple_of(len) {
        data.fill(0);
        return;
    }
    for (at, bytes) in (at..).step_by(4).zip(data.chunks_exact_mut(4)) {
        each(at, bytes);
    }
}

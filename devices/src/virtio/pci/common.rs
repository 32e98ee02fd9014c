//! The common configuration, and the device status (VIRTIO 1.2, 4.1.4.3 and 2.1).

use super::super::spec::*;
use super::{Event, Transport, copy};
use crate::dma::Spans;

impl Transport {
    pub(super) fn common_read(&self, offset: u64, data: &mut [u8]) {
        copy(&self.common(), offset, data);
    }

    /// The registers as they read.
    fn common(&self) -> [u8; COMMON_CFG_SIZE as usize] {
        let mut bytes = [0; COMMON_CFG_SIZE as usize];
        let mut put = |at: u64, value: &[u8]| {
            if let Some(bytes) = bytes.get_mut(at as usize..).and_then(|bytes| bytes.get_mut(..value.len())) {
                bytes.copy_from_slice(value);
            }
        };
        put(DEVICE_FEATURE_SELECT, &self.device_feature_select.to_le_bytes());
        put(DEVICE_FEATURE, &half(self.offered, self.device_feature_select).to_le_bytes());
        put(DRIVER_FEATURE_SELECT, &self.driver_feature_select.to_le_bytes());
        put(DRIVER_FEATURE, &half(self.accepted, self.driver_feature_select).to_le_bytes());
        put(CONFIG_MSIX_VECTOR, &self.config_vector.to_le_bytes());
        put(NUM_QUEUES, &(self.queues.len() as u16).to_le_bytes());
        put(DEVICE_STATUS, &[self.status.bits()]);
        put(CONFIG_GENERATION, &[self.config_generation]);
        put(QUEUE_SELECT, &self.queue_select.to_le_bytes());
        if let Some(queue) = self.queues.get(usize::from(self.queue_select)) {
            let rings = &queue.rings;
            put(QUEUE_SIZE, &rings.size.to_le_bytes());
            put(QUEUE_MSIX_VECTOR, &queue.vector.to_le_bytes());
            put(QUEUE_ENABLE, &u16::from(queue.enabled).to_le_bytes());
            put(QUEUE_RESET, &u16::from(queue.resetting).to_le_bytes());
            put(QUEUE_NOTIFY_OFF, &self.queue_select.to_le_bytes());
            put(QUEUE_DESC, &rings.descriptors.to_le_bytes());
            put(QUEUE_DRIVER, &rings.available.to_le_bytes());
            put(QUEUE_DEVICE, &rings.used.to_le_bytes());
        } else {
            put(QUEUE_MSIX_VECTOR, &VIRTIO_MSI_NO_VECTOR.to_le_bytes());
        }
        bytes
    }

    /// Only accesses of a register's own width have an effect (4.1.3.1). Addresses are written whole or by halves.
    pub(super) fn common_write<M: Spans>(
        &mut self,
        offset: u64,
        value: u64,
        len: usize,
        memory: &M,
    ) -> Event {
        match (offset, len) {
            (DEVICE_FEATURE_SELECT, 4) => self.device_feature_select = value as u32,
            (DRIVER_FEATURE_SELECT, 4) => self.driver_feature_select = value as u32,
            (DRIVER_FEATURE, 4) if !self.status.contains(DeviceStatus::FEATURES_OK) => {
                match self.driver_feature_select {
                    0 => self.accepted = self.accepted & !0xffff_ffff | value,
                    1 => self.accepted = self.accepted & 0xffff_ffff | value << 32,
                    _ => {}
                }
            }
            (CONFIG_MSIX_VECTOR, 2) => self.config_vector = self.vector(value as u16),
            (DEVICE_STATUS, 1) => return self.write_status(value as u8),
            (QUEUE_SELECT, 2) => self.queue_select = value as u16,
            (QUEUE_MSIX_VECTOR, 2) => {
                let vector = self.vector(value as u16);
                if let Some(queue) = self.queues.get_mut(usize::from(self.queue_select)) {
                    queue.vector = vector;
                }
            }
            (QUEUE_ENABLE, 2) if value == 1 => self.enable_queue(memory),
            (QUEUE_RESET, 2) if value == 1 && self.negotiated(Features::RING_RESET.bits()) => {
                let index = usize::from(self.queue_select);
                if self.queues.get(index).is_some_and(|queue| queue.enabled && !queue.resetting) {
                    return Event::ResetQueue(index);
                }
            }
            _ => self.write_ring(offset, value, len),
        }
        Event::None
    }

    /// Write the selected queue's size or addresses. Ignored if the queue is enabled or the size is invalid.
    fn write_ring(&mut self, offset: u64, value: u64, len: usize) {
        let queue = self.queues.get_mut(usize::from(self.queue_select));
        let Some(queue) = queue.filter(|queue| !queue.enabled) else { return };
        let (rings, entries) = (&mut queue.rings, value as u16);
        if (offset, len) == (QUEUE_SIZE, 2) && entries.is_power_of_two() && entries <= self.queue_size {
            rings.size = entries;
        }
        for (at, address) in [
            (QUEUE_DESC, &mut rings.descriptors),
            (QUEUE_DRIVER, &mut rings.available),
            (QUEUE_DEVICE, &mut rings.used),
        ] {
            match (offset.wrapping_sub(at), len) {
                (0, 8) => *address = value,
                (0, 4) => *address = *address & !0xffff_ffff | value,
                (4, 4) => *address = *address & 0xffff_ffff | value << 32,
                _ => {}
            }
        }
    }

    fn enable_queue<M: Spans>(&mut self, memory: &M) {
        let event_index = self.negotiated(Features::RING_EVENT_IDX.bits());
        if !self.status.contains(DeviceStatus::FEATURES_OK) {
            return;
        }
        let queue = self.queues.get_mut(usize::from(self.queue_select));
        let Some(queue) = queue.filter(|queue| !queue.enabled) else { return };
        queue.rings.event_index = event_index;
        queue.enabled = queue.rings.check(self.queue_size, memory).is_ok();
        if !queue.enabled {
            self.needs_reset();
        }
    }

    /// A vector as it is stored: [`VIRTIO_MSI_NO_VECTOR`] for one that does not exist.
    fn vector(&self, vector: u16) -> u16 {
        if usize::from(vector) <= self.queues.len() { vector } else { VIRTIO_MSI_NO_VECTOR }
    }

    /// Zero resets; other values only set bits. FEATURES_OK is not set for features that cannot be accepted, and DRIVER_OK not without
    /// FEATURES_OK (2.1, 3.1.1).
    fn write_status(&mut self, value: u8) -> Event {
        if value == 0 {
            return Event::Reset;
        }
        let mut added =
            DeviceStatus::from_bits_truncate(value) - self.status - DeviceStatus::DEVICE_NEEDS_RESET;
        let version_1 = Features::VERSION_1.bits();
        if self.accepted & !self.offered != 0 || self.accepted & version_1 == 0 {
            added -= DeviceStatus::FEATURES_OK;
        }
        if !(self.status | added).contains(DeviceStatus::FEATURES_OK) {
            added -= DeviceStatus::DRIVER_OK;
        }
        self.status |= added;
        self.notify_if_changed();
        Event::Status(added)
    }
}

/// The lower (0) or upper (1) half.
const fn half(features: u64, select: u32) -> u32 {
    match select {
        0 => features as u32,
        1 => (features >> 32) as u32,
        _ => 0,
    }
}

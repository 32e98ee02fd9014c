//! Capabilities, common configuration, device status, and resets.

use proptest::prelude::*;

use super::*;
use crate::pci::spec::{CAP_ID_MSIX, CAP_ID_VENDOR};

impl Guest {
    fn config(&mut self, offset: u16, len: usize) -> u32 {
        let mut data = [0; 4];
        self.device.config_read(offset, &mut data[..len]);
        u32::from_le_bytes(data)
    }

    fn set_config(&mut self, offset: u16, len: usize, value: u32) {
        self.device.config_write(offset, &value.to_le_bytes()[..len]);
    }

    /// Capabilities: ID and offset.
    fn capabilities(&mut self) -> Vec<(u8, u16)> {
        let mut at = self.config(0x34, 1) as u16;
        let mut found = Vec::new();
        while at != 0 {
            found.push((self.config(at, 1) as u8, at));
            at = self.config(at + 1, 1) as u16;
        }
        found
    }

    /// Set BAR, offset and length of the configuration access capability. Returns the offset of its data field.
    fn aim(&mut self, offset: u32, len: u32) -> u16 {
        let (_, at) = self.capabilities()[5];
        assert_eq!(self.config(at + 3, 1), u32::from(VIRTIO_PCI_CAP_PCI_CFG));
        self.set_config(at + VIRTIO_PCI_CAP_BAR, 1, 0);
        self.set_config(at + VIRTIO_PCI_CAP_OFFSET, 4, offset);
        self.set_config(at + VIRTIO_PCI_CAP_LENGTH, 4, len);
        at + VIRTIO_PCI_CFG_DATA
    }
}

#[test]
fn capabilities_say_where() {
    let mut guest = Guest::with(ALL, Config { queues: 3, ..batch() });
    assert_eq!(guest.config(0, 4), 0x1042_1af4);
    assert_eq!(guest.config(8, 4), 0x0100_0001);
    let capabilities = guest.capabilities();
    let ids: Vec<u8> = capabilities.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [CAP_ID_MSIX, CAP_ID_VENDOR, CAP_ID_VENDOR, CAP_ID_VENDOR, CAP_ID_VENDOR, CAP_ID_VENDOR]);
    let expected = [
        (VIRTIO_PCI_CAP_COMMON_CFG, 0, COMMON_CFG_SIZE, 16),
        (VIRTIO_PCI_CAP_NOTIFY_CFG, NOTIFY, 0x1000, 20),
        (VIRTIO_PCI_CAP_ISR_CFG, ISR, 1, 16),
        (VIRTIO_PCI_CAP_DEVICE_CFG, DEVICE_CFG, 0x1000, 16),
        (VIRTIO_PCI_CAP_PCI_CFG, 0, 0, 20),
    ];
    for ((_, at), (cfg_type, offset, length, size)) in capabilities[1..].iter().zip(expected) {
        assert_eq!(guest.config(at + 2, 2), size | u32::from(cfg_type) << 8);
        assert_eq!(guest.config(at + VIRTIO_PCI_CAP_BAR, 1), 0);
        assert_eq!(u64::from(guest.config(at + VIRTIO_PCI_CAP_OFFSET, 4)), offset);
        assert_eq!(u64::from(guest.config(at + VIRTIO_PCI_CAP_LENGTH, 4)), length);
    }
    assert_eq!(guest.config(capabilities[2].1 + VIRTIO_PCI_NOTIFY_CAP_MULT, 4), 4);
    // Four vectors: one for each queue, one for the configuration.
    assert_eq!(guest.config(capabilities[0].1 + 2, 2) & 0x7ff, 3);
    let doorbells: Vec<u64> = guest.device.doorbells().iter().map(|doorbell| doorbell.offset).collect();
    for (queue, doorbell) in (0..).zip(doorbells) {
        guest.write(QUEUE_SELECT, 2, queue);
        assert_eq!(doorbell, NOTIFY + 4 * guest.read(QUEUE_NOTIFY_OFF, 2));
    }
    let bars = guest.device.bars();
    assert_eq!((bars.len(), bars[0].size), (1, 0x8000));
}

#[test]
fn configuration_space_leads_to_the_registers() {
    let mut guest = Guest::new();
    let data = guest.aim(NUM_QUEUES as u32, 2);
    assert_eq!(guest.config(data, 2), 1);
    let data = guest.aim(DEVICE_CFG as u32, 4);
    assert_eq!(guest.config(data, 4), 8 * 2048);
    // Accesses of another length than in the capability, that are not aligned, or outside the BAR.
    assert_eq!(guest.config(data, 2), 0);
    for (offset, len) in [(DEVICE_CFG as u32 + 1, 2), (0x8000, 4), (u32::MAX - 3, 4), (0, 3), (0, 0)] {
        let data = guest.aim(offset, len);
        assert_eq!(guest.config(data, 4), 0);
        guest.set_config(data, 4, u32::MAX);
    }
    // A doorbell, by configuration access.
    let data = guest.fill(DATA, 512, 9);
    guest.request(0, 0, VIRTIO_BLK_T_OUT, 0, &[reads(DATA, 512)]);
    let at = guest.aim(NOTIFY as u32, 2);
    guest.set_config(at, 2, 0);
    assert_eq!(guest.device.before_sleep(guest.now), crate::device::Sleep::No);
    guest.device.on_completions(guest.now);
    assert_eq!((guest.completions(0).len(), guest.status_of(0)), (1, 0));
    assert_eq!(guest.run(VIRTIO_BLK_T_IN, 0, &[writes(DATA + 4096, 512)]), (0, 513));
    assert_eq!(guest.bytes(DATA + 4096, 512), data);
    // A reset, by configuration access.
    let at = guest.aim(DEVICE_STATUS as u32, 1);
    assert_eq!(guest.config(at, 1), 15);
    guest.set_config(at, 1, 0);
    assert!(guest.status().is_empty());
}

#[test]
fn features_are_negotiated_or_refused() {
    let mut guest = Guest::new();
    let offered = guest.offered();
    let wanted = Features::all().bits()
        | (BlkFeatures::FLUSH | BlkFeatures::CONFIG_WCE | BlkFeatures::SEG_MAX | BlkFeatures::WRITE_ZEROES)
            .bits();
    assert_eq!(offered & wanted, wanted);
    // No legacy, no packed rings, no platform access, one queue.
    assert_eq!(offered & (1 << 33 | 1 << 34 | BlkFeatures::MQ.bits() | BlkFeatures::RO.bits()), 0);
    guest.write(DEVICE_FEATURE_SELECT, 4, 2);
    assert_eq!(guest.read(DEVICE_FEATURE, 4), 0);
    for refused in [0, offered & !BASE, BASE | 1 << 34, BASE | 1, offered | 1 << 63] {
        guest.write(DEVICE_STATUS, 1, 0);
        guest.accept(refused);
        guest.write(DEVICE_STATUS, 1, 11);
        assert_eq!(guest.status().bits(), 3, "{refused:#x}");
        // DRIVER_OK is refused without FEATURES_OK.
        guest.add_status(DeviceStatus::DRIVER_OK);
        assert_eq!(guest.status().bits(), 3, "{refused:#x}");
    }
    guest.accept(BASE);
    guest.write(DEVICE_STATUS, 1, 11);
    assert_eq!(guest.status().bits(), 11);
    // After FEATURES_OK, writes change no feature.
    guest.accept(offered);
    guest.write(DRIVER_FEATURE_SELECT, 4, 0);
    assert_eq!(guest.read(DRIVER_FEATURE, 4), 0);
    // The guest can neither set DEVICE_NEEDS_RESET nor clear a bit.
    guest.write(DEVICE_STATUS, 1, 0x40);
    assert_eq!(guest.status().bits(), 11);
}

proptest! {
    /// Against the definition: all accepted features are offered, and VERSION_1 is among them.
    #[test]
    fn features_are_taken_or_not(wild: u64, taken: u64, flip in 0u32..200) {
        let mut guest = Guest::new();
        let offered = guest.offered();
        // Mostly close to the offered features: a subset, with one bit flipped.
        let accepted = match flip {
            0..64 => offered & taken ^ 1 << flip,
            64..190 => offered & taken | BASE,
            _ => wild,
        };
        guest.write(DEVICE_STATUS, 1, 0);
        guest.accept(accepted);
        guest.write(DRIVER_FEATURE_SELECT, 4, 0);
        let low = guest.read(DRIVER_FEATURE, 4);
        guest.write(DRIVER_FEATURE_SELECT, 4, 1);
        prop_assert_eq!(low | guest.read(DRIVER_FEATURE, 4) << 32, accepted);
        guest.write(DEVICE_STATUS, 1, 11);
        let good = (0..64).all(|bit| accepted >> bit & 1 == 0 || offered >> bit & 1 == 1) && accepted & BASE != 0;
        prop_assert_eq!(guest.status().contains(DeviceStatus::FEATURES_OK), good);
    }
}

#[test]
fn any_features_work() {
    let offered = Guest::new().offered();
    for features in [0, Features::RING_EVENT_IDX.bits(), Features::RING_INDIRECT_DESC.bits(), offered] {
        let mut guest = Guest::with(BASE | features, batch());
        guest.check_io();
        guest.check_io();
    }
}

#[test]
fn queues_are_set_up_once() {
    let mut guest = Guest::with(ALL, Config { queues: 2, queue_size: 128, ..batch() });
    guest.write(DEVICE_STATUS, 1, 0);
    assert_eq!(guest.read(NUM_QUEUES, 2), 2);
    guest.write(QUEUE_SELECT, 2, 1);
    assert_eq!((guest.read(QUEUE_SIZE, 2), guest.read(QUEUE_ENABLE, 2)), (128, 0));
    for size in [0, 3, 100, 129, 256, 0x8000, 0xffff] {
        guest.write(QUEUE_SIZE, 2, size);
        assert_eq!(guest.read(QUEUE_SIZE, 2), 128, "{size}");
    }
    guest.write(QUEUE_SIZE, 2, 32);
    guest.write(QUEUE_DESC, 8, 0x1_2345_6780);
    assert_eq!((guest.read(QUEUE_SIZE, 2), guest.read(QUEUE_DESC, 8)), (32, 0x1_2345_6780));
    // Accesses of another width than the register's.
    guest.write(QUEUE_DESC, 2, 1);
    guest.write(QUEUE_DESC + 2, 4, 1);
    assert_eq!((guest.read(QUEUE_DESC, 4), guest.read(QUEUE_DESC + 4, 4)), (0x2345_6780, 1));
    guest.write(QUEUE_MSIX_VECTOR, 2, 2);
    assert_eq!(guest.read(QUEUE_MSIX_VECTOR, 2), 2);
    guest.write(QUEUE_MSIX_VECTOR, 2, 3);
    assert_eq!(guest.read(QUEUE_MSIX_VECTOR, 2), u64::from(VIRTIO_MSI_NO_VECTOR));
    guest.write(CONFIG_MSIX_VECTOR, 2, 3);
    assert_eq!(guest.read(CONFIG_MSIX_VECTOR, 2), u64::from(VIRTIO_MSI_NO_VECTOR));
    // A queue that does not exist.
    guest.write(QUEUE_SELECT, 2, 2);
    assert_eq!((guest.read(QUEUE_SIZE, 2), guest.read(QUEUE_ENABLE, 2)), (0, 0));
    guest.write(QUEUE_ENABLE, 2, 1);
    guest.write(QUEUE_SELECT, 2, 0);
    // No queue can be enabled before FEATURES_OK.
    guest.write(QUEUE_ENABLE, 2, 1);
    assert_eq!(guest.read(QUEUE_ENABLE, 2), 0);
    guest.bring_up(ALL, 16);
    assert_eq!(guest.read(QUEUE_ENABLE, 2), 1);
    guest.write(QUEUE_SIZE, 2, 8);
    guest.write(QUEUE_DESC, 8, 0);
    assert_eq!((guest.read(QUEUE_SIZE, 2), guest.read(QUEUE_DESC, 4)), (16, guest.rings_at(1)));
    guest.check_io();
}

#[test]
fn rings_that_cannot_be() {
    for (register, address) in [
        (QUEUE_DESC, 2 * MIB - 512),
        (QUEUE_DRIVER, 2 * MIB - 64),
        (QUEUE_DEVICE, 2 * MIB - 256),
        (QUEUE_DESC, u64::MAX - 15),
        (QUEUE_DESC, RINGS + 8),
        (QUEUE_DRIVER, RINGS + 1),
        (QUEUE_DEVICE, RINGS + 2),
        (QUEUE_DRIVER, 0),
    ] {
        let mut guest = Guest::new();
        guest.write(DEVICE_STATUS, 1, 0);
        guest.accept(BASE);
        guest.write(DEVICE_STATUS, 1, 11);
        for (register, address) in [(QUEUE_DESC, 0x1000), (QUEUE_DRIVER, 0x2000), (QUEUE_DEVICE, 0x3000)] {
            guest.write(register, 8, address);
        }
        guest.write(register, 8, address);
        guest.write(QUEUE_ENABLE, 2, 1);
        assert_eq!(guest.read(QUEUE_ENABLE, 2), 0);
        assert!(guest.status().contains(DeviceStatus::DEVICE_NEEDS_RESET), "{register} {address:#x}");
        guest.bring_up(ALL, 64);
        guest.check_io();
    }
}

#[test]
fn a_reset_with_requests_on_the_way() {
    let mut guest = Guest::held(batch());
    guest.hold.set(true);
    for n in 0..8 {
        guest.fill(DATA + 512 * n, 512, 1);
        guest.request(0, n, VIRTIO_BLK_T_OUT, n, &[reads(DATA + 512 * n, 512)]);
    }
    guest.kick(0);
    assert_eq!((guest.completions(0).len(), guest.in_flight()), (0, 8));
    guest.request(0, 8, VIRTIO_BLK_T_IN, 0, &[writes(DATA + 512 * 8, 512)]);
    guest.write(DEVICE_STATUS, 1, 0);
    // The reset completes when the disk has completed the requests. Until then, writes are ignored.
    assert!(guest.status().contains(DeviceStatus::DRIVER_OK));
    guest.write(DEVICE_STATUS, 1, 0);
    guest.write(QUEUE_SELECT, 2, 0);
    guest.kick(0);
    assert_eq!((guest.device.before_sleep(guest.now), guest.in_flight()), (crate::device::Sleep::Forever, 8));
    guest.hold.set(false);
    assert!(guest.status().is_empty());
    assert_eq!((guest.in_flight(), guest.hold.waits()), (0, 0));
    // No completion was signalled, and nothing is written late.
    guest.device.on_completions(guest.now);
    assert_eq!((guest.used_index(0), guest.status_of(0)), (0, 0xff));
    assert!(!guest.counts.line());
    let stats = guest.device.stats();
    assert_eq!((stats.requests, stats.completions), (8, 8), "dropped requests are over");
    guest.bring_up(ALL, 32);
    guest.check_io();
}

#[test]
fn a_queue_is_reset_alone() {
    let mut guest = Guest::held(Config { queues: 2, ..batch() });
    guest.hold.set(true);
    for queue in 0..2 {
        for n in 0..4 {
            let n = 4 * u64::from(queue) + n;
            guest.request(queue, n, VIRTIO_BLK_T_OUT, n, &[reads(DATA, 512)]);
        }
        guest.kick(queue);
    }
    guest.write(QUEUE_SELECT, 2, 1);
    guest.write(QUEUE_RESET, 2, 1);
    // The reset completes when the disk has completed the queue's requests.
    guest.kick(1);
    assert_eq!((guest.read(QUEUE_RESET, 2), guest.read(QUEUE_ENABLE, 2)), (1, 1));
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    assert_eq!((guest.read(QUEUE_RESET, 2), guest.read(QUEUE_ENABLE, 2)), (0, 0));
    assert_eq!(guest.hold.waits(), 0);
    // Completions of the other queue are posted; those of the reset queue are not.
    assert_eq!((guest.completions(0).len(), guest.used_index(1)), (4, 0));
    assert_eq!((guest.status_of(3), guest.status_of(4)), (0, 0xff));
    assert!(guest.counts.line());
    let stats = guest.device.stats();
    assert_eq!((stats.requests, stats.completions), (8, 8), "dropped requests are over");
    guest.set_up_queue(1, 16);
    guest.check_io();
    let head = guest.request(1, 0, VIRTIO_BLK_T_FLUSH, 0, &[]);
    guest.run_chain(1, head);
    assert_eq!(guest.status_of(0), 0);
}

#[test]
fn a_queue_reset_that_was_not_negotiated_is_none() {
    let mut guest = Guest::with(!Features::RING_RESET.bits(), batch());
    guest.write(QUEUE_RESET, 2, 1);
    assert_eq!(guest.read(QUEUE_ENABLE, 2), 1);
    guest.check_io();
}

#[test]
fn without_bus_mastering_memory_is_left_alone() {
    let mut guest = Guest::held(batch());
    guest.hold.set(true);
    guest.request(0, 0, VIRTIO_BLK_T_OUT, 0, &[reads(DATA, 512)]);
    guest.kick(0);
    guest.device.config_write(4, &2u16.to_le_bytes());
    guest.request(0, 1, VIRTIO_BLK_T_OUT, 1, &[reads(DATA, 512)]);
    guest.kick(0);
    guest.device.on_completions(guest.now);
    assert_eq!((guest.used_index(0), guest.status_of(0)), (0, 0xff));
    guest.hold.set(false);
    guest.device.config_write(4, &6u16.to_le_bytes());
    assert_eq!(guest.device.before_sleep(guest.now), crate::device::Sleep::No);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions(0).len(), 2);
}

#[test]
fn power_on_is_a_clean_start() {
    let mut guest = Guest::new();
    guest.check_io();
    guest.device.reset(guest.now);
    assert!(guest.status().is_empty());
    assert_eq!(guest.config(4, 2), 0);
    guest.device.config_write(4, &6u16.to_le_bytes());
    guest.bring_up(ALL, 64);
    guest.check_io();
}

#[test]
fn quiet_means_shown_and_signalled() {
    let mut guest = Guest::held(Config::default());
    guest.hold.set(true);
    for n in 0..16 {
        guest.request(0, n, VIRTIO_BLK_T_OUT, n, &[reads(DATA, 512)]);
    }
    guest.kick(0);
    guest.device.quiesce(guest.now);
    assert_eq!(guest.completions(0).len(), 16);
    assert!(guest.counts.line());
    // Requests may have come meanwhile.
    guest.device.on_completions(guest.now);
    assert_eq!(guest.device.before_sleep(guest.now), crate::device::Sleep::Forever);
}

#[test]
fn registers_take_any_access() {
    let mut guest = Guest::new();
    for offset in (0..0x8100).chain([u64::MAX, u64::MAX - 7, 1 << 32]) {
        for bar in [0, 1, 5] {
            for len in [1, 2, 4, 8] {
                let mut data = [0xaa; 8];
                guest.device.bar_read(bar, offset, &mut data[..len], guest.now);
                if bar != 0 || offset >= 0x8000 {
                    assert_eq!(data[..len], [0; 8][..len]);
                }
            }
        }
    }
    assert_eq!(guest.read(0x1800, 4), 0);
    guest.check_io();
}

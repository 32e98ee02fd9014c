//! Hot-plug, with and without buffers for events.

use paradisk_disk_formats::{Disk, QueueConfig};

use super::*;
use crate::device::HotPlug;
use crate::scsi::{Identity, LogicalUnit};
use crate::testing::TestDisk;
use crate::testing::attach_nameless;

const BUFFERS: u64 = REQUESTS - 0x2000;
const NEW: Address = Address { target: 5, lun: 258 };

/// Give the device buffers for events.
fn give(guest: &mut Guest, count: u64, len: u32) {
    for n in 0..count {
        guest.memory.write_slice(&[0xff; 16], GuestAddress(BUFFERS + 16 * n)).unwrap();
        guest.put(EVENTS, &[writes(BUFFERS + 16 * n, len)]);
    }
    guest.kick(EVENTS);
}

/// Take the events that are posted, of a guest that gives `given` buffers at a time.
fn events(guest: &mut Guest, given: u64) -> Vec<EventInfo> {
    let completions = guest.completions(EVENTS);
    let first = u32::from(guest.rings[1].next_desc) - given as u32;
    let event = |(head, len): &(u32, u32)| {
        assert_eq!(*len, 16);
        let bytes = guest.bytes(BUFFERS + 16 * u64::from(head - first), 16);
        EventInfo::read_from_bytes(&bytes).unwrap()
    };
    completions.iter().map(event).collect()
}

fn info(event: u32, lun: [u8; 8], reason: u32) -> EventInfo {
    EventInfo { event: event.into(), lun, reason: reason.into() }
}

fn attach(guest: &mut Guest, address: Address) {
    let unit = unit(&guest.hold);
    guest.device.attach(address, unit).unwrap();
    guest.device.on_completions(guest.now);
}

#[test]
fn units_come_and_go() {
    let mut guest = Guest::with(Features::VERSION_1.bits() | ScsiFeatures::HOTPLUG.bits(), batch());
    guest.enable_msix();
    give(&mut guest, 8, 16);
    assert!(guest.completions(EVENTS).is_empty());
    guest.counts.vectors();
    attach(&mut guest, NEW);
    assert!(guest.device.detach(THERE, guest.now));
    assert_eq!(guest.counts.vectors(), [2, 2]);
    let removed = [1, 3, 0, 7, 0, 0, 0, 0];
    assert_eq!(
        events(&mut guest, 8),
        [
            info(VIRTIO_SCSI_T_TRANSPORT_RESET, [1, 5, 0x41, 2, 0, 0, 0, 0], VIRTIO_SCSI_EVT_RESET_RESCAN),
            info(VIRTIO_SCSI_T_TRANSPORT_RESET, removed, VIRTIO_SCSI_EVT_RESET_REMOVED),
        ]
    );
    assert_eq!(guest.run(NEW, TEST_UNIT_READY, &[]).sense[12], 0x29);
    assert_good(&guest.run(NEW, TEST_UNIT_READY, &[]), 0);
    assert_response(&guest.run(THERE, TEST_UNIT_READY, &[]), Response::BadTarget);
    assert!(!guest.device.detach(THERE, guest.now));
    assert!(guest.completions(EVENTS).is_empty());
}

#[test]
fn a_unit_that_goes_takes_its_requests_along() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    guest.start(FIRST, 1, THERE, false);
    guest.start(FIRST, 2, HERE, false);
    guest.completions(FIRST);
    assert!(guest.device.detach(THERE, guest.now));
    assert_eq!(guest.in_flight(), 2);
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions(FIRST).len(), 2);
    assert_eq!(guest.answered(1).response, Response::Reset as u8);
    assert_good(&guest.answered(2), 0);
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let mut guest = Guest::new();
    let target = Address { target: 64, lun: 0 };
    let another = || unit(&Hold::default());
    assert_eq!(guest.device.attach(target, another()), Err(AttachError::Target(target)));
    assert_eq!(guest.device.attach(HERE, another()), Err(AttachError::Taken(HERE)));
    let lun = Address { target: 0, lun: 0x4000 };
    assert_eq!(guest.device.attach(lun, another()), Err(AttachError::Lun(lun)));
    give(&mut guest, 1, 16);
    assert!(guest.completions(EVENTS).is_empty());
}

#[test]
fn events_wait_for_buffers() {
    let mut guest = Guest::new();
    for _ in 0..3 {
        attach(&mut guest, NEW);
        assert!(guest.device.detach(NEW, guest.now));
    }
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
    give(&mut guest, 4, 16);
    let reasons = |events: Vec<EventInfo>| -> Vec<u32> {
        assert!(events.iter().all(|event| event.event.get() == VIRTIO_SCSI_T_TRANSPORT_RESET));
        events.iter().map(|event| event.reason.get()).collect()
    };
    assert_eq!(reasons(events(&mut guest, 4)), [1, 2, 1, 2]);
    give(&mut guest, 4, 16);
    assert_eq!(reasons(events(&mut guest, 4)), [1, 2]);
}

#[test]
fn lost_events_are_told_of() {
    let mut guest = Guest::new();
    for _ in 0..40 {
        attach(&mut guest, NEW);
        assert!(guest.device.detach(NEW, guest.now));
    }
    let mut all = Vec::new();
    for _ in 0..3 {
        give(&mut guest, 32, 16);
        all.extend(events(&mut guest, 32));
    }
    // The last event that was stored reports the lost ones.
    assert_eq!(all.len(), 64);
    let missed = |event: &EventInfo| event.event.get() & VIRTIO_SCSI_T_EVENTS_MISSED != 0;
    assert_eq!(all.iter().position(missed), Some(63));
    // The other buffers stay available for later events.
    attach(&mut guest, NEW);
    assert_eq!(guest.completions(EVENTS).len(), 1);
}

#[test]
fn buffers_that_are_too_short_go_back() {
    let mut guest = Guest::new();
    attach(&mut guest, NEW);
    give(&mut guest, 2, 15);
    assert_eq!(guest.completions(EVENTS), [(0, 0), (1, 0)]);
    give(&mut guest, 1, 16);
    assert_eq!(guest.completions(EVENTS), [(2, 16)]);
    assert!(!guest.status().contains(DeviceStatus::DEVICE_NEEDS_RESET));
}

#[test]
fn a_driver_that_wants_no_events_gets_none() {
    let features = Features::VERSION_1.bits();
    let mut guest = Guest::with(features, batch());
    give(&mut guest, 2, 16);
    attach(&mut guest, NEW);
    assert!(guest.completions(EVENTS).is_empty());
    // Events of an earlier driver are dropped: the next one scans for units itself.
    guest.bring_up(ALL, 64);
    attach(&mut guest, Address { target: 6, lun: 0 });
    guest.bring_up(ALL, 64);
    give(&mut guest, 2, 16);
    assert!(guest.completions(EVENTS).is_empty());
}

#[test]
fn a_disk_that_grows_is_told_of() {
    for features in [ALL, Features::VERSION_1.bits() | ScsiFeatures::HOTPLUG.bits()] {
        let mut guest = Guest::with(features, batch());
        let disk = Arc::new(TestDisk::new(MIB, guest.hold.clone()));
        let queue = disk.queue(&QueueConfig::default()).unwrap();
        let unit = LogicalUnit::new(disk.clone(), queue, Identity::default());
        guest.device.attach(NEW, unit).unwrap();
        give(&mut guest, 8, 16);
        guest.completions(EVENTS);
        guest.device.refresh(guest.now);
        assert!(guest.completions(EVENTS).is_empty());
        disk.grow(2 * MIB);
        guest.device.refresh(guest.now);
        let told = events(&mut guest, 8);
        if features == ALL {
            let lun = [1, 5, 0x41, 2, 0, 0, 0, 0];
            assert_eq!(told, [info(VIRTIO_SCSI_T_PARAM_CHANGE, lun, 0x092a)]);
        } else {
            assert!(told.is_empty());
        }
        assert_eq!(guest.run(NEW, TEST_UNIT_READY, &[]).sense[12], 0x29);
        assert_eq!(guest.run(NEW, TEST_UNIT_READY, &[]).sense[12..14], [0x2a, 9]);
    }
}

#[test]
fn buffers_keep_nobody_awake() {
    let mut guest = Guest::with(Features::VERSION_1.bits() | ScsiFeatures::HOTPLUG.bits(), batch());
    give(&mut guest, 8, 16);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
    // An attached unit keeps the device awake until its event is posted.
    let unit = unit(&guest.hold);
    guest.device.attach(NEW, unit).unwrap();
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions(EVENTS).len(), 1);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
}

#[test]
fn a_disk_that_is_attached_without_a_serial_number_has_one_of_its_place() {
    attach_nameless(&mut Guest::new().device, "virtio-scsi", 5, |device, address| {
        device.requests().unwrap().bus.serial(address)
    });
}

#[test]
fn what_happens_during_a_reset_is_no_event_of_the_next_driver() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    guest.start(FIRST, 1, HERE, false);
    guest.write(DEVICE_STATUS, 1, 0);
    assert!(!guest.status().is_empty());
    guest.device.refresh(guest.now);
    attach(&mut guest, NEW);
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    guest.bring_up(Features::VERSION_1.bits(), 64);
    give(&mut guest, 8, 16);
    assert!(guest.completions(EVENTS).is_empty());
}

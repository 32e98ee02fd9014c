//! Requests: data in one piece and in many, invalid descriptors, sense data.

use super::request::{self, Request};
use super::*;
use crate::scsi::Attribute;
use crate::testing::attach_nameless;

fn list(guest: &Guest, address: u64, elements: &[(u64, u32, u32)]) {
    for (index, &(addr, length, flags)) in elements.iter().enumerate() {
        let element = SgElement { addr: addr.into(), length: length.into(), flags: flags.into() };
        let at = address + index as u64 * 16;
        guest.memory.write_slice(element.as_bytes(), GuestAddress(at)).unwrap();
    }
}

/// A read of 8 sectors at 100 into a list.
fn listed(guest: &Guest, write: bool) -> RingReqDesc {
    let mut request = guest.transfer(write, 100, 8);
    request.flags = (request.flags.get() | RequestFlags::CMD_WITH_SG_LIST.bits()).into();
    request.data_addr = LIST.into();
    request
}

#[test]
fn scatter_lists_reach_the_right_bytes() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 4096, 1);
    let write = guest.transfer(true, 100, 8);
    assert_good(&guest.run(&write), 4096);
    // Pieces that cross a page, touch the end of a region, are empty, and a last one that is too long.
    let pieces =
        [(0x2_0ff0, 32, 0), (MIB - 100, 200, 0), (0x5_0000, 0, 0), (0x5_1001, 1000, 0), (0x6_0000, 9999, 0)];
    list(&guest, LIST, &pieces);
    let after = guest.fill(0x6_0000 + 2864, 64, 9);
    let read = listed(&guest, false);
    assert_good(&guest.run(&read), 4096);
    let mut found = Vec::new();
    for (address, len, _) in pieces {
        let len = (len as usize).min(4096 - found.len());
        found.extend(guest.bytes(address, len));
    }
    assert_eq!(found, data);
    assert_eq!(guest.bytes(0x6_0000 + 2864, 64), after, "nothing behind the last byte");
    // The same list as a source.
    let write = listed(&guest, true);
    assert_good(&guest.run(&write), 4096);
}

#[test]
fn scatter_lists_may_be_chained() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 4096, 3);
    let write = guest.transfer(true, 100, 8);
    assert_good(&guest.run(&write), 4096);
    list(&guest, LIST, &[(0x2_0000, 1024, 0), (LIST + 0x800, 0, SGE_FLAG_CHAIN_ELEMENT)]);
    list(&guest, LIST + 0x800, &[(0x2_0400, 1024, 0), (0x2_0800, 2048, 0)]);
    let read = listed(&guest, false);
    assert_good(&guest.run(&read), 4096);
    assert_eq!(guest.bytes(0x2_0000, 4096), data);
}

#[test]
fn bad_scatter_lists_end_the_request() {
    let mut guest = Guest::new();
    let invalid = HostStatus::InvalidParam as u16;
    let end = MEMORY_END;
    for elements in [
        // Lists that end outside memory, start outside memory, or wrap around.
        &[(end - 16, 32, 0)][..],
        &[(end, 4096, 0)],
        &[(u64::MAX - 15, 4096, 0)],
        &[(0x2_0000, 512, 0), (1 << 50, u32::MAX, 0)],
        // A chain element that points to itself, and one that points outside memory.
        &[(LIST, 0, SGE_FLAG_CHAIN_ELEMENT)],
        &[(end - 8, 0, SGE_FLAG_CHAIN_ELEMENT)],
        &[(u64::MAX, 0, SGE_FLAG_CHAIN_ELEMENT)],
    ] {
        list(&guest, LIST, elements);
        let read = listed(&guest, false);
        assert_eq!(guest.host_status(&read), invalid, "{elements:x?}");
    }
    // Lists without an end: empty pieces up to the end of memory, and more pieces than any list may have.
    guest.memory.write_slice(&[0; 0x1_0000], GuestAddress(0x2_0000)).unwrap();
    let mut read = listed(&guest, false);
    read.data_addr = 0x2_0000.into();
    assert_eq!(guest.host_status(&read), invalid);
    guest.memory.write_slice(&[0; 32], GuestAddress(end - 32)).unwrap();
    read.data_addr = (end - 32).into();
    assert_eq!(guest.host_status(&read), invalid);
    read.data_addr = u64::MAX.into();
    assert_eq!(guest.host_status(&read), invalid);
    guest.check_io();
}

#[test]
fn overlapping_pieces_are_the_guests_own_affair() {
    let mut guest = Guest::new();
    list(&guest, LIST, &[(0x2_0000, 2048, 0), (0x2_0000, 2048, 0)]);
    let read = listed(&guest, false);
    assert_good(&guest.run(&read), 4096);
    guest.check_io();
}

#[test]
fn data_outside_memory() {
    let mut guest = Guest::new();
    for (address, len) in
        [(MEMORY_END - 511, 512), (MEMORY_END, 512), (u64::MAX, 512), (DATA, u64::MAX), (0, 1 << 40)]
    {
        let mut read = guest.transfer(false, 0, 1);
        read.data_addr = address.into();
        read.data_len = len.into();
        assert_eq!(guest.host_status(&read), HostStatus::InvalidParam as u16, "{address:#x}+{len:#x}");
    }
    let mut last = guest.transfer(false, 0, 1);
    last.data_addr = (MEMORY_END - 512).into();
    assert_good(&guest.run(&last), 512);
    guest.check_io();
}

#[test]
fn bad_fields_get_their_status() {
    let mut guest = Guest::new();
    let mut expect = |change: &dyn Fn(&mut RingReqDesc), status: HostStatus| {
        let mut request = guest.transfer(false, 0, 1);
        change(&mut request);
        let completion = guest.run(&request);
        assert_eq!(completion.host_status.get(), status as u16, "{request:?}");
        assert_eq!((completion.data_len.get(), completion.sense_len.get()), (0, 0));
    };
    let flag = |request: &mut RingReqDesc, flags: RequestFlags| request.flags = flags.bits().into();
    for len in [0, 17, 32, 255] {
        expect(&|request| request.cdb_len = len, HostStatus::InvalidParam);
    }
    expect(&|request| flag(request, RequestFlags::CMD_OUT_OF_BAND_CDB), HostStatus::InvalidParam);
    expect(
        &|request| flag(request, RequestFlags::CMD_DIR_TOHOST | RequestFlags::CMD_DIR_TODEVICE),
        HostStatus::InvalidParam,
    );
    expect(&|request| flag(request, RequestFlags::CMD_DIR_TODEVICE), HostStatus::BadMsg);
    for target in [1, 63, 64, 255] {
        expect(&|request| request.target = target, HostStatus::SelectionTimeout);
    }
    expect(&|request| request.bus = 1, HostStatus::SelectionTimeout);
    for lun in [[1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0], [0xff; 8]] {
        expect(&|request| request.lun = lun, HostStatus::SelectionTimeout);
    }
    guest.check_io();
}

#[test]
fn a_short_transfer_is_a_success_with_its_length() {
    let mut guest = Guest::new();
    // INQUIRY of 36 bytes into a buffer of 255.
    let mut inquiry = guest.request(&[0x12, 0, 0, 0, 36, 0]);
    inquiry.flags = RequestFlags::CMD_DIR_TOHOST.bits().into();
    inquiry.data_addr = DATA.into();
    inquiry.data_len = 255.into();
    let before = guest.fill(DATA, 255, 0xee);
    assert_good(&guest.run(&inquiry), 36);
    assert_eq!(guest.bytes(DATA + 36, 219), before[36..]);
    assert_ne!(guest.bytes(DATA, 36), before[..36]);
}

#[test]
fn a_direction_left_open_is_whatever_the_command_needs() {
    let mut guest = Guest::new();
    for write in [false, true] {
        let mut request = guest.transfer(write, 0, 1);
        request.flags = 0.into();
        assert_good(&guest.run(&request), 512);
    }
}

#[test]
fn sense_data_arrive_as_far_as_there_is_room() {
    let mut guest = Guest::new();
    // An operation code that no disk has.
    let mut request = guest.request(&[0xee; 16]);
    for (len, expected) in [(SENSE_LEN, 18..=32), (4, 4..=4), (0, 0..=0)] {
        guest.fill(SENSE, 96, 0x77);
        request.sense_len = len.into();
        let completion = guest.run(&request);
        assert_eq!((completion.host_status.get(), completion.scsi_status.get()), (0, 2));
        let sense_len = completion.sense_len.get();
        assert!(expected.contains(&sense_len), "{sense_len} of {len}");
        if sense_len >= 4 {
            // ILLEGAL REQUEST.
            assert_eq!(guest.bytes(SENSE + 2, 1)[0] & 15, 5);
        }
    }
    request.sense_len = SENSE_LEN.into();
    request.sense_addr = (MEMORY_END - 4).into();
    let completion = guest.run(&request);
    assert_eq!(completion.host_status.get(), HostStatus::SenseFailed as u16);
    assert_eq!((completion.scsi_status.get(), completion.sense_len.get()), (2, 0));
    guest.check_io();
}

#[test]
fn no_data_means_no_data() {
    let mut guest = Guest::new();
    let mut request = guest.request(&[0; 6]);
    request.data_len = u64::MAX.into();
    request.data_addr = u64::MAX.into();
    assert_good(&guest.run(&request), 0);
}

#[test]
fn a_disk_that_is_attached_without_a_serial_number_has_one_of_its_place() {
    attach_nameless(&mut Guest::new().device, "pvscsi", 5, |device, address| {
        device.engine.bus.serial(address)
    });
}

#[test]
fn the_tag_is_the_attribute_of_the_task() {
    let guest = Guest::new();
    let mut request = guest.transfer(false, 0, 1);
    for (tag, attribute) in [
        (MSG_HEAD_OF_QUEUE_TAG, Attribute::HeadOfQueue),
        (MSG_ORDERED_TAG, Attribute::Ordered),
        (0x20, Attribute::Simple),
        (0, Attribute::Simple),
    ] {
        request.tag = tag;
        assert_eq!(
            request::parse(&Request::read_from_prefix(request.as_bytes()).unwrap().0, 64).unwrap().attribute,
            attribute,
            "{tag:#x}"
        );
    }
}

#[test]
fn requests_that_end_at_once_with_an_error_are_counted() {
    let mut guest = Guest::new();
    let before = guest.device.stats().errors;
    for number in 1..=2 {
        // No such command.
        guest.run(&guest.request(&[0xff; 6]));
        assert_eq!(guest.device.stats().errors, before + number);
    }
}

//! The SAS personality as its driver sees it: topology, pages, hot-plug.

use super::bringup::{ask, config};
use super::*;
use crate::device::HotPlug;

const EXTENDED: u8 = 0xf;
const DEVICE: u8 = 0x12;
const GET_NEXT: u32 = 0;
const BUS_TARGET: u32 = 1 << 28;
const HANDLE: u32 = 2 << 28;
/// Device information of a disk: SSP target, directly attached.
const DISK: u32 = 0xc01;

/// Read an extended page as drivers do: first the header, then the length that it has.
fn page(guest: &mut Guest, kind: u8, number: u8, address: u32) -> Result<Vec<u8>, u16> {
    let mut request = config(config_action::PAGE_HEADER, EXTENDED, number, address);
    request.ext_page_type = kind;
    let header = ask(guest, &request, &simple(0, u64::MAX));
    assert_eq!((header.header.page_type & 0xf, header.ext_page_type), (EXTENDED, kind), "types are echoed");
    if header.ioc_status.get() != 0 {
        return Err(header.ioc_status.get());
    }
    let len = u32::from(header.ext_page_length.get()) * 4;
    request.action = config_action::READ_CURRENT;
    request.ext_page_length = header.ext_page_length;
    let read = ask(guest, &request, &simple(len, PAGE));
    assert_eq!((read.ioc_status.get(), read.ext_page_length), (0, header.ext_page_length));
    Ok(guest.bytes(PAGE, len as usize))
}

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().unwrap())
}

/// Targets of the disks that a driver would add: all devices that are targets, present, mapped, with a parent, and at
/// the end of a link.
fn scan(guest: &mut Guest) -> Vec<u8> {
    let unit = page(guest, 0x10, 0, 0).unwrap();
    let links: Vec<u16> = (0..usize::from(unit[0x0c])).map(|phy| u16_at(&unit, 16 + phy * 16 + 8)).collect();
    for phy in 0..unit[0x0c] {
        let of_phy = page(guest, 0x13, 0, phy.into()).unwrap();
        assert_eq!(u16_at(&of_phy, 0x14), links[usize::from(phy)], "both pages name the same device");
        let owner = u16_at(&of_phy, 8);
        let controller = page(guest, DEVICE, 0, HANDLE | u32::from(owner)).unwrap();
        assert_eq!(u16_at(&controller, 0x14), 0, "the controller has no parent");
    }
    let (mut handle, mut targets) = (0xffff, Vec::new());
    for _ in 0..100 {
        let device = match page(guest, DEVICE, 0, GET_NEXT | handle) {
            Ok(device) => device,
            Err(status) => {
                assert_eq!(status, ioc_status::CONFIG_INVALID_PAGE);
                return targets;
            }
        };
        let next = u16_at(&device, 0x18);
        assert_eq!(page(guest, DEVICE, 0, HANDLE | u32::from(next)).unwrap(), device);
        if u32_at(&device, 0x1c) == DISK && u16_at(&device, 0x20) & 3 == 3 && u16_at(&device, 0x14) != 0 {
            assert!(links.contains(&next));
            let target = device[0x1a];
            assert_eq!(page(guest, DEVICE, 0, BUS_TARGET | u32::from(target)).unwrap(), device);
            targets.push(target);
        }
        handle = next.into();
    }
    panic!("the devices do not end");
}

#[test]
fn facts_are_those_of_a_sas_controller() {
    let mut guest = Guest::with(64, Personality::Sas1068);
    let facts = guest.handshake(&[u32::from(function::IOC_FACTS) << 24, 0, 0]);
    let facts = IocFactsReply::read_from_bytes(&facts).unwrap();
    assert_eq!((facts.msg_version.get(), facts.header_version.get()), (0x0105, 0x1300));
    assert_eq!(facts.product_id.get(), 0x2102);
    let port = guest.handshake(&[u32::from(function::PORT_FACTS) << 24, 0, 0]);
    let port = PortFactsReply::read_from_bytes(&port).unwrap();
    assert_eq!((port.port_type, port.max_devices.get(), port.port_scsi_id.get()), (0x30, 8, 8));
    let mut id = [0; 4];
    guest.device.config_read(0, &mut id);
    assert_eq!(id, 0x0054_1000u32.to_le_bytes());
}

#[test]
fn a_scan_finds_the_disks_that_are_attached() {
    let mut guest = Guest::running(64, Personality::Sas1068);
    assert_eq!(scan(&mut guest), [0, 3]);
    guest.check_io();
    assert!(guest.device.detach(Address { target: 0, lun: 0 }, guest.now));
    assert_eq!(scan(&mut guest), [3]);
}

#[test]
fn links_can_be_reset_where_there_are_any() {
    for (personality, status) in
        [(Personality::Sas1068, 0), (Personality::Spi1030, ioc_status::INVALID_FUNCTION)]
    {
        let mut guest = Guest::running(64, personality);
        let mut request = [0u8; 32];
        request[0] = 6;
        request[3] = function::SAS_IO_UNIT_CONTROL;
        guest.post(&request, &[]);
        guest.serve();
        assert_eq!(guest.replies()[0].status(), status);
    }
}

#[test]
fn hot_plug_is_told_to_who_wants_to_know() {
    let address = Address { target: 5, lun: 0 };
    for (personality, on, told) in [
        (Personality::Sas1068, true, true),
        (Personality::Sas1068, false, false),
        (Personality::Spi1030, true, false),
    ] {
        let mut guest = Guest::running(64, personality);
        if on {
            guest.handshake(&[u32::from(function::EVENT_NOTIFICATION) << 24 | 1, 0, 0x000f_0000]);
        }
        let disk = unit(&guest.hold);
        guest.device.attach(address, disk).unwrap();
        let again = unit(&guest.hold);
        assert!(guest.device.attach(address, again).is_err());
        let added = guest.replies();
        assert!(guest.device.detach(address, guest.now));
        assert!(!guest.device.detach(address, guest.now));
        let removed = guest.replies();
        if !told {
            assert!(added.is_empty() && removed.is_empty());
            continue;
        }
        for (events, rates, reason) in [
            (added, event::LINK_RATE_3_0, event::DEVICE_ADDED),
            (removed, event::LINK_RATE_WAS_3_0, event::DEVICE_NOT_RESPONDING),
        ] {
            let [Taken::Frame(link), Taken::Frame(status)] = &events[..] else { panic!("{events:?}") };
            for (bytes, which, data) in
                [(link, event::SAS_PHY_LINK_STATUS, 12), (status, event::SAS_DEVICE_STATUS_CHANGE, 36)]
            {
                let head = EventReply::read_from_prefix(bytes).unwrap().0;
                assert_eq!((head.event.get(), head.msg_context.get()), (which, 0x000f_0000));
                assert_eq!((head.msg_flags, head.ack_required), (0x80, 0));
                assert_eq!((head.data_length.get() * 4, head.msg_length), (data, 7 + data as u8 / 4));
            }
            assert_eq!((link[28], link[29]), (5, rates));
            assert_eq!(link[30..32], status[28 + 6..28 + 8], "the same handle");
            assert_eq!(link[32..40], status[28 + 16..28 + 24], "the same address");
            assert_eq!((status[28], status[30]), (5, reason));
            assert_eq!(u32_at(status, 28 + 8), DISK);
        }
        guest.check_io();
    }
}

/// A guest without reply frames gets only as many events as the device keeps, and works afterwards.
#[test]
fn events_without_frames_are_bounded() {
    let mut guest = Guest::with(64, Personality::Sas1068);
    guest.bring_up(0);
    guest.handshake(&[u32::from(function::EVENT_NOTIFICATION) << 24 | 1, 0, 0x000f_0000]);
    let address = Address { target: 5, lun: 0 };
    for _ in 0..1000 {
        let disk = unit(&guest.hold);
        guest.device.attach(address, disk).unwrap();
        assert!(guest.device.detach(address, guest.now));
    }
    assert!(guest.device.engine.deferred.len() <= 64, "{}", guest.device.engine.deferred.len());
    for index in 0..16 {
        guest.write(reg::REPLY_FIFO, (REPLIES + index * REPLY_SIZE) as u32);
    }
    for _ in 0..64 {
        guest.now = guest.now.after(std::time::Duration::from_millis(2));
        guest.device.on_completions(guest.now);
        guest.replies();
    }
    guest.write(reg::INT_MASK, int::DOORBELL);
    guest.clear_unit_attention(&[0]);
    guest.check_io();
}

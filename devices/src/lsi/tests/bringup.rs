//! From power-on to operational, and the properties that the controller reports.

use super::*;

pub(super) fn config(action: u8, kind: u8, number: u8, address: u32) -> ConfigRequest {
    let mut request = ConfigRequest::new_zeroed();
    request.action = action;
    request.function = function::CONFIG;
    request.header.page_type = kind;
    request.header.number = number;
    request.page_address = address.into();
    request.msg_context = 0x000f_0001.into();
    request
}

pub(super) fn ask(guest: &mut Guest, request: &ConfigRequest, list: &[u8]) -> ConfigReply {
    guest.post(request.as_bytes(), list);
    guest.serve();
    let replies = guest.replies();
    assert_eq!(replies.len(), 1);
    let reply: ConfigReply = replies[0].frame();
    assert_eq!(reply.msg_context, request.msg_context);
    assert_eq!(reply.msg_length, 6);
    reply
}

#[test]
fn facts_are_such_that_drivers_accept_them() {
    let mut guest = Guest::powered(64);
    assert_eq!(guest.read(reg::DOORBELL), (IocState::Ready as u32) << 28);
    let facts = guest.handshake(&[u32::from(function::IOC_FACTS) << 24, 0, 0x1234]);
    let facts = IocFactsReply::read_from_bytes(&facts).unwrap();
    assert_eq!(facts.msg_length, 20);
    assert_eq!(facts.msg_context.get(), 0x1234);
    assert_ne!(facts.block_size, 0);
    assert!(facts.max_chain_depth >= 14);
    assert!(facts.request_frame_size.get() >= 32);
    assert_eq!(facts.global_credits.get(), 64, "one for each task");
    assert!(facts.product_id.get() >> 8 & 0xf <= 3, "not RAID firmware");
    assert_eq!(facts.max_devices, 16);
    assert_eq!(facts.number_of_ports, 1);
    let port = guest.handshake(&[u32::from(function::PORT_FACTS) << 24, 0, 0]);
    let port = PortFactsReply::read_from_bytes(&port).unwrap();
    assert_eq!((port.port_type, port.max_devices.get(), port.port_scsi_id.get()), (1, 16, 7));
    assert_eq!(port.protocol_flags.get() & 8, 8);
    let none = guest.handshake(&[u32::from(function::PORT_FACTS) << 24, 1 << 16, 0]);
    assert_eq!(none[0x0e..0x10], ioc_status::INVALID_FIELD.to_le_bytes());
    assert_eq!(PortFactsReply::read_from_bytes(&none).unwrap().port_number, 1, "the one that was requested");
}

#[test]
fn events_are_switched_with_the_context_that_they_will_carry() {
    let mut guest = Guest::powered(64);
    guest.bring_up(4);
    let reply = guest.handshake(&[u32::from(function::EVENT_NOTIFICATION) << 24 | 1, 0, 0x000f_0000]);
    assert_eq!(reply.len(), 28);
    let facts = guest.handshake(&[u32::from(function::IOC_FACTS) << 24, 0, 0]);
    assert_eq!(IocFactsReply::read_from_bytes(&facts).unwrap().event_state, 1);
}

#[test]
fn pages_come_as_long_as_their_header_says() {
    let mut guest = Guest::new();
    let header = ask(&mut guest, &config(config_action::PAGE_HEADER, 3, 0, 0), &simple(0, u64::MAX));
    assert_eq!(header.ioc_status.get(), 0);
    let len = u32::from(header.header.length) * 4;
    guest.fill(PAGE, 64, 0x77);
    let page = ask(&mut guest, &config(config_action::READ_CURRENT, 3, 0, 0), &simple(len, PAGE));
    assert_eq!(page.header, header.header);
    let bytes = guest.bytes(PAGE, 64);
    assert_eq!(bytes[4..8], 0x207f_0807u32.to_le_bytes());
    assert_eq!(bytes[len as usize..], guest.fill(PAGE, 64, 0x77)[len as usize..], "nothing beyond");
    // A page is not written beyond a shorter buffer.
    ask(&mut guest, &config(config_action::READ_CURRENT, 3, 0, 0), &simple(6, PAGE));
    assert_eq!(guest.bytes(PAGE, 64)[6..], guest.fill(PAGE, 64, 0x77)[6..]);
}

#[test]
fn pages_that_are_not_there_have_a_status() {
    let mut guest = Guest::new();
    for (action, kind, number, address, status) in [
        (config_action::PAGE_HEADER, 3, 9, 0, ioc_status::CONFIG_INVALID_PAGE),
        (config_action::PAGE_HEADER, 0xf, 0, 0, ioc_status::CONFIG_INVALID_TYPE),
        (config_action::PAGE_HEADER, 4, 0, 16, ioc_status::CONFIG_INVALID_PAGE),
        (9, 3, 0, 0, ioc_status::CONFIG_INVALID_ACTION),
    ] {
        let reply = ask(&mut guest, &config(action, kind, number, address), &simple(0, u64::MAX));
        assert_eq!(reply.ioc_status.get(), status, "{action} {kind}.{number} {address}");
        assert_eq!(reply.header.page_type & 0xf, kind, "the type is echoed");
    }
    let outside = ask(&mut guest, &config(config_action::READ_CURRENT, 3, 0, 0), &simple(12, 2 * MIB - 4));
    assert_eq!(outside.ioc_status.get(), ioc_status::INVALID_SGL);
    guest.check_io();
}

#[test]
fn handshakes_cut_short_or_too_long_do_no_harm() {
    let mut guest = Guest::powered(64);
    // A request that is announced and not completed.
    guest.begin(&[1, 2, 3]);
    for dwords in [0u32, 33, 255] {
        guest.hard_reset();
        guest.write(reg::DOORBELL, u32::from(doorbell_fn::HANDSHAKE) << 24 | dwords << 16);
        assert_eq!(guest.read(reg::DOORBELL) & doorbell::USED, 0, "{dwords}");
    }
    // A message that is too short for its function.
    for dwords in 1..3usize {
        let reply = guest.handshake(&vec![u32::from(function::IOC_INIT) << 24; dwords]);
        assert_eq!(reply[0x0e..0x10], ioc_status::INVALID_FIELD.to_le_bytes());
    }
    let reply = guest.handshake(&[0x7f00_0000, 0, 0]);
    assert_eq!(reply[0x0e..0x10], ioc_status::INVALID_STATE.to_le_bytes());
    guest.bring_up(16);
    let reply = guest.handshake(&[0x7f00_0000, 0, 0]);
    assert_eq!(reply[0x0e..0x10], ioc_status::INVALID_FUNCTION.to_le_bytes());
    let again = guest.handshake(&[u32::from(function::IOC_INIT) << 24 | 4, 0, 0, 128, 0, 0]);
    assert_eq!(again[0x0e..0x10], ioc_status::INVALID_STATE.to_le_bytes());
}

/// SeaBIOS (`src/hw/mpt-scsi.c`) enables no port, acknowledges a whole reply at once, and provides one short frame.
#[test]
fn firmware_can_boot_from_it() {
    const FRAME: u64 = 4;
    let mut guest = Guest::powered(64);
    guest.write(reg::DOORBELL, u32::from(doorbell_fn::MESSAGE_UNIT_RESET) << 24);
    guest.write(reg::INT_STATUS, 0);
    guest.write(reg::DOORBELL, u32::from(doorbell_fn::HANDSHAKE) << 24 | 6 << 16);
    for dword in [u32::from(function::IOC_INIT) << 24 | 2, 0, 0, FRAME as u32, 0, 0] {
        guest.write(reg::DOORBELL, dword);
    }
    let reply = [(); 10].map(|()| guest.read(reg::DOORBELL) as u16);
    assert_eq!((reply[0], reply[7]), (2, ioc_status::SUCCESS), "{reply:x?}");
    guest.write(reg::INT_STATUS, 0);
    assert_eq!(guest.read(reg::DOORBELL) & doorbell::USED, 0);
    assert_eq!(guest.state(), IocState::Operational as u32);
    let before = guest.fill(REPLIES, 128, 0x77);
    guest.write(reg::REPLY_FIFO, REPLIES as u32);
    // The unit attention of a new disk.
    let request = guest.scsi(&[0; 6], 0, 0);
    guest.post(request.as_bytes(), &[]);
    guest.serve();
    assert_eq!(guest.read(reg::REPLY_FIFO), 1 << 31 | REPLIES as u32 >> 1);
    assert_eq!(
        guest.bytes(REPLIES, 128)[FRAME as usize..],
        before[FRAME as usize..],
        "nothing beyond the frame"
    );
    guest.check_io();
}

#[test]
fn the_diagnostic_register_is_locked() {
    let mut guest = Guest::new();
    guest.write(reg::HOST_DIAGNOSTIC, diag::RESET_ADAPTER);
    assert_eq!(guest.state(), IocState::Operational as u32);
    // One wrong key.
    for key in [4, 0xb, 2, 8, 7, 0xd] {
        guest.write(reg::WRITE_SEQUENCE, key);
    }
    assert_eq!(guest.read(reg::HOST_DIAGNOSTIC) & diag::DRWE, 0);
    guest.hard_reset();
    guest.bring_up(16);
}

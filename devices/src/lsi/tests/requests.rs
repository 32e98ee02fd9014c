//! SCSI I/O: data, statuses, replies, faults.

use super::*;
use crate::device::AccessKind;
use crate::testing::attach_nameless;

#[test]
fn interrupts_follow_the_reply_fifo() {
    let mut guest = Guest::new();
    assert!(!guest.counts.line());
    let read = guest.transfer(false, 0, 1);
    guest.post(read.as_bytes(), &simple(512, DATA));
    guest.serve();
    assert!(guest.counts.line());
    assert_eq!(guest.read(reg::INT_STATUS) & int::REPLY, int::REPLY);
    guest.write(reg::INT_MASK, int::DOORBELL | int::REPLY);
    assert!(!guest.counts.line(), "masked");
    guest.write(reg::INT_MASK, int::DOORBELL);
    assert!(guest.counts.line());
    assert_eq!(guest.read(reg::REPLY_FIFO), read.msg_context.get());
    assert!(!guest.counts.line(), "falls with the last reply");
    assert_eq!(guest.read(reg::REPLY_FIFO), FIFO_EMPTY);
}

#[test]
fn the_read_that_empties_the_fifo_lowers_the_line_where_it_is_made() {
    let mut guest = Guest::new();
    let read = |guest: &mut Guest, offset| {
        assert_eq!(guest.device.access_kind(1, offset, None), AccessKind::Register);
        guest.read(offset)
    };
    assert_eq!((read(&mut guest, reg::INT_STATUS), read(&mut guest, reg::INT_MASK)), (0, int::DOORBELL));
    for _ in 0..2 {
        for block in 0..2 {
            let request = guest.transfer(false, block, 1);
            guest.post(request.as_bytes(), &simple(512, DATA));
        }
        guest.serve();
        for last in [false, true] {
            assert!(guest.counts.line());
            assert_ne!(read(&mut guest, reg::REPLY_FIFO), FIFO_EMPTY);
            assert_eq!(guest.counts.line(), !last);
        }
        assert_eq!(read(&mut guest, reg::REPLY_FIFO), FIFO_EMPTY);
        let mut status = [0; 2];
        guest.device.config_read(6, &mut status);
        assert_eq!(status[0] & 1 << 3, 0, "interrupt status");
    }
}

#[test]
fn messages_are_sent_where_they_are_enabled() {
    let mut guest = Guest::new();
    let mut at = [0; 1];
    guest.device.config_read(0x34, &mut at);
    guest.device.config_write(u16::from(at[0]) + 2, &1u16.to_le_bytes());
    guest.counts.messages();
    guest.check_io();
    assert_eq!(guest.counts.messages(), 2);
    assert!(!guest.counts.line());
}

#[test]
fn data_go_through_chains() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 6 * 512, 0x11);
    // Two elements in the frame, two in the first chain segment, two in the second.
    let last_of_segment = sge::TYPE_SIMPLE | sge::LAST_ELEMENT;
    let piece = |flags, n: u64| element(flags, 512, DATA + n * 512);
    let first =
        [piece(sge::TYPE_SIMPLE, 2), piece(last_of_segment, 3), element(sge::TYPE_CHAIN, 24, CHAINS + 0x100)];
    guest.memory.write_slice(&first.concat(), GuestAddress(CHAINS)).unwrap();
    let second = [piece(sge::TYPE_SIMPLE, 4), simple(512, DATA + 5 * 512)];
    guest.memory.write_slice(&second.concat(), GuestAddress(CHAINS + 0x100)).unwrap();
    let next = (24 / 4) << 16 | 36;
    let list =
        [piece(sge::TYPE_SIMPLE, 0), piece(last_of_segment, 1), element(sge::TYPE_CHAIN, next, CHAINS)]
            .concat();
    let mut write = guest.transfer(true, 0, 6);
    write.chain_offset = (0x30 + 24) / 4;
    assert_eq!(guest.run(&write, &list), Taken::Context(write.msg_context.get()));
    let read = guest.transfer(false, 0, 6);
    guest.run(&read, &simple(6 * 512, DATA + 0x4_0000));
    assert_eq!(guest.bytes(DATA + 0x4_0000, 6 * 512), data);
}

#[test]
fn lists_that_lie_are_refused() {
    let mut guest = Guest::new();
    let looping = element(sge::TYPE_CHAIN, 12, CHAINS);
    guest.memory.write_slice(&looping, GuestAddress(CHAINS)).unwrap();
    for (what, list) in [
        ("a loop", looping.clone()),
        ("data outside memory", simple(512, 2 * MIB - 256)),
        ("a chain outside memory", element(sge::TYPE_CHAIN, 12, 2 * MIB)),
        ("a chain longer than any", element(sge::TYPE_CHAIN, 0xfffc, CHAINS)),
        ("too short", simple(511, DATA)),
        ("a transaction element", element(0, 512, DATA)),
        ("no list", vec![0; 80]),
    ] {
        let read = guest.transfer(false, 0, 1);
        let reply = guest.run(&read, &list);
        assert_eq!(reply.status(), ioc_status::INVALID_SGL, "{what}");
        guest.check_io();
    }
}

#[test]
fn what_is_wrong_has_its_status() {
    let mut guest = Guest::new();
    let read = || Guest::powered(1).transfer(false, 0, 1);
    for (what, request, status) in [
        ("bus", ScsiIoRequest { bus: 1, ..read() }, ioc_status::SCSI_INVALID_BUS),
        ("target", ScsiIoRequest { target_id: 16, ..read() }, ioc_status::SCSI_INVALID_TARGETID),
        ("no target", ScsiIoRequest { target_id: 5, ..read() }, ioc_status::SCSI_DEVICE_NOT_THERE),
        ("lun", ScsiIoRequest { lun: [0xff; 8], ..read() }, ioc_status::SCSI_DEVICE_NOT_THERE),
        ("cdb", ScsiIoRequest { cdb_length: 17, ..read() }, ioc_status::INVALID_FIELD),
        ("no cdb", ScsiIoRequest { cdb_length: 0, ..read() }, ioc_status::INVALID_FIELD),
        ("direction", ScsiIoRequest { control: (3 << 24).into(), ..read() }, ioc_status::INVALID_FIELD),
    ] {
        let reply = guest.run(&request, &simple(512, DATA));
        assert_eq!(reply.status(), status, "{what}");
    }
    guest.check_io();
}

#[test]
fn short_and_long_transfers_are_told_apart() {
    let mut guest = Guest::new();
    // INQUIRY returns fewer bytes than the buffer has.
    let inquiry = guest.scsi(&[0x12, 0, 0, 0, 0xff, 0], control::DIRECTION_READ, 255);
    let reply: ScsiIoReply = guest.run(&inquiry, &simple(255, DATA)).frame();
    assert_eq!(reply.ioc_status.get(), ioc_status::SCSI_DATA_UNDERRUN);
    assert_eq!(reply.scsi_status, 0);
    let given = reply.transfer_count.get();
    assert!((36..255).contains(&given), "{given}");
    // READ of two sectors into a buffer of one.
    let mut read = guest.transfer(false, 0, 2);
    read.data_length = 512.into();
    let reply: ScsiIoReply = guest.run(&read, &simple(512, DATA)).frame();
    assert_eq!(reply.ioc_status.get(), ioc_status::SCSI_DATA_OVERRUN);
    assert_eq!(reply.transfer_count.get(), 512);
}

#[test]
fn sense_data_arrive_with_the_status() {
    let mut guest = Guest::new();
    let beyond = guest.transfer(false, 1 << 20, 1);
    let reply: ScsiIoReply = guest.run(&beyond, &simple(512, DATA)).frame();
    assert_eq!(reply.scsi_status, 2);
    assert_eq!(reply.scsi_state, scsi_state::AUTOSENSE_VALID);
    let sense = guest.bytes(SENSE, reply.sense_count.get() as usize);
    assert_eq!((sense[0] & 0x7f, sense[2] & 0xf, sense[12]), (0x70, 5, 0x21));
    // A sense buffer outside of memory.
    let mut beyond = guest.transfer(false, 1 << 20, 1);
    beyond.sense_buffer_low_addr = (2 * MIB as u32).into();
    let reply: ScsiIoReply = guest.run(&beyond, &simple(512, DATA)).frame();
    assert_eq!((reply.scsi_state, reply.sense_count.get()), (scsi_state::AUTOSENSE_FAILED, 0));
}

#[test]
fn replies_wait_for_frames() {
    let mut guest = Guest::powered(64);
    guest.bring_up(0);
    for _ in 0..3 {
        let mut absent = guest.transfer(false, 0, 1);
        absent.target_id = 9;
        guest.post(absent.as_bytes(), &simple(512, DATA));
    }
    guest.serve();
    assert_eq!(guest.replies(), []);
    assert!(matches!(guest.device.before_sleep(guest.now), Sleep::Until(_)));
    for index in 0..3 {
        guest.write(reg::REPLY_FIFO, (REPLIES + index * REPLY_SIZE) as u32);
    }
    guest.device.on_completions(guest.now);
    guest.serve();
    assert_eq!(guest.replies().len(), 3);
}

#[test]
fn a_frame_outside_memory_is_a_fault_until_reset() {
    let mut guest = Guest::new();
    guest.write(reg::REQUEST_FIFO, 0xffff_fff8);
    guest.serve();
    assert_eq!(guest.state(), IocState::Fault as u32);
    assert_eq!(guest.read(reg::DOORBELL) as u16, fault::REQUEST_MESSAGE_PCI_BUS_FAULT);
    let read = guest.transfer(false, 0, 1);
    guest.post(read.as_bytes(), &simple(512, DATA));
    guest.serve();
    assert_eq!(guest.replies(), []);
    guest.hard_reset();
    guest.works_again();
}

#[test]
fn requests_before_init_are_refused() {
    let mut guest = Guest::powered(64);
    guest.write(reg::REPLY_FIFO, REPLIES as u32);
    let read = guest.transfer(false, 0, 1);
    let reply = guest.run(&read, &simple(512, DATA));
    assert_eq!(reply.status(), ioc_status::INVALID_STATE);
}

#[test]
fn more_requests_than_credits_do_no_harm() {
    let mut guest = Guest::new();
    for _ in 0..5000 {
        guest.write(reg::REQUEST_FIFO, FRAMES as u32);
        guest.write(reg::REPLY_FIFO, REPLIES as u32);
    }
    guest.serve();
    guest.hard_reset();
    guest.works_again();
}

/// SeaBIOS has frames on its stack, and time stamps as contexts.
#[test]
fn frames_lie_at_multiples_of_four_and_contexts_are_any_but_addresses() {
    let mut guest = Guest::new();
    let mut read = guest.transfer(false, 0, 1);
    read.msg_context = 0x6cd1_08f1.into();
    let frame = [read.as_bytes(), &simple(512, DATA)].concat();
    let address = FRAMES + 0x104;
    guest.memory.write_slice(&frame, GuestAddress(address)).unwrap();
    for size_hint in 0..4 {
        guest.write(reg::REQUEST_FIFO, address as u32 | size_hint);
        guest.serve();
        assert_eq!(guest.read(reg::REPLY_FIFO), 0x6cd1_08f1);
    }
    read.msg_context = 0x8000_0001.into();
    let reply = guest.run(&read, &simple(512, DATA)).frame::<ScsiIoReply>();
    assert_eq!((reply.msg_context.get(), reply.ioc_status.get()), (0x8000_0001, ioc_status::SUCCESS));
}

/// If reply frames are in memory that is to be unmapped, requests in flight use that memory, whatever their data are.
#[test]
fn reply_frames_are_in_use_while_requests_are_in_flight() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    let start = |guest: &mut Guest| {
        let mut read = guest.transfer(false, 0, 1);
        // In another region than the frames.
        read.sense_buffer_low_addr = (DATA as u32 + 0x8000).into();
        guest.post(read.as_bytes(), &simple(512, DATA));
        guest.device.on_completions(guest.now);
    };
    let last = REPLIES + 15 * REPLY_SIZE;
    let of_frames = last + REPLY_SIZE - 1..last + REPLY_SIZE;
    let uses = |guest: &mut Guest, range: &std::ops::Range<u64>| {
        guest.device.uses_memory(std::slice::from_ref(range), guest.now)
    };
    assert!(!uses(&mut guest, &of_frames), "no request, no reply");
    start(&mut guest);
    assert!(uses(&mut guest, &of_frames));
    assert!(!uses(&mut guest, &(last + REPLY_SIZE..last + REPLY_SIZE + 1)));
    // A guest that keeps sending requests does not keep the memory in use.
    guest.device.refuse_memory(std::slice::from_ref(&of_frames));
    start(&mut guest);
    guest.serve();
    guest.hold.set(false);
    assert!(!uses(&mut guest, &of_frames));
    assert_eq!(guest.replies().len(), 1);
    guest.device.memory_replaced(guest.now);
    guest.serve();
    assert_eq!(guest.replies().len(), 1);
    guest.check_io();
}

#[test]
fn a_disk_that_is_attached_without_a_serial_number_has_one_of_its_place() {
    attach_nameless(&mut Guest::new().device, "lsi", 5, |device, address| device.engine.bus.serial(address));
}

//! CCBs of every kind, valid and invalid.

use super::*;
use crate::scsi::{Identity, LogicalUnit};
use crate::testing::TestDisk;

/// Write a list of pieces (address, length). Returns its address and its length in bytes.
fn list(guest: &Guest, pieces: &[(u64, u32)]) -> (u32, u32) {
    let elements =
        pieces.iter().map(|&(address, len)| SgElement { len: len.into(), address: (address as u32).into() });
    let bytes: Vec<u8> = elements.flat_map(|element| element.as_bytes().to_vec()).collect();
    guest.memory.write_slice(&bytes, GuestAddress(LISTS)).unwrap();
    (LISTS as u32, bytes.len() as u32)
}

fn with_list(guest: &Guest, ccb: Ccb, opcode: u8, pieces: &[(u64, u32)]) -> Ccb {
    let (address, len) = list(guest, pieces);
    Ccb { opcode, data_address: address.into(), data_len: len.into(), ..ccb }
}

#[test]
fn scatter_gather() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 4096, 0x33);
    let write = guest.transfer(true, 100, 8);
    assert_good(&guest.run(&write));
    // Pieces across the border of two regions of memory, an empty piece, and pieces that are no multiple of a sector.
    let pieces = [(MIB - 100, 300), (0x5_0000, 0), (0x6_0001, 3000), (0x7_0000, 796)];
    for opcode in [ccb_opcode::INITIATOR_SG, ccb_opcode::INITIATOR_SG_RESIDUAL] {
        pieces.iter().for_each(|&(address, len)| drop(guest.fill(address, len as usize, 0)));
        let read = with_list(&guest, guest.transfer(false, 100, 8), opcode, &pieces);
        assert_good(&guest.run(&read));
        let read: Vec<u8> =
            pieces.iter().flat_map(|&(address, len)| guest.bytes(address, len as usize)).collect();
        assert_eq!(read, data);
        let write = with_list(&guest, guest.transfer(true, 200, 8), opcode, &pieces);
        assert_good(&guest.run(&write));
    }
    guest.fill(DATA, 4096, 0);
    let read = guest.transfer(false, 200, 8);
    assert_good(&guest.run(&read));
    assert_eq!(guest.bytes(DATA, 4096), data);
}

#[test]
fn a_list_may_have_8192_elements() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 65536, 0x21);
    let pieces: Vec<_> = (0..8192).map(|n| (DATA + n * 8, 8)).collect();
    let write = with_list(&guest, guest.transfer(true, 0, 128), ccb_opcode::INITIATOR_SG, &pieces);
    assert_good(&guest.run(&write));
    guest.fill(DATA, 65536, 0);
    let read = guest.transfer(false, 0, 128);
    assert_good(&guest.run(&read));
    assert_eq!(guest.bytes(DATA, 65536), data);
    let longer: Vec<_> = (0..8193).map(|n| (DATA + n * 8, 8)).collect();
    let write = with_list(&guest, guest.transfer(true, 0, 128), ccb_opcode::INITIATOR_SG, &longer);
    assert_eq!(told(&guest.run(&write)), (completion::ERROR, adapter_status::INVALID_PARAMETER, 0));
}

fn residual(guest: &Guest) -> i32 {
    let last = CCBS + u64::from((guest.ccbs - 1) % 1024) * 64;
    guest.ccb_at(last).data_len.get() as i32
}

#[test]
fn residual_counts() {
    let mut guest = Guest::new();
    let inquiry = [0x12, 0, 0, 0, 36, 0];
    let ask = |guest: &mut Guest, opcode: u8, len: u32| {
        let ccb = Ccb { data_len: len.into(), data_address: (DATA as u32).into(), ..guest.ccb(&inquiry) };
        let ccb = match opcode {
            ccb_opcode::INITIATOR_SG | ccb_opcode::INITIATOR_SG_RESIDUAL => {
                with_list(guest, ccb, opcode, &[(DATA, len)])
            }
            _ => Ccb { opcode, ..ccb },
        };
        (told(&guest.run(&ccb)), residual(guest))
    };
    let good = (completion::GOOD, 0, 0);
    // Without a residual count, a short transfer is no error, and the data length is unchanged.
    assert_eq!(ask(&mut guest, ccb_opcode::INITIATOR, 255), (good, 255));
    assert_eq!(ask(&mut guest, ccb_opcode::INITIATOR_SG, 255), (good, 8));
    for opcode in [ccb_opcode::INITIATOR_RESIDUAL, ccb_opcode::INITIATOR_SG_RESIDUAL] {
        assert_eq!(ask(&mut guest, opcode, 36), (good, 0));
        assert_eq!(ask(&mut guest, opcode, 255), (good, 219));
        let overrun = (completion::ERROR, adapter_status::DATA_OVERRUN, 0);
        assert_eq!(ask(&mut guest, opcode, 30), (overrun, -6));
    }
    let mut read = guest.transfer(false, 0, 2);
    read.data_len = 512.into();
    assert_eq!(told(&guest.run(&read)), (completion::ERROR, adapter_status::DATA_OVERRUN, 0));
    // A request that was not started transfers nothing.
    let absent = Ccb { opcode: ccb_opcode::INITIATOR_RESIDUAL, target: 5, ..guest.transfer(false, 0, 2) };
    assert_eq!(told(&guest.run(&absent)), (completion::ERROR, adapter_status::SELECTION_TIMEOUT, 0));
    assert_eq!(residual(&guest), 1024);
}

#[test]
fn sense_data_come_with_check_condition() {
    let mut guest = Guest::new();
    let beyond = guest.transfer(false, 2048, 1);
    for (sense_len, written) in [(96, 18), (14, 14), (0, 14), (1, 0), (7, 0), (8, 8)] {
        let before = guest.fill(SENSE, 96, 0x66);
        let end = guest.run(&Ccb { sense_len, ..beyond });
        assert_eq!(told(&end), (completion::ERROR, adapter_status::NORMAL, 2));
        let sense = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0];
        assert_eq!(guest.bytes(SENSE, 96), [&sense[..written], &before[written..]].concat(), "{sense_len}");
    }
    let nowhere = Ccb { sense_address: (MEMORY_END as u32).into(), ..beyond };
    assert_eq!(told(&guest.run(&nowhere)), (completion::ERROR, adapter_status::AUTO_SENSE_FAILED, 2));
}

#[test]
fn absent_targets_and_units() {
    let mut guest = Guest::new();
    let inquiry = guest.ccb(&[0x12, 0, 0, 0, 36, 0]);
    let inquiry = Ccb { data_len: 36.into(), data_address: (DATA as u32).into(), ..inquiry };
    for target in [1, 7, 15, 16, 255] {
        let end = guest.run(&Ccb { target, ..inquiry });
        assert_eq!(told(&end), (completion::ERROR, adapter_status::SELECTION_TIMEOUT, 0), "{target}");
    }
    // A target that exists answers for units that do not.
    assert_good(&guest.run(&Ccb { lun: 5, ..inquiry }));
    assert_eq!(guest.bytes(DATA, 1), [0x7f]);
    let ready = Ccb { lun: 5, ..guest.ccb(&[0; 6]) };
    assert_eq!(told(&guest.run(&ready)), (completion::ERROR, 0, 2));
    assert_eq!(guest.bytes(SENSE + 12, 2), [0x25, 0]);
}

#[test]
fn units_of_both_formats() {
    let mut guest = Guest::new();
    let disk = Arc::new(TestDisk::new(MIB, guest.hold.clone()));
    let queue = paradisk_disk_formats::Disk::queue(&*disk, &Default::default()).unwrap();
    let unit = LogicalUnit::new(disk, queue, Identity::default());
    guest.device.hot_plug().unwrap().attach(Address { target: 3, lun: 31 }, unit).unwrap();
    let ready = |lun| Ccb { target: 3, lun, ..guest.ccb(&[0; 6]) };
    let [plain, tagged] = [ready(31), Ccb { control: 0x60, ..ready(31) }];
    let legacy = ready(31 | TAG_ENABLE | 2 << TAG_SHIFT);
    // Power on; and at LUN 0, that there is another unit.
    guest.run(&plain);
    guest.clear_unit_attention(&[3]);
    assert_good(&guest.run(&plain));
    assert_good(&guest.run(&tagged));
    guest.command(opcode::SET_CCB_FORMAT, &[0], 0);
    assert_good(&guest.run(&legacy));
    assert_eq!(guest.command(opcode::INQUIRE_TARGETS, &[], 2), [0b1001, 0]);
}

/// NT gives TEST UNIT READY a buffer.
#[test]
fn a_buffer_of_a_command_without_data_is_left_alone() {
    let mut guest = Guest::new();
    let before = guest.fill(DATA, 2048, 0x12);
    let ready = guest.ccb(&[0; 6]);
    for control in [0, 1 << 3, 2 << 3, 3 << 3] {
        let ready = Ccb { control, data_len: 2048.into(), data_address: (DATA as u32).into(), ..ready };
        assert_good(&guest.run(&ready));
    }
    assert_eq!(guest.bytes(DATA, 2048), before);
}

#[test]
fn directions_are_those_of_the_commands() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 512, 0x44);
    for control in [0, 1 << 3, 2 << 3] {
        let write = Ccb { control, ..guest.transfer(true, 9, 1) };
        assert_good(&guest.run(&write));
        guest.fill(DATA, 512, 0);
        let read = Ccb { control, ..guest.transfer(false, 9, 1) };
        assert_good(&guest.run(&read));
        assert_eq!(guest.bytes(DATA, 512), data);
    }
}

#[test]
fn ccbs_that_make_no_sense() {
    let mut guest = Guest::new();
    let read = guest.transfer(false, 0, 1);
    let error = |status| (completion::ERROR, status, 0);
    for (ccb, status) in [
        (Ccb { opcode: 1, ..read }, adapter_status::INVALID_OPCODE),
        (Ccb { opcode: 0x80, ..read }, adapter_status::INVALID_OPCODE),
        (Ccb { cdb_len: 0, ..read }, adapter_status::INVALID_PARAMETER),
        (Ccb { cdb_len: 16, ..read }, adapter_status::INVALID_PARAMETER),
        (Ccb { opcode: 2, data_len: 12.into(), ..read }, adapter_status::INVALID_PARAMETER),
        (Ccb { opcode: 2, data_len: u32::MAX.into(), ..read }, adapter_status::INVALID_PARAMETER),
        (Ccb { data_address: (MEMORY_END as u32 - 511).into(), ..read }, adapter_status::SOFTWARE_ERROR),
        (Ccb { data_len: u32::MAX.into(), ..read }, adapter_status::SOFTWARE_ERROR),
        (
            Ccb { opcode: 2, data_len: 8.into(), data_address: (MEMORY_END as u32).into(), ..read },
            adapter_status::SOFTWARE_ERROR,
        ),
    ] {
        assert_eq!(told(&guest.run(&ccb)), error(status), "{ccb:?}");
    }
    let endless = with_list(&guest, read, 2, &[(0, MEMORY_END as u32), (0, u32::MAX - 5)]);
    assert_eq!(told(&guest.run(&endless)), error(adapter_status::INVALID_PARAMETER));
    let outside = with_list(&guest, read, 2, &[(DATA, 512), (MEMORY_END, 512)]);
    assert_eq!(told(&guest.run(&outside)), error(adapter_status::SOFTWARE_ERROR));
    guest.check_io();
}

#[test]
fn mailboxes_that_make_no_sense() {
    let mut guest = Guest::new();
    for (ccb, action, end) in [
        (MEMORY_END - 39, action::START, (completion::INVALID_CCB, adapter_status::SOFTWARE_ERROR, 0)),
        (u64::from(u32::MAX), action::START, (completion::INVALID_CCB, adapter_status::SOFTWARE_ERROR, 0)),
        (0x1234_5678, 3, (completion::ERROR, adapter_status::INVALID_ACTION, 0)),
        (CCBS, 0xff, (completion::ERROR, adapter_status::INVALID_ACTION, 0)),
        (CCBS, action::ABORT, (completion::ABORT_NOT_FOUND, adapter_status::NORMAL, 0)),
    ] {
        let before = guest.bytes(CCBS, 64);
        guest.put_mailbox(ccb, action);
        guest.ring();
        guest.serve();
        let ends = guest.incoming();
        assert_eq!(ends.iter().map(told).collect::<Vec<_>>(), [end]);
        assert_eq!(u64::from(ends[0].ccb), ccb);
        assert_eq!(guest.bytes(CCBS, 64), before, "no CCB is touched");
    }
    guest.acknowledge();
    guest.check_io();
}

#[test]
fn a_doorbell_without_mailboxes_is_ignored() {
    let mut guest = Guest::powered(Config::default());
    guest.ring();
    guest.serve();
    assert_eq!((guest.status(), guest.interrupt()), (0x30, 0));
    guest.bring_up();
    guest.clear_unit_attention(&[0]);
    guest.check_io();
}

#[test]
fn mailboxes_outside_memory_are_lost() {
    let mut guest = Guest::new();
    for base in [MEMORY_END as u32, u32::MAX - 3, MEMORY_END as u32 - 12] {
        let [a, b, c, d] = base.to_le_bytes();
        guest.command(opcode::INITIALIZE_EXTENDED_MAILBOX, &[255, a, b, c, d], 0);
        for strict in [0, 1] {
            guest.command(opcode::SET_ROUND_ROBIN, &[strict], 0);
            guest.ring();
            guest.serve();
        }
    }
    // A CCB in memory, whose completion finds no free mailbox.
    guest.memory.write_slice(&[0, 0, 1, 0, 0, 0, 0, 1], GuestAddress(MEMORY_END - 12)).unwrap();
    guest.ring();
    guest.serve();
    guest.bring_up();
    guest.clear_unit_attention(&[0]);
    guest.check_io();
}

#[test]
fn mailboxes_in_turn_and_not() {
    let mut guest = Guest::new();
    guest.count = 5;
    for strict in [1, 0] {
        guest.bring_up();
        guest.command(opcode::SET_ROUND_ROBIN, &[strict], 0);
        guest.clear_unit_attention(&[0]);
        // One doorbell for several mailboxes; in total more CCBs than mailboxes, so that both rings wrap.
        for _ in 0..3 {
            let ready = guest.ccb(&[0; 6]);
            let put: Vec<_> = (0..4).map(|_| guest.put(&ready) as u32).collect();
            guest.ring();
            guest.serve();
            assert_eq!(guest.incoming().iter().map(|end| end.ccb).collect::<Vec<_>>(), put);
            guest.acknowledge();
        }
        // A mailbox that is not the next one.
        let ready = guest.ccb(&[0; 6]);
        guest.out_next = (guest.out_next + 2) % 5;
        guest.put(&ready);
        guest.ring();
        guest.serve();
        assert_eq!(guest.incoming().len(), 1 - usize::from(strict));
        guest.acknowledge();
    }
}

/// The data that a command returns, at most `len` bytes.
#[track_caller]
fn answer(guest: &mut Guest, target: u8, cdb: &[u8], len: u32) -> Vec<u8> {
    guest.fill(DATA, len as usize, 0xee);
    let (data_len, data_address) = (len.into(), (DATA as u32).into());
    let ccb = Ccb { target, data_len, data_address, ..guest.ccb(cdb) };
    assert_good(&guest.run(&ccb));
    guest.bytes(DATA, len as usize)
}

#[test]
fn commands_of_16_bytes_are_not_supported() {
    let mut guest = Guest::new();
    // A disk that was attached at the start, and one that is attached later.
    let (late, unit) = (Address { target: 9, lun: 0 }, unit(&guest.hold));
    guest.device.hot_plug().unwrap().attach(late, unit).unwrap();
    guest.clear_unit_attention(&[9]);
    for target in [0, 9] {
        let mut support =
            |code| answer(&mut guest, target, &[0xa3, 0x0c, 1, code, 0, 0, 0, 0, 0, 2, 0, 0], 2)[1];
        // WRITE SAME (16), READ (16); WRITE SAME (10), READ (12).
        assert_eq!([0x93, 0x88, 0x41, 0xa8].map(&mut support), [1, 1, 3, 3]);
        let page = answer(&mut guest, target, &[0x12, 1, 0xb0, 0, 64, 0], 64);
        assert_eq!(
            (page[5], &page[36..44]),
            (0, &0xffff_u64.to_be_bytes()[..]),
            "COMPARE AND WRITE, WRITE SAME"
        );
        // READ CAPACITY (16), cut to 12 bytes.
        let (data_len, data_address) = (32.into(), (DATA as u32).into());
        let cut =
            Ccb { target, data_len, data_address, ..guest.ccb(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) };
        assert_eq!(told(&guest.run(&cut)), (completion::ERROR, adapter_status::NORMAL, 2));
        assert_eq!(guest.bytes(SENSE, 14)[12], 0x20, "no such command");
    }
}

//! Requests and their answers.

use super::*;

/// INQUIRY with this allocation length.
const fn inquiry(len: u8) -> [u8; 6] {
    [0x12, 0, 0, 0, len, 0]
}

#[test]
fn data_in_any_number_of_pieces() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 4096, 7);
    let pieces = [reads(DATA, 1000), reads(DATA + 1000, 3000), reads(DATA + 4000, 96)];
    assert_good(&guest.run(HERE, &transfer10(true, 0, 8), &pieces), 0);
    let to = DATA + 0x2_0000;
    let pieces = [writes(to, 1), writes(to + 1, 4095)];
    assert_good(&guest.run(HERE, &transfer10(false, 0, 8), &pieces), 0);
    assert_eq!(guest.bytes(to, 4096), data);
}

#[test]
fn header_answer_and_data_are_cut_anywhere() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 512, 3);
    let to = DATA + 0x1_0000;
    for (cut, indirect) in [(1, false), (19, true), (50, false), (11, true)] {
        let write = guest.pieces(1, HERE, &transfer10(true, 5, 1), &[]);
        let (header, answer) = (write[0], write[1]);
        // One piece has the end of the header and the data.
        let (at, rest) = (header.address + u64::from(cut), header.len - cut);
        let tail: Vec<u8> = [guest.bytes(at, rest as usize), data.clone()].concat();
        guest.memory.write_slice(&tail, GuestAddress(to)).unwrap();
        let pieces = [
            reads(header.address, cut),
            reads(to, rest + 512),
            writes(answer.address, cut),
            writes(answer.address + u64::from(cut), answer.len - cut),
        ];
        let head = if indirect { guest.put_indirect(FIRST, &pieces) } else { guest.put(FIRST, &pieces) };
        assert_eq!(guest.run_chain(FIRST, head), 12);
        assert_good(&guest.answered(1), 0);

        // One piece has the end of the response and the data.
        let read = guest.pieces(2, HERE, &transfer10(false, 5, 1), &[]);
        let (header, answer) = (read[0], read[1]);
        let pieces = [header, writes(answer.address, cut), writes(to, answer.len - cut + 512)];
        let head = if indirect { guest.put_indirect(FIRST, &pieces) } else { guest.put(FIRST, &pieces) };
        assert_eq!(guest.run_chain(FIRST, head), 12);
        let answer_end = guest.bytes(to, 12usize.saturating_sub(cut as usize));
        let start = guest.bytes(answer.address, 12.min(cut as usize));
        assert_eq!([start, answer_end].concat(), [0; 12]);
        assert_eq!(guest.bytes(to + u64::from(108 - cut), 512), data);
    }
}

#[test]
fn residuals_and_overruns() {
    let mut guest = Guest::new();
    // A buffer larger than the data, and one of their size.
    assert_good(&guest.run(HERE, &inquiry(96), &[writes(DATA, 512)]), 512 - 74);
    assert_good(&guest.run(HERE, &inquiry(36), &[writes(DATA, 36)]), 0);
    assert_good(&guest.run(HERE, &transfer10(false, 0, 1), &[writes(DATA, 1024)]), 512);
    assert_good(&guest.run(HERE, &transfer10(true, 0, 1), &[reads(DATA, 4096)]), 3584);
    // A buffer that is smaller than the data.
    for (cdb, data) in [
        (&inquiry(36)[..], &[writes(DATA, 35)][..]),
        (&inquiry(36), &[]),
        (&transfer10(false, 0, 2), &[writes(DATA, 512)]),
        (&transfer10(true, 0, 2), &[reads(DATA, 512)]),
        // Data in the wrong direction.
        (&transfer10(false, 0, 1), &[reads(DATA, 512)]),
        (&transfer10(true, 0, 1), &[writes(DATA, 512)]),
        (&inquiry(36), &[reads(DATA, 512)]),
    ] {
        assert_response(&guest.run(HERE, cdb, data), Response::Overrun);
    }
    guest.check_io();
}

#[test]
fn sense_data_are_part_of_the_answer() {
    let mut guest = Guest::new();
    let answered = guest.run(HERE, &transfer10(false, 2048, 1), &[writes(DATA, 512)]);
    assert_eq!((answered.response, answered.status, answered.residual), (0, 2, 512));
    assert_eq!((answered.sense.len(), answered.sense[0], answered.sense[2]), (18, 0x70, 5));
    assert_eq!(answered.sense[12..14], [0x21, 0]);
}

#[test]
fn addresses_without_units() {
    let mut guest = Guest::new();
    let nobody = guest.run(Address { target: 1, lun: 0 }, &inquiry(36), &[writes(DATA, 36)]);
    assert_eq!((nobody.response, nobody.residual), (Response::BadTarget as u8, 36));
    // A target without this unit answers itself.
    let other = Address { target: 3, lun: 300 };
    assert_good(&guest.run(other, &inquiry(36), &[writes(DATA, 36)]), 0);
    assert_eq!(guest.bytes(DATA, 1), [0x7f]);
    let refused = guest.run(other, TEST_UNIT_READY, &[]);
    assert_eq!((refused.response, refused.status, refused.sense[12]), (0, 2, 0x25));
    // Targets beyond the last, and addresses of other kinds.
    for lun in [[1, 64, 0, 0, 0, 0, 0, 0], [0; 8], [1, 0, 0, 0, 0, 1, 0, 0], [1, 0, 0xc0, 0, 0, 0, 0, 0]] {
        let pieces = [guest.header(0, lun, 0, TEST_UNIT_READY), guest.answer(0)];
        let head = guest.put(FIRST, &pieces);
        guest.run_chain(FIRST, head);
        assert_response(&guest.answered(0), Response::BadTarget);
    }
}

#[test]
fn the_well_known_unit_knows_all_others() {
    let mut guest = Guest::new();
    let mut run = |cdb: &[u8], len: u32| {
        let pieces = [guest.header(0, lun::REPORT_LUNS, 0, cdb), guest.answer(0), writes(DATA, len)];
        let head = guest.put(FIRST, &pieces);
        guest.run_chain(FIRST, head);
        (guest.answered(0), guest.bytes(DATA, 64))
    };
    let report = |select| [0xa0, 0, select, 0, 0, 0, 0, 0, 0, 64, 0, 0];
    let (here, there) = ([1, 0, 0, 0, 0, 0, 0, 0], [1, 3, 0, 7, 0, 0, 0, 0]);
    for (select, luns) in
        [(0, &[here, there][..]), (1, &[lun::REPORT_LUNS]), (2, &[lun::REPORT_LUNS, here, there])]
    {
        let (answered, data) = run(&report(select), 64);
        let len = 8 * luns.len();
        assert_good(&answered, 56 - len as u32);
        assert_eq!(data[..4], (len as u32).to_be_bytes());
        assert_eq!(data[8..8 + len], luns.concat());
    }
    let (answered, data) = run(&inquiry(36), 36);
    assert_good(&answered, 0);
    assert_eq!(data[0], 0x1e);
    assert_good(&run(TEST_UNIT_READY, 1).0, 1);
    assert_good(&run(&[3, 0, 0, 0, 18, 0], 18).0, 0);
    for cdb in [&transfer10(false, 0, 1)[..], &report(3), &[0xee]] {
        let (answered, _) = run(cdb, 512);
        assert_eq!((answered.response, answered.status, answered.sense[2]), (0, 2, 5));
    }
}

#[test]
fn the_guest_says_how_long_sense_data_and_commands_are() {
    let mut guest = Guest::new();
    let sizes = |guest: &mut Guest| [SENSE_SIZE, CDB_SIZE].map(|at| guest.read(DEVICE_CFG + at, 4));
    assert_eq!(sizes(&mut guest), [96, 32]);
    guest.write(DEVICE_CFG + SENSE_SIZE, 4, 5);
    guest.write(DEVICE_CFG + CDB_SIZE, 4, 255);
    // Sizes above the limits, and accesses of other widths.
    guest.write(DEVICE_CFG + SENSE_SIZE, 4, 0x1_0000);
    guest.write(DEVICE_CFG + CDB_SIZE, 4, 256);
    guest.write(DEVICE_CFG + SENSE_SIZE, 1, 7);
    assert_eq!(sizes(&mut guest), [5, 255]);
    let mut pieces = guest.pieces(0, HERE, &transfer10(false, 4096, 1), &[]);
    pieces[0].len = 19 + 255;
    pieces[1].len = 12 + 5 + 512;
    let head = guest.put(FIRST, &pieces);
    assert_eq!(guest.run_chain(FIRST, head), 17);
    let answered = guest.answered(0);
    assert_eq!((answered.status, answered.residual, answered.sense), (2, 512, vec![0x70, 0, 5, 0, 0]));

    // No space for sense data, and the shortest CDBs.
    guest.write(DEVICE_CFG + SENSE_SIZE, 4, 0);
    guest.write(DEVICE_CFG + CDB_SIZE, 4, 10);
    let data = guest.fill(DATA, 512, 9);
    let mut pieces = guest.pieces(0, HERE, &transfer10(true, 1, 1), &[reads(DATA, 512)]);
    pieces[0].len = 19 + 10;
    pieces[2].len = 12;
    let head = guest.put(FIRST, &pieces);
    guest.run_chain(FIRST, head);
    assert_good(&guest.answered(0), 0);
    for cdb_size in [0, 1, 5, 9] {
        guest.write(DEVICE_CFG + CDB_SIZE, 4, cdb_size);
        pieces[0].len = 19 + cdb_size as u32;
        let head = guest.put(FIRST, &pieces);
        guest.run_chain(FIRST, head);
        assert_eq!(guest.answered(0).status, 2, "{cdb_size}");
    }

    // A reset restores the default sizes.
    guest.bring_up(ALL, 64);
    assert_eq!(sizes(&mut guest), [96, 32]);
    guest.clear_unit_attention();
    assert_good(&guest.run(HERE, &transfer10(false, 1, 1), &[writes(DATA + 512, 512)]), 0);
    assert_eq!(guest.bytes(DATA + 512, 512), data);
}

#[test]
fn ordered_requests_wait_for_each_other() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    guest.start(FIRST, 1, HERE, false);
    for (n, attribute) in [(2, VIRTIO_SCSI_S_ORDERED), (3, 0), (4, VIRTIO_SCSI_S_HEAD)] {
        let pieces = [
            guest.header(n, lun::lun(HERE), attribute, &transfer10(false, 0, 1)),
            guest.answer(n),
            writes(DATA + 512 * n, 512),
        ];
        guest.put(FIRST, &pieces);
        guest.kick(FIRST);
    }
    assert_eq!(guest.in_flight(), 4);
    guest.hold.set(false);
    let mut order = Vec::new();
    for _ in 0..4 {
        guest.device.on_completions(guest.now);
        for (head, _) in guest.completions(FIRST) {
            order.push(head);
        }
    }
    // Two chains before, then the four of three descriptors each: HEAD OF QUEUE passes ORDERED.
    let heads: Vec<u32> = (0..4).map(|n| 4 + 3 * n).collect();
    assert_eq!(order, [heads[0], heads[3], heads[1], heads[2]]);
}

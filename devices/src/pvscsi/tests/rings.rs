//! Rings: sizes, addresses, indices that wrap or are invalid, and completions that find the ring full.

use super::*;
use crate::device::{HotPlug, Sleep};

#[test]
fn ring_sizes_are_powers_of_two_up_to_32_pages() {
    let mut guest = Guest::powered(Config::default());
    for pages in [1, 2, 4, 8, 16, 32] {
        guest.pages = pages;
        assert_eq!(guest.set_up(), COMMAND_SUCCEEDED);
        assert_eq!(guest.state(offset_of!(RingsState, req_num_entries_log2)), (pages * 32).ilog2());
        assert_eq!(guest.state(offset_of!(RingsState, cmp_num_entries_log2)), (pages * 128).ilog2());
        guest.clear_unit_attention(&[0]);
        guest.check_io();
    }
    for pages in [0, 3, 31, 33, 64, u32::MAX] {
        for (requests, completions) in [(pages, 1), (1, pages)] {
            let mut setup = setup_rings(1);
            setup.req_ring_num_pages = requests.into();
            setup.cmp_ring_num_pages = completions.into();
            assert_eq!(
                guest.command(command::SETUP_RINGS, setup.as_bytes()),
                COMMAND_FAILED,
                "{pages} pages"
            );
            // Without rings, a kick finds nothing.
            guest.kick();
        }
    }
    guest.pages = 1;
    guest.set_up();
    guest.check_io();
}

#[test]
fn message_ring_sizes_are_powers_of_two_up_to_16_pages() {
    let mut guest = Guest::new();
    let mut setup = CmdDescSetupMsgRing::new_zeroed();
    for page in 0..16 {
        setup.ring_ppns[page] = (COMPLETIONS / 4096 + page as u64).into();
    }
    for pages in [0, 3, 17, 32, u32::MAX] {
        setup.num_pages = pages.into();
        assert_eq!(guest.command(command::SETUP_MSG_RING, setup.as_bytes()), COMMAND_FAILED);
    }
    setup.num_pages = 16.into();
    assert_eq!(guest.command(command::SETUP_MSG_RING, setup.as_bytes()), COMMAND_SUCCEEDED);
    assert_eq!(guest.state(offset_of!(RingsState, msg_num_entries_log2)), 9);
    // A page outside memory; and before SETUP_RINGS, when the command has no effect.
    setup.ring_ppns[15] = (MEMORY_END / 4096).into();
    assert_eq!(guest.command(command::SETUP_MSG_RING, setup.as_bytes()), COMMAND_FAILED);
    guest.command(command::ADAPTER_RESET, &[]);
    assert_eq!(guest.command(command::SETUP_MSG_RING, setup.as_bytes()), COMMAND_SUCCEEDED);
}

#[test]
fn pages_outside_memory_are_refused() {
    let mut guest = Guest::new();
    for page in [MEMORY_END / 4096, 1 << 40, (1 << 52) - 1, 1 << 52, u64::MAX] {
        for place in 0..3 {
            let mut setup = setup_rings(2);
            match place {
                0 => setup.rings_state_ppn = page.into(),
                1 => setup.req_ring_ppns[1] = page.into(),
                _ => setup.cmp_ring_ppns[1] = page.into(),
            }
            assert_eq!(guest.command(command::SETUP_RINGS, setup.as_bytes()), COMMAND_FAILED, "{page:#x}");
        }
    }
    guest.set_up();
    guest.check_io();
}

#[test]
fn all_rings_in_the_last_page_of_memory() {
    let mut guest = Guest::new();
    let mut setup = setup_rings(1);
    // The same page for everything is invalid, but the adapter accesses nothing outside it.
    let last = MEMORY_END / 4096 - 1;
    setup.rings_state_ppn = last.into();
    setup.req_ring_ppns[0] = last.into();
    setup.cmp_ring_ppns[0] = last.into();
    assert_eq!(guest.command(command::SETUP_RINGS, setup.as_bytes()), COMMAND_SUCCEEDED);
    guest.memory.write_obj(32u32, GuestAddress(last * 4096)).unwrap();
    guest.kick();
    // The same page for the request ring alone, whose last entry ends with memory.
    let mut setup = setup_rings(1);
    setup.req_ring_ppns[0] = last.into();
    guest.set_up();
    assert_eq!(guest.command(command::SETUP_RINGS, setup.as_bytes()), COMMAND_SUCCEEDED);
    let request = guest.transfer(false, 0, 1);
    for slot in 0..32 {
        guest.memory.write_slice(request.as_bytes(), GuestAddress(last * 4096 + slot * 128)).unwrap();
    }
    guest.set_state(0, 32);
    guest.kick();
    assert_eq!(guest.completions().len(), 32);
}

#[test]
fn indices_wrap() {
    let mut guest = Guest::new();
    let start = u32::MAX - 40;
    guest.set_up();
    for offset in [
        offset_of!(RingsState, req_prod_idx),
        offset_of!(RingsState, req_cons_idx),
        offset_of!(RingsState, cmp_prod_idx),
        offset_of!(RingsState, cmp_cons_idx),
    ] {
        guest.set_state(offset, start);
    }
    let setup = setup_rings(1);
    assert_eq!(guest.command(command::SETUP_RINGS, setup.as_bytes()), COMMAND_SUCCEEDED);
    (guest.req_prod, guest.cmp_cons) = (start, start);
    for sector in 0..200 {
        let request = guest.transfer(sector % 2 == 0, sector, 1);
        assert_good(&guest.run(&request), 512);
    }
    assert_eq!(guest.state(offset_of!(RingsState, req_cons_idx)), start.wrapping_add(200));
}

#[test]
fn a_producer_index_that_jumps_is_ignored() {
    let mut guest = Guest::new();
    let before = guest.device.stats().requests;
    for jump in [33, 1000, 1 << 31, u32::MAX] {
        guest.set_state(offset_of!(RingsState, req_prod_idx), guest.req_prod.wrapping_add(jump));
        guest.kick();
        guest.device.on_completions(guest.now);
    }
    assert_eq!(guest.device.stats().requests, before);
    guest.check_io();
}

#[test]
fn a_full_request_ring_is_taken_whole() {
    for pages in [1, 32] {
        let mut guest = Guest::up(pages, Config::default());
        for round in 0..3 {
            for n in 0..pages * 32 {
                let request = guest.transfer(false, (n + round) % 2000, 1);
                guest.put(&request);
            }
            guest.kick();
            guest.serve();
            let completions = guest.completions();
            assert_eq!(completions.len(), pages as usize * 32);
            completions.iter().for_each(|completion| assert_good(completion, 512));
        }
    }
}

#[test]
fn more_requests_than_tasks_wait_in_the_ring_of_a_single_unit() {
    let mut guest = Guest::up(1, Config { tasks: 5, ..Config::default() });
    guest.device.detach(Address { target: 3, lun: 0 }, guest.now);
    guest.hold.set(true);
    for n in 0..32 {
        let request = guest.transfer(false, n, 1);
        guest.put(&request);
    }
    guest.kick();
    assert_eq!(guest.device.engine.in_flight.count(), 5);
    assert_eq!(guest.state(offset_of!(RingsState, req_cons_idx)), guest.req_prod - 27);
    // The device sleeps until the disk has completed one.
    guest.serve();
    guest.hold.set(false);
    guest.serve();
    assert_eq!(guest.completions().len(), 32);
}

/// A guest that keeps putting requests in, and reads no completions.
#[test]
fn unread_completions_are_never_overwritten() {
    let mut guest = Guest::new();
    let first = guest.cmp_cons;
    let mut put = 0;
    // The completion ring holds 128; 32 more are taken before it is full, and 32 stay in the request ring.
    for _ in 0..6 {
        for _ in 0..32 {
            let mut request = guest.transfer(false, put, 1);
            request.context = u64::from(put).into();
            guest.put(&request);
            put += 1;
        }
        guest.kick();
    }
    let posted = guest.state(offset_of!(RingsState, cmp_prod_idx)).wrapping_sub(first);
    assert_eq!(posted, 128);
    // The device retries, and returns a deadline for that.
    assert!(matches!(guest.device.before_sleep(guest.now), Sleep::Until(at) if at > guest.now));
    let mut contexts = Vec::new();
    for _ in 0..10 {
        contexts.extend(guest.completions().iter().map(|completion| completion.context.get()));
        guest.device.on_completions(guest.now);
    }
    assert_eq!(contexts, (0..u64::from(put)).collect::<Vec<_>>());
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
}

#[test]
fn a_consumer_index_that_jumps_stops_completions_until_it_is_sane() {
    let mut guest = Guest::new();
    let sane = guest.cmp_cons;
    // The index is beyond the producer's. The ring has free slots by the last valid index, so these are filled first.
    for n in 0..5 {
        for _ in 0..32 {
            let request = guest.transfer(false, n, 1);
            guest.put(&request);
        }
        guest.set_state(offset_of!(RingsState, cmp_cons_idx), sane.wrapping_add(100_000));
        guest.kick();
    }
    assert!(guest.state(offset_of!(RingsState, cmp_prod_idx)).wrapping_sub(sane) <= 128);
    guest.set_state(offset_of!(RingsState, cmp_cons_idx), sane);
    let mut count = 0;
    for _ in 0..3 {
        count += guest.completions().len();
        guest.device.on_completions(guest.now);
    }
    assert_eq!(count, 160);
}

//! Commands: the configuration page, aborts and resets with requests in flight, hot-plug.

use std::thread;
use std::time::Instant;

use super::*;
use crate::device::{HotPlug, Sleep};
use crate::fault::{NOTHING_IN_FLIGHT, expected};
use crate::testing::Breach;

fn in_flight(guest: &mut Guest, targets: &[u8]) {
    guest.hold.set(true);
    for &target in targets {
        let mut request = guest.transfer(false, 0, 1);
        request.target = target;
        request.context = (0x100 + u64::from(target)).into();
        guest.put(&request);
    }
    guest.kick();
    assert_eq!(guest.completions().len(), 0);
}

fn outcome(completions: &[RingCmpDesc]) -> Vec<(u64, u16)> {
    let mut all: Vec<_> = completions.iter().map(|end| (end.context.get(), end.host_status.get())).collect();
    all.sort_unstable();
    all
}

const RESET: u16 = HostStatus::BusReset as u16;
const ABORTED: u16 = HostStatus::AbortQueue as u16;

#[test]
fn unused_commands_fail() {
    let mut guest = Guest::new();
    for number in [0, command::ISSUE_SCSI, command::DEVICE_UNPLUG, 11, u32::MAX] {
        assert_eq!(guest.command(number, &[0; 16]), COMMAND_FAILED);
    }
    assert_eq!(guest.command(command::SETUP_MSG_RING, &[]), 34);
    guest.check_io();
}

#[test]
fn registers_take_aligned_dwords_only() {
    let mut guest = Guest::new();
    guest.device.bar_write(0, REG_INTR_MASK, &[0], guest.now);
    guest.device.bar_write(0, REG_INTR_MASK, &[0; 8], guest.now);
    guest.device.bar_write(1, REG_INTR_MASK, &[0; 4], guest.now);
    assert_eq!(guest.read(REG_INTR_MASK), 0xf);
    guest.write(REG_INTR_MASK, u32::MAX);
    assert_eq!(guest.read(REG_INTR_MASK), 0xf);
    let mut data = [0xff; 2];
    guest.device.bar_read(0, REG_INTR_MASK, &mut data, guest.now);
    assert_eq!(data, [0; 2]);
    for offset in [0x100, 0x10c, 0x5000, 0x7ffc, 0x8000, u64::MAX] {
        guest.write(offset, u32::MAX);
        assert_eq!(guest.read(offset), 0, "{offset:#x}");
    }
    guest.check_io();
}

#[test]
fn the_controller_page_tells_the_number_of_targets() {
    let mut guest = Guest::powered(Config { targets: 40, ..Config::default() });
    let mut config = CmdDescConfigCmd::new_zeroed();
    config.cmp_addr = DATA.into();
    config.page_address = (CONFIG_CONTROLLER_ADDRESS << 32).into();
    config.page_num = CONFIG_PAGE_CONTROLLER.into();
    guest.fill(DATA, 512, 0xaa);
    assert_eq!(guest.command(command::CONFIG, config.as_bytes()), COMMAND_SUCCEEDED);
    let page = ConfigPageController::read_from_bytes(&guest.bytes(DATA, 480)).unwrap();
    assert_eq!((page.host_status.get(), page.scsi_status.get()), (0, 0));
    assert_eq!((page.page_num.get(), page.num_dwords.get(), page.num_phys.get()), (0x1958, 116, 40));
    assert!(page.manufacturer.starts_with(b"paradisk\0"), "{:?}", page.manufacturer);
    // Commands for other pages, object kinds and invalid buffers write nothing.
    let before = guest.fill(DATA, 512, 0xaa);
    for change in 0..3 {
        let mut config = config;
        match change {
            0 => config.page_num = 0x1959.into(),
            1 => config.page_address = (0x2121 << 32).into(),
            _ => config.cmp_addr = (MEMORY_END - 100).into(),
        }
        assert_eq!(guest.command(command::CONFIG, config.as_bytes()), COMMAND_FAILED);
    }
    assert_eq!(guest.bytes(DATA, 512), before);
}

/// Linux reads the page right after its last write, and then frees it.
#[test]
fn no_page_is_written_for_a_driver_that_has_looked_already() {
    let mut guest = Guest::powered(Config::default());
    let mut config = CmdDescConfigCmd::new_zeroed();
    config.cmp_addr = DATA.into();
    config.page_address = (CONFIG_CONTROLLER_ADDRESS << 32).into();
    config.page_num = CONFIG_PAGE_CONTROLLER.into();
    let before = guest.fill(DATA, 512, 0xaa);
    guest.device.on_posted_writes();
    assert_eq!(guest.command(command::CONFIG, config.as_bytes()), COMMAND_FAILED);
    assert_eq!(guest.bytes(DATA, 512), before);
    guest.device.reset(guest.now);
    guest.device.config_write(4, &6u16.to_le_bytes());
    assert_eq!(guest.command(command::CONFIG, config.as_bytes()), COMMAND_SUCCEEDED);
}

#[test]
fn a_request_in_flight_is_aborted() {
    let mut guest = Guest::new();
    in_flight(&mut guest, &[0, 3]);
    let mut abort = CmdDescAbortCmd::new_zeroed();
    // The context of a request of another target, and a context of no request.
    for (context, target) in [(0x100, 3), (0x999, 0), (0x100, u32::MAX)] {
        abort.context = context.into();
        abort.target = target.into();
        guest.command(command::ABORT_CMD, abort.as_bytes());
    }
    abort.context = 0x103.into();
    abort.target = 3.into();
    assert_eq!(guest.command(command::ABORT_CMD, abort.as_bytes()), COMMAND_SUCCEEDED);
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    assert_eq!(outcome(&guest.completions()), [(0x100, 0), (0x103, ABORTED)]);
    guest.check_io();
}

/// Linux does not kick before ABORT_CMD.
#[test]
fn a_request_still_in_the_ring_is_aborted() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    let mut request = guest.transfer(false, 0, 1);
    request.context = 77.into();
    guest.put(&request);
    let mut abort = CmdDescAbortCmd::new_zeroed();
    abort.context = 77.into();
    guest.command(command::ABORT_CMD, abort.as_bytes());
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    assert_eq!(outcome(&guest.completions()), [(77, ABORTED)]);
}

/// A reset does not wait for a completion that never comes.
#[test]
fn a_reset_does_not_wait_for_what_a_queue_has_lost() {
    expected::begin();
    let mut guest = Guest::new();
    guest.device.reset_wait = Duration::from_secs(600);
    in_flight(&mut guest, &[0]);
    guest.hold.breach(Breach::Lose);
    guest.hold.set(false);
    let start = Instant::now();
    assert_eq!(guest.command(command::RESET_BUS, &[]), COMMAND_SUCCEEDED);
    assert!(start.elapsed() < guest.device.reset_wait);
    assert_eq!(
        outcome(&guest.completions()).iter().map(|(context, _)| *context).collect::<Vec<_>>(),
        [0x100]
    );
    assert_eq!(expected::take(), [NOTHING_IN_FLIGHT]);
}

#[test]
fn resets_end_requests_before_the_register_write_returns() {
    let mut guest = Guest::new();
    guest.device.reset_wait = Duration::from_secs(600);
    // The disk completes its requests shortly after the command was written.
    let let_go = |guest: &Guest| {
        let hold = guest.hold.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            hold.set(false);
        })
    };
    in_flight(&mut guest, &[0, 3]);
    let _ = let_go(&guest);
    let mut reset = CmdDescResetDevice::new_zeroed();
    reset.target = 3.into();
    assert_eq!(guest.command(command::RESET_DEVICE, reset.as_bytes()), COMMAND_SUCCEEDED);
    assert!(outcome(&guest.completions()).contains(&(0x103, RESET)));
    guest.command(command::RESET_BUS, &[]);
    guest.completions();
    guest.clear_unit_attention(&[0, 3]);
    in_flight(&mut guest, &[0, 3]);
    let _ = let_go(&guest);
    // A request without a kick.
    let mut request = guest.transfer(false, 0, 1);
    request.context = 5.into();
    guest.put(&request);
    assert_eq!(guest.command(command::RESET_BUS, &[]), COMMAND_SUCCEEDED);
    assert_eq!(outcome(&guest.completions()), [(5, RESET), (0x100, RESET), (0x103, RESET)]);
    // Invalid addresses.
    reset.target = 64.into();
    assert_eq!(guest.command(command::RESET_DEVICE, reset.as_bytes()), COMMAND_FAILED);
    reset.target = u32::MAX.into();
    assert_eq!(guest.command(command::RESET_DEVICE, reset.as_bytes()), COMMAND_FAILED);
    reset.target = 0.into();
    reset.lun = [9; 8];
    assert_eq!(guest.command(command::RESET_DEVICE, reset.as_bytes()), COMMAND_FAILED);
    guest.hold.set(false);
    guest.clear_unit_attention(&[0, 3]);
    guest.check_io();
}

#[test]
fn nothing_is_written_after_an_adapter_reset() {
    for power_on in [false, true] {
        let mut guest = Guest::new();
        in_flight(&mut guest, &[0, 3, 0]);
        if power_on {
            guest.device.reset(guest.now);
        } else {
            guest.command(command::ADAPTER_RESET, &[]);
        }
        guest.writes_nothing(|guest| {
            guest.hold.set(false);
            guest.device.on_completions(guest.now);
            guest.kick();
            guest.device.quiesce(guest.now);
        });
        assert_eq!((guest.read(REG_INTR_STATUS), guest.read(REG_INTR_MASK)), (0, 0));
        // The driver initializes the adapter again.
        guest.device.config_write(4, &6u16.to_le_bytes());
        guest.set_up();
        guest.write(REG_INTR_MASK, 0xf);
        guest.clear_unit_attention(&[0, 3]);
        guest.check_io();
    }
}

#[test]
fn quiesce_shows_what_was_in_flight() {
    let mut guest = Guest::new();
    in_flight(&mut guest, &[0, 3, 0]);
    guest.device.quiesce(guest.now);
    assert_eq!(guest.completions().len(), 3);
    guest.hold.set(false);
    guest.check_io();
}

#[test]
fn without_bus_mastering_memory_is_left_alone() {
    let mut guest = Guest::new();
    in_flight(&mut guest, &[0]);
    guest.device.config_write(4, &2u16.to_le_bytes());
    guest.writes_nothing(|guest| {
        guest.hold.set(false);
        guest.kick();
        guest.device.on_completions(guest.now);
    });
    let setup = setup_rings(1);
    guest.device.config_write(4, &6u16.to_le_bytes());
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions().len(), 1);
    guest.device.config_write(4, &2u16.to_le_bytes());
    assert_eq!(guest.command(command::SETUP_RINGS, setup.as_bytes()), COMMAND_FAILED);
}

#[test]
fn devices_come_and_go_at_run_time() {
    let mut guest = Guest::new();
    let mut setup = CmdDescSetupMsgRing::new_zeroed();
    setup.num_pages = 1.into();
    setup.ring_ppns[0] = (MESSAGES / 4096).into();
    assert_eq!(guest.command(command::SETUP_MSG_RING, setup.as_bytes()), COMMAND_SUCCEEDED);
    let at = |target| Address { target, lun: 0 };
    guest.write(REG_INTR_STATUS, 0xf);
    let hold = guest.hold.clone();
    guest.device.attach(at(9), unit(&hold)).unwrap();
    assert!(guest.device.attach(at(9), unit(&hold)).is_err());
    assert!(guest.line());
    assert_eq!(guest.read(REG_INTR_STATUS), Interrupts::MSG_0.bits());
    let message = |guest: &Guest, index: u64| {
        let mut bytes = [0; 128];
        guest.memory.read_slice(&mut bytes, GuestAddress(MESSAGES + index * 128)).unwrap();
        let message = RingMsgDesc::read_from_bytes(&bytes).unwrap();
        (message.kind.get(), message.target.get(), message.lun)
    };
    assert_eq!(guest.state(offset_of!(RingsState, msg_prod_idx)), 1);
    assert_eq!(message(&guest, 0), (MSG_DEV_ADDED, 9, [0; 8]));
    // A detach ends the requests of the unit.
    guest.clear_unit_attention(&[9]);
    in_flight(&mut guest, &[9]);
    assert!(guest.device.detach(at(9), guest.now));
    assert!(!guest.device.detach(at(9), guest.now));
    assert_eq!(message(&guest, 1), (MSG_DEV_REMOVED, 9, [0; 8]));
    assert!(guest.completions().is_empty());
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    assert_eq!(outcome(&guest.completions()), [(0x109, RESET)]);
    let mut request = guest.transfer(false, 0, 1);
    request.target = 9;
    assert_eq!(guest.host_status(&request), HostStatus::SelectionTimeout as u16);
    // A ring that is not read fills up and keeps its entries; the remaining messages follow when slots are free.
    for _ in 0..20 {
        guest.device.attach(Address { target: 9, lun: 0x102 }, unit(&hold)).unwrap();
        guest.device.detach(Address { target: 9, lun: 0x102 }, guest.now);
    }
    assert_eq!(guest.state(offset_of!(RingsState, msg_prod_idx)), 32);
    assert!(matches!(guest.device.before_sleep(guest.now), Sleep::Until(_)));
    guest.device.config_write(4, &2u16.to_le_bytes());
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever, "nothing can be done without memory");
    guest.device.config_write(4, &6u16.to_le_bytes());
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No);
    assert_eq!(message(&guest, 0), (MSG_DEV_ADDED, 9, [0; 8]));
    assert_eq!(message(&guest, 2), (MSG_DEV_ADDED, 9, [0x41, 2, 0, 0, 0, 0, 0, 0]));
    guest.set_state(offset_of!(RingsState, msg_cons_idx), 32);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.state(offset_of!(RingsState, msg_prod_idx)), 42);
    guest.check_io();
}

/// The guest only scans the targets that the configuration page reports.
#[test]
fn a_disk_goes_where_the_guest_can_find_it() {
    let mut guest = Guest::up(1, Config { targets: 9, ..Config::default() });
    let at = |target| Address { target, lun: 0 };
    let hold = guest.hold.clone();
    assert_eq!(guest.device.attach(at(9), unit(&hold)), Err(crate::scsi::AttachError::Target(at(9))));
    guest.device.attach(at(8), unit(&hold)).unwrap();
}

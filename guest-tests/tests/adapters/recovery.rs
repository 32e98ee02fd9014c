//! Aborts and resets with requests in flight, and what commands of other kinds answer.

use guest_driver::adapter::{Adapter, Buffer, Completion, Op};
use guest_driver::scsi::{Cdb, Sense};
use guest_driver::{Initiator as _, Platform, Pvscsi, pvscsi};
use guest_tests::{Harness, HarnessConfig};

use crate::common::{DiskSpec, any_adapter, collect, harness, nothing_comes_after, ring, submit, warm_up};

const CAPACITY: u64 = 16 << 20;
const BLOCK: usize = 4096;
/// Host status: bus reset, aborted.
const ENDED: [u32; 2] = [0x25 << 8, 0x26 << 8];

fn every_disk() -> Vec<Harness> {
    let make = |spec| harness(&HarnessConfig::default(), pvscsi::Options::default(), &[spec]);
    DiskSpec::all(CAPACITY).into_iter().map(make).collect()
}

#[test]
fn an_abort_completes_its_request_and_no_other() {
    for mut harness in every_disk() {
        warm_up(&mut harness);
        let (machine, driver) = harness.parts();
        let buffers = machine.dma(8 * BLOCK, BLOCK).unwrap();
        for fetched in [false, true] {
            submit(machine, driver, Op::Write, &buffers, 8);
            if fetched {
                ring(machine, 0);
            }
            driver.abort(machine, 5, 0);
            // Of a tag that is not in flight.
            driver.abort(machine, 100, 0);
            for (tag, Completion { status, .. }) in collect(machine, driver, 8) {
                let aborted = tag == 5 && ENDED.contains(&status);
                assert!(status == 0 || aborted, "tag {tag}: status {status:#x}, fetched before: {fetched}");
            }
        }
        warm_up(&mut harness);
    }
}

#[test]
fn device_and_bus_resets_have_completed_everything_when_they_return() {
    for mut harness in every_disk() {
        for bus in [false, true] {
            for fetched in [false, true] {
                warm_up(&mut harness);
                let (machine, driver) = harness.parts();
                let buffers = machine.dma(32 * BLOCK, BLOCK).unwrap();
                submit(machine, driver, Op::Write, &buffers, 32);
                if fetched {
                    ring(machine, 0);
                }
                if bus {
                    driver.reset_bus(machine);
                } else {
                    driver.reset_device(machine, 0);
                }
                let mut seen = [false; 32];
                // Without waiting: it is the register write that completes them.
                while let Some(end) = driver.poll(machine) {
                    assert!(end.status == 0 || ENDED.contains(&end.status), "status {:#x}", end.status);
                    assert!(!std::mem::replace(&mut seen[end.tag as usize], true), "completed twice");
                }
                assert_eq!(seen, [true; 32], "bus: {bus}, fetched before: {fetched}");
            }
        }
        warm_up(&mut harness);
    }
}

#[test]
fn nothing_is_written_to_memory_after_an_adapter_reset() {
    for mut harness in every_disk() {
        for fetched in [false, true] {
            nothing_comes_after(
                &mut harness,
                |machine| {
                    if fetched {
                        ring(machine, 0)
                    }
                },
                |machine, driver| driver.reset_adapter(machine).unwrap(),
            );
        }
        warm_up(&mut harness);
    }
}

#[test]
fn a_driver_can_be_shut_down_and_started_again() {
    let mut harness =
        harness(&HarnessConfig::default(), pvscsi::Options::default(), &[DiskSpec::Ram(CAPACITY)]);
    for ring_pages in [8, 32, 1] {
        warm_up(&mut harness);
        let (machine, driver) = harness.parts();
        driver.shut_down(machine);
        *driver = Pvscsi::start(machine, pvscsi::Options { ring_pages, ..Default::default() }).unwrap();
    }
    warm_up(&mut harness);
}

#[test]
fn commands_of_every_length_and_those_that_fail() {
    let mut harness =
        harness(&HarnessConfig::default(), pvscsi::Options::default(), &[DiskSpec::Ram(CAPACITY)]);
    warm_up(&mut harness);
    let (machine, driver) = harness.parts();
    let memory = machine.dma(BLOCK, BLOCK).unwrap();
    let data = Buffer::contiguous(memory.address(), 512);
    for (write, read) in [
        (Cdb::transfer6(true, 9, 1), Cdb::transfer6(false, 9, 1)),
        (Cdb::transfer10(true, 10, 1), Cdb::transfer10(false, 10, 1)),
        (Cdb::transfer16(true, 11, 1), Cdb::transfer16(false, 11, 1)),
    ] {
        let mark = u64::from(write.len()) << 32 | 0x1234;
        memory.write(504, mark);
        assert_eq!(driver.execute(machine, 0, &write, &data, true).unwrap().completion.status, 0);
        memory.write(504, 0u64);
        let end = driver.execute(machine, 0, &read, &data, false).unwrap().completion;
        assert_eq!((end.status, end.transferred, memory.read::<u64>(504)), (0, 512, mark), "{read:?}");
    }
    let end = driver.execute(machine, 0, &Cdb::transfer10(false, u32::MAX, 1), &data, false).unwrap();
    assert_eq!(
        driver.sense(&end),
        Some(Sense { key: 5, asc: 0x21, ascq: 0 }),
        "logical block address out of range"
    );
    let no_target = pvscsi::spec::BTSTAT_SELTIMEO << 8;
    let moved = any_adapter::commands_of_other_kinds(&mut harness, &[1, 15, 63, 64, 255], no_target);
    assert!((36..512).contains(&moved), "a short answer is no error: {moved} bytes");
}

//! What a reset of the device, of one queue, or of the driver leaves behind: the same for virtio-blk and virtio-scsi.

use guest_driver::adapter::Op;
use guest_driver::driver::Start;
use guest_driver::virtio::Options;
use guest_driver::workload::Fault;
use guest_driver::{InterruptMode, Platform, VirtioBlk, VirtioScsi};
use guest_tests::{Harness, Machine};

use super::{DiskSpec, collect, nothing_comes_after, ring, submit, warm_up};

const CAPACITY: u64 = 16 << 20;
const BLOCK: usize = 4096;

/// The driver of a virtio device.
pub(crate) trait Driver: Start<Options = Options> {
    /// The first queue for data.
    const FIRST_QUEUE: usize;
    fn reset_queue(&mut self, machine: &mut Machine, index: u16) -> Result<(), Fault>;
    fn shut_down(&mut self, machine: &mut Machine) -> Result<(), Fault>;
}

impl Driver for VirtioBlk {
    const FIRST_QUEUE: usize = 0;

    fn reset_queue(&mut self, machine: &mut Machine, index: u16) -> Result<(), Fault> {
        Self::reset_queue(self, machine, index)
    }

    fn shut_down(&mut self, machine: &mut Machine) -> Result<(), Fault> {
        Self::shut_down(self, machine)
    }
}

impl Driver for VirtioScsi {
    const FIRST_QUEUE: usize = 2;

    fn reset_queue(&mut self, machine: &mut Machine, index: u16) -> Result<(), Fault> {
        Self::reset_queue(self, machine, index)
    }

    fn shut_down(&mut self, machine: &mut Machine) -> Result<(), Fault> {
        Self::shut_down(self, machine)
    }
}

pub(crate) fn nothing_is_written_to_memory_after_a_reset<D: Driver>(
    make: impl Fn(Options, DiskSpec) -> Harness<D>,
) {
    for spec in DiskSpec::all(CAPACITY) {
        for (queues, fetched) in [(1, false), (1, true), (3, true)] {
            let mut harness = make(Options { queues, ..Options::default() }, spec);
            nothing_comes_after(
                &mut harness,
                |machine| {
                    if fetched {
                        ring(machine, D::FIRST_QUEUE)
                    }
                },
                |machine, driver| driver.reset(machine).unwrap(),
            );
            warm_up(&mut harness);
        }
    }
}

/// One queue is reset with requests in flight on all; the others' requests complete.
pub(crate) fn a_queue_is_reset_alone<D: Driver>(make: impl Fn(Options, DiskSpec) -> Harness<D>) {
    const QUEUES: u32 = 3;
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options { queues: QUEUES as u16, ..Options::default() }, spec);
        warm_up(&mut harness);
        let (machine, driver) = harness.parts();
        let buffers = machine.dma(63 * BLOCK, BLOCK).unwrap();
        for fetched in [false, true] {
            submit(machine, driver, Op::Read, &buffers, 63);
            if fetched {
                ring(machine, D::FIRST_QUEUE);
            }
            driver.reset_queue(machine, 1).unwrap();
            for (tag, end) in collect(machine, driver, 42) {
                assert_ne!(tag % QUEUES, 1, "its request is gone");
                assert_eq!((end.status, end.transferred), (0, BLOCK as u64));
            }
        }
        warm_up(&mut harness);
    }
}

pub(crate) fn a_driver_can_be_shut_down_and_started_again<D: Driver>(
    make: impl Fn(Options, DiskSpec) -> Harness<D>,
) {
    let mut harness = make(Options { queues: 4, ..Options::default() }, DiskSpec::Ram(CAPACITY));
    for (queues, queue_size, interrupts) in
        [(1, 8, InterruptMode::Intx), (4, 1024, InterruptMode::MsiX), (2, 64, InterruptMode::Intx)]
    {
        warm_up(&mut harness);
        let (machine, driver) = harness.parts();
        driver.shut_down(machine).unwrap();
        let options = Options { queues, queue_size, interrupts, ..Options::default() };
        *driver = D::start(machine, options).unwrap();
        warm_up(&mut harness);
        let (machine, driver) = harness.parts();
        machine.reset();
        *driver = D::start(machine, options).unwrap();
    }
    warm_up(&mut harness);
}

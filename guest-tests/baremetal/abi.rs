//! What the bare-metal guest and its host agree on: addresses, the control page, and the job that they share.

use guest_driver::lsi::Model;
use guest_driver::{
    InterruptMode, KickPolicy, Layout, Report, Workload, buslogic, driver, ide, lsi, pvscsi, virtio, vmbus,
};

/// The image's first byte, which is its first instruction too.
pub const IMAGE: u64 = 0x10_0000;
/// The [`Job`], in low memory below the image.
pub const JOB: u64 = 0x8_0000;
/// The control page, in the machine's space for user registers.
pub const CONTROL_PHYSICAL: u64 = 0xf000_0000;
/// Where the guest sees it: low, so that one instruction without a register reaches it.
pub const CONTROL: u64 = 0x2000;
/// Where the guest sees its local APIC.
pub const LOCAL_APIC: u64 = 0x1000;
/// Configuration space of the device in slot 1, by ECAM.
pub const FUNCTION: u64 = 0xe000_8000;
/// The same for configuration mechanism 1.
pub const FUNCTION_MECHANISM1: u32 = 0x8000_0800;
/// I/O APIC pin of the INTx line of slot 1.
pub const INTX_PIN: u32 = 17;

/// Registers of the control page, 8 bytes each, all of them written by the guest.
pub mod control {
    /// The last job is done: the write returns when there is another.
    pub const DONE: u64 = 0x00;
    /// The guest's code panicked: address of the message.
    pub const PANIC_MESSAGE: u64 = 0x08;
    /// Its length; ends the guest.
    pub const PANIC_LEN: u64 = 0x10;
    /// An exception: its error code.
    pub const FAULT_ERROR: u64 = 0x18;
    /// Its instruction pointer.
    pub const FAULT_RIP: u64 = 0x20;
    /// The address that a page fault was about.
    pub const FAULT_CR2: u64 = 0x28;
    /// Its vector; ends the guest.
    pub const FAULT_VECTOR: u64 = 0x30;
    /// Bytes of the page.
    pub const SIZE: u64 = 0x1000;
}

/// What a [`Job`] asks for.
pub mod task {
    /// Bring the driver up with [`Job::options`](super::Job::options); a fault is in the report.
    pub const BRING_UP: u32 = 0;
    /// Run the workload.
    pub const RUN: u32 = 1;
    /// Compare `argument[0]` dwords of configuration space by both mechanisms; `result`: differences, first dword.
    pub const CONFIG: u32 = 2;
    /// Ring the doorbell at offset `argument[1]` of BAR 0 and sleep until an interrupt came, `argument[0]` times.
    /// `result`: ticks for all, fewest, most, interrupts.
    pub const PING: u32 = 3;
    /// Write the register at offset `argument[1]` of BAR 0, `argument[0]` times. `result`: ticks.
    pub const WRITE: u32 = 4;
    /// The same, reading. `result`: ticks, last value.
    pub const READ: u32 = 5;
    /// Sleep until `argument[0]` interrupts came, and write the counter's low 32 bits to the register at offset
    /// `argument[1]` of BAR 0 after each.
    pub const WAKE: u32 = 6;
    /// Never end.
    pub const SPIN: u32 = 7;
    /// Read the byte at address `argument[0]`.
    pub const TOUCH: u32 = 8;
    /// Panic.
    pub const PANIC: u32 = 9;
    /// An instruction that does not exist.
    pub const UNDEFINED: u32 = 10;
    /// Have vector 0 sent to this processor by the test device, whose registers at offsets `argument[0]` and
    /// `argument[1]` of BAR 0 take the message's address and data.
    pub const ROUTE: u32 = 11;
    /// Move BAR 0 to address `argument[0]`.
    pub const MOVE: u32 = 12;
}

/// What the host wants done and what came of it. The guest owns it from the write of `DONE` on returning to the next.
#[repr(C)]
pub struct Job {
    /// One of [`task`].
    pub task: u32,
    /// Padding.
    pub reserved: u32,
    /// End of RAM below 4 GiB.
    pub memory_end: u64,
    /// Ticks without a completion after which the driver gives up.
    pub timeout: u64,
    /// By task.
    pub argument: [u64; 2],
    /// By task.
    pub result: [u64; 4],
    /// How the driver is to be brought up.
    pub options: Options,
    /// What the load generator is to do.
    pub workload: Workload,
    /// What it did.
    pub report: Report,
}

/// [`driver::Options`] with a layout of its own.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Options {
    adapter: u32,
    interrupts: u32,
    layout: u32,
    /// By adapter.
    other: [u32; 4],
}

const PVSCSI: u32 = 0;
const LSI_1030: u32 = 1;
const LSI_SAS1068: u32 = 2;
const VIRTIO_BLK: u32 = 3;
const VIRTIO_SCSI: u32 = 4;
const STORVSC: u32 = 5;
const IDE: u32 = 6;
const BUSLOGIC: u32 = 8;

impl Options {
    /// For the guest.
    pub const fn new(options: &driver::Options) -> Self {
        let (adapter, interrupts, layout, other) = match options {
            driver::Options::Pvscsi(options) => {
                let kick = kick(options.kick);
                let other = [options.ring_pages, options.message_pages, kick, options.threshold as u32];
                (PVSCSI, options.interrupts, options.layout, other)
            }
            driver::Options::Lsi(options) => {
                let adapter = match options.model {
                    Model::Spi1030 => LSI_1030,
                    Model::Sas1068 => LSI_SAS1068,
                };
                (adapter, options.interrupts, options.layout, [options.wide as u32, 0, 0, 0])
            }
            driver::Options::Ide(options) => {
                (IDE, InterruptMode::Intx, options.layout, [options.dma as u32, 0, 0, 0])
            }
            driver::Options::BusLogic(options) => {
                let other = [options.mailboxes as u32, 0, kick(options.kick), options.residual as u32];
                (BUSLOGIC, InterruptMode::Intx, options.layout, other)
            }
            driver::Options::VirtioBlk(options) => virtio(VIRTIO_BLK, options),
            driver::Options::VirtioScsi(options) => virtio(VIRTIO_SCSI, options),
            driver::Options::Storvsc(options) => {
                let other = [options.ring_pages, options.slots, kick(options.kick), 0];
                (STORVSC, InterruptMode::Msi, options.layout, other)
            }
        };
        Self {
            adapter,
            interrupts: match interrupts {
                InterruptMode::MsiX => 0,
                InterruptMode::Msi => 1,
                InterruptMode::Intx => 2,
            },
            layout: match layout {
                Layout::Contiguous => 0,
                Layout::Scattered => 1,
            },
            other,
        }
    }

    /// For the driver.
    pub const fn get(&self) -> driver::Options {
        let interrupts = match self.interrupts {
            0 => InterruptMode::MsiX,
            1 => InterruptMode::Msi,
            _ => InterruptMode::Intx,
        };
        let layout = if self.layout == 0 { Layout::Contiguous } else { Layout::Scattered };
        let [first, second, third, fourth] = self.other;
        let kick = if third == 0 { KickPolicy::PerRequest } else { KickPolicy::PerBatch };
        match self.adapter {
            PVSCSI => driver::Options::Pvscsi(pvscsi::Options {
                ring_pages: first,
                message_pages: second,
                interrupts,
                kick,
                threshold: fourth != 0,
                layout,
            }),
            STORVSC => {
                driver::Options::Storvsc(vmbus::Options { ring_pages: first, slots: second, kick, layout })
            }
            BUSLOGIC => driver::Options::BusLogic(buslogic::Options {
                mailboxes: first as u8,
                kick,
                layout,
                residual: fourth != 0,
            }),
            VIRTIO_BLK | VIRTIO_SCSI => {
                let options = virtio::Options {
                    queues: first as u16,
                    queue_size: second as u16,
                    interrupts,
                    kick,
                    event_index: fourth & 1 != 0,
                    indirect: fourth & 2 != 0,
                    layout,
                };
                match self.adapter {
                    VIRTIO_BLK => driver::Options::VirtioBlk(options),
                    _ => driver::Options::VirtioScsi(options),
                }
            }
            IDE => driver::Options::Ide(ide::Options { dma: first != 0, layout }),
            LSI_1030 | LSI_SAS1068 => driver::Options::Lsi(lsi::Options {
                model: if self.adapter == LSI_1030 { Model::Spi1030 } else { Model::Sas1068 },
                interrupts,
                layout,
                wide: first != 0,
            }),
            _ => panic!("no such adapter"),
        }
    }
}

const fn virtio(adapter: u32, options: &virtio::Options) -> (u32, InterruptMode, Layout, [u32; 4]) {
    let flags = options.event_index as u32 | (options.indirect as u32) << 1;
    let other = [options.queues as u32, options.queue_size as u32, kick(options.kick), flags];
    (adapter, options.interrupts, options.layout, other)
}

const fn kick(policy: KickPolicy) -> u32 {
    match policy {
        KickPolicy::PerRequest => 0,
        KickPolicy::PerBatch => 1,
    }
}

//! The IDE function of Intel's PIIX4 with up to four ATA disks, for any driver from the PC/AT's to Linux's `ata_piix`.
//!
//! There are two channels of two drives each. A channel executes one command at a time. Data are transferred by programmed I/O or by the
//! bus master; the latter is DMA between disk and guest memory without a copy. Every command interrupts, and the driver waits for that, so
//! there is nothing to coalesce: interrupt moderation ([`set_coalescing`](crate::IoDevice::set_coalescing)) is accepted and has no effect.
//! ATA disks cannot be attached or change their capacity while the machine runs: a drive reports the capacity that its disk had at the last
//! power-on.
//!
//! ```text
//!   ports --> device --> Channel (channel) --> Drive (drive): command, taskfile, settings, port, identify, trim, search
//!                           |                    |
//!                        Engine (engine)      Medium (medium): the disk's queue
//! ```
//!
//! - `spec`: registers, commands and structures,
//! - `taskfile`: the registers that hold a command's parameters,
//! - `command`: parses a command code and these registers,
//! - `drive`: executes a command; `search`: finds the first unreadable sector; `work`: the state of the command,
//! - `settings`: the drive's state that the guest can change,
//! - `identify`: IDENTIFY DEVICE and SMART data; `trim`: ranges to discard,
//! - `port`: the data port; `engine`: the bus master,
//! - `medium`: the disk behind a drive, one request at a time,
//! - `channel`: two drives, and the channel's interrupt,
//! - `device`: configuration space, ports, and the contract with the owner.
//!
//! Guarantees to the guest:
//! - FLUSH CACHE completes when the disk has flushed. With the write cache off (SET FEATURES 82h), a write completes when it is on stable
//!   storage.
//! - After the bus master was stopped, or BSY has become 0 after a software reset, no earlier command accesses guest memory. A stop waits
//!   for the disk, but only for a request that uses guest memory.
//! - An unreadable sector is reported with the address of the first such sector, and all sectors before it have been transferred. READ
//!   MULTIPLE reports the first sector of the block instead.
//!
//! Guarantee to the owner: a call makes a bounded number of disk requests, however long the command is.

mod channel;
mod command;
mod device;
mod drive;
mod engine;
mod identify;
mod medium;
mod port;
mod search;
mod settings;
pub mod spec;
mod taskfile;
mod trim;
mod work;

use std::sync::Arc;

use paradisk_disk_formats::{Disk, DiskQueue};
use vm_memory::GuestAddressSpace;

use self::channel::Channel;
use self::drive::Drive;
use self::medium::Medium;
use crate::device::BarKind;
use crate::dma::Dma;
use crate::interrupt::InterruptSink;
use crate::moderation::Coalescing;
use crate::pci::{Function, Identity, LayoutError};

/// Maximum number of drives: primary master, primary slave, secondary master, secondary slave.
pub const MAX_DRIVES: usize = 4;

/// How the channels are reached (PCI IDE Controller Specification 1.0, 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// At the ports of a PC/AT, 1F0h and 170h, with ISA interrupts 14 and 15. The machine must have these.
    #[default]
    Compatibility,
    /// At the ports in the base address registers, with INTx.
    Native,
}

/// The configuration of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// How the channels are reached.
    pub mode: Mode,
    /// Interrupt moderation. Has no effect: see the module.
    pub coalescing: Coalescing,
}

/// A disk behind a drive.
pub struct IdeDisk {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// A queue of the disk, for one request at a time.
    pub queue: Box<dyn DiskQueue>,
    /// Serial number; only the first 20 characters are reported.
    pub serial: String,
}

/// An IDE function.
pub struct Ide<A: GuestAddressSpace> {
    /// First, so that they are dropped first: requests in flight are waited for while `dma` still keeps their memory.
    channels: [Channel; 2],
    dma: Dma<A>,
    function: Function,
    mode: Mode,
    /// The ISA interrupt lines, in compatibility mode.
    lines: [bool; 2],
    interrupts: u64,
}

impl<A: GuestAddressSpace> Ide<A> {
    /// A function with these disks: primary master, primary slave, secondary master, secondary slave.
    ///
    /// # Errors
    /// None: the layout is constant. [`LayoutError`] is the error of the PCI function's builder.
    pub fn new(
        memory: A,
        disks: [Option<IdeDisk>; MAX_DRIVES],
        interrupts: Box<dyn InterruptSink>,
        config: Config,
    ) -> Result<Self, LayoutError> {
        let drive =
            |IdeDisk { disk, queue, serial }| Drive::new(Medium::new(disk, queue, serial.clone()), serial);
        let [a, b, c, d] = disks.map(|disk| disk.map(drive));
        Ok(Self {
            channels: [Channel::new([a, b]), Channel::new([c, d])],
            dma: Dma::new(memory),
            function: function(interrupts, config.mode)?,
            mode: config.mode,
            lines: [false; 2],
            interrupts: 0,
        })
    }
}

fn function(interrupts: Box<dyn InterruptSink>, mode: Mode) -> Result<Function, LayoutError> {
    let interface = match mode {
        Mode::Compatibility => spec::INTERFACE_COMPATIBILITY,
        Mode::Native => spec::INTERFACE_NATIVE,
    };
    let identity = Identity {
        vendor: spec::PCI_VENDOR_ID_INTEL,
        device: spec::PCI_DEVICE_ID_PIIX4_IDE,
        revision: 1,
        // Mass storage, IDE.
        class: [0x01, 0x01, interface],
        subsystem_vendor: 0,
        subsystem: 0,
    };
    let decode = spec::IDETIM_DECODE.to_le_bytes();
    let mut function = Function::new(&identity, interrupts)
        .with_register(crate::pci::spec::STATUS, &spec::PCI_STATUS.to_le_bytes(), &[0; 2])
        // Timing of the channels has no effect, but must read back as written.
        .with_register(spec::IDETIM, &decode, &[0xff; 2])
        .with_register(spec::IDETIM + 2, &decode, &[0xff; 2])
        .with_register(spec::SIDETIM, &[0], &[0xff])
        .with_register(spec::UDMACTL, &[0], &[0x0f])
        .with_register(spec::UDMATIM, &[0; 2], &[0x33; 2])
        .with_register(spec::IOCFG, &[0; 2], &[0xff; 2]);
    if mode == Mode::Native {
        for channel in 0..2 {
            function = function.with_bar(2 * channel, BarKind::Io, spec::COMMAND_BLOCK_SIZE)?.with_bar(
                2 * channel + 1,
                BarKind::Io,
                spec::CONTROL_BLOCK_SIZE,
            )?;
        }
        function = function.with_intx(1);
    }
    function.with_bar(4, BarKind::Io, spec::BUS_MASTER_SIZE)
}

#[cfg(test)]
mod tests;

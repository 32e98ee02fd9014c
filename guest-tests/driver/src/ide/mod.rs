//! Driver of a PCI IDE function in native or compatibility mode, with ATA disks. It behaves as Linux's `ata_piix` and libata do where a
//! device can see it: reset and probe, one command at a time, four registers read or written for each interrupt.
//! - `ports`: registers of the channels,
//! - `bringup`: reset, probe, IDENTIFY,
//! - `io`: reads, writes and flushes, by the bus master or by the data port.
//!
//! Target 0 is the primary master, 1 the primary slave, 2 and 3 are those of the secondary channel. There is one request in flight.

mod bringup;
mod io;
mod ports;
mod running;
pub mod spec;

pub use bringup::Step;
use ports::Ports;
use running::Running;

use crate::adapter::{Adapter, Completion, Counters, Geometry, Layout, Request};
use crate::platform::{DmaRegion, Platform};
use crate::workload::Fault;

/// Drives at the most.
pub const DRIVES: usize = 4;

/// How the driver sets the function up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Have the bus master move data; else the driver does, by the data port.
    pub dma: bool,
    /// How buffers lie.
    pub layout: Layout,
}

impl Default for Options {
    fn default() -> Self {
        Self { dma: true, layout: Layout::default() }
    }
}

/// What IDENTIFY DEVICE says of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drive {
    /// Size.
    pub geometry: Geometry,
    /// Sectors moved at once by the data port.
    pub multiple: u32,
    /// The write cache is on.
    pub write_cache: bool,
}

/// The driver of one function.
#[derive(Debug)]
pub struct Ide {
    options: Options,
    ports: Ports,
    drives: [Option<Drive>; DRIVES],
    table: DmaRegion,
    running: Option<Running>,
    /// Status and bus master status of the last interrupt.
    seen: Option<(u8, u8)>,
}

impl Ide {
    /// What a drive says; `None`: there is none.
    #[must_use]
    pub fn drive(&self, target: u32) -> Option<Drive> {
        self.drives.get(target as usize).copied().flatten()
    }
}

impl Adapter for Ide {
    fn slots(&self) -> u32 {
        1
    }

    fn layout(&self) -> Layout {
        self.options.layout
    }

    fn geometry<P: Platform>(&mut self, platform: &mut P, target: u32) -> Result<Geometry, Fault> {
        let none = Fault { kind: Fault::STATUS, found: target.into(), ..Fault::EMPTY };
        let before = self.drive(target).ok_or(none)?;
        let drive = self.identify(platform, target).ok_or(none)?;
        // It must not change while the machine runs.
        if drive.geometry != before.geometry {
            return Err(none);
        }
        Ok(drive.geometry)
    }

    fn submit<P: Platform>(&mut self, platform: &mut P, request: &Request) -> bool {
        self.start_request(platform, request)
    }

    fn kick<P: Platform>(&mut self, _platform: &mut P) {}

    fn interrupted<P: Platform>(&mut self, platform: &mut P) {
        self.look(platform);
    }

    /// The status is `status << 8 | error`.
    fn poll<P: Platform>(&mut self, platform: &mut P) -> Option<Completion> {
        self.go_on(platform)
    }

    fn reset<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.restart(platform)
    }

    fn counters(&self) -> Counters {
        self.ports.counters
    }
}

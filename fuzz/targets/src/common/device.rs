//! A PCI function that is called directly: its memory, its interrupts, its owner's calls, and disks that hold requests back or fail them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use paradisk_devices::scsi::Address;
use paradisk_devices::{
    AdapterConfig, AdapterKind, Attachment, Coalescing, InterruptSink, MsiMessage, PciDevice, Policy, Time,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::common::disk::{Behaviour, FuzzDisk};
use crate::common::input::Input;

pub(crate) const MEMORY: u64 = 256 << 10;
/// Requests in flight at the most: few, so that others wait.
const TASKS: u32 = 4;

/// Interrupts are ignored: the input says what the guest does next.
struct NoInterrupts;

impl InterruptSink for NoInterrupts {
    fn route(&mut self, _vector: u16, _message: Option<MsiMessage>) {}
    fn message(&mut self, _vector: u16) {}
    fn line(&mut self, _asserted: bool) {}
    fn isa_line(&mut self, _irq: u8, _asserted: bool) {}
}

pub(crate) struct Guest {
    pub(crate) device: Box<dyn PciDevice>,
    pub(crate) memory: Arc<GuestMemoryMmap>,
    pub(crate) behaviour: Arc<Behaviour>,
    pub(crate) now: Time,
}

impl Guest {
    /// With disks at these targets, enabled in configuration space.
    pub(crate) fn new(kind: AdapterKind, targets: &[u8]) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).expect("memory");
        let (memory, behaviour) = (Arc::new(memory), Arc::<Behaviour>::default());
        let disk = |target: &u8| (*target, Attachment::new(Arc::new(FuzzDisk::new(Arc::clone(&behaviour)))));
        let disks: Vec<_> = targets.iter().map(disk).collect();
        let config = AdapterConfig {
            coalescing: Coalescing::policy(Policy::Batch),
            tasks: TASKS,
            ..AdapterConfig::new(kind)
        };
        let mut device = paradisk_devices::build(memory.clone(), Box::new(NoInterrupts), config, &disks)
            .expect("an adapter");
        device.config_write(4, &[7, 0]);
        Self { device, memory, behaviour, now: Time(0) }
    }

    pub(crate) fn write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        self.device.bar_write(bar, offset, data, self.now);
    }

    pub(crate) fn poke(&self, at: u64, bytes: &[u8]) {
        let len = (bytes.len() as u64).min(MEMORY.saturating_sub(at));
        let _ = self.memory.write_slice(&bytes[..len as usize], GuestAddress(at));
    }

    /// Write to guest memory as many bytes of the input as its next byte says.
    pub(crate) fn poke_from(&self, at: u64, input: &mut Input<'_>) {
        let len = input.u8();
        self.poke(at, input.bytes(len.into()));
    }

    /// Whether disks hold requests back, and how many requests fail, by the bits of a step's code.
    pub(crate) fn behave(&self, code: u8) {
        self.behaviour.hold.store(code & 0x20 != 0, Relaxed);
        self.behaviour.failing.store(code >> 6, Relaxed);
    }

    /// The calls that a device's thread makes when it wakes and before it sleeps.
    pub(crate) fn turn(&mut self) {
        self.device.on_completions(self.now);
        let _ = self.device.before_sleep(self.now);
    }

    /// A call that the owner of any device may make.
    pub(crate) fn own(&mut self, choice: u8) {
        let range = u64::from(choice) << 10..(u64::from(choice) + 4) << 10;
        let ranges = std::slice::from_ref(&range);
        match choice % 8 {
            0 => self.device.reset(self.now),
            1 => self.device.quiesce(self.now),
            2 => self.device.refresh(self.now),
            3 => {
                self.device.refuse_memory(ranges);
                if !self.device.uses_memory(ranges, self.now) {
                    self.device.memory_replaced(self.now);
                }
            }
            4 => self.device.set_coalescing(Coalescing::policy(Policy::OioIops)),
            5 => self.device.on_doorbell(usize::from(choice >> 4), self.now),
            6 => self.plug(choice),
            _ => self.device.config_write(4, &[choice >> 3 & 7, 0]),
        }
    }

    /// Attach a disk at a target, or detach the one that is there.
    pub(crate) fn plug(&mut self, choice: u8) {
        let unit = Attachment::new(Arc::new(FuzzDisk::new(Arc::clone(&self.behaviour)))).unit(TASKS);
        let Some(hot_plug) = self.device.hot_plug() else { return };
        let address = Address { target: choice >> 3 & 7, lun: u16::from(choice >> 6 & 1) };
        if choice & 0x80 != 0 {
            hot_plug.detach(address, self.now);
        } else if let Ok(unit) = unit {
            // Refused where a target is taken, or there is none.
            let _ = hot_plug.attach(address, unit);
        }
    }

    /// Complete the requests in flight, and reset.
    pub(crate) fn end(mut self) {
        self.behaviour.hold.store(false, Relaxed);
        self.device.quiesce(self.now);
        self.device.reset(self.now);
        let stats = self.device.stats();
        assert!(stats.completions <= stats.requests, "{stats:?}");
    }
}

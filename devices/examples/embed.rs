//! PVSCSI with a raw disk in a VMM of one thread: guest memory, an MMIO bus, an event loop, and a guest of a few lines.
//! `docs/embedding.md` walks through it.
//!
//! `cargo run -p paradisk-devices --example embed -- [FILE]` reads from a raw disk, or from one of its own.

use std::error::Error;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use paradisk_devices::event_loop::{EventLoop, Next, Ready};
use paradisk_devices::pvscsi::spec::{
    self, CmdDescSetupRings, RequestFlags, RingCmpDesc, RingReqDesc, RingsState, command,
};
use paradisk_devices::pvscsi::{Config, Pvscsi};
use paradisk_devices::scsi::{Address, Bus, Identity, LogicalUnit};
use paradisk_devices::{InterruptSink, MsiMessage, PciDevice, Time};
use paradisk_disk_formats::{FormatName, OpenOptions, QueueConfig};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::{FromZeros, IntoBytes};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Interrupts: under KVM, an irqfd for each vector and one for the line; here, a count.
struct Interrupts(Arc<AtomicU32>);

impl InterruptSink for Interrupts {
    fn route(&mut self, _vector: u16, _message: Option<MsiMessage>) {}
    fn message(&mut self, _vector: u16) {
        self.0.fetch_add(1, Ordering::Release);
    }
    fn line(&mut self, asserted: bool) {
        self.0.fetch_add(asserted.into(), Ordering::Release);
    }
}

/// The VMM: it knows its device as a PCI function and nothing more.
struct Vmm {
    device: Box<dyn PciDevice>,
    memory: Arc<GuestMemoryMmap>,
    interrupts: Arc<AtomicU32>,
    events: EventLoop,
    start: Instant,
}

impl Vmm {
    fn new(path: &str) -> Result<Self> {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)])?);
        let interrupts = Arc::new(AtomicU32::new(0));
        let disk = OpenOptions { format: Some(FormatName::Raw), ..OpenOptions::new(path) }.open()?;
        let queue = disk.queue(&QueueConfig::default())?;
        let mut bus = Bus::new(Config::default().tasks);
        bus.attach(Address { target: 0, lun: 0 }, LogicalUnit::new(disk, queue, Identity::default()))?;
        let sink = Box::new(Interrupts(interrupts.clone()));
        let device = Box::new(Pvscsi::new(memory.clone(), bus, sink, Config::default())?);
        Ok(Self { device, memory, interrupts, events: EventLoop::new()?, start: Instant::now() })
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    /// A guest's write to a physical address that is not memory. (Under KVM, doorbells are ioeventfds instead.)
    fn mmio_write(&mut self, address: u64, data: &[u8]) {
        let now = self.now();
        for bar in self.device.bars() {
            if let Some(offset) = bar.address.and_then(|base| address.checked_sub(base))
                && offset < bar.size
            {
                self.device.bar_write(bar.index, offset, data, now);
            }
        }
    }

    /// The event loop, up to the next interrupt.
    fn run_until_interrupt(&mut self) -> Result<()> {
        loop {
            self.watch()?;
            let now = self.now();
            self.device.on_completions(now);
            let next = self.events.next(self.device.before_sleep(now), now);
            if self.interrupts.swap(0, Ordering::Acquire) > 0 {
                return Ok(());
            }
            if let Next::Wait(wait) = next {
                self.events.wait(wait, &mut Ready::new())?;
            }
        }
    }

    /// Have the loop wait for the device's completions, which others may signal after an access: a reset, for instance.
    fn watch(&mut self) -> Result<()> {
        let completions = self.device.completion_events();
        if !self.events.completions_are(&completions)? {
            self.events = EventLoop::new()?;
            self.events.add_completions(&completions)?;
        }
        Ok(())
    }
}

const REGISTERS: u64 = 0xfe00_0000;
const STATE: u64 = 0x1000;
const REQUESTS: u64 = 0x2000;
const COMPLETIONS: u64 = 0x3000;
const DATA: u64 = 0x4000;

/// What a guest's driver does to come up: place the registers, enable memory and bus mastering, tell where the rings are.
fn bring_up(vmm: &mut Vmm) {
    vmm.device.config_write(0x10, &(REGISTERS as u32).to_le_bytes());
    vmm.device.config_write(4, &6u16.to_le_bytes());
    let mut setup = CmdDescSetupRings::new_zeroed();
    (setup.req_ring_num_pages, setup.cmp_ring_num_pages) = (1.into(), 1.into());
    setup.rings_state_ppn = (STATE >> 12).into();
    setup.req_ring_ppns[0] = (REQUESTS >> 12).into();
    setup.cmp_ring_ppns[0] = (COMPLETIONS >> 12).into();
    vmm.mmio_write(REGISTERS + spec::REG_COMMAND, &command::SETUP_RINGS.to_le_bytes());
    for dword in setup.as_bytes().chunks_exact(4) {
        vmm.mmio_write(REGISTERS + spec::REG_COMMAND_DATA, dword);
    }
    vmm.mmio_write(REGISTERS + spec::REG_INTR_MASK, &spec::Interrupts::CMPL_0.bits().to_le_bytes());
}

/// One command that reads `len` bytes; returns its SCSI status and what it read.
fn command(vmm: &mut Vmm, index: u32, cdb: &[u8], len: u64) -> Result<(u16, Vec<u8>)> {
    let mut request = RingReqDesc::new_zeroed();
    request.cdb[..cdb.len()].copy_from_slice(cdb);
    request.cdb_len = cdb.len() as u8;
    request.flags = RequestFlags::CMD_DIR_TOHOST.bits().into();
    (request.data_addr, request.data_len) = (DATA.into(), len.into());
    vmm.memory.write_slice(request.as_bytes(), GuestAddress(REQUESTS + u64::from(index) * 128))?;
    vmm.memory.write_obj(index + 1, GuestAddress(STATE))?;
    vmm.mmio_write(REGISTERS + spec::REG_KICK_RW_IO, &[0; 4]);
    vmm.run_until_interrupt()?;
    // The completion is taken out of its ring; one that is left there keeps the interrupt line up.
    let taken = GuestAddress(STATE + offset_of!(RingsState, cmp_cons_idx) as u64);
    vmm.memory.write_obj(index + 1, taken)?;
    vmm.mmio_write(REGISTERS + spec::REG_INTR_STATUS, &[0xff; 4]);
    let mut completion = RingCmpDesc::new_zeroed();
    vmm.memory.read_slice(completion.as_mut_bytes(), GuestAddress(COMPLETIONS + u64::from(index) * 32))?;
    let mut data = vec![0; completion.data_len.get() as usize];
    vmm.memory.read_slice(&mut data, GuestAddress(DATA))?;
    Ok((completion.scsi_status.get(), data))
}

/// What a guest learns of the disk at `path`: status and data of each command.
fn run(path: &str) -> Result<Vec<u8>> {
    let mut vmm = Vmm::new(path)?;
    bring_up(&mut vmm);
    let (status, inquiry) = command(&mut vmm, 0, &[0x12, 0, 0, 0, 36, 0], 36)?;
    println!(
        "INQUIRY: status {status:#x}, {:?}",
        String::from_utf8_lossy(inquiry.get(8..).unwrap_or_default())
    );
    // After power-on the first command but INQUIRY is answered with a unit attention.
    let (status, _) = command(&mut vmm, 1, &[0; 6], 0)?;
    println!("TEST UNIT READY: status {status:#x}");
    let (status, sector) = command(&mut vmm, 2, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512)?;
    println!("READ(10): status {status:#x}, {} bytes, {:02x?} ...", sector.len(), sector.get(..8));
    Ok(sector)
}

/// The same with a disk whose content is known.
fn demonstrate() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), [0x5a; 1 << 20])?;
    match run(disk.path().to_str().ok_or("a path in UTF-8")?)? {
        sector if sector == [0x5a; 512] => Ok(()),
        sector => Err(format!("the first sector is {sector:02x?}").into()),
    }
}

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        Some(path) => run(&path).map(drop),
        None => demonstrate(),
    }
}

#[test]
fn a_guest_reads_a_sector() {
    demonstrate().unwrap();
}

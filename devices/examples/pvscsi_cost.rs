//! What the PVSCSI adapter costs: ticks of the time-stamp counter per I/O in the device, driven in this process with rings
//! made by hand, beside the same disk queue driven directly.
//!
//! `cargo run --release -p paradisk-devices --example pvscsi_cost -- [null|ram|FILE] [DEPTH] [ROUNDS]`
#![allow(unsafe_code, reason = "RDTSC is an intrinsic")]

use std::error::Error;
use std::sync::Arc;

use paradisk_devices::pvscsi::spec::{self, CmdDescSetupRings, RequestFlags, RingReqDesc, command};
use paradisk_devices::pvscsi::{Config, Pvscsi};
use paradisk_devices::scsi::{Address, Bus, Identity, LogicalUnit};
use paradisk_devices::{Coalescing, InterruptSink, IoDevice, MsiMessage, PciDevice, Policy, Time};
use paradisk_disk_formats::{
    Completion, Disk, IoBuf, NullDisk, Op, OpenOptions, QueueConfig, RamDisk, Request, SectorSize,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use zerocopy::{FromZeros, IntoBytes};

const MEMORY: usize = 64 << 20;
const CAPACITY: u64 = 256 << 20;
const BLOCK: u64 = 4096;
const PAGES: u64 = 8;
const ENTRIES: u64 = PAGES * 32;
const STATE: u64 = 0x1000;
const REQUESTS: u64 = 0x10_0000;
const COMPLETIONS: u64 = 0x20_0000;
const DATA: u64 = 0x100_0000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Interrupts go nowhere: their delivery is not the adapter's cost.
struct NoInterrupts;

impl InterruptSink for NoInterrupts {
    fn route(&mut self, _vector: u16, _message: Option<MsiMessage>) {}
    fn message(&mut self, _vector: u16) {}
    fn line(&mut self, _asserted: bool) {}
}

fn ticks() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 and reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Random offsets of blocks, the same for every candidate.
struct Offsets(u64);

impl Offsets {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % (CAPACITY / BLOCK) * BLOCK
    }
}

struct Guest {
    device: Pvscsi<Arc<GuestMemoryMmap>>,
    memory: Arc<GuestMemoryMmap>,
    produced: u32,
    offsets: Offsets,
}

impl Guest {
    fn new(disk: Arc<dyn Disk>, policy: Policy) -> Result<Self> {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)])?);
        memory.write_slice(&vec![0u8; MEMORY], GuestAddress(0))?;
        let queue = disk.queue(&QueueConfig::default())?;
        let mut bus = Bus::new(1024);
        bus.attach(Address { target: 0, lun: 0 }, LogicalUnit::new(disk, queue, Identity::default()))?;
        let config = Config { coalescing: Coalescing::policy(policy), ..Config::default() };
        let mut device = Pvscsi::new(memory.clone(), bus, Box::new(NoInterrupts), config)?;
        device.config_write(4, &6u16.to_le_bytes());
        // MSI is the first capability.
        let mut msi = [0];
        device.config_read(0x34, &mut msi);
        device.config_write(u16::from(msi[0]) + 2, &1u16.to_le_bytes());
        let mut setup = CmdDescSetupRings::new_zeroed();
        (setup.req_ring_num_pages, setup.cmp_ring_num_pages) = ((PAGES as u32).into(), (PAGES as u32).into());
        setup.rings_state_ppn = (STATE >> 12).into();
        for page in 0..PAGES {
            setup.req_ring_ppns[page as usize] = ((REQUESTS >> 12) + page).into();
            setup.cmp_ring_ppns[page as usize] = ((COMPLETIONS >> 12) + page).into();
        }
        device.bar_write(0, spec::REG_COMMAND, &command::SETUP_RINGS.to_le_bytes(), Time(0));
        for dword in setup.as_bytes().chunks_exact(4) {
            device.bar_write(0, spec::REG_COMMAND_DATA, dword, Time(0));
        }
        device.bar_write(0, spec::REG_INTR_MASK, &1u32.to_le_bytes(), Time(0));
        let mut guest = Self { device, memory, produced: 0, offsets: Offsets(1) };
        // The first command takes the unit attention.
        guest.round(1)?;
        Ok(guest)
    }

    /// So many random reads at once; ticks spent in the device.
    fn round(&mut self, depth: u64) -> Result<u64> {
        for n in 0..depth {
            let mut request = RingReqDesc::new_zeroed();
            let lba = (self.offsets.next() / 512) as u32;
            request.context = (n + 1).into();
            request.cdb[0] = 0x28;
            request.cdb[2..6].copy_from_slice(&lba.to_be_bytes());
            request.cdb[8] = (BLOCK / 512) as u8;
            request.cdb_len = 10;
            request.flags = RequestFlags::CMD_DIR_TOHOST.bits().into();
            request.data_addr = (DATA + n * BLOCK).into();
            request.data_len = BLOCK.into();
            request.sense_len = 96.into();
            request.tag = 0x20;
            let slot = u64::from(self.produced) % ENTRIES;
            self.memory.write_slice(request.as_bytes(), GuestAddress(REQUESTS + slot * 128))?;
            self.produced = self.produced.wrapping_add(1);
        }
        self.memory.write_obj(self.produced, GuestAddress(STATE))?;
        let now = Time(ticks() / 3);
        let start = ticks();
        self.device.on_doorbell(0, now);
        while self.memory.read_obj::<u32>(GuestAddress(STATE + 12))? != self.produced {
            self.device.on_completions(now);
        }
        let spent = ticks() - start;
        // All completions are read.
        self.memory.write_obj(self.produced, GuestAddress(STATE + 16))?;
        Ok(spent)
    }
}

struct Native {
    queue: Box<dyn paradisk_disk_formats::DiskQueue>,
    memory: Arc<GuestMemoryMmap>,
    offsets: Offsets,
    completions: Vec<Completion>,
}

impl Native {
    fn new(disk: &Arc<dyn Disk>) -> Result<Self> {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)])?);
        memory.write_slice(&vec![0u8; MEMORY], GuestAddress(0))?;
        let queue = disk.queue(&QueueConfig::default())?;
        Ok(Self { queue, memory, offsets: Offsets(1), completions: Vec::new() })
    }

    fn round(&mut self, depth: u64) -> Result<u64> {
        let buf = |n| -> Result<IoBuf> {
            let address = self.memory.get_host_address(GuestAddress(DATA + n * BLOCK))?;
            // SAFETY: `memory` lives as long as the queue, and the buffer lies inside it.
            Ok(unsafe { IoBuf::new(address, BLOCK as usize) })
        };
        let bufs = (0..depth).map(buf).collect::<Result<Vec<_>>>()?;
        let offsets: Vec<_> = (0..depth).map(|_| self.offsets.next()).collect();
        let start = ticks();
        for ((tag, &offset), buf) in (0..).zip(&offsets).zip(&bufs) {
            let bufs = std::slice::from_ref(buf);
            self.queue.push(&Request { tag, op: Op::Read, offset, len: BLOCK, bufs })?;
        }
        self.queue.submit();
        self.completions.clear();
        while self.completions.len() < depth as usize {
            self.queue.reap(&mut self.completions);
        }
        Ok(ticks() - start)
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "null".into());
    let depth: u64 = args.next().map_or(Ok(32), |depth| depth.parse())?;
    let rounds: u64 = args.next().map_or(Ok(2000), |rounds| rounds.parse())?;
    if !(1..=ENTRIES).contains(&depth) || rounds == 0 {
        return Err(format!("depth {depth}, rounds {rounds}: expected 1 to {ENTRIES}, and at least 1").into());
    }
    let disk: Arc<dyn Disk> = match name.as_str() {
        "null" => Arc::new(NullDisk::new(CAPACITY, SectorSize::B512)?),
        "ram" => Arc::new(RamDisk::new(CAPACITY, SectorSize::B512)?),
        path => OpenOptions::new(path).open()?,
    };
    if disk.info().capacity < CAPACITY {
        return Err(format!("{name}: {} bytes, expected at least {CAPACITY}", disk.info().capacity).into());
    }
    println!("{name}, 4 KiB random reads, depth {depth}: ticks per I/O, median of 11 runs, interleaved");
    let mut native = Native::new(&disk)?;
    for policy in [Policy::Off, Policy::Batch, Policy::OioIops] {
        let mut guest = Guest::new(disk.clone(), policy)?;
        let (mut adapter, mut direct, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..12 {
            let (mut a, mut b) = (0, 0);
            for _ in 0..rounds {
                a += guest.round(depth)?;
            }
            for _ in 0..rounds {
                b += native.round(depth)?;
            }
            let ios = (rounds * depth) as f64;
            // The first run warms up.
            if run > 0 {
                adapter.push(a as f64 / ios);
                direct.push(b as f64 / ios);
                ratios.push(a as f64 / b as f64);
            }
        }
        let stats = guest.device.stats();
        println!(
            "{policy:8?} pvscsi {:7.0}  native {:7.0}  ratio {:.3}  interrupts/I/O {:.3}  errors {}",
            median(adapter),
            median(direct),
            median(ratios),
            stats.interrupts as f64 / stats.completions as f64,
            stats.errors.saturating_sub(1),
        );
    }
    Ok(())
}

//! PVSCSI and virtio-blk in a VMM that is made of rust-vmm's parts: two virtual CPUs, and one thread with an `EventManager`
//! whose subscribers are the adapters. `docs/embedding.md` walks through it.
//!
//! Doorbells and interrupts are eventfds. Under KVM the same ones are registered as ioeventfds and irqfds; here threads take the
//! part of virtual CPUs, and write and read them.
//!
//! `cargo run -p paradisk-devices --example event_manager`

use std::error::Error;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};
use paradisk_devices::pvscsi::spec::{
    self as pvscsi, CmdDescSetupRings, RequestFlags, RingReqDesc, RingsState,
};
use paradisk_devices::virtio::{blk::spec as blk, spec as virtio};
use paradisk_devices::{AdapterConfig, AdapterKind, Attachment, Doorbell};
use paradisk_devices::{InterruptSink, MsiMessage, PciDevice, Sleep, Time};
use paradisk_disk_formats::{OpenOptions, vhd, vhdx};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::timerfd::TimerFd;
use zerocopy::{FromZeros, IntoBytes};

type Failure = Box<dyn Error + Send + Sync>;
type Result<T> = std::result::Result<T, Failure>;

// --- The VMM ---------------------------------------------------------------------------------------------------------

/// What a virtual CPU does to a function that is no doorbell: it is forwarded to the device's thread and answered there.
struct Access {
    space: Space,
    offset: u64,
    data: [u8; 8],
    len: usize,
    write: bool,
}

enum Space {
    Config,
    Bar(u8),
}

/// A virtual CPU's way to a device.
struct Port {
    accesses: Sender<Access>,
    forwarded: EventFd,
    answers: Receiver<[u8; 8]>,
    doorbells: Vec<(Doorbell, EventFd)>,
    interrupt: EventFd,
    memory: Arc<GuestMemoryMmap>,
}

/// Interrupts leave through an eventfd, which under KVM is an irqfd, routed to what the guest wrote into MSI-X.
struct Irqfd(EventFd);

impl InterruptSink for Irqfd {
    fn route(&mut self, _vector: u16, _message: Option<MsiMessage>) {}
    fn message(&mut self, _vector: u16) {
        // The counter is full after 2^64 - 2 interrupts that nobody took.
        let _ = self.0.write(1);
    }
    fn line(&mut self, _asserted: bool) {}
}

/// An adapter on the event loop.
struct Adapter {
    device: Box<dyn PciDevice>,
    doorbells: Vec<EventFd>,
    accesses: Receiver<Access>,
    /// Written for each access, and by the adapter itself where it has more to do.
    forwarded: EventFd,
    answers: Sender<[u8; 8]>,
    deadline: TimerFd,
    /// The completion events that are watched.
    watched: Vec<RawFd>,
    start: Instant,
    error: Option<Failure>,
}

/// What an event is of; doorbells by their index.
const FORWARDED: u32 = 0x100;
const DEADLINE: u32 = 0x101;
const COMPLETIONS: u32 = 0x102;

impl Adapter {
    fn new(kind: AdapterKind, attachment: Attachment, memory: &Arc<GuestMemoryMmap>) -> Result<(Self, Port)> {
        let interrupt = EventFd::new(0)?;
        let sink = Box::new(Irqfd(interrupt.try_clone()?));
        let config = AdapterConfig::new(kind);
        let device = paradisk_devices::build(memory.clone(), sink, config, &[(0, attachment)])?;
        let doorbells = device
            .doorbells()
            .iter()
            .map(|_| EventFd::new(EFD_NONBLOCK))
            .collect::<std::io::Result<Vec<_>>>()?;
        let rung = device.doorbells().iter().zip(&doorbells).map(|(at, event)| Ok((*at, event.try_clone()?)));
        let (accesses, for_accesses) = channel();
        let (answers, for_answers) = channel();
        let forwarded = EventFd::new(EFD_NONBLOCK)?;
        let port = Port {
            accesses,
            forwarded: forwarded.try_clone()?,
            answers: for_answers,
            doorbells: rung.collect::<std::io::Result<_>>()?,
            interrupt,
            memory: memory.clone(),
        };
        let adapter = Self {
            device,
            doorbells,
            accesses: for_accesses,
            forwarded,
            answers,
            deadline: TimerFd::new()?,
            watched: Vec::new(),
            start: Instant::now(),
            error: None,
        };
        Ok((adapter, port))
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    fn on_event(&mut self, event: Events, ops: &mut EventOps<'_>) -> Result<()> {
        let now = self.now();
        match event.data() {
            FORWARDED => {
                let _ = self.forwarded.read();
                while let Ok(access) = self.accesses.try_recv() {
                    let data = self.access(access, now);
                    // Nobody waits for it where the virtual CPU has ended.
                    let _ = self.answers.send(data);
                }
            }
            // Not read: it may have been set anew since it was seen, and to read would wait for that.
            DEADLINE => self.deadline.clear()?,
            // The device polls by itself.
            COMPLETIONS => {}
            doorbell => {
                let index = doorbell as usize;
                let _ = self.doorbells.get(index).map(EventFd::read);
                self.device.on_doorbell(index, now);
            }
        }
        self.device.on_completions(now);
        match self.device.before_sleep(now) {
            // The other subscribers have their turn first.
            Sleep::No => self.forwarded.write(1)?,
            Sleep::Until(time) => self.deadline.reset(time.since(now).max(Duration::from_nanos(1)), None)?,
            Sleep::Forever => self.deadline.clear()?,
        }
        self.watch(ops)
    }

    fn access(&mut self, access: Access, now: Time) -> [u8; 8] {
        let Access { space, offset, mut data, len, write } = access;
        let bytes = data.get_mut(..len).unwrap_or_default();
        match (space, write) {
            (Space::Config, false) => self.device.config_read(offset as u16, bytes),
            (Space::Config, true) => self.device.config_write(offset as u16, bytes),
            (Space::Bar(bar), false) => self.device.bar_read(bar, offset, bytes, now),
            (Space::Bar(bar), true) => self.device.bar_write(bar, offset, bytes, now),
        }
        data
    }

    /// The completion events may be others after an access: a reset, for instance.
    fn watch(&mut self, ops: &mut EventOps<'_>) -> Result<()> {
        let events: Vec<RawFd> = self.device.completion_events().iter().map(AsRawFd::as_raw_fd).collect();
        if events != self.watched {
            for event in self.watched.drain(..) {
                // It is still open: none is closed but by hot-plug, before which they would have to be taken out here.
                let _ = ops.remove(Events::empty_raw(event));
            }
            for event in &events {
                ops.add(Events::with_data_raw(*event, COMPLETIONS, EventSet::IN))?;
            }
            self.watched = events;
        }
        Ok(())
    }

    fn register(&mut self, ops: &mut EventOps<'_>) -> Result<()> {
        for (doorbell, index) in self.doorbells.iter().zip(0..) {
            ops.add(Events::with_data(doorbell, index, EventSet::IN))?;
        }
        ops.add(Events::with_data(&self.forwarded, FORWARDED, EventSet::IN))?;
        ops.add(Events::with_data(&self.deadline, DEADLINE, EventSet::IN))?;
        self.watch(ops)
    }
}

impl MutEventSubscriber for Adapter {
    fn process(&mut self, event: Events, ops: &mut EventOps<'_>) {
        self.error = self.on_event(event, ops).err().or(self.error.take());
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        self.error = self.register(ops).err();
    }
}

// --- The guest -------------------------------------------------------------------------------------------------------

impl Port {
    fn forward(&self, space: Space, offset: u64, data: &[u8], write: bool) -> Result<u64> {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
        self.accesses.send(Access { space, offset, data: bytes, len: data.len(), write })?;
        self.forwarded.write(1)?;
        let bytes = self.answers.recv_timeout(Duration::from_secs(20))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn config_read(&self, offset: u64, len: usize) -> Result<u64> {
        self.forward(Space::Config, offset, [0; 8].get(..len).unwrap_or_default(), false)
    }

    /// A write to a register. KVM rings doorbells by itself, and the virtual CPU runs on.
    fn write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<()> {
        let at = |doorbell: &Doorbell| doorbell.bar == bar && doorbell.offset == offset;
        match self.doorbells.iter().find(|(doorbell, _)| at(doorbell)) {
            Some((_, event)) => Ok(event.write(1)?),
            None => self.forward(Space::Bar(bar), offset, data, true).map(drop),
        }
    }

    /// Enable memory, bus mastering and the first vector of MSI-X.
    fn enable(&self) -> Result<()> {
        self.forward(Space::Config, 4, &6u16.to_le_bytes(), true)?;
        let mut at = self.config_read(0x34, 1)?;
        while at != 0 && self.config_read(at, 1)? != 0x11 {
            at = self.config_read(at + 1, 1)?;
        }
        let table = self.config_read(at + 4, 4)?;
        for (offset, value) in [(0, 0xfee0_0000_u32), (4, 0), (8, 0x40), (12, 0)] {
            self.write((table & 7) as u8, (table & !7) + offset, &value.to_le_bytes())?;
        }
        self.forward(Space::Config, at + 2, &0x8000_u16.to_le_bytes(), true).map(drop)
    }

    /// Sleep until an interrupt has come and `done` is true.
    fn wait(&self, done: impl Fn() -> Result<bool>) -> Result<()> {
        while !done()? {
            self.interrupt.read()?;
        }
        Ok(())
    }
}

const BLOCK: usize = 4096;
const BLOCKS: u8 = 64;

/// What the load needs of a driver: block `n` of the disk from or to guest memory at `data`.
trait Driver {
    fn transfer(&mut self, block: u8, data: u64, write: bool) -> Result<()>;
}

/// PVSCSI: its structures begin at `base`.
struct PvscsiDriver {
    port: Port,
    base: u64,
    requests: u32,
}

impl PvscsiDriver {
    fn new(port: Port, base: u64) -> Result<Self> {
        port.enable()?;
        let mut setup = CmdDescSetupRings::new_zeroed();
        (setup.req_ring_num_pages, setup.cmp_ring_num_pages) = (1.into(), 1.into());
        setup.rings_state_ppn = (base >> 12).into();
        setup.req_ring_ppns[0] = ((base >> 12) + 1).into();
        setup.cmp_ring_ppns[0] = ((base >> 12) + 2).into();
        port.write(0, pvscsi::REG_COMMAND, &pvscsi::command::SETUP_RINGS.to_le_bytes())?;
        for dword in setup.as_bytes().chunks_exact(4) {
            port.write(0, pvscsi::REG_COMMAND_DATA, dword)?;
        }
        port.write(0, pvscsi::REG_INTR_MASK, &pvscsi::Interrupts::CMPL_0.bits().to_le_bytes())?;
        let mut driver = Self { port, base, requests: 0 };
        // The first command is answered with the unit attention of power-on.
        driver.command(&[0; 6], 0, 0, RequestFlags::CMD_DIR_NONE)?;
        Ok(driver)
    }

    /// SCSI status of a command.
    fn command(&mut self, cdb: &[u8], data: u64, len: usize, flags: RequestFlags) -> Result<u16> {
        let (memory, slot) = (&self.port.memory, self.requests);
        let mut request = RingReqDesc::new_zeroed();
        request.cdb.iter_mut().zip(cdb).for_each(|(to, from)| *to = *from);
        request.cdb_len = cdb.len() as u8;
        request.flags = flags.bits().into();
        (request.data_addr, request.data_len) = (data.into(), (len as u64).into());
        let at = GuestAddress(self.base + 0x1000 + u64::from(slot % 32) * 128);
        memory.write_slice(request.as_bytes(), at)?;
        self.requests += 1;
        memory.write_obj(self.requests, GuestAddress(self.base))?;
        let kick = if len == 0 { pvscsi::REG_KICK_NON_RW_IO } else { pvscsi::REG_KICK_RW_IO };
        self.port.write(0, kick, &[0; 4])?;
        let state = |offset| GuestAddress(self.base + offset as u64);
        let posted = state(std::mem::offset_of!(RingsState, cmp_prod_idx));
        self.port.wait(|| Ok(memory.read_obj::<u32>(posted)? == self.requests))?;
        memory.write_obj(self.requests, state(std::mem::offset_of!(RingsState, cmp_cons_idx)))?;
        let mut completion = pvscsi::RingCmpDesc::new_zeroed();
        let at = GuestAddress(self.base + 0x2000 + u64::from(slot % 128) * 32);
        memory.read_slice(completion.as_mut_bytes(), at)?;
        Ok(completion.scsi_status.get())
    }
}

impl Driver for PvscsiDriver {
    fn transfer(&mut self, block: u8, data: u64, write: bool) -> Result<()> {
        let lba = u32::from(block) * (BLOCK / 512) as u32;
        let (code, flags) = match write {
            false => (0x28, RequestFlags::CMD_DIR_TOHOST),
            true => (0x2a, RequestFlags::CMD_DIR_TODEVICE),
        };
        let [a, b, c, d] = lba.to_be_bytes();
        let cdb = [code, 0, a, b, c, d, 0, 0, (BLOCK / 512) as u8, 0];
        match self.command(&cdb, data, BLOCK, flags)? {
            0 => Ok(()),
            status => Err(format!("PVSCSI: block {block}: SCSI status {status:#x}").into()),
        }
    }
}

/// Virtio-blk, one queue of 16 entries that begins at `base`.
struct BlkDriver {
    port: Port,
    base: u64,
    requests: u16,
    /// Where the doorbell is.
    notify: (u8, u64),
}

impl BlkDriver {
    fn new(port: Port, base: u64) -> Result<Self> {
        port.enable()?;
        // Where the structures are: this device has its common configuration and its doorbells in one register space.
        let structure = |wanted: u8| -> Result<(u8, u64)> {
            let mut at = port.config_read(0x34, 1)?;
            while at != 0 {
                if port.config_read(at, 1)? == 9 && port.config_read(at + 3, 1)? == u64::from(wanted) {
                    return Ok((port.config_read(at + 4, 1)? as u8, port.config_read(at + 8, 4)?));
                }
                at = port.config_read(at + 1, 1)?;
            }
            Err("a structure of virtio is missing".into())
        };
        let (bar, common) = structure(virtio::VIRTIO_PCI_CAP_COMMON_CFG)?;
        let notify = structure(virtio::VIRTIO_PCI_CAP_NOTIFY_CFG)?;
        let set8 = |register, value: u8| port.write(bar, common + register, &[value]);
        let set16 = |register, value: u16| port.write(bar, common + register, &value.to_le_bytes());
        let set32 = |register, value: u32| port.write(bar, common + register, &value.to_le_bytes());
        set8(virtio::DEVICE_STATUS, 0)?;
        set8(virtio::DEVICE_STATUS, 1)?;
        set8(virtio::DEVICE_STATUS, 3)?;
        // VIRTIO_F_VERSION_1 and nothing else.
        set32(virtio::DRIVER_FEATURE_SELECT, 1)?;
        set32(virtio::DRIVER_FEATURE, 1)?;
        set8(virtio::DEVICE_STATUS, 0xb)?;
        set16(virtio::QUEUE_SELECT, 0)?;
        set16(virtio::QUEUE_SIZE, 16)?;
        set16(virtio::QUEUE_MSIX_VECTOR, 0)?;
        for (register, offset) in
            [(virtio::QUEUE_DESC, 0), (virtio::QUEUE_DRIVER, 0x1000), (virtio::QUEUE_DEVICE, 0x2000)]
        {
            let address = base + offset;
            set32(register, address as u32)?;
            set32(register + 4, (address >> 32) as u32)?;
        }
        set16(virtio::QUEUE_ENABLE, 1)?;
        set8(virtio::DEVICE_STATUS, 0xf)?;
        Ok(Self { port, base, requests: 0, notify })
    }
}

impl Driver for BlkDriver {
    fn transfer(&mut self, block: u8, data: u64, write: bool) -> Result<()> {
        let (memory, at) = (&self.port.memory, |offset| GuestAddress(self.base + offset));
        let kind = if write { blk::VIRTIO_BLK_T_OUT } else { blk::VIRTIO_BLK_T_IN };
        let sector = u64::from(block) * (BLOCK / 512) as u64;
        let (header, status) = (at(0x3000), at(0x3010));
        memory.write_obj(u64::from(kind), header)?;
        memory.write_obj(sector, GuestAddress(header.0 + 8))?;
        memory.write_obj(0xff_u8, status)?;
        // Address, length, flags (1: more follow, 2: the device writes), next.
        let direction = if write { 1_u64 } else { 3 };
        let chain = [(header.0, 16, 1, 1), (data, BLOCK as u64, direction, 2), (status.0, 1, 2, 0)];
        for (index, (address, len, flags, next)) in (0..).zip(chain) {
            memory.write_obj(address, at(index * 16))?;
            memory.write_obj(len | flags << 32 | next << 48, at(index * 16 + 8))?;
        }
        memory.write_obj(0_u16, at(0x1000 + 4 + u64::from(self.requests % 16) * 2))?;
        self.requests += 1;
        memory.write_obj(self.requests, at(0x1002))?;
        self.port.write(self.notify.0, self.notify.1, &0_u16.to_le_bytes())?;
        self.port.wait(|| Ok(memory.read_obj::<u16>(at(0x2002))? == self.requests))?;
        match memory.read_obj::<u8>(status)? {
            0 => Ok(()),
            status => Err(format!("virtio-blk: block {block}: status {status}").into()),
        }
    }
}

/// Write each block, then read all of them back from somewhere else.
fn load(driver: &mut dyn Driver, memory: &GuestMemoryMmap, buffers: u64) -> Result<()> {
    let content = |block: u8| vec![block.wrapping_mul(37).wrapping_add(1); BLOCK];
    for block in 0..BLOCKS {
        memory.write_slice(&content(block), GuestAddress(buffers))?;
        driver.transfer(block, buffers, true)?;
    }
    for block in (0..BLOCKS).rev() {
        driver.transfer(block, buffers + BLOCK as u64, false)?;
        let mut found = vec![0; BLOCK];
        memory.read_slice(&mut found, GuestAddress(buffers + BLOCK as u64))?;
        if found != content(block) {
            return Err(format!("block {block} is not what was written").into());
        }
    }
    Ok(())
}

// --- Both ------------------------------------------------------------------------------------------------------------

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    vhdx::create_dynamic(&at("a.vhdx"), 16 << 20, vhdx::CreateOptions::default())?;
    vhd::create_dynamic(&at("b.vhd"), 16 << 20, None)?;
    let attachment = |name| -> Result<Attachment> { Ok(Attachment::new(OpenOptions::new(at(name)).open()?)) };
    let memory = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)])?);
    let (scsi, scsi_port) = Adapter::new(AdapterKind::Pvscsi, attachment("a.vhdx")?, &memory)?;
    let (block, block_port) = Adapter::new(AdapterKind::VirtioBlk, attachment("b.vhd")?, &memory)?;
    let mut manager = EventManager::<Adapter>::new()?;
    let adapters = [manager.add_subscriber(scsi), manager.add_subscriber(block)];

    let (memory_a, memory_b) = (memory.clone(), memory);
    let cpus = [
        std::thread::spawn(move || load(&mut PvscsiDriver::new(scsi_port, 0x1_0000)?, &memory_a, 0x2_0000)),
        std::thread::spawn(move || load(&mut BlkDriver::new(block_port, 0x4_0000)?, &memory_b, 0x5_0000)),
    ];
    while !cpus.iter().all(std::thread::JoinHandle::is_finished) {
        manager.run_with_timeout(20)?;
        for id in adapters {
            if let Some(error) = manager.subscriber_mut(id)?.error.take() {
                return Err(error);
            }
        }
    }
    for cpu in cpus {
        cpu.join().map_err(|_| "a virtual CPU panicked")??;
    }
    for id in adapters {
        let adapter = manager.subscriber_mut(id)?;
        let now = adapter.now();
        adapter.device.quiesce(now);
        println!("{:?}", adapter.device.stats());
    }
    Ok(())
}

#[test]
fn two_adapters_share_an_event_loop() {
    main().unwrap();
}

//! A client: a VMM's side of vhost-user with split rings in a memfd. It uses none of the server's code.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestRegionMmap, MmapRegion,
};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

const EVENT_IDX: u64 = 1 << 29;
const INDIRECT_DESC: u64 = 1 << 28;
const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Layout of guest memory: rings in one region, data in another one, with a hole between them.
pub(crate) const RINGS: u64 = 0;
const STEP: u64 = 0x4_0000;
pub(crate) const AVAIL: u64 = 0x4000;
pub(crate) const USED: u64 = 0x8000;
const HEADERS: u64 = 0x1_0000;
const TABLES: u64 = 0x2_0000;
const RINGS_SIZE: u64 = 0x40_0000;
pub(crate) const DATA: u64 = 1 << 32;
/// Bytes of data of a slot.
pub(crate) const SLOT: u64 = 0x1_0000;
const DATA_SIZE: u64 = 0x200_0000;

const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) queues: u16,
    pub(crate) size: u16,
    pub(crate) event_index: bool,
    pub(crate) indirect: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { queues: 1, size: 256, event_index: true, indirect: true }
    }
}

#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) avail: u16,
    pub(crate) published: u16,
    pub(crate) used: u16,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    pub(crate) err: EventFd,
    pub(crate) kicks: u64,
}

/// What a VMM keeps when the connection ends: memory, rings, and the memory of in-flight tracking.
pub(crate) struct Guest {
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) rings: Vec<Ring>,
    pub(crate) shape: Shape,
    pub(crate) inflight: Option<(VhostUserInflight, File)>,
}

pub(crate) struct Client {
    pub(crate) frontend: Frontend,
    pub(crate) guest: Guest,
}

pub(crate) fn memfd(size: u64) -> File {
    let file: File = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
    file.set_len(size).unwrap();
    file
}

fn region(start: u64, size: u64) -> GuestRegionMmap {
    let mapping = MmapRegion::from_file(FileOffset::new(memfd(size), 0), size as usize).unwrap();
    GuestRegionMmap::new(mapping, GuestAddress(start)).unwrap()
}

impl Guest {
    pub(crate) fn new(shape: Shape) -> Self {
        let regions = vec![region(RINGS, RINGS_SIZE), region(DATA, DATA_SIZE)];
        let event = || EventFd::new(EFD_NONBLOCK).unwrap();
        let ring = |_| Ring {
            avail: 0,
            published: 0,
            used: 0,
            kick: event(),
            call: event(),
            err: event(),
            kicks: 0,
        };
        let rings = (0..shape.queues).map(ring).collect();
        Self { memory: GuestMemoryMmap::from_regions(regions).unwrap(), rings, shape, inflight: None }
    }

    /// Guest-physical address of something in a queue's part of the first region.
    pub(crate) fn at(&self, queue: usize, offset: u64) -> GuestAddress {
        GuestAddress(RINGS + queue as u64 * STEP + offset)
    }

    /// Where the data of a slot are.
    pub(crate) fn data(&self, queue: usize, slot: u16) -> GuestAddress {
        GuestAddress(DATA + (queue as u64 * 64 + u64::from(slot)) * SLOT)
    }

    fn client_address(&self, address: GuestAddress) -> u64 {
        self.memory.get_host_address(address).unwrap() as u64
    }

    pub(crate) fn vring_config(&self, queue: usize) -> VringConfigData {
        let address = |offset| self.client_address(self.at(queue, offset));
        VringConfigData {
            queue_max_size: self.shape.size,
            queue_size: self.shape.size,
            desc_table_addr: address(0),
            avail_ring_addr: address(AVAIL),
            used_ring_addr: address(USED),
            ..VringConfigData::default()
        }
    }

    pub(crate) fn put_descriptor(&self, at: GuestAddress, address: u64, len: u32, flags: u16, next: u16) {
        self.memory.write_obj(address.to_le(), at).unwrap();
        self.memory.write_obj(len.to_le(), GuestAddress(at.0 + 8)).unwrap();
        self.memory.write_obj(flags.to_le(), GuestAddress(at.0 + 12)).unwrap();
        self.memory.write_obj(next.to_le(), GuestAddress(at.0 + 14)).unwrap();
    }

    fn head(&self, slot: u16) -> u16 {
        if self.shape.indirect { slot } else { 3 * slot }
    }

    /// Add a request to the ring. The server does not see it before [`publish`](Self::publish).
    pub(crate) fn add(&mut self, queue: usize, slot: u16, request_type: u32, sector: u64, len: u32) {
        let header = self.at(queue, HEADERS + 32 * u64::from(slot));
        let status = GuestAddress(header.0 + 16);
        self.memory.write_obj(request_type.to_le(), header).unwrap();
        self.memory.write_obj(0u32, GuestAddress(header.0 + 4)).unwrap();
        self.memory.write_obj(sector.to_le(), GuestAddress(header.0 + 8)).unwrap();
        self.memory.write_obj(0xffu8, status).unwrap();
        let write = if matches!(request_type, IN | GET_ID) { 2 } else { 0 };
        let head = self.head(slot);
        let (table, first) = if self.shape.indirect {
            let table = self.at(queue, TABLES + 64 * u64::from(slot));
            let count = if len == 0 { 2 } else { 3 };
            self.put_descriptor(self.at(queue, 16 * u64::from(head)), table.0, 16 * count, 4, 0);
            (table, 0)
        } else {
            (self.at(queue, 16 * u64::from(head)), head)
        };
        let at = |n: u64| GuestAddress(table.0 + 16 * n);
        self.put_descriptor(at(0), header.0, 16, 1, first + 1);
        let last = if len == 0 {
            1
        } else {
            self.put_descriptor(at(1), self.data(queue, slot).0, len, 1 | write, first + 2);
            2
        };
        self.put_descriptor(at(last), status.0, 1, 2, 0);
        self.put_head(queue, head);
    }

    pub(crate) fn put_head(&mut self, queue: usize, head: u16) {
        let ring = &mut self.rings[queue];
        let entry = AVAIL + 4 + 2 * u64::from(ring.avail % self.shape.size);
        ring.avail = ring.avail.wrapping_add(1);
        self.memory.write_obj(head.to_le(), self.at(queue, entry)).unwrap();
    }

    /// Make the added requests available, and kick the server unless it suppresses kicks.
    pub(crate) fn publish(&mut self, queue: usize) {
        if self.show(queue) {
            self.rings[queue].kick.write(1).unwrap();
            self.rings[queue].kicks += 1;
        }
    }

    /// Make the added requests available. True: the server requests a kick.
    fn show(&mut self, queue: usize) -> bool {
        let new = self.rings[queue].avail;
        self.memory.store(new.to_le(), self.at(queue, AVAIL + 2), Release).unwrap();
        fence(SeqCst);
        let old = std::mem::replace(&mut self.rings[queue].published, new);
        self.requests_kick(queue, old, new)
    }

    /// Whether the server requests a kick when the index of available requests changes from `old` to `new`.
    fn requests_kick(&self, queue: usize, old: u16, new: u16) -> bool {
        if self.shape.event_index {
            let at = self.at(queue, USED + 4 + 8 * u64::from(self.shape.size));
            let event: u16 = self.memory.load(at, Acquire).unwrap();
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.memory.load::<u16>(self.at(queue, USED), Acquire).unwrap() & 1 == 0
        }
    }

    /// The requests completed since the last call: slot and status of each.
    pub(crate) fn take(&mut self, queue: usize) -> Vec<(u16, u8)> {
        let shown: u16 = self.memory.load(self.at(queue, USED + 2), Acquire).unwrap();
        let mut ended = Vec::new();
        while self.rings[queue].used != shown {
            let entry = USED + 4 + 8 * u64::from(self.rings[queue].used % self.shape.size);
            self.rings[queue].used = self.rings[queue].used.wrapping_add(1);
            let head: u32 = self.memory.read_obj(self.at(queue, entry)).unwrap();
            let slot = if self.shape.indirect { head } else { head / 3 } as u16;
            let status = self.at(queue, HEADERS + 32 * u64::from(slot) + 16);
            ended.push((slot, self.memory.read_obj(status).unwrap()));
        }
        ended
    }

    /// Request a signal for the next completion. False: it is there already.
    pub(crate) fn ask(&mut self, queue: usize) -> bool {
        let used = self.rings[queue].used;
        if self.shape.event_index {
            let at = self.at(queue, AVAIL + 4 + 2 * u64::from(self.shape.size));
            self.memory.store(used.to_le(), at, SeqCst).unwrap();
        }
        fence(SeqCst);
        self.memory.load::<u16>(self.at(queue, USED + 2), Acquire).unwrap() == used
    }

    /// Wait for `count` completions or more. Only the server's signals wake the wait.
    pub(crate) fn wait(&mut self, queue: usize, count: usize) -> Vec<(u16, u8)> {
        let mut ended = Vec::new();
        let start = Instant::now();
        loop {
            ended.extend(self.take(queue));
            if ended.len() >= count {
                return ended;
            }
            if self.ask(queue) {
                assert!(signalled(&self.rings[queue].call, TIMEOUT), "no signal: {} of {count}", ended.len());
                let _ = self.rings[queue].call.read();
            }
            assert!(start.elapsed() < TIMEOUT, "{} of {count} ended", ended.len());
        }
    }

    /// Make one request in slot 0, with no other in flight. Returns its status.
    pub(crate) fn run(&mut self, queue: usize, request_type: u32, sector: u64, len: u32) -> u8 {
        self.add(queue, 0, request_type, sector, len);
        self.publish(queue);
        let ended = self.wait(queue, 1);
        assert_eq!((ended.len(), ended[0].0), (1, 0));
        ended[0].1
    }

    /// Check that a server that polls for up to `poll` serves queue 0 without kicks while it polls, and not when it sleeps.
    pub(crate) fn check_polling(&mut self, poll: Duration, kick: impl Fn()) {
        let begin = Instant::now();
        let in_time = || assert!(begin.elapsed() < TIMEOUT, "the server does not sleep, poll or serve");
        let read = |guest: &mut Self| {
            guest.add(0, 0, IN, 0, 512);
            guest.show(0)
        };
        let end = |guest: &mut Self| {
            let mut ended = guest.take(0);
            while ended.is_empty() {
                in_time();
                std::thread::yield_now();
                ended = guest.take(0);
            }
            assert_eq!(ended, [(0, 0)]);
        };
        let shown = loop {
            // The server sleeps, and polls after the kick. On a busy host it may sleep again before the next request.
            std::thread::sleep(poll / 4);
            if read(self) {
                kick();
            }
            end(self);
            let shown = Instant::now();
            if !read(self) {
                break shown;
            }
            kick();
            end(self);
            in_time();
        };
        end(self);
        let next = self.rings[0].avail;
        while !self.requests_kick(0, next, next.wrapping_add(1)) {
            in_time();
            std::thread::yield_now();
        }
        assert!(shown.elapsed() >= poll / 8, "it has slept after {:?}", shown.elapsed());
        assert!(read(self));
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(self.take(0), [], "served without a kick");
        kick();
        end(self);
    }

    pub(crate) fn fill(&self, queue: usize, slot: u16, byte: u8, len: usize) {
        self.memory.write_slice(&vec![byte; len], self.data(queue, slot)).unwrap();
    }

    pub(crate) fn bytes(&self, queue: usize, slot: u16, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_slice(&mut bytes, self.data(queue, slot)).unwrap();
        bytes
    }
}

/// Whether an event is signalled in time.
pub(crate) fn signalled(event: &EventFd, patience: Duration) -> bool {
    let epoll = Epoll::new().unwrap();
    epoll.ctl(ControlOperation::Add, event.as_raw_fd(), EpollEvent::new(EventSet::IN, 0)).unwrap();
    loop {
        match epoll.wait(patience.as_millis() as i32, &mut [EpollEvent::default()]) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            count => return count.unwrap() > 0,
        }
    }
}

impl Client {
    /// Connect and start all queues, for a new guest or for the guest of an earlier connection.
    pub(crate) fn connect(path: &Path, guest: Guest) -> Self {
        let frontend = Frontend::connect(path, guest.shape.queues.into()).unwrap();
        let mut client = Self { frontend, guest };
        client.negotiate();
        client.share();
        for queue in 0..client.guest.shape.queues.into() {
            client.start(queue);
        }
        client
    }

    pub(crate) fn negotiate(&mut self) {
        let Self { frontend, guest } = self;
        frontend.set_owner().unwrap();
        let offered = frontend.get_features().unwrap();
        let mut features = offered;
        if !guest.shape.event_index {
            features &= !EVENT_IDX;
        }
        if !guest.shape.indirect {
            features &= !INDIRECT_DESC;
        }
        assert!(offered & PROTOCOL_FEATURES != 0 && offered & EVENT_IDX != 0);
        let protocol = frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocol).unwrap();
        // The server acknowledges each message, so that a refused message fails at its own call.
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_features(features).unwrap();
        if let Some((described, file)) = &guest.inflight {
            frontend.set_inflight_fd(described, file.as_raw_fd()).unwrap();
        }
    }

    /// Start in-flight tracking: the server records the requests in flight in memory that this client keeps.
    pub(crate) fn track(&mut self) {
        let asked = VhostUserInflight::new(0, 0, self.guest.shape.queues, self.guest.shape.size);
        let (described, file) = self.frontend.get_inflight_fd(&asked).unwrap();
        self.frontend.set_inflight_fd(&described, file.as_raw_fd()).unwrap();
        self.guest.inflight = Some((described, file));
    }

    pub(crate) fn regions(&self) -> Vec<VhostUserMemoryRegionInfo> {
        let info = |region| VhostUserMemoryRegionInfo::from_guest_region(region).unwrap();
        self.guest.memory.iter().map(info).collect()
    }

    pub(crate) fn share(&mut self) {
        self.frontend.set_mem_table(&self.regions()).unwrap();
    }

    pub(crate) fn start(&mut self, queue: usize) {
        let Self { frontend, guest } = self;
        let ring = &guest.rings[queue];
        frontend.set_vring_num(queue, guest.shape.size).unwrap();
        // As QEMU does after a server has ended: the base is the used index. The server finds requests that were taken and not
        // completed in the memory of in-flight tracking.
        frontend.set_vring_base(queue, ring.used).unwrap();
        frontend.set_vring_addr(queue, &guest.vring_config(queue)).unwrap();
        frontend.set_vring_call(queue, &ring.call).unwrap();
        frontend.set_vring_err(queue, &ring.err).unwrap();
        frontend.set_vring_kick(queue, &ring.kick).unwrap();
        frontend.set_vring_enable(queue, true).unwrap();
    }

    pub(crate) fn config(&mut self, len: usize) -> Vec<u8> {
        let flags = VhostUserConfigFlags::WRITABLE;
        self.frontend.get_config(0, len as u32, flags, &vec![0; len]).unwrap().1
    }
}

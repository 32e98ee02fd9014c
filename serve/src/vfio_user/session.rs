//! Executes the client's commands: the maps of its memory, and accesses to the function's regions and interrupts.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paradisk_devices::{Doorbell, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};
use vm_memory::GuestMemoryAtomic;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::channel::{Ended, LONGEST, MOST_FDS, Message};
use super::function::{Function, Ring};
use super::interrupts::Interrupts;
use super::memory::{ClientMemory, MOST_MAPS, Maps, PAGE_SIZE};
use super::spec::{self, command};
use crate::memory_sources::MemorySources;

/// Number of descriptors of a message that is announced to the client. QEMU refuses a server that accepts more than QEMU's own limit
/// (`VFIO_USER_MAX_MAX_FDS`).
const ANNOUNCED_FDS: usize = 16;
const _: () = assert!(ANNOUNCED_FDS <= MOST_FDS);
/// Maximum number of bytes that one message transfers from or to a region.
const LONGEST_TRANSFER: usize = 4096;
const _: () = assert!(LONGEST_TRANSFER + 64 <= LONGEST);

/// How long the device takes no new requests while an unmap waits for requests in flight.
const SHORT_WAIT: Duration = Duration::from_millis(20);

/// The client's capabilities.
#[derive(Clone, Copy)]
struct Client {
    max_fds: usize,
    write_multiple: bool,
}

/// The device, and the client's configuration of it.
pub(super) struct Session {
    pub(super) function: Function,
    pub(super) interrupts: Interrupts,
    pub(super) doorbells: Vec<DoorbellEvent>,
    memory: GuestMemoryAtomic<ClientMemory>,
    maps: Maps,
    /// Which files are mapped.
    pub(super) sources: MemorySources,
    /// A descriptor was refused because of them.
    pub(super) refused_memory: bool,
    client: Option<Client>,
    /// An unmap that waits for requests in flight.
    unmapping: Option<Unmapping>,
    origin: Instant,
}

/// An unmap that is not answered yet.
struct Unmapping {
    ranges: Vec<Range<u64>>,
    command: spec::DmaUnmap,
}

/// The eventfd of a doorbell.
pub(super) struct DoorbellEvent {
    pub(super) event: Arc<OwnedFd>,
    /// The device waits for it on a thread of its own.
    pub(super) of_device: bool,
}

/// The payload of a reply, in a buffer that is reused, and the descriptors to send with it.
#[derive(Default)]
pub(super) struct Reply {
    pub(super) payload: Vec<u8>,
    pub(super) fds: Vec<Arc<OwnedFd>>,
}

impl Session {
    pub(super) fn new(
        function: Function,
        interrupts: Interrupts,
        doorbells: Vec<DoorbellEvent>,
        memory: GuestMemoryAtomic<ClientMemory>,
    ) -> Self {
        let maps = Maps::default();
        Self {
            function,
            interrupts,
            doorbells,
            memory,
            maps,
            sources: MemorySources::default(),
            refused_memory: false,
            client: None,
            unmapping: None,
            origin: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Time {
        Time(self.origin.elapsed().as_nanos() as u64)
    }

    /// Execute a command. `Ok(Err)`: it failed, and the reply has the error.
    ///
    /// # Errors
    /// No session is possible with this client.
    pub(super) fn execute(
        &mut self,
        message: &mut Message,
        reply: &mut Reply,
    ) -> Result<Result<(), Errno>, Ended> {
        reply.payload.clear();
        reply.fds.clear();
        let number = message.header.command.get();
        match (number, self.client) {
            (command::VERSION, None) => self.version(message, reply).map(Ok),
            (_, None) => Err(Ended::Refused("the first message was not VERSION")),
            (_, Some(client)) => Ok(self.command(number, client, message, reply)),
        }
    }

    fn version(&mut self, message: &Message, reply: &mut Reply) -> Result<(), Ended> {
        let (version, text) =
            message.body::<spec::Version>().map_err(|_| Ended::Refused("VERSION without a version"))?;
        if version.major.get() != spec::MAJOR {
            return Err(Ended::Refused("another major version of the protocol"));
        }
        let proposed = match text.split(|byte| *byte == 0).next() {
            None | Some([]) => Value::Null,
            Some(text) => serde_json::from_slice(text)
                .map_err(|_| Ended::Refused("the capabilities in VERSION are not JSON"))?,
        };
        let capability = |name: &str| proposed.get("capabilities").and_then(|all| all.get(name));
        let max_fds = capability("max_msg_fds").and_then(Value::as_u64).unwrap_or(1);
        let client = Client {
            max_fds: usize::try_from(max_fds).unwrap_or(MOST_FDS).min(MOST_FDS),
            write_multiple: capability("write_multiple").and_then(Value::as_bool).unwrap_or(false),
        };
        self.client = Some(client);
        let mut capabilities = json!({
            "max_msg_fds": ANNOUNCED_FDS,
            "max_data_xfer_size": LONGEST_TRANSFER,
            "max_dma_maps": MOST_MAPS,
            "pgsizes": PAGE_SIZE,
        });
        if client.write_multiple {
            capabilities["write_multiple"] = true.into();
        }
        let version = spec::Version { major: spec::MAJOR.into(), minor: spec::MINOR.into() };
        reply.payload.extend_from_slice(version.as_bytes());
        reply.payload.extend_from_slice(json!({ "capabilities": capabilities }).to_string().as_bytes());
        reply.payload.push(0);
        Ok(())
    }

    fn command(
        &mut self,
        number: u16,
        client: Client,
        message: &mut Message,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        match number {
            command::DMA_MAP => self.map(message),
            command::DMA_UNMAP => self.unmap(message, reply),
            command::GET_INFO => info(message, reply),
            command::GET_REGION_INFO => self.region_info(message, reply),
            command::GET_REGION_IO_FDS => self.region_io_fds(client, message, reply),
            command::GET_IRQ_INFO => self.irq_info(message, reply),
            command::SET_IRQS => self.set_irqs(message),
            command::REGION_READ => self.region_read(message, reply),
            command::REGION_WRITE => self.region_write(message, reply),
            command::REGION_WRITE_MULTI if client.write_multiple => self.region_write_multi(message, reply),
            command::RESET => {
                self.reset();
                Ok(())
            }
            _ => Err(Errno::NOTSUP),
        }
    }

    fn map(&mut self, message: &mut Message) -> Result<(), Errno> {
        let fd = message.fds.pop();
        let (map, _) = message.body::<spec::DmaMap>()?;
        if !message.fds.is_empty() {
            return Err(Errno::INVAL);
        }
        let fd = fd.map(|fd| fd.checked(|fd| self.sources.check(fd))).transpose();
        let fd = fd.map_err(|_| {
            self.refused_memory = true;
            Errno::INVAL
        })?;
        self.maps.add(map, fd)?;
        self.replace_memory();
        Ok(())
    }

    /// Wait for the requests in flight that use the memory. For the first [`SHORT_WAIT`] the device takes no new requests, so that none
    /// fails if the old ones end soon. After that the device continues with requests that use other memory, and the reply follows later
    /// ([`finish_unmap`](Self::finish_unmap)).
    fn unmap(&mut self, message: &Message, reply: &mut Reply) -> Result<(), Errno> {
        let (unmap, _) = message.body::<spec::DmaUnmap>()?;
        let ranges = self.maps.find(unmap)?;
        let mut unmapping = Unmapping { ranges, command: *unmap };
        let begin = Instant::now();
        while self.function.device.uses_memory(&unmapping.ranges, self.now()) {
            let left = SHORT_WAIT.saturating_sub(begin.elapsed());
            if left.is_zero() {
                self.function.device.refuse_memory(&unmapping.ranges);
                self.unmapping = Some(unmapping);
                return Ok(());
            }
            self.wait_for_completions(left);
        }
        self.unmapped(&mut unmapping, reply);
        Ok(())
    }

    fn wait_for_completions(&self, most: Duration) {
        let fds = self.function.device.completion_events();
        let mut fds: Vec<_> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let most = Timespec::try_from(most).ok();
        // An early end does no harm: the caller checks the requests, and bounds the time.
        let _ = poll(&mut fds, most.as_ref());
    }

    /// Whether the client has agreed on a version.
    pub(super) const fn is_agreed(&self) -> bool {
        self.client.is_some()
    }

    /// Whether an unmap waits for requests in flight.
    pub(super) const fn is_unmapping(&self) -> bool {
        self.unmapping.is_some()
    }

    /// Unmap the memory if no request in flight uses it. True: it is unmapped, and `reply` is complete.
    pub(super) fn finish_unmap(&mut self, reply: &mut Reply) -> bool {
        let Some(mut unmapping) = self.unmapping.take() else { return false };
        if self.function.device.uses_memory(&unmapping.ranges, self.now()) {
            self.unmapping = Some(unmapping);
            return false;
        }
        reply.payload.clear();
        reply.fds.clear();
        self.unmapped(&mut unmapping, reply);
        true
    }

    fn unmapped(&mut self, unmapping: &mut Unmapping, reply: &mut Reply) {
        self.maps.remove(&unmapping.ranges);
        self.replace_memory();
        let now = self.now();
        self.function.device.memory_replaced(now);
        reply.payload.extend_from_slice(unmapping.command.as_bytes());
    }

    fn replace_memory(&self) {
        // The lock protects the replacement of one pointer, so the state is valid even if a thread panicked with the lock.
        let guard = self.memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        guard.replace(self.maps.memory());
    }

    fn region_info(&self, message: &Message, reply: &mut Reply) -> Result<(), Errno> {
        let (asked, _) = message.body::<spec::RegionInfo>()?;
        if asked.index.get() >= spec::REGIONS || asked.argsz.get() < size_of::<spec::RegionInfo>() as u32 {
            return Err(Errno::INVAL);
        }
        let size = self.function.region_size(asked.index.get());
        let flags = if size > 0 {
            spec::REGION_FLAG_READ | spec::REGION_FLAG_WRITE
        } else if self.function.device.needs_prompt_writes() {
            // There is nothing to map, but QEMU posts no writes to a function with a mappable region.
            spec::REGION_FLAG_MMAP
        } else {
            0
        };
        let info = spec::RegionInfo {
            argsz: (size_of::<spec::RegionInfo>() as u32).into(),
            flags: flags.into(),
            index: asked.index,
            size: size.into(),
            ..spec::RegionInfo::default()
        };
        reply.payload.extend_from_slice(info.as_bytes());
        Ok(())
    }

    /// Doorbells of a region as ioeventfds, up to the client's number of descriptors. If the client's buffer is too small, the reply has
    /// the required size.
    fn region_io_fds(&self, client: Client, message: &Message, reply: &mut Reply) -> Result<(), Errno> {
        let (asked, _) = message.body::<spec::RegionIoFds>()?;
        let index = asked.index.get();
        let header = size_of::<spec::RegionIoFds>();
        if index >= spec::REGIONS || asked.flags.get() != 0 || (asked.argsz.get() as usize) < header {
            return Err(Errno::INVAL);
        }
        let ports = self.function.bars.iter().any(|bar| u32::from(bar.index) == index && bar.kind.is_io());
        let bells = self.function.device.doorbells().iter().zip(&self.doorbells);
        let bells = bells.filter(|(bell, _)| u32::from(bell.bar) == index).take(client.max_fds);
        let (places, fds): (Vec<&Doorbell>, Vec<_>) = bells.unzip();
        let needed = header + places.len() * size_of::<spec::IoEventFd>();
        let answer = spec::RegionIoFds {
            argsz: (needed as u32).into(),
            flags: 0.into(),
            index: asked.index,
            count: (places.len() as u32).into(),
        };
        reply.payload.extend_from_slice(answer.as_bytes());
        if needed > asked.argsz.get() as usize {
            return Ok(());
        }
        for (at, place) in (0u32..).zip(&places) {
            let sub_region = spec::IoEventFd {
                offset: place.offset.into(),
                size: u64::from(place.len).into(),
                fd_index: at.into(),
                kind: spec::IO_FD_IOEVENTFD.into(),
                flags: if ports { spec::IOEVENTFD_PIO } else { 0 }.into(),
                ..spec::IoEventFd::default()
            };
            reply.payload.extend_from_slice(sub_region.as_bytes());
        }
        reply.fds.extend(fds.into_iter().map(|bell| Arc::clone(&bell.event)));
        Ok(())
    }

    fn irq_info(&mut self, message: &Message, reply: &mut Reply) -> Result<(), Errno> {
        let (asked, _) = message.body::<spec::IrqInfo>()?;
        let index = asked.index.get();
        let count = self.interrupts.count(index).ok_or(Errno::INVAL)?;
        if asked.argsz.get() < size_of::<spec::IrqInfo>() as u32 {
            return Err(Errno::INVAL);
        }
        let flags = match index {
            _ if count == 0 => 0,
            spec::IRQ_INTX => spec::IRQ_EVENTFD | spec::IRQ_MASKABLE | spec::IRQ_AUTOMASKED,
            _ => spec::IRQ_EVENTFD | spec::IRQ_MASKABLE,
        };
        let info = spec::IrqInfo {
            argsz: (size_of::<spec::IrqInfo>() as u32).into(),
            flags: flags.into(),
            index: asked.index,
            count: count.into(),
        };
        reply.payload.extend_from_slice(info.as_bytes());
        Ok(())
    }

    fn set_irqs(&mut self, message: &mut Message) -> Result<(), Errno> {
        let fds = std::mem::take(&mut message.fds);
        let (set, bytes) = message.body::<spec::SetIrqs>()?;
        self.interrupts.set(set, bytes, fds)?;
        if set.index.get() == spec::IRQ_MSIX {
            self.enable_vectors();
        }
        Ok(())
    }

    /// Unmask the vectors of MSI-X that have an eventfd, and mask the others.
    fn enable_vectors(&mut self) {
        let now = self.now();
        let vectors = self.function.msix.map_or(0, |msix| msix.vectors);
        for vector in 0..vectors {
            let enable = self.interrupts.has_trigger(vector.into());
            self.function.enable_vector(vector, enable, now);
        }
    }

    fn region_read(&mut self, message: &Message, reply: &mut Reply) -> Result<(), Errno> {
        let (access, _) = message.body::<spec::RegionAccess>()?;
        let count = access.count.get() as usize;
        if count > LONGEST_TRANSFER {
            return Err(Errno::INVAL);
        }
        let now = self.now();
        reply.payload.extend_from_slice(access.as_bytes());
        let start = reply.payload.len();
        reply.payload.resize(start + count, 0);
        let data = reply.payload.get_mut(start..).unwrap_or_default();
        self.function.read(access.region.get(), access.offset.get(), data, now)
    }

    fn region_write(&mut self, message: &Message, reply: &mut Reply) -> Result<(), Errno> {
        let (access, data) = message.body::<spec::RegionAccess>()?;
        let count = access.count.get() as usize;
        let data = data.get(..count).filter(|data| data.len() <= LONGEST_TRANSFER).ok_or(Errno::INVAL)?;
        let now = self.now();
        let ring = self.note_posted(message);
        self.function.write(access.region.get(), access.offset.get(), data, ring, now)?;
        reply.payload.extend_from_slice(access.as_bytes());
        Ok(())
    }

    /// How the message rings doorbells. A write without a reply is reported to the device: the guest does not wait for its effect.
    fn note_posted(&mut self, message: &Message) -> Ring {
        if message.header.flags.get() & spec::NO_REPLY == 0 {
            return Ring::Blocking;
        }
        self.function.device.on_posted_writes();
        Ring::Posted
    }

    fn region_write_multi(&mut self, message: &Message, reply: &mut Reply) -> Result<(), Errno> {
        let (count, rest) = message.body::<U64>()?;
        let writes = usize::try_from(count.get()).map_err(|_| Errno::INVAL)?;
        let (writes, _) =
            <[spec::MultiWrite]>::ref_from_prefix_with_elems(rest, writes).map_err(|_| Errno::INVAL)?;
        let now = self.now();
        let ring = self.note_posted(message);
        for write in writes {
            let access = write.access;
            let data = write.data.get(..access.count.get() as usize).ok_or(Errno::INVAL)?;
            self.function.write(access.region.get(), access.offset.get(), data, ring, now)?;
        }
        reply.payload.extend_from_slice(count.as_bytes());
        Ok(())
    }

    fn reset(&mut self) {
        let now = self.now();
        self.function.reset(now);
        // The client's eventfds stay.
        self.enable_vectors();
    }

    /// Signal the client for the device's interrupts.
    pub(super) fn deliver_interrupts(&mut self) {
        self.interrupts.deliver(self.function.msix_enabled);
    }

    /// The client has disconnected: drop everything of it, and reset the function to the state after power-on.
    pub(super) fn client_left(&mut self) {
        let now = self.now();
        self.function.device.quiesce(now);
        self.deliver_interrupts();
        self.interrupts.clear();
        self.client = None;
        self.unmapping = None;
        self.maps = Maps::default();
        self.replace_memory();
        self.reset();
        self.function.device.quiesce(now);
    }
}

fn info(message: &Message, reply: &mut Reply) -> Result<(), Errno> {
    let (asked, _) = message.body::<spec::DeviceInfo>()?;
    if asked.argsz.get() < size_of::<spec::DeviceInfo>() as u32 {
        return Err(Errno::INVAL);
    }
    let info = spec::DeviceInfo {
        argsz: (size_of::<spec::DeviceInfo>() as u32).into(),
        flags: (spec::DEVICE_RESET | spec::DEVICE_PCI).into(),
        regions: spec::REGIONS.into(),
        irqs: spec::IRQS.into(),
    };
    reply.payload.extend_from_slice(info.as_bytes());
    Ok(())
}

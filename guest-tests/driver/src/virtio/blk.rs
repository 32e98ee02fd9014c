//! The block device (VIRTIO 1.2, 5.2).

use super::pci::{Transport, Wanted};
use super::queue::Piece;
use super::queues::Queues;
use super::spec::*;
use super::{MAX_SEGMENTS, Options, Step, failed};
use crate::adapter::{Adapter, Buffer, Completion, Counters, Geometry, Layout, Op, PAGE, Request};
use crate::platform::DmaRegion;
use crate::platform::Platform;
use crate::workload::Fault;

/// In the memory of a request: its header, the byte that the device answers with, and (not the device's) the bytes that a
/// successful write has moved.
const STATUS: usize = BLK_HEADER;
const WRITTEN: usize = 24;
const REQUEST_SIZE: usize = 32;
/// What the status byte is before the device has answered.
const UNANSWERED: u8 = 0xff;

/// The driver of one block device.
#[derive(Debug)]
pub struct VirtioBlk {
    options: Options,
    transport: Transport,
    queues: Queues,
    requests: DmaRegion,
    scratch: DmaRegion,
    /// Sectors of 512 bytes in a logical block, as a power of two.
    sector_shift: u32,
}

impl VirtioBlk {
    /// Find the device and bring it up.
    pub fn start<P: Platform>(platform: &mut P, options: Options) -> Result<Self, Fault> {
        let features = BLK_F_SEG_MAX
            | BLK_F_RO
            | BLK_F_BLK_SIZE
            | BLK_F_FLUSH
            | BLK_F_MQ
            | BLK_F_DISCARD
            | BLK_F_WRITE_ZEROES;
        let wanted = Wanted { device_type: TYPE_BLOCK, features, queues: options.queues };
        let mut transport = Transport::start(platform, &options, wanted)?;
        let queues = match transport.has(BLK_F_MQ) {
            true => transport.config(platform, BLK_NUM_QUEUES, 2) as u16,
            false => 1,
        };
        let count = queues.min(options.queues);
        let segments = match options.layout {
            Layout::Contiguous => 1,
            Layout::Scattered => MAX_SEGMENTS as u16,
        };
        // With header and status byte.
        let queues = Queues::start(platform, &mut transport, &options, (0, count), segments + 2)?;
        let no_memory = failed(Step::Memory);
        let bytes = (queues.slots() as usize + 1) * REQUEST_SIZE;
        let requests = platform.dma(bytes, REQUEST_SIZE).ok_or(no_memory)?;
        let scratch = platform.dma(PAGE, PAGE).ok_or(no_memory)?;
        let mut driver = Self { options, transport, queues, requests, scratch, sector_shift: 0 };
        driver.transport.go(platform);
        Ok(driver)
    }

    /// Device status, for tests.
    pub fn status<P: Platform>(&mut self, platform: &mut P) -> u8 {
        self.transport.status(platform)
    }

    /// The transport, for tests.
    pub fn transport(&mut self) -> &mut Transport {
        &mut self.transport
    }

    /// The rings, for tests.
    #[must_use]
    pub const fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Memory for the driver's own requests, a page.
    #[must_use]
    pub const fn scratch(&self) -> &DmaRegion {
        &self.scratch
    }

    /// Reset the device: nothing is written to memory afterwards.
    ///
    /// # Errors
    /// [`Fault::BRING_UP`] where it does not reset.
    pub fn shut_down<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.transport.reset(platform)
    }

    /// Reset one of the queues and take it into use again; its requests are gone.
    ///
    /// # Errors
    /// As [`Transport::reset_queue`] and [`Transport::enable_queue`].
    pub fn reset_queue<P: Platform>(&mut self, platform: &mut P, index: u16) -> Result<(), Fault> {
        self.queues.reset_ring(platform, &mut self.transport, index)
    }

    /// Run a request of any type with nothing else in flight, and wait for its end: status byte, and bytes that the device
    /// says it has written.
    ///
    /// # Errors
    /// [`Fault::TIMEOUT`] where it does not end, [`Fault::SPURIOUS`] where something else ends or the queue is full.
    pub fn execute<P: Platform>(
        &mut self,
        platform: &mut P,
        request_type: u32,
        sector: u64,
        data: &Buffer,
    ) -> Result<(u8, u32), Fault> {
        let tag = self.queues.slots();
        let spurious = |found: u32| Fault {
            kind: Fault::SPURIOUS,
            expected: tag.into(),
            found: found.into(),
            ..Fault::EMPTY
        };
        if !self.queue(platform, tag, request_type, sector, data) {
            return Err(spurious(tag));
        }
        self.queues.kick(platform, &mut self.transport);
        let end = platform.wait_for(|platform| {
            self.queues.interrupted(platform, &mut self.transport);
            self.queues.take()
        });
        match end.ok_or(Fault { kind: Fault::TIMEOUT, ..Fault::EMPTY })? {
            (found, len) if found == tag => {
                Ok((self.requests.read(tag as usize * REQUEST_SIZE + STATUS), len))
            }
            (found, _) => Err(spurious(found)),
        }
    }

    /// Put a request in: header, data, status byte.
    #[inline]
    fn queue<P: Platform>(
        &mut self,
        platform: &mut P,
        tag: u32,
        request_type: u32,
        sector: u64,
        data: &Buffer,
    ) -> bool {
        let at = tag as usize * REQUEST_SIZE;
        if at + REQUEST_SIZE > self.requests.len() {
            return false;
        }
        let memory = self.requests.fields::<REQUEST_SIZE>(at);
        memory.write::<0, _>(u64::from(request_type));
        memory.write::<8, _>(sector);
        memory.write::<STATUS, _>(UNANSWERED);
        // Only the data of these go to the device.
        let to_device = matches!(request_type, BLK_T_OUT | BLK_T_DISCARD | BLK_T_WRITE_ZEROES);
        memory.write::<WRITTEN, _>(if to_device { data.len } else { 0 });
        let address = self.requests.address() + at as u64;
        let header = Piece { address, len: BLK_HEADER as u32, write: false };
        let status = Piece { address: address + STATUS as u64, len: 1, write: true };
        let (queues, transport) = (&mut self.queues, &mut self.transport);
        if data.is_contiguous() {
            if data.len == 0 {
                return queues.add(platform, transport, tag, [header, status].into_iter());
            }
            let data = Piece { address: data.address, len: data.len, write: !to_device };
            return queues.add(platform, transport, tag, [header, data, status].into_iter());
        }
        let data = data.segments().map(|(address, len)| Piece { address, len, write: !to_device });
        let pieces = core::iter::once(header).chain(data).chain(core::iter::once(status));
        queues.add(platform, transport, tag, pieces)
    }
}

impl Adapter for VirtioBlk {
    fn slots(&self) -> u32 {
        self.queues.slots()
    }

    fn layout(&self) -> Layout {
        self.options.layout
    }

    /// From the configuration. There is one disk.
    fn geometry<P: Platform>(&mut self, platform: &mut P, target: u32) -> Result<Geometry, Fault> {
        let sectors = self.transport.config(platform, BLK_CAPACITY, 8);
        let block_size = match self.transport.has(BLK_F_BLK_SIZE) {
            true => self.transport.config(platform, BLK_BLK_SIZE, 4) as u32,
            false => 512,
        };
        let sane = block_size.is_power_of_two() && (512..=PAGE as u32).contains(&block_size);
        if target != 0 || !sane {
            let found = if sane { target } else { block_size };
            return Err(Fault { kind: Fault::STATUS, found: found.into(), ..Fault::EMPTY });
        }
        self.sector_shift = block_size.trailing_zeros() - 9;
        Ok(Geometry { blocks: sectors >> self.sector_shift, block_size })
    }

    fn submit<P: Platform>(&mut self, platform: &mut P, request: &Request) -> bool {
        let request_type = match request.op {
            Op::Read => BLK_T_IN,
            Op::Write => BLK_T_OUT,
            Op::Flush => BLK_T_FLUSH,
        };
        let sector = if request.op == Op::Flush { 0 } else { request.lba << self.sector_shift };
        self.queue(platform, request.tag, request_type, sector, &request.data)
    }

    fn kick<P: Platform>(&mut self, platform: &mut P) {
        self.queues.kick(platform, &mut self.transport);
    }

    fn interrupted<P: Platform>(&mut self, platform: &mut P) {
        self.queues.interrupted(platform, &mut self.transport);
    }

    /// The completion's status is the status byte. `transferred` does not count that byte.
    fn poll<P: Platform>(&mut self, _platform: &mut P) -> Option<Completion> {
        let (tag, len) = self.queues.take()?;
        let at = tag as usize * REQUEST_SIZE;
        if at + REQUEST_SIZE > self.requests.len() {
            return Some(Completion { tag: u32::MAX, status: 0, transferred: 0 });
        }
        let memory = self.requests.fields::<REQUEST_SIZE>(at);
        let status: u8 = memory.read::<STATUS, _>();
        let sent: u32 = if status == 0 { memory.read::<WRITTEN, _>() } else { 0 };
        let transferred = u64::from(sent) + u64::from(len.saturating_sub(1));
        Some(Completion { tag, status: status.into(), transferred })
    }

    fn reset<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.transport.restart(platform)?;
        self.queues.restart(platform, &mut self.transport)?;
        self.transport.go(platform);
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.transport.counters()
    }
}

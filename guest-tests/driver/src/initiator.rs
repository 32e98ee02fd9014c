//! Commands of a driver's own, one at a time: what any SCSI adapter's driver does to find out what a disk is.

use crate::adapter::{Adapter, Buffer, Completion, Geometry, Op, PAGE, Request};
use crate::platform::DmaRegion;
use crate::platform::Platform;
use crate::scsi::{CHECK_CONDITION, Cdb, Sense, UNIT_ATTENTION};
use crate::workload::Fault;

/// Unit attentions that a disk may show before it is ready.
const ATTEMPTS: u32 = 8;

/// How a command of the driver's own ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandEnd {
    /// Tag, status and bytes moved.
    pub completion: Completion,
    /// Bytes of sense data that the adapter says it delivered.
    pub sense_len: u32,
}

impl CommandEnd {
    /// The end of no command of ours.
    pub const UNKNOWN: Self =
        Self { completion: Completion { tag: u32::MAX, status: 0, transferred: 0 }, sense_len: 0 };
}

/// Direction of the data transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// Disk to memory.
    ToHost,
    /// Memory to disk.
    ToDevice,
}

/// A command to be queued.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// Comes back in the completion.
    pub tag: u32,
    /// Target on the adapter's bus.
    pub target: u32,
    /// What to do.
    pub cdb: &'a Cdb,
    /// Direction of the data transfer.
    pub direction: Direction,
    /// Memory.
    pub data: &'a Buffer,
}

/// A driver that can run any command.
pub trait Initiator: Adapter {
    /// The tag of the driver's own commands: beyond those of requests.
    fn own_tag(&self) -> u32;

    /// Put a command into the queue; `false`: it is full.
    fn queue<P: Platform>(&mut self, platform: &mut P, command: Command<'_>) -> bool;

    /// Put a request into the queue, as a command; `false`: it is full.
    #[inline(always)]
    fn queue_request<P: Platform>(&mut self, platform: &mut P, request: &Request) -> bool {
        let (cdb, direction) = match request.op {
            Op::Read => (Cdb::transfer(false, request.lba, request.blocks), Direction::ToHost),
            Op::Write => (Cdb::transfer(true, request.lba, request.blocks), Direction::ToDevice),
            Op::Flush => (Cdb::synchronize_cache(), Direction::None),
        };
        let Request { tag, target, ref data, .. } = *request;
        self.queue(platform, Command { tag, target, cdb: &cdb, direction, data })
    }

    /// The next command that ended.
    fn take<P: Platform>(&mut self, platform: &mut P) -> Option<CommandEnd>;

    /// Memory for sense data of a tag, and its offset.
    fn sense_memory(&self, tag: u32) -> (&DmaRegion, usize);

    /// A page for data of the driver's own commands.
    fn scratch(&self) -> &DmaRegion;

    /// Run one command with nothing else in flight, and wait for its end. Data-In goes to `data`; `write`: Data-Out.
    ///
    /// # Errors
    /// [`Fault::TIMEOUT`] where it does not end, [`Fault::SPURIOUS`] where something else ends or the queue is full.
    fn execute<P: Platform>(
        &mut self,
        platform: &mut P,
        target: u32,
        cdb: &Cdb,
        data: &Buffer,
        write: bool,
    ) -> Result<CommandEnd, Fault> {
        let direction = match (data.len, write) {
            (0, _) => Direction::None,
            (_, false) => Direction::ToHost,
            (_, true) => Direction::ToDevice,
        };
        let tag = self.own_tag();
        let spurious = |found: u32| Fault {
            kind: Fault::SPURIOUS,
            expected: tag.into(),
            found: found.into(),
            ..Fault::EMPTY
        };
        if !self.queue(platform, Command { tag, target, cdb, direction, data }) {
            return Err(spurious(tag));
        }
        self.kick(platform);
        let end = platform.wait_for(|platform| {
            self.interrupted(platform);
            self.take(platform)
        });
        match end.ok_or(Fault { kind: Fault::TIMEOUT, ..Fault::EMPTY })? {
            end if end.completion.tag == tag => Ok(end),
            end => Err(spurious(end.completion.tag)),
        }
    }

    /// Sense data of a command that ended with CHECK CONDITION.
    fn sense(&self, end: &CommandEnd) -> Option<Sense> {
        if end.completion.status != u32::from(CHECK_CONDITION) || end.completion.tag > self.own_tag() {
            return None;
        }
        let mut bytes = [0u8; 18];
        let len = (end.sense_len as usize).min(bytes.len());
        let (memory, at) = self.sense_memory(end.completion.tag);
        for (index, byte) in bytes[..len].iter_mut().enumerate() {
            *byte = memory.read(at + index);
        }
        Sense::parse(&bytes[..len])
    }

    /// Wait until the unit is ready, unit attentions cleared.
    ///
    /// # Errors
    /// [`Fault::STATUS`] where it does not become ready; as [`execute`](Self::execute).
    fn make_ready<P: Platform>(&mut self, platform: &mut P, target: u32) -> Result<(), Fault> {
        let fault = |status: u32| Fault { kind: Fault::STATUS, status, ..Fault::EMPTY };
        let mut attempts = 0;
        loop {
            let end = self.execute(platform, target, &Cdb::test_unit_ready(), &Buffer::NONE, false)?;
            attempts += 1;
            match end.completion.status {
                0 => return Ok(()),
                status => {
                    let attention = self.sense(&end).is_some_and(|sense| sense.key == UNIT_ATTENTION);
                    if !attention || attempts == ATTEMPTS {
                        return Err(fault(status));
                    }
                }
            }
        }
    }

    /// Wait until the unit is [ready](Self::make_ready); then READ CAPACITY (16).
    ///
    /// # Errors
    /// [`Fault::STATUS`] where a command fails or the size makes no sense; as [`execute`](Self::execute).
    fn read_capacity<P: Platform>(&mut self, platform: &mut P, target: u32) -> Result<Geometry, Fault> {
        self.make_ready(platform, target)?;
        let data = Buffer::contiguous(self.scratch().address(), 32);
        let end = self.execute(platform, target, &Cdb::read_capacity16(data.len), &data, false)?;
        let (last, block_size) = (self.scratch().read(0), self.scratch().read(8));
        geometry(&end, 12, u64::from_be(last), u32::from_be(block_size))
    }

    /// The same with READ CAPACITY (10), for adapters with CDBs of 12 bytes at the most.
    fn read_capacity10<P: Platform>(&mut self, platform: &mut P, target: u32) -> Result<Geometry, Fault> {
        self.make_ready(platform, target)?;
        let data = Buffer::contiguous(self.scratch().address(), 8);
        let end = self.execute(platform, target, &Cdb::read_capacity10(), &data, false)?;
        let (last, block_size) = (self.scratch().read(0), self.scratch().read(4));
        geometry(&end, 8, u32::from_be(last).into(), u32::from_be(block_size))
    }
}

/// What READ CAPACITY has said in `least` bytes or more.
fn geometry(end: &CommandEnd, least: u64, last: u64, block_size: u32) -> Result<Geometry, Fault> {
    let status = end.completion.status;
    let fault = Fault { kind: Fault::STATUS, status, ..Fault::EMPTY };
    if status != 0 || end.completion.transferred < least {
        return Err(fault);
    }
    let sane = block_size.is_power_of_two() && (512..=PAGE as u32).contains(&block_size);
    match last.checked_add(1) {
        Some(blocks) if sane => Ok(Geometry { blocks, block_size }),
        _ => Err(Fault { found: block_size.into(), ..fault }),
    }
}

//! The block device's requests in flight, by number.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use paradisk_disk_formats::{
    Completion, Disk, DiskInfo, DiskQueue, IoBuf, IoError, Op, OpenError, QueueConfig, QueueStats, Request,
    total_len,
};
use vm_memory::GuestAddressSpace;

use super::super::chain::Chain;
use super::super::descriptors::DescriptorChain;
use super::super::queue::Broken;
use super::super::rings::{self, Ended};
use super::Config;
use super::request::{Command, FLUSH, Step, Transfer, parse, parse_transfer, take_header};
use super::spec::{Status, VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT};
use crate::dma::{Dma, Footprint, Spans};
use crate::fault::{self, Fault};
use crate::in_flight::InFlight;

/// A request in flight.
#[derive(Debug)]
struct Pending {
    queue: usize,
    head: u16,
    /// Guest-physical address of the status byte.
    status: u64,
    /// Length for the used ring if the request succeeds, and if it fails: the bytes at the start of the writable part that the device has
    /// certainly written.
    written: (u32, u32),
    /// Remaining steps, in reverse order.
    steps: Vec<Step>,
    /// Its queue was reset: its completion is not posted.
    disowned: bool,
    /// A step of the request is in the disk's queue.
    in_disk: bool,
}

/// Requests in flight, in front of a queue of the disk.
pub struct BlockRequests {
    /// First, so that it is dropped first: requests in flight are waited for.
    queue: Box<dyn DiskQueue>,
    pub(super) info: DiskInfo,
    /// Writes must be on stable storage before they are completed.
    pub(super) write_through: bool,
    serial: [u8; VIRTIO_BLK_ID_BYTES],
    in_flight: InFlight<Pending>,
    ended: VecDeque<(u32, Status)>,
    completions: Vec<Completion>,
    chain: Chain,
    bufs: Vec<IoBuf>,
    /// Steps were pushed that are not submitted yet.
    pushed: bool,
    fault: Fault,
}

impl BlockRequests {
    /// In front of a new queue of the disk.
    pub(super) fn new(disk: &dyn Disk, config: &Config) -> Result<Self, OpenError> {
        let tasks = config.tasks.max(1);
        Ok(Self {
            queue: disk.queue(&QueueConfig { depth: tasks, engine: config.engine })?,
            info: disk.info().clone(),
            // The mode for a driver that has accepted no feature.
            write_through: true,
            serial: config.serial,
            in_flight: InFlight::new(tasks),
            ended: VecDeque::with_capacity(tasks as usize),
            completions: Vec::with_capacity(tasks as usize),
            chain: Chain::default(),
            bufs: Vec::new(),
            pushed: false,
            fault: Fault::default(),
        })
    }

    /// Store a request that was started, or that is complete already.
    #[inline(always)]
    fn store<A: GuestAddressSpace>(&mut self, id: u32, pending: Pending, done: Option<Status>, dma: &Dma<A>) {
        self.in_flight.store(id, pending, dma.footprint());
        if let Some(status) = done {
            self.ended.push_back((id, status));
        }
    }

    /// Start a request other than a read or a write. Returns its status if it is complete, the number of bytes written if it succeeds,
    /// and the steps that follow. `status_only`: that number for a request without data for the guest.
    #[cold]
    fn start_other<A: GuestAddressSpace>(
        &mut self,
        id: u32,
        header: Option<(u32, u64)>,
        durable: bool,
        status_only: u32,
        dma: &mut Dma<A>,
    ) -> (Option<Status>, u32, Vec<Step>) {
        let command = match header {
            Some((request_type, _)) => parse(&mut self.chain, request_type, &self.info, dma, &mut self.bufs),
            None => Err(Status::IoErr),
        };
        match command {
            Err(status) => (Some(status), status_only, Vec::new()),
            Ok(Command::GetId) => (Some(Status::Ok), self.write_serial(), Vec::new()),
            Ok(Command::Flush) => (self.push(id, FLUSH.op, FLUSH.offset, FLUSH.len), status_only, Vec::new()),
            Ok(Command::Ranges(mut steps)) => {
                if durable {
                    steps.push(FLUSH);
                }
                steps.reverse();
                self.bufs.clear();
                let done = match steps.pop() {
                    Some(Step { op, offset, len }) => self.push(id, op, offset, len),
                    None => Some(Status::Ok),
                };
                (done, status_only, steps)
            }
        }
    }

    /// Push a step to the disk, with the data in `bufs`. `Some`: the disk refused it.
    #[inline]
    fn push(&mut self, id: u32, op: Op, offset: u64, len: u64) -> Option<Status> {
        if self.fault.is_set() {
            return Some(Status::IoErr);
        }
        let request = Request { tag: id.into(), op, offset, len, bufs: &self.bufs };
        self.pushed = true;
        // The disk's queue is as deep as there are request numbers, so it is never full.
        self.queue.push(&request).err().map(|_| Status::IoErr)
    }

    /// Copy the serial number into the request's data. Returns the bytes written, including the status byte.
    fn write_serial(&self) -> u32 {
        let mut rest = &self.serial[..];
        for buf in &self.bufs {
            rest = rest.get(buf.write(rest)..).unwrap_or_default();
        }
        let written = self.serial.len() - rest.len();
        let all = total_len(&self.bufs) == Some(written as u64);
        written as u32 + u32::from(all)
    }

    #[inline]
    fn step_ended(&mut self, tag: u64, result: &Result<(), IoError>) {
        let id = u32::try_from(tag).unwrap_or(u32::MAX);
        let Some(pending) = self.in_flight.get_mut(id).filter(|pending| pending.in_disk) else {
            return self.set_fault(fault::UNKNOWN_COMPLETION);
        };
        pending.in_disk = false;
        let status = match result {
            Ok(()) => match pending.steps.pop() {
                None => Status::Ok,
                Some(step) => return self.next_step(id, &step),
            },
            Err(IoError::Unsupported) => Status::Unsupp,
            Err(_) => Status::IoErr,
        };
        let status = if self.fault.is_set() { Status::IoErr } else { status };
        self.ended.push_back((id, status));
    }

    fn next_step(&mut self, id: u32, step: &Step) {
        self.bufs.clear();
        let Step { op, offset, len } = *step;
        if let Some(status) = self.push(id, op, offset, len) {
            self.ended.push_back((id, status));
        } else if let Some(pending) = self.in_flight.get_mut(id) {
            pending.in_disk = true;
        }
    }

    /// All requests fail from now on ([`fault`](crate::fault)).
    #[cold]
    fn set_fault(&mut self, what: &'static str) {
        let end = self.serial.iter().position(|byte| *byte == 0).unwrap_or(self.serial.len());
        let serial = self.serial.get(..end).unwrap_or_default();
        self.fault.set(what, &String::from_utf8_lossy(serial));
    }

    /// Fail the requests that a faulted queue will never complete.
    #[cold]
    fn fail_stranded(&mut self) {
        if self.queue.in_flight() > 0 {
            return;
        }
        let ids: Vec<u32> =
            self.in_flight.iter().filter(|(_, pending)| pending.in_disk).map(|(id, _)| id).collect();
        for id in ids {
            if let Some(pending) = self.in_flight.get_mut(id) {
                pending.in_disk = false;
            }
            self.ended.push_back((id, Status::IoErr));
        }
    }
}

impl rings::Requests for BlockRequests {
    fn free_slots(&self) -> usize {
        self.in_flight.free_slots()
    }

    /// Always inlined, with the collection of the chain.
    #[inline(always)]
    fn start<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queue: usize,
        descriptors: DescriptorChain<'_, M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken> {
        let head = descriptors.head_index();
        self.chain.collect(descriptors)?;
        let status = self.chain.take_last_byte().ok_or(Broken)?;
        let id = self.in_flight.allocate().ok_or(Broken)?;
        self.bufs.clear();
        dma.next_request();
        let durable = self.write_through && self.info.volatile_cache;
        // Length for the used ring if the device writes no data: 1 if the writable part is the status byte alone, else 0.
        let status_only = u32::from(self.chain.writable.is_empty());
        // A closure, so that the record is built in its slot: a copy would load it right after it was stored in smaller pieces.
        let pending = |good, steps, in_disk| Pending {
            queue,
            head,
            status,
            written: (good, status_only),
            steps,
            disowned: false,
            in_disk,
        };
        let header = take_header(&mut self.chain, dma);
        let (write, sector) = match header {
            Some((VIRTIO_BLK_T_IN, sector)) => (false, sector),
            Some((VIRTIO_BLK_T_OUT, sector)) => (true, sector),
            _ => {
                let (done, good, steps) = self.start_other(id, header, durable, status_only, dma);
                self.store(id, pending(good, steps, done.is_none()), done, dma);
                return Ok(());
            }
        };
        let mut one = IoBuf::empty();
        let Self { chain, info, bufs: list, .. } = self;
        let Transfer { offset, len, bufs } =
            match parse_transfer(chain, (write, sector), info, dma, &mut one, list) {
                Ok(transfer) => transfer,
                Err(status) => {
                    self.store(id, pending(status_only, Vec::new(), false), Some(status), dma);
                    return Ok(());
                }
            };
        let (op, good) = match write {
            true => (Op::Write { fua: durable }, status_only),
            false => (Op::Read, (len as u32).saturating_add(1)),
        };
        let request = Request { tag: id.into(), op, offset, len, bufs };
        let done = match self.fault.is_set() {
            true => Some(Status::IoErr),
            false => {
                self.pushed = true;
                // The disk's queue is as deep as there are request numbers, so it is never full.
                self.queue.push(&request).err().map(|_| Status::IoErr)
            }
        };
        self.store(id, pending(good, Vec::new(), done.is_none()), done, dma);
        Ok(())
    }

    fn submit(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.queue.submit();
        }
    }

    /// Also starts the steps that follow completed ones.
    fn reap(&mut self) {
        loop {
            let mut completions = std::mem::take(&mut self.completions);
            self.queue.reap(&mut completions);
            // By reference: a move would load each completion right after it was stored in smaller pieces.
            for Completion { tag, result } in &completions {
                self.step_ended(*tag, result);
            }
            completions.clear();
            self.completions = completions;
            if !self.pushed {
                break;
            }
            // The submitted steps may have completed at once: reap again.
            self.submit();
        }
        if self.fault.is_set() {
            self.fail_stranded();
        }
    }

    fn fail_lost(&mut self) -> bool {
        if self.in_flight.count() as usize == self.ended.len() || self.queue.in_flight() > 0 {
            return false;
        }
        self.set_fault(fault::NOTHING_IN_FLIGHT);
        self.fail_stranded();
        true
    }

    fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    #[inline(always)]
    fn next_ended<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Ended> {
        while let Some((id, status)) = self.ended.pop_front() {
            let ended = self.in_flight.complete_with(id, |pending| {
                let (good, bad) = pending.written;
                let written = if status == Status::Ok { good } else { bad };
                let Pending { queue, head, status: status_at, disowned, .. } = *pending;
                (!disowned).then(|| {
                    let written = dma.write_byte(status_at, status as u8).is_ok().then_some(written);
                    Ended { queue, head, written, good: status == Status::Ok }
                })
            });
            debug_assert!(ended.is_some(), "request {id} ended and was not in flight");
            if let Some(Some(ended)) = ended {
                return Some(ended);
            }
        }
        None
    }

    /// Requests end with their current step.
    fn disown(&mut self, queue: Option<usize>) {
        self.submit();
        let disowned = |pending: &&mut Pending| queue.is_none_or(|queue| queue == pending.queue);
        for pending in self.in_flight.iter_mut().filter(disowned) {
            pending.disowned = true;
            pending.steps.clear();
        }
    }

    fn forget(&mut self, queue: usize) -> bool {
        for _ in 0..self.ended.len() {
            let Some((id, status)) = self.ended.pop_front() else { break };
            let Some(pending) = self.in_flight.get(id) else {
                debug_assert!(false, "request {id} ended and was not in flight");
                continue;
            };
            if pending.queue == queue {
                self.in_flight.complete(id);
            } else {
                self.ended.push_back((id, status));
            }
        }
        !self.in_flight.iter().any(|(_, pending)| pending.queue == queue)
    }

    fn drain(&mut self) {
        self.submit();
        self.reap();
        while self.queue.in_flight() > 0 {
            self.queue.wait();
            self.reap();
        }
        self.fail_lost();
    }

    fn footprint<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> Footprint {
        self.in_flight.footprint(dma, |pending| pending.status)
    }

    fn events(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.queue.event()]
    }

    fn queue_stats(&self) -> QueueStats {
        self.queue.stats()
    }
}

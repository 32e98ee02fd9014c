//! Requests on their way through the disk, by number.

use std::collections::VecDeque;

use disk_formats::{Completion, DiskInfo, DiskQueue, IoBuf, IoError, Op, Request, total_len};
use vm_memory::{GuestAddressSpace, GuestMemory};

use super::super::chain::Chain;
use super::super::descriptors::DescriptorChain;
use super::super::queue::Broken;
use super::request::{Command, FLUSH, Step, parse};
use super::spec::{Status, VIRTIO_BLK_ID_BYTES};
use crate::dma::{Dma, Footprint};
use crate::fault::{self, Fault};
use crate::in_flight::InFlight;

/// What is kept of a request.
#[derive(Debug)]
struct Pending {
    queue: usize,
    head: u16,
    /// Where the status byte goes.
    status: u64,
    /// Bytes surely written from the start of the writable part: when it went well, and otherwise.
    written: (u32, u32),
    /// What is still to be done, last first.
    steps: Vec<Step>,
    /// Its queue was reset: it is not answered.
    disowned: bool,
    /// The disk has a step of it.
    in_disk: bool,
}

/// A request that has ended, as the guest is to see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) queue: usize,
    pub(super) head: u16,
    pub(super) written: u32,
    pub(super) status: Status,
    /// Where the status byte goes.
    pub(super) status_at: u64,
}

/// Requests in flight.
pub(super) struct Requests {
    /// First, so that it is dropped first: requests in flight are waited for.
    queue: Box<dyn DiskQueue>,
    info: DiskInfo,
    serial: [u8; VIRTIO_BLK_ID_BYTES],
    in_flight: InFlight<Pending>,
    ended: VecDeque<(u32, Status)>,
    completions: Vec<Completion>,
    chain: Chain,
    bufs: Vec<IoBuf>,
    /// The disk was given steps since it was last submitted to.
    pushed: bool,
    fault: Fault,
}

impl Requests {
    pub(super) fn new(
        queue: Box<dyn DiskQueue>,
        info: DiskInfo,
        serial: [u8; VIRTIO_BLK_ID_BYTES],
        tasks: u32,
    ) -> Self {
        Self {
            queue,
            info,
            serial,
            in_flight: InFlight::new(tasks),
            ended: VecDeque::with_capacity(tasks as usize),
            completions: Vec::with_capacity(tasks as usize),
            chain: Chain::default(),
            bufs: Vec::new(),
            pushed: false,
            fault: Fault::default(),
        }
    }

    pub(super) fn disk(&self) -> &dyn DiskQueue {
        &*self.queue
    }

    /// The disk has so many bytes from now on.
    pub(super) const fn set_capacity(&mut self, bytes: u64) {
        self.info.capacity = bytes;
    }

    /// Guest memory that requests use.
    pub(super) fn footprint<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> Footprint {
        self.in_flight.footprint(dma, |pending| pending.status)
    }

    /// Requests that can be taken.
    pub(super) fn room(&self) -> usize {
        self.in_flight.room()
    }

    /// Start what a chain asks for. Only with [`room`](Self::room).
    ///
    /// # Errors
    /// [`Broken`] where there is nothing to answer to.
    pub(super) fn start<A: GuestAddressSpace, M: GuestMemory>(
        &mut self,
        queue: usize,
        descriptors: DescriptorChain<&M>,
        write_through: bool,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken> {
        let head = descriptors.head_index();
        self.chain.collect(descriptors)?;
        let status = self.chain.take_last_byte().ok_or(Broken)?;
        let id = self.in_flight.number().ok_or(Broken)?;
        self.bufs.clear();
        dma.begin();
        let command = parse(&mut self.chain, &self.info, dma, &mut self.bufs);
        // With data before it, the status byte is not the start of what is written.
        let alone = u32::from(self.chain.writable.is_empty());
        let mut pending = Pending {
            queue,
            head,
            status,
            written: (alone, alone),
            steps: Vec::new(),
            disowned: false,
            in_disk: false,
        };
        let durable = write_through && self.info.volatile_cache;
        let done = match command {
            Err(status) => Some(status),
            Ok(Command::GetId) => {
                pending.written.0 = self.write_serial();
                Some(Status::Ok)
            }
            Ok(Command::Transfer(mut step)) => {
                match &mut step.op {
                    Op::Read => pending.written.0 = (step.len as u32).saturating_add(1),
                    Op::Write { fua } if durable => {
                        *fua = self.info.fua;
                        if !self.info.fua {
                            pending.steps.push(FLUSH);
                        }
                    }
                    _ => {}
                }
                self.push(id, &step)
            }
            Ok(Command::Ranges(mut steps)) => {
                if durable {
                    steps.push(FLUSH);
                }
                steps.reverse();
                pending.steps = steps;
                self.bufs.clear();
                match pending.steps.pop() {
                    Some(step) => self.push(id, &step),
                    None => Some(Status::Ok),
                }
            }
        };
        pending.in_disk = done.is_none();
        self.in_flight.keep(id, pending, dma.footprint());
        if let Some(status) = done {
            self.ended.push_back((id, status));
        }
        Ok(())
    }

    /// Give the disk a step with the data in `bufs`. A status: it was not taken.
    fn push(&mut self, id: u32, step: &Step) -> Option<Status> {
        if self.fault.is_set() {
            return Some(Status::IoErr);
        }
        let Step { op, offset, len } = *step;
        let request = Request { tag: id.into(), op, offset, len, bufs: &self.bufs };
        self.pushed = true;
        // The queue holds as many as there are numbers, so it is never full.
        self.queue.push(&request).err().map(|_| Status::IoErr)
    }

    /// Copy the serial number into the request's data; how much is written with the status.
    fn write_serial(&self) -> u32 {
        let mut rest = &self.serial[..];
        for buf in &self.bufs {
            rest = rest.get(buf.write(rest)..).unwrap_or_default();
        }
        let written = self.serial.len() - rest.len();
        let all = total_len(&self.bufs) == Some(written as u64);
        written as u32 + u32::from(all)
    }

    /// Hand the disk what it was given.
    pub(super) fn submit(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.queue.submit();
        }
    }

    /// Find out what has ended, and start the steps that follow.
    pub(super) fn reap(&mut self) {
        loop {
            let mut completions = std::mem::take(&mut self.completions);
            self.queue.reap(&mut completions);
            for Completion { tag, result } in completions.drain(..) {
                self.step_ended(tag, result);
            }
            self.completions = completions;
            if !self.pushed {
                break;
            }
            // They may have ended at once.
            self.submit();
        }
        if self.fault.is_set() {
            self.fail_lost();
        }
    }

    #[inline]
    fn step_ended(&mut self, tag: u64, result: Result<(), IoError>) {
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
        if let Some(status) = self.push(id, step) {
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

    /// End what a faulted queue will never complete.
    #[cold]
    fn fail_lost(&mut self) {
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

    /// Fail requests that wait for what the disk's queue does not have. True: there were some. To be called with everything
    /// submitted and reaped.
    pub(super) fn end_lost(&mut self) -> bool {
        if self.in_flight.count() as usize == self.ended.len() || self.queue.in_flight() > 0 {
            return false;
        }
        self.set_fault(fault::NOTHING_IN_FLIGHT);
        self.fail_lost();
        true
    }

    /// Whether anything has ended that was not taken.
    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Take one that has ended.
    pub(super) fn next_ended(&mut self) -> Option<Ended> {
        while let Some((id, status)) = self.ended.pop_front() {
            let Some(pending) = self.in_flight.end(id) else {
                debug_assert!(false, "request {id} ended and was not in flight");
                continue;
            };
            let Pending { queue, head, status: status_at, written: (good, bad), disowned, .. } = pending;
            if disowned {
                continue;
            }
            let written = if status == Status::Ok { good } else { bad };
            return Some(Ended { queue, head, written, status, status_at });
        }
        None
    }

    /// Requests of a queue, or all, go no further than the step that the disk has, and are not answered.
    pub(super) fn disown(&mut self, queue: Option<usize>) {
        self.submit();
        for pending in
            self.in_flight.iter_mut().filter(|pending| queue.is_none_or(|queue| queue == pending.queue))
        {
            pending.disowned = true;
            pending.steps.clear();
        }
    }

    /// Forget what has ended of a queue, or all. True: the disk has nothing more of it.
    pub(super) fn forget(&mut self, queue: Option<usize>) -> bool {
        let its = |pending: &Pending| queue.is_none_or(|queue| queue == pending.queue);
        for _ in 0..self.ended.len() {
            let Some((id, status)) = self.ended.pop_front() else { break };
            let Some(pending) = self.in_flight.get(id) else {
                debug_assert!(false, "request {id} ended and was not in flight");
                continue;
            };
            if its(pending) {
                self.in_flight.end(id);
            } else {
                self.ended.push_back((id, status));
            }
        }
        !self.in_flight.iter().any(|(_, pending)| its(pending))
    }

    /// Wait until all have ended.
    pub(super) fn drain(&mut self) {
        self.submit();
        self.reap();
        while self.queue.in_flight() > 0 {
            self.queue.wait();
            self.reap();
        }
        self.end_lost();
    }
}

//! The control queue: task management and asynchronous notifications (VIRTIO 1.2, 5.6.6.2).
//!
//! A function covers all requests that the guest made available before it, in any queue. So it is taken after those requests, which
//! may go to the backlog, and answered after the requests that it ends. A reset that waits for a disk is answered late, but does not
//! delay other requests.

use vm_memory::GuestAddressSpace;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::super::descriptors::DescriptorChain;
use super::super::queue::{Broken, Virtqueue};
use super::answer::{Answer, Reply};
use super::functions::Function;
use super::host::{Host, Pending, Verdict};
use super::lun::{Place, place};
use super::spec::*;
use crate::dma::{Dma, Spans};
use crate::scsi::{Address, TaskEnd};

/// Maximum number of chains taken at once.
const BATCH: usize = 64;

impl Host {
    /// Take functions. True: serve all queues again.
    pub(super) fn serve_control<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queues: &mut [Virtqueue],
        dma: &mut Dma<A>,
        memory: &M,
    ) -> Result<bool, Broken> {
        self.control.blocked = false;
        for count in 0..BATCH {
            let queue = queues.get(CONTROL_QUEUE).filter(|queue| queue.active());
            let waiting = queue.map_or(0, |queue| queue.waiting(memory));
            if waiting == 0 || !self.control.wants() {
                return Ok(count > 0);
            }
            if !self.control.earlier_taken(queues, memory) {
                self.control.blocked = self.full();
                return Ok(count > 0 || !self.control.blocked);
            }
            let Some(queue) = queues.get_mut(CONTROL_QUEUE) else { return Ok(false) };
            let Some(chain) = queue.take(memory)?.next() else { return Ok(count > 0) };
            self.control(chain, dma)?;
            queue.in_flight += 1;
        }
        Ok(true)
    }

    fn control<A: GuestAddressSpace, M: Spans>(
        &mut self,
        descriptors: DescriptorChain<'_, M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken> {
        let head = descriptors.head_index();
        self.chain.collect(descriptors)?;
        let kind = self.chain.take_header(dma).map(U32::get).filter(|_| !self.chain.malformed);
        let mut bytes = [0; 16];
        let (requests, len) = match kind {
            Some(VIRTIO_SCSI_T_TMF) => {
                let function = self.chain.take_header(dma);
                let (requests, response) =
                    function.map_or((Vec::new(), Response::Failure), |f| self.manage(&f));
                bytes[0] = response as u8;
                (requests, 1)
            }
            Some(VIRTIO_SCSI_T_AN_QUERY | VIRTIO_SCSI_T_AN_SUBSCRIBE) => {
                let asked: Option<Notifications> = self.chain.take_header(dma);
                let response = match asked.map(|asked| self.unit(&asked.lun)) {
                    Some(Ok(_)) => Response::Ok,
                    Some(Err(response)) => response,
                    None => Response::Failure,
                };
                // A disk that is not removable has no asynchronous notifications.
                let response = NotificationsResponse { actual: 0.into(), response: response as u8 };
                for (to, from) in bytes.iter_mut().zip(response.as_bytes()) {
                    *to = *from;
                }
                (Vec::new(), size_of::<NotificationsResponse>())
            }
            // The response to an unknown type is assumed to begin with a response byte.
            _ => {
                bytes[0] = Response::FunctionRejected as u8;
                (Vec::new(), 1)
            }
        };
        let (answer, _) = Answer::take(&self.chain.writable, len as u64).ok_or(Broken)?;
        let reply = Reply { queue: CONTROL_QUEUE, head, answer: Some(answer), bytes, len };
        if requests.is_empty() {
            self.replies.push_back(reply);
        } else {
            self.control.functions.push(Function { requests, reply });
        }
        Ok(())
    }

    /// Perform a function. Returns the requests whose end it waits for, and the response.
    fn manage(&mut self, function: &TaskManagement) -> (Vec<u32>, Response) {
        let code = function.subtype.get();
        let address = match self.unit(&function.lun) {
            Ok(address) => address,
            // The function covers all units of the target.
            Err(Response::IncorrectLun) if code == tmf::I_T_NEXUS_RESET => {
                Address { target: function.lun[1], lun: 0 }
            }
            Err(response) => return (Vec::new(), response),
        };
        let id = function.id.get();
        tracing::info!(code, ?address, id, "virtio SCSI task management");
        let query = |wanted: &dyn Fn(u64) -> bool| {
            let waiting = self.backlog.iter().any(|(at, pending)| at == address && wanted(pending.id));
            let there = waiting || !self.requests(|at, request| at == address && wanted(request)).is_empty();
            (Vec::new(), if there { Response::FunctionSucceeded } else { Response::Ok })
        };
        let requests = match code {
            tmf::ABORT_TASK => self.abort(address, |request| request == id),
            tmf::ABORT_TASK_SET | tmf::CLEAR_TASK_SET => self.abort(address, |_| true),
            tmf::LOGICAL_UNIT_RESET => {
                let requests = self.requests(|at, _| at == address);
                self.end_backlog(|at, _| at == address, TaskEnd::Reset);
                self.bus.reset_unit(address);
                requests
            }
            tmf::I_T_NEXUS_RESET => {
                let requests = self.requests(|at, _| at.target == address.target);
                self.end_backlog(|at, _| at.target == address.target, TaskEnd::Reset);
                self.bus.reset_target(address.target);
                requests
            }
            tmf::QUERY_TASK => return query(&|request| request == id),
            tmf::QUERY_TASK_SET => return query(&|_| true),
            _ => return (Vec::new(), Response::FunctionRejected),
        };
        (requests, Response::Ok)
    }

    /// The address, if there is a unit at it.
    fn unit(&self, lun: &[u8; 8]) -> Result<Address, Response> {
        let Some(Place::Unit(address)) = place(lun, self.targets) else { return Err(Response::BadTarget) };
        if self.bus.addresses().any(|other| other == address) {
            Ok(address)
        } else if self.bus.addresses().any(|other| other.target == address.target) {
            Err(Response::IncorrectLun)
        } else {
            Err(Response::BadTarget)
        }
    }

    /// Requests in flight that match, by address and by the identifier of task management.
    fn requests(&self, wanted: impl Fn(Address, u64) -> bool) -> Vec<u32> {
        let wanted = |pending: &Pending| pending.address.is_some_and(|address| wanted(address, pending.id));
        self.in_flight.iter().filter(|(_, pending)| wanted(pending)).map(|(id, _)| id).collect()
    }

    /// End matching requests of the backlog. They are answered before the function.
    fn end_backlog(&mut self, wanted: impl Fn(Address, u64) -> bool, end: TaskEnd) {
        let waiting = self.backlog.take(|address, pending| wanted(address, pending.id));
        self.failed.extend(waiting.into_iter().map(|pending| (pending, Verdict::Ended(end))));
    }

    fn abort(&mut self, address: Address, wanted: impl Fn(u64) -> bool) -> Vec<u32> {
        self.end_backlog(|at, request| at == address && wanted(request), TaskEnd::Aborted);
        let requests = self.requests(|at, request| at == address && wanted(request));
        for request in &requests {
            self.bus.abort(*request);
        }
        requests
    }
}

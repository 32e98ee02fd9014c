//! Task management: by FIFO or by handshake, the reply always through the reply FIFO and after those of the tasks.

use vm_memory::GuestAddressSpace;

use super::message::parse;
use super::scsi_io::Pending;
use super::spec::{Header, IocState, TaskMgmtReply, TaskMgmtRequest, ioc_status, response, task_type};
use super::{Lsi, Reply};
use crate::Time;
use crate::scsi::{Address, single_level_lun};

/// Task management that waits for the end of a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Management {
    task: u32,
    reply: TaskMgmtReply,
}

impl<A: GuestAddressSpace> Lsi<A> {
    pub(super) fn task_management(&mut self, frame: &[u8], now: Time) {
        let Some(request) = parse::<TaskMgmtRequest>(frame) else {
            let header = parse::<Header>(frame).unwrap_or_default();
            self.post(Reply::default_to(&header, ioc_status::INVALID_FIELD));
            return self.signal_others();
        };
        let mut reply = TaskMgmtReply {
            target_id: request.target_id,
            bus: request.bus,
            msg_length: 0,
            function: request.function,
            response_code: response::TM_COMPLETE,
            task_type: request.task_type,
            reserved: 0,
            msg_flags: request.msg_flags,
            msg_context: request.msg_context,
            reserved2: [0; 2],
            ioc_status: ioc_status::SUCCESS.into(),
            ioc_log_info: 0.into(),
            termination_count: 0.into(),
        };
        if self.state != IocState::Operational {
            reply.ioc_status = ioc_status::INVALID_STATE.into();
            return self.finish_management(reply);
        }
        if self.management.len() >= self.in_flight.limit() {
            reply.ioc_status = ioc_status::INSUFFICIENT_RESOURCES.into();
            return self.finish_management(reply);
        }
        let before = self.in_flight.count();
        match request.task_type {
            task_type::ABORT_TASK | task_type::QUERY_TASK => {
                let Some(task) = self.find(&request) else {
                    if request.task_type == task_type::ABORT_TASK {
                        reply.ioc_status = ioc_status::SCSI_TASK_MGMT_FAILED.into();
                        reply.response_code = response::TM_FAILED;
                    }
                    return self.finish_management(reply);
                };
                if request.task_type == task_type::QUERY_TASK {
                    reply.response_code = response::TM_SUCCEEDED;
                } else if self.bus.abort(task) {
                    reply.termination_count = 1.into();
                    self.management.push(Management { task, reply });
                    // It may have ended already.
                    return self.complete(now);
                }
            }
            task_type::TARGET_RESET => self.bus.reset_target(request.target_id),
            task_type::RESET_BUS => self.bus.reset_all(),
            task_type::LOGICAL_UNIT_RESET | task_type::ABORT_TASK_SET | task_type::CLEAR_TASK_SET => {
                match single_level_lun(&request.lun) {
                    Some(lun) => self.bus.reset_unit(Address { target: request.target_id, lun }),
                    None => reply.response_code = response::TM_INVALID_LUN,
                }
            }
            _ => reply.response_code = response::TM_NOT_SUPPORTED,
        }
        // The replies of what was ended come first.
        self.complete(now);
        reply.termination_count = before.saturating_sub(self.in_flight.count()).into();
        self.finish_management(reply);
    }

    /// The task in flight that a request names by its context.
    fn find(&self, request: &TaskMgmtRequest) -> Option<u32> {
        let context = request.task_msg_context.get();
        let named = |pending: &Pending| pending.context == context && pending.target == request.target_id;
        self.in_flight.iter().find(|(_, pending)| named(pending)).map(|(task, _)| task)
    }

    /// Tell of the management that waited for this task.
    pub(super) fn task_ended(&mut self, task: u32) {
        // Hardly ever any; two requests may name the same task.
        while let Some(index) = self.management.iter().position(|waiting| waiting.task == task) {
            let waiting = self.management.swap_remove(index);
            self.finish_management(waiting.reply);
        }
    }

    fn finish_management(&mut self, reply: TaskMgmtReply) {
        self.post(Reply::new(&reply));
        self.signal_others();
    }
}

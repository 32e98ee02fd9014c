//! Task management by FIFO or handshake. The reply always goes to the reply FIFO, after the replies of the affected
//! tasks.
//!
//! Task management applies to all SCSI I/O that was posted before it, including the backlog. The reply waits until the
//! disks have completed the affected I/O: after the reply, a driver reuses the memory of its requests.

use vm_memory::GuestAddressSpace;

use super::Lsi;
use super::management::{Management, Scope, WaitsFor};
use super::message::parse;
use super::pending::Pending;
use super::reply::Reply;
use super::spec::{Header, IocState, TaskMgmtReply, TaskMgmtRequest, ioc_status, response, task_type};
use crate::hba::Hba;
use crate::scsi::{Address, Bus, TaskEnd, single_level_lun};
use crate::time::Time;

impl<A: GuestAddressSpace> Lsi<A> {
    pub(super) fn task_management(&mut self, frame: &[u8], now: Time) {
        let Some(request) = parse::<TaskMgmtRequest>(frame) else {
            let header = parse::<Header>(frame).unwrap_or_default();
            return self.reply(Reply::default_to(&header, ioc_status::INVALID_FIELD));
        };
        tracing::info!(
            task_type = request.task_type,
            target = request.target_id,
            context = request.task_msg_context.get(),
            "LSI task management"
        );
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
        if self.management.len() >= self.engine.in_flight.limit() {
            reply.ioc_status = ioc_status::INSUFFICIENT_RESOURCES.into();
            return self.finish_management(reply);
        }
        let scope = match request.task_type {
            task_type::ABORT_TASK | task_type::QUERY_TASK => return self.one_task(&request, reply, now),
            task_type::TARGET_RESET => Scope::Target(request.target_id),
            task_type::RESET_BUS => Scope::Bus,
            task_type::LOGICAL_UNIT_RESET | task_type::ABORT_TASK_SET | task_type::CLEAR_TASK_SET => {
                let Some(lun) = single_level_lun(&request.lun) else {
                    reply.response_code = response::TM_INVALID_LUN;
                    return self.finish_management(reply);
                };
                Scope::Unit(Address { target: request.target_id, lun })
            }
            _ => {
                reply.response_code = response::TM_NOT_SUPPORTED;
                return self.finish_management(reply);
            }
        };
        let taken = self.engine.backlog.take(|address, _| scope.has(address));
        let in_flight = self
            .engine
            .in_flight
            .iter()
            .filter(|(_, pending)| pending.address().is_some_and(|address| scope.has(address)))
            .count();
        reply.termination_count = ((taken.len() + in_flight) as u32).into();
        for (_, pending) in &taken {
            self.end(pending, &TaskEnd::Reset, now);
        }
        match scope {
            Scope::Unit(address) => self.engine.bus.reset_unit(address),
            Scope::Target(target) => self.engine.bus.reset_target(target),
            Scope::Bus => self.engine.bus.reset_all(),
        }
        // The replies of the ended tasks come first.
        self.management.push(Management { waits_for: WaitsFor::Units(scope), reply });
        self.complete(now);
    }

    /// ABORT TASK and QUERY TASK.
    fn one_task(&mut self, request: &TaskMgmtRequest, mut reply: TaskMgmtReply, now: Time) {
        let abort = request.task_type == task_type::ABORT_TASK;
        if let Some(task) = self.find(request) {
            if abort && self.engine.bus.abort(task) {
                reply.termination_count = 1.into();
                self.management.push(Management { waits_for: WaitsFor::Task(task), reply });
                // The task may have ended already.
                return self.complete(now);
            }
            reply.response_code = response::TM_SUCCEEDED;
            return self.finish_management(reply);
        }
        let mut found = false;
        let taken = self.engine.backlog.take(|_, (_, pending)| {
            let this = !found && names(request, pending);
            found |= this;
            this && abort
        });
        if let [(_, pending)] = taken.as_slice() {
            self.end(pending, &TaskEnd::Aborted, now);
            reply.termination_count = 1.into();
        } else if found {
            reply.response_code = response::TM_SUCCEEDED;
        } else if abort {
            reply.ioc_status = ioc_status::SCSI_TASK_MGMT_FAILED.into();
            reply.response_code = response::TM_FAILED;
        }
        self.finish_management(reply);
    }

    /// The task in flight that has the context of the request.
    fn find(&self, request: &TaskMgmtRequest) -> Option<u32> {
        self.engine.in_flight.iter().find(|(_, pending)| names(request, pending)).map(|(task, _)| task)
    }

    /// Reply to task management that waited for this task.
    pub(super) fn task_ended(&mut self, task: u32) {
        // Nearly always none. Two requests may have the same task.
        self.complete_management(|waits_for| waits_for == WaitsFor::Task(task));
    }

    /// Reply to task management that waited for units whose reset is complete. The replies of their tasks are posted.
    pub(super) fn units_reset(&mut self) {
        let still = |scope: Scope, bus: &Bus| bus.resetting(|address| scope.has(address));
        let over: Vec<WaitsFor> = self
            .management
            .iter()
            .map(|waiting| waiting.waits_for)
            .filter(
                |waits_for| matches!(waits_for, WaitsFor::Units(scope) if !still(*scope, &self.engine.bus)),
            )
            .collect();
        if !over.is_empty() {
            self.complete_management(|waits_for| over.contains(&waits_for));
        }
    }

    fn complete_management(&mut self, over: impl Fn(WaitsFor) -> bool) {
        while let Some(index) = self.management.iter().position(|waiting| over(waiting.waits_for)) {
            let waiting = self.management.remove(index);
            self.finish_management(waiting.reply);
        }
    }

    fn finish_management(&mut self, reply: TaskMgmtReply) {
        self.reply(Reply::new(&reply));
    }
}

/// Whether the request refers to this SCSI I/O by its context.
fn names(request: &TaskMgmtRequest, pending: &Pending) -> bool {
    pending.context == request.task_msg_context.get() && pending.target == request.target_id
}

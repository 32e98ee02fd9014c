//! INITIATE_CONTACT and UNLOAD reset the bus. The answer is sent when the disks have completed all requests in flight, because the guest
//! may reuse its memory after the answer.

use vm_memory::GuestAddressSpace;

use super::Vmbus;
use super::link::{Answer, Link};
use super::spec::{MessageHeader, VMBUS_MESSAGE_CONNECTION_ID_4, VersionResponse, message, version};
use crate::hba::Hba;
use crate::time::Time;

impl<A: GuestAddressSpace> Vmbus<A> {
    /// Reset the bus; [`finish_reset`](Self::finish_reset) sends `answer`. `vp`: send messages to this virtual processor from here on.
    pub(super) fn reset_by_guest(&mut self, answer: Answer, vp: Option<u32>, now: Time) {
        tracing::debug!(?answer, in_flight = self.engine.in_flight.count(), "VMBus reset by the guest");
        self.outbox.reset(vp);
        self.link = Link::Resetting(answer);
        self.forget();
        self.storvsc.restart();
        self.engine.bus.reset_all();
        self.complete(now);
    }

    /// Drop all GPADLs and channels. Requests are aborted, and counted until the disks have completed them.
    fn forget(&mut self) {
        self.gpadls.clear();
        for index in 0..self.channels.len() {
            self.channels[index].forget();
            self.abandon(index);
        }
    }

    /// Send the answer of a reset, if all requests have completed.
    pub(super) fn finish_reset(&mut self) {
        let Link::Resetting(answer) = self.link else { return };
        if self.engine.in_flight.count() > 0 {
            return;
        }
        self.engine.dma.release();
        self.link = match answer {
            Answer::Version(Some(version)) => Link::Up { version },
            Answer::Version(None) | Answer::Unload => Link::Down,
        };
        match answer {
            Answer::Version(spoken) => {
                let messages = spoken.filter(|spoken| *spoken >= version(5, 0));
                self.send(&VersionResponse {
                    header: MessageHeader::new(message::VERSION_RESPONSE),
                    supported: spoken.is_some().into(),
                    connection_state: 0,
                    padding: 0.into(),
                    connection_id: messages.map_or(0, |_| VMBUS_MESSAGE_CONNECTION_ID_4).into(),
                });
            }
            Answer::Unload => self.send(&MessageHeader::new(message::UNLOAD_RESPONSE)),
        }
    }

    /// Set the power-on state. Waits for the disks.
    pub(super) fn power_on_reset(&mut self) {
        self.outbox.reset(Some(0));
        self.link = Link::Down;
        self.gpadls.clear();
        self.storvsc.restart();
        let engine = &mut self.engine;
        engine.bus.reset_all();
        engine.bus.drain();
        engine.stats.errors += u64::from(engine.in_flight.count()) + engine.backlog.len() as u64;
        engine.drop_waiting();
        engine.drop_in_flight();
        for channel in &mut self.channels {
            channel.requests = 0;
            channel.forget();
        }
    }
}

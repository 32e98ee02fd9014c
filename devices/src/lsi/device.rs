//! Register space, controller states, and the device's PCI and I/O thread interfaces.

use vm_memory::GuestAddressSpace;

use super::Lsi;
use super::handshake::{Handshake, Progress};
use super::personality::REPLY_FRAME;
use super::spec::{
    FIFO_EMPTY, IocState, REGISTER_BARS, WRITE_SEQUENCE_KEYS, diag, doorbell, doorbell_fn, function, int, reg,
};
use crate::device::{AccessKind, Bar, Doorbell, PciDevice};
use crate::hba::Hba;
use crate::pci::BusMaster;
use crate::time::Time;

impl<A: GuestAddressSpace> Lsi<A> {
    fn register_read(&mut self, offset: u64) -> u32 {
        match offset {
            reg::DOORBELL => {
                // A driver polls this register until the reset has completed.
                self.finish_reset();
                self.doorbell()
            }
            reg::HOST_DIAGNOSTIC => self.diagnostic,
            reg::INT_STATUS => self.port.status(),
            reg::INT_MASK => self.port.mask(),
            reg::REPLY_FIFO => {
                let value = self.port.read_reply();
                self.update_line();
                value
            }
            reg::REQUEST_FIFO => FIFO_EMPTY,
            _ => 0,
        }
    }

    fn register_write(&mut self, offset: u64, value: u32, now: Time) {
        match offset {
            reg::DOORBELL => self.write_doorbell(value, now),
            reg::WRITE_SEQUENCE => self.write_sequence(value),
            reg::HOST_DIAGNOSTIC => self.write_diagnostic(value),
            reg::INT_STATUS => {
                self.handshake.acknowledge();
                // A later doorbell interrupt is asserted anew.
                let _ = self.port.set_doorbell(false);
                self.show_handshake();
            }
            reg::INT_MASK => {
                let asserted = self.port.set_mask(value & (int::REPLY | int::DOORBELL));
                self.signal_if(asserted);
            }
            // The request stays in the FIFO: `before_sleep` does not let the I/O thread sleep while there are requests, and `service` then
            // takes all of them.
            reg::REQUEST_FIFO | reg::HI_PRI_REQUEST_FIFO => {
                self.port.post_request(value);
            }
            reg::REPLY_FIFO => {
                self.port.free_reply(value);
            }
            _ => {}
        }
    }

    fn doorbell(&mut self) -> u32 {
        let low = if self.state == IocState::Fault { self.fault.into() } else { self.handshake.read() };
        (self.state as u32) << doorbell::STATE_SHIFT
            | u32::from(self.who_init & 7) << doorbell::WHO_INIT_SHIFT
            | low
    }

    fn write_doorbell(&mut self, value: u32, now: Time) {
        if self.handshake.collecting() {
            if self.handshake.push(value) == Progress::Request {
                self.answer_handshake(now);
            }
            return;
        }
        match (value >> 24) as u8 {
            doorbell_fn::MESSAGE_UNIT_RESET | doorbell_fn::IO_UNIT_RESET => {
                self.message_unit_reset();
                // The reply is one interrupt, which tells the host that the write was taken.
                self.handshake.no_reply();
            }
            doorbell_fn::HANDSHAKE if !matches!(self.state, IocState::Fault | IocState::Reset) => {
                self.handshake.expect((value >> 16) as u8)
            }
            doorbell_fn::REPLY_FRAME_REMOVAL | doorbell_fn::HOST_PAGEBUF_ACCESS_CONTROL => {
                self.handshake.no_reply();
            }
            _ => {}
        }
        self.show_handshake();
    }

    fn answer_handshake(&mut self, now: Time) {
        let mut bytes = [0; 128];
        let len = self.handshake.request(&mut bytes);
        let frame = &bytes[..len];
        if frame.get(3) == Some(&function::SCSI_TASK_MGMT) {
            self.handshake.no_reply();
            // Take the requests from the FIFO first: the tasks to abort may be among them, and requests that were
            // posted earlier must not follow.
            self.service(now);
            while self.fetch(now) {
                self.complete(now);
            }
            self.task_management(frame, now);
        } else {
            let reply = self.answer(frame);
            self.handshake.reply(reply.as_slice());
        }
        self.show_handshake();
    }

    /// Set bit 0 of the interrupt status (doorbell interrupt) as the handshake requires.
    fn show_handshake(&mut self) {
        if self.handshake.interrupt() {
            let asserted = self.port.set_doorbell(true);
            self.signal_if(asserted);
        } else {
            let _ = self.port.set_doorbell(false);
            self.update_line();
        }
    }

    fn write_sequence(&mut self, value: u32) {
        let key = value & 0xf;
        if self.diagnostic & diag::DRWE != 0 {
            // While writes are enabled, any key disables them.
            self.diagnostic &= !diag::DRWE;
            self.keys = 0;
        }
        if WRITE_SEQUENCE_KEYS.get(self.keys) == Some(&key) {
            self.keys += 1;
        } else {
            self.keys = usize::from(key == WRITE_SEQUENCE_KEYS[0]);
        }
        if self.keys == WRITE_SEQUENCE_KEYS.len() {
            self.keys = 0;
            self.diagnostic |= diag::DRWE;
        }
    }

    fn write_diagnostic(&mut self, value: u32) {
        if self.diagnostic & diag::DRWE == 0 {
            return;
        }
        if value & diag::RESET_ADAPTER != 0 {
            self.message_unit_reset();
            self.pages.reset();
            self.who_init = 0;
            self.diagnostic = diag::RESET_HISTORY;
            self.keys = 0;
            return;
        }
        let writable = diag::RESET_HISTORY | diag::RW_ENABLE | diag::DISABLE_ARM | diag::MEM_ENABLE;
        // Writes can clear the reset history, but not set it.
        let history = self.diagnostic & value & diag::RESET_HISTORY;
        self.diagnostic = value & writable & !diag::RESET_HISTORY | history | diag::DRWE;
    }

    /// Message unit reset: requests in flight end without a reply. The controller is in the state RESET, and takes no
    /// requests, until the disks have completed all requests and so no longer access guest memory. A driver waits for
    /// READY (MPI 1.5, message unit reset).
    pub(super) fn message_unit_reset(&mut self) {
        tracing::debug!(in_flight = self.engine.bus.in_flight(), "LSI message unit reset");
        self.engine.bus.reset_all();
        self.engine.drop_waiting();
        self.management.clear();
        self.port.reset();
        self.handshake = Handshake::new();
        self.event_context = None;
        // Parameters of IOC INIT, back to their defaults.
        self.reply_frame_size = REPLY_FRAME as u16;
        (self.mfa_high, self.sense_high) = (0, 0);
        self.state = IocState::Reset;
        self.update_line();
        self.finish_reset();
    }

    /// Complete a reset if the disks have completed all requests.
    pub(super) fn finish_reset(&mut self) {
        if self.state != IocState::Reset || !self.engine.drop_in_flight() {
            return;
        }
        // Requests that were posted during the reset are lost.
        self.port.empty();
        self.state = IocState::Ready;
        self.update_line();
    }

    /// Enter the state FAULT: no requests are processed until the guest resets the controller.
    #[cold]
    pub(super) fn enter_fault(&mut self, code: u16) {
        if self.state != IocState::Fault {
            tracing::warn!(code, "LSI controller in FAULT until it is reset");
            self.state = IocState::Fault;
            self.fault = code;
            self.engine.deferred.clear();
        }
    }
}

impl<A> PciDevice for Lsi<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.function.config_read(offset, data);
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        match self.function.config_write(offset, data) {
            BusMaster::Same => {}
            // From here on guest memory is not accessed. Completions are posted when bus mastering is enabled again.
            BusMaster::Off => self.engine.bus.drain(),
            BusMaster::On => {
                self.engine.has_work = true;
                // An interrupt that was asserted while bus mastering was off is signaled now.
                let asserted = self.port.asserted();
                self.signal_if(asserted);
            }
        }
        self.update_line();
    }

    fn bars(&self) -> Vec<Bar> {
        self.function.bars()
    }

    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], _now: Time) {
        data.fill(0);
        if let (true, Ok(data)) = (REGISTER_BARS.contains(&bar), <&mut [u8; 4]>::try_from(data)) {
            *data = self.register_read(offset).to_le_bytes();
        }
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], now: Time) {
        if let (true, Ok(&data)) = (REGISTER_BARS.contains(&bar), <&[u8; 4]>::try_from(data)) {
            self.register_write(offset, u32::from_le_bytes(data), now);
        }
    }

    fn doorbells(&self) -> &[Doorbell] {
        // The request FIFO is none, because the written values matter.
        &[]
    }

    fn access_kind(&self, bar: u8, offset: u64, write: Option<&[u8]>) -> AccessKind {
        if !REGISTER_BARS.contains(&bar) || write.is_some_and(|data| data.len() != 4) {
            return AccessKind::Command;
        }
        match (offset, write) {
            (reg::REPLY_FIFO | reg::INT_STATUS | reg::INT_MASK, None) => AccessKind::Register,
            (reg::REPLY_FIFO, Some(_)) if self.engine.deferred.is_empty() => AccessKind::Register,
            (reg::REPLY_FIFO | reg::REQUEST_FIFO | reg::HI_PRI_REQUEST_FIFO, Some(_)) => {
                AccessKind::Submission
            }
            _ => AccessKind::Command,
        }
    }
}

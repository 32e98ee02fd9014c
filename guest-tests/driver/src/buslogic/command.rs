//! The exchange of a command over status and data register, and resets.

use super::adapter::BusLogic;
use super::bringup::{Step, failed};
use super::spec::*;
use crate::platform::Platform;
use crate::workload::Fault;

impl BusLogic {
    /// Poll the status until it says so.
    fn wait_status<P: Platform>(
        &mut self,
        platform: &mut P,
        step: Step,
        done: impl Fn(u8) -> bool,
    ) -> Result<u8, Fault> {
        let start = platform.ticks();
        loop {
            let status = self.register_read(platform, STATUS);
            if done(status) {
                return Ok(status);
            }
            if platform.ticks().wrapping_sub(start) > platform.timeout_ticks() {
                return Err(failed(step));
            }
            core::hint::spin_loop();
        }
    }

    /// Run a command whose reply has the length of `reply`.
    ///
    /// # Errors
    /// [`Step::Command`]: it is invalid, its reply has another length, or it does not end.
    pub(super) fn command<P: Platform>(
        &mut self,
        platform: &mut P,
        code: u8,
        parameters: &[u8],
        reply: &mut [u8],
    ) -> Result<(), Fault> {
        let step = Step::Command;
        let ready = |status| status & STATUS_READY != 0 && status & STATUS_PARAMETER_BUSY == 0;
        self.wait_status(platform, step, ready)?;
        self.register_write(platform, DATA, code);
        for &parameter in parameters {
            self.wait_status(platform, step, |status| status & STATUS_PARAMETER_BUSY == 0)?;
            if self.register_read(platform, INTERRUPT) & INTERRUPT_COMMAND != 0 {
                return Err(failed(step));
            }
            self.register_write(platform, DATA, parameter);
        }
        let mut read = 0;
        let start = platform.ticks();
        let status = loop {
            let complete = self.register_read(platform, INTERRUPT) & INTERRUPT_COMMAND != 0;
            let status = self.register_read(platform, STATUS);
            if status & STATUS_REPLY_READY != 0 {
                let byte = self.register_read(platform, DATA);
                *reply.get_mut(read).ok_or(failed(step))? = byte;
                read += 1;
            } else if complete || without_interrupt(code, status) {
                break status;
            }
            if platform.ticks().wrapping_sub(start) > platform.timeout_ticks() {
                return Err(failed(step));
            }
        };
        self.acknowledge(platform);
        if read == reply.len() && status & STATUS_INVALID == 0 { Ok(()) } else { Err(failed(step)) }
    }

    /// Reset the adapter, and wait until it has shown that it resets and then that it is ready.
    pub(super) fn reset_registers<P: Platform>(
        &mut self,
        platform: &mut P,
        control: u8,
    ) -> Result<(), Fault> {
        let step = Step::Reset;
        self.register_write(platform, STATUS, control);
        self.wait_status(platform, step, |status| status & STATUS_DIAGNOSTIC_ACTIVE != 0)?;
        self.wait_status(platform, step, |status| status & STATUS_DIAGNOSTIC_ACTIVE == 0)?;
        let over = STATUS_DIAGNOSTIC_FAILURE | STATUS_READY | STATUS_REPLY_READY;
        let status = self.wait_status(platform, step, |status| status & over != 0)?;
        if status & STATUS_READY != 0 && status & STATUS_DIAGNOSTIC_FAILURE == 0 {
            Ok(())
        } else {
            Err(failed(step))
        }
    }
}

/// Whether a command that ends without an interrupt has ended.
const fn without_interrupt(code: u8, status: u8) -> bool {
    match code {
        SET_ISA_PORTS => true,
        READ_LOCAL_RAM => status & STATUS_READY != 0,
        _ => false,
    }
}

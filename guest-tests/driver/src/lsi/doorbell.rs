//! The doorbell: messages dword by dword before the FIFOs work, and resets.

use super::spec::*;
use super::step::{Step, failed};
use crate::pci::Function;
use crate::platform::Platform;
use crate::workload::Fault;

/// Half-words of a reply that are kept; more are read and dropped.
pub(super) const REPLY_HALVES: usize = 64;
/// Tries to open the diagnostic register.
const DIAGNOSTIC_TRIES: u32 = 20;

/// The doorbell of a function. It needs no memory, so it comes before the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doorbell(pub(super) Function);

impl Doorbell {
    fn read<P: Platform>(self, platform: &mut P, offset: u64) -> u32 {
        platform.read32(self.0.bar, offset)
    }

    fn write<P: Platform>(self, platform: &mut P, offset: u64, value: u32) {
        platform.write32(self.0.bar, offset, value);
    }

    /// The IOC's state.
    pub(super) fn state<P: Platform>(self, platform: &mut P) -> u32 {
        self.read(platform, DOORBELL) >> STATE_SHIFT
    }

    fn wait<P: Platform>(
        self,
        platform: &mut P,
        step: Step,
        mut done: impl FnMut(Self, &mut P) -> bool,
    ) -> Result<(), Fault> {
        let start = platform.ticks();
        while !done(self, platform) {
            if platform.ticks().wrapping_sub(start) > platform.timeout_ticks() {
                return Err(failed(step));
            }
            core::hint::spin_loop();
        }
        Ok(())
    }

    /// The interrupt that says: the next half-word is there, or the IOC is done.
    fn wait_interrupt<P: Platform>(self, platform: &mut P) -> Result<(), Fault> {
        self.wait(platform, Step::Handshake, |bell, p| bell.read(p, INT_STATUS) & INT_DOORBELL != 0)
    }

    fn wait_taken<P: Platform>(self, platform: &mut P) -> Result<(), Fault> {
        self.wait(platform, Step::Handshake, |bell, p| bell.read(p, INT_STATUS) & INT_DOORBELL_BUSY == 0)
    }

    fn wait_state<P: Platform>(self, platform: &mut P, state: u32) -> Result<(), Fault> {
        self.wait(platform, Step::Ready, |bell, p| bell.state(p) == state)
    }

    /// Hand a message in, dword by dword.
    pub(super) fn send<P: Platform>(self, platform: &mut P, request: &[u32]) -> Result<(), Fault> {
        self.write(platform, INT_STATUS, 0);
        self.write(platform, DOORBELL, DOORBELL_HANDSHAKE | (request.len() as u32) << 16);
        self.wait_interrupt(platform)?;
        if self.read(platform, DOORBELL) & DOORBELL_ACTIVE == 0 {
            return Err(failed(Step::Handshake));
        }
        self.write(platform, INT_STATUS, 0);
        self.wait_taken(platform)?;
        for &word in request {
            self.write(platform, DOORBELL, word);
            self.wait_taken(platform)?;
        }
        Ok(())
    }

    /// One doorbell interrupt that carries nothing.
    pub(super) fn finish<P: Platform>(self, platform: &mut P) -> Result<(), Fault> {
        self.wait_interrupt(platform)?;
        self.write(platform, INT_STATUS, 0);
        Ok(())
    }

    /// Hand a message in and read its reply, half-word by half-word; the number that the reply has.
    pub(super) fn exchange<P: Platform>(
        self,
        platform: &mut P,
        request: &[u32],
        reply: &mut [u16; REPLY_HALVES],
    ) -> Result<usize, Fault> {
        self.send(platform, request)?;
        // The second half-word holds the length in dwords; both come in any case.
        let mut halves = 2;
        let mut index = 0;
        while index < halves {
            self.wait_interrupt(platform)?;
            let half = self.read(platform, DOORBELL) as u16;
            self.write(platform, INT_STATUS, 0);
            if let Some(slot) = reply.get_mut(index) {
                *slot = half;
            }
            if index == 1 {
                halves = usize::from(half & 0xff) * 2;
            }
            index += 1;
        }
        self.finish(platform)?;
        Ok(halves)
    }

    /// Mask everything, and have the IOC ready: whatever state it was left in.
    pub(super) fn make_ready<P: Platform>(self, platform: &mut P) -> Result<(), Fault> {
        self.write(platform, INT_MASK, MASK_ALL);
        self.write(platform, INT_STATUS, 0);
        match self.state(platform) {
            STATE_READY => Ok(()),
            STATE_FAULT => self.hard_reset(platform),
            _ => self.unit_reset(platform),
        }
    }

    /// Message unit reset.
    pub(super) fn unit_reset<P: Platform>(self, platform: &mut P) -> Result<(), Fault> {
        self.write(platform, DOORBELL, DOORBELL_RESET);
        self.finish(platform)?;
        self.wait_state(platform, STATE_READY)
    }

    /// Reset through the diagnostic register.
    pub(super) fn hard_reset<P: Platform>(self, platform: &mut P) -> Result<(), Fault> {
        self.write(platform, INT_STATUS, 0);
        self.open_diagnostic(platform)?;
        self.write(platform, HOST_DIAGNOSTIC, DIAG_WRITE_ENABLE | DIAG_RESET_ADAPTER);
        self.wait_state(platform, STATE_READY)?;
        self.open_diagnostic(platform)?;
        let diagnostic = self.read_diagnostic(platform);
        self.write(platform, HOST_DIAGNOSTIC, diagnostic & !DIAG_RESET_HISTORY);
        self.write(platform, WRITE_SEQUENCE, KEY_CLOSE);
        if self.read_diagnostic(platform) & (DIAG_RESET_HISTORY | DIAG_RESET_ADAPTER) != 0 {
            return Err(failed(Step::Ready));
        }
        Ok(())
    }

    fn read_diagnostic<P: Platform>(self, platform: &mut P) -> u32 {
        self.read(platform, HOST_DIAGNOSTIC)
    }

    fn open_diagnostic<P: Platform>(self, platform: &mut P) -> Result<(), Fault> {
        for _ in 0..DIAGNOSTIC_TRIES {
            if self.read_diagnostic(platform) & DIAG_WRITE_ENABLE != 0 {
                return Ok(());
            }
            self.write(platform, WRITE_SEQUENCE, KEY_CLOSE);
            for key in KEYS {
                self.write(platform, WRITE_SEQUENCE, key);
            }
        }
        Err(failed(Step::Ready))
    }
}

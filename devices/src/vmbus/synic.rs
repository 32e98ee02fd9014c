//! The contract between the bus and the virtual machine that it is part of.

use crate::device::IoDevice;
use crate::time::Time;

/// The status of a hypercall: `HV_STATUS_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum HypercallStatus {
    /// Done.
    Success = 0,
    /// Bits of the input that must be zero are not, or a size is too large.
    InvalidHypercallInput = 3,
    /// There is no such connection.
    InvalidConnectionId = 18,
    /// No free buffer for a message: the guest tries again.
    InsufficientBuffers = 19,
}

/// What became of a message to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is in the slot, and the virtual processor is interrupted.
    Done,
    /// The slot is taken; its message says now that another one waits. The guest's end of message
    /// ([`VmbusDevice::on_end_of_message`]) follows.
    Busy,
    /// The virtual processor takes no messages: its SynIC or message page is not enabled.
    Off,
}

/// The SynIC of the guest's virtual processors, as the bus uses it: synthetic interrupt source 2.
///
/// The implementation writes guest memory: message slots with the type last, event flags atomically.
pub trait Synic: Send {
    /// Virtual processors, which are numbered from 0: a device offers channels for them. `None`: not known. Constant.
    fn processors(&self) -> Option<u32> {
        None
    }

    /// Put a message of the hypervisor's type 1 and at most 240 bytes of payload into a virtual processor's slot.
    fn post_message(&mut self, vp: u32, payload: &[u8]) -> Posted;

    /// Set an event flag, 1 to 2,047, and interrupt the virtual processor if the flag was clear. On the path of an I/O.
    fn signal_event(&mut self, vp: u32, flag: u16);
}

/// A VMBus with its devices, driven by one thread as any [`IoDevice`]. Its doorbells are signals of [`connections`](Self::connections).
pub trait VmbusDevice: IoDevice {
    /// The guest's hypercall `HvPostMessage`: a message to a connection. The virtual processor waits for the answer.
    fn on_message(&mut self, connection: u32, kind: u32, payload: &[u8], now: Time) -> HypercallStatus;

    /// A virtual processor has ended a message while another one waited for its slot.
    fn on_end_of_message(&mut self, vp: u32, now: Time);

    /// Connections that the guest may signal (hypercall `HvSignalEvent`); the one of index `i` is doorbell `i`. Constant.
    fn connections(&self) -> &[u32];
}

//! The contract between the bus and the virtual machine.

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
    /// No free buffer for a message: the guest sends it again.
    InsufficientBuffers = 19,
}

/// The result of posting a message to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The message is in the slot, and the virtual processor was interrupted.
    Done,
    /// The slot is occupied, and its message is flagged as having a successor. The guest's end of message
    /// ([`VmbusDevice::on_end_of_message`]) follows.
    Busy,
    /// The virtual processor's SynIC or message page is not enabled.
    Off,
}

/// The SynICs of the guest's virtual processors. The bus uses synthetic interrupt source 2.
///
/// The implementation writes message slots, the type last, and sets event flags atomically.
pub trait Synic: Send {
    /// Number of virtual processors; `None`: not known. Constant. A device offers channels for them.
    fn processors(&self) -> Option<u32> {
        None
    }

    /// Post a message to a virtual processor: hypervisor message type 1, at most 240 bytes of payload.
    fn post_message(&mut self, vp: u32, payload: &[u8]) -> Posted;

    /// Set an event flag, 1 to 2,047, and interrupt the virtual processor if the flag was clear. Called on the I/O path.
    fn signal_event(&mut self, vp: u32, flag: u16);
}

/// A VMBus with its devices, called by one thread as any [`IoDevice`]. Its doorbells are the guest's signals of its
/// [`connections`](Self::connections).
pub trait VmbusDevice: IoDevice {
    /// The guest's hypercall `HvPostMessage`: a message to a connection. The virtual processor waits for the returned status.
    fn on_message(&mut self, connection: u32, kind: u32, payload: &[u8], now: Time) -> HypercallStatus;

    /// A virtual processor has signalled the end of a message while another message waits for its slot.
    fn on_end_of_message(&mut self, vp: u32, now: Time);

    /// Connections that the guest may signal (hypercall `HvSignalEvent`). The connection of index `i` is doorbell `i`. Constant.
    fn connections(&self) -> &[u32];
}

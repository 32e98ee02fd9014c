//! Interrupts as a device sends them, whoever delivers them: irqfd, a vfio-user eventfd, a counter in a test.

/// A message-signalled interrupt: what is written where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiMessage {
    /// Bus address.
    pub address: u64,
    /// Data.
    pub data: u32,
}

/// Delivers a device's interrupts.
///
/// The device's PCI function decides *whether* to send an interrupt (enable, mask and pending bits).
pub trait InterruptSink: Send {
    /// Vector `vector` of MSI or MSI-X now means `message`; `None`: it is disabled or masked. Called when the guest
    /// changed it, before the next [`message`](Self::message).
    fn route(&mut self, vector: u16, message: Option<MsiMessage>);

    /// Send the message that vector `vector` is routed to. Called on the I/O path.
    fn message(&mut self, vector: u16);

    /// Level of the INTx line.
    fn line(&mut self, asserted: bool);

    /// Level of an ISA interrupt line, for functions that have those of a PC/AT instead of INTx (IDE in compatibility mode: 14 and 15).
    /// A bus without such lines has no interrupts for them.
    fn isa_line(&mut self, _irq: u8, _asserted: bool) {}

    /// Whether interrupts are delivered by the thread that calls the device, after the call. A device that sends them on threads of its own
    /// must then wake that thread by a [completion event](crate::IoDevice::completion_events). Constant.
    fn delivers_after_calls(&self) -> bool {
        false
    }
}

//! The steps of the bring-up, for reports.

crate::steps! {
    /// The function was not found or lacks the register space.
    Function = 1,
    /// The controller did not become ready.
    Ready = 2,
    /// The handshake went wrong.
    Handshake = 3,
    /// IOC FACTS or PORT FACTS make no sense.
    Facts = 4,
    /// Too little DMA memory.
    Memory = 5,
    /// The function lacks the interrupt mode.
    Interrupts = 6,
    /// The controller did not become operational.
    Operational = 7,
    /// A configuration page that the driver needs is missing or has another size.
    Pages = 8,
}

//! IOC FACTS and PORT FACTS.

/// What the controller says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Version of the message interface.
    pub msg_version: u16,
    /// Requests that it takes.
    pub credits: u16,
    /// Reply frames that it takes.
    pub reply_depth: u16,
    /// Chain segments that it follows.
    pub max_chain_depth: u8,
    /// Bytes of a request frame.
    pub request_frame: u16,
    /// Product.
    pub product_id: u16,
    /// Ports.
    pub ports: u8,
    /// Targets of port 0.
    pub targets: u16,
    /// The controller's own identifier on port 0.
    pub host_id: u16,
}

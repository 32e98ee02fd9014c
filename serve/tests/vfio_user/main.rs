//! vfio-user end to end: the guest's drivers reach an adapter through the socket, and hostile clients do not break it.

mod client;
mod drivers;
mod vmm;

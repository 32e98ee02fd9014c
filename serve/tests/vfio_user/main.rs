//! vfio-user end to end: the guest's drivers reach an adapter through the socket, and hostile clients do not break it.

mod client;
mod cloud_hypervisor;
mod doorbells;
mod drivers;
mod eventfds;
mod hostile;
mod interrupts;
mod memory;
mod reconnect;
mod resize;
mod stalled;
mod steady;
mod unmap;
mod vanish;
mod vmm;

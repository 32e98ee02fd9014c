//! vfio-user end to end: the guest's drivers reach an adapter through the socket, and hostile clients do not break it.

#[allow(dead_code, reason = "the tests of the binary use its other functions")]
mod block_guest;
mod client;
mod cloud_hypervisor;
mod doorbells;
mod drivers;
mod eventfds;
mod gate;
mod hostile;
mod interrupts;
mod memory;
mod reconnect;
mod resize;
mod stalled;
mod steady;
mod threads;
mod unmap;
mod vanish;
#[path = "../vhost_user_blk/client.rs"]
#[allow(dead_code, reason = "the tests of vhost-user use all of it")]
mod vhost_client;
mod vmm;
#[path = "../common/within.rs"]
mod within;

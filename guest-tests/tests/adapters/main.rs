//! Adapters and their shortest drivers, over each kind of disk: in this process, and under KVM.

mod buslogic;
mod common;
#[path = "../../../vmm/tests/common/host.rs"]
mod host;
mod hostile_guest;
mod hotplug;
mod ide;
mod interrupts;
mod kvm;
mod kvm_io;
mod lsi;
mod recovery;
mod storvsc;
mod verify;
mod virtio_blk;
mod virtio_scsi;

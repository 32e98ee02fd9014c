//! The KVM machine.

//! The part of Hyper-V that a VMBus needs (Hypervisor Top-Level Functional Specification 6.0): CPUID leaves, synthetic MSRs, the hypercall page
//! and synthetic interrupt controllers.
//!
//! All of it is here and not in KVM (`KVM_CAP_HYPERV_SYNIC2`): it works on kernels that are built without Hyper-V's interfaces, and the
//! interrupts are plain messages, for whose end no virtual CPU leaves the guest.
//!
//! ```text
//! wrmsr --filtered MSR, exit--> Msrs, Processor          hypercall page: post --OUT, exit--> mailbox --> I/O thread: VmbusDevice
//!                                   | registers                          signal --OUT, ioeventfd------> |
//! slot, flags, interrupt <------ VmbusSynic <------------------------- post_message, signal_event ------+
//! ```

mod cpuid;
mod hypercall;
mod msr;
mod synic;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use kvm_bindings::{CpuId, kvm_enable_cap};
use kvm_ioctls::{Cap, MsrExitReason, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VcpuFd};
use paradisk_devices::InterruptSink;
use paradisk_devices::vmbus::{HypercallStatus, Synic, VmbusDevice};

use self::hypercall::{Call, Status};
use self::msr::{Msrs, Written};
use self::synic::{Processors, Refused, VmbusSynic};
use crate::bus::{BusHandler, Flow};
use crate::error::Error;
use crate::io_thread::bus_device::Reach;
use crate::layout;
use crate::memory::{GuestMemory, Vm};

pub(crate) use self::hypercall::{Caller, Input};

/// Have the guest of so many virtual CPUs find Hyper-V, and exit on accesses to its MSRs. Before they run; each comes with its CPUID table, for
/// KVM_GET_CPUID2 of Linux 6.1 does not say how long the one is that KVM has. `tsc_is_clock`: the host's kernel keeps its time by the
/// time-stamp counter.
pub(crate) fn advertise<'a>(
    vm: &Vm,
    cpus: u8,
    tsc_is_clock: bool,
    vcpus: impl Iterator<Item = (&'a VcpuFd, CpuId)>,
) -> Result<(), Error> {
    if !vm.fd.check_extension(Cap::X86UserSpaceMsr) || !vm.fd.check_extension(Cap::X86MsrFilter) {
        return Err(Error::KvmLacks("MSRs in user space (KVM_CAP_X86_USER_SPACE_MSR)"));
    }
    let mut cap = kvm_enable_cap { cap: Cap::X86UserSpaceMsr as u32, ..Default::default() };
    cap.args[0] = MsrExitReason::Filter.bits().into();
    vm.fd.enable_cap(&cap).map_err(Error::kvm("KVM_CAP_X86_USER_SPACE_MSR"))?;
    // A clear bit: KVM does not answer. KVM reads whole words of 64 bits.
    let bitmap = [0; 8 * msr::COUNT.div_ceil(64) as usize];
    let flags = MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE;
    let range = MsrFilterRange { flags, base: msr::FIRST, msr_count: msr::COUNT, bitmap: &bitmap };
    let filtered = vm.fd.set_msr_filter(MsrFilterDefaultAction::ALLOW, &[range]);
    filtered.map_err(Error::kvm("KVM_X86_SET_MSR_FILTER"))?;
    for (vcpu, mut table) in vcpus {
        cpuid::replace(&mut table, cpus, tsc_is_clock)
            .map_err(|_| Error::Os { what: "CPUID leaves", source: io::ErrorKind::OutOfMemory.into() })?;
        vcpu.set_cpuid2(&table).map_err(Error::kvm("KVM_SET_CPUID2"))?;
    }
    Ok(())
}

/// The interrupt controllers of a machine, before there is a bus that uses them.
pub(crate) struct Controllers {
    processors: Arc<Processors>,
    cpus: u8,
}

impl Controllers {
    pub(crate) fn new(memory: GuestMemory, cpus: u8) -> Self {
        Self { processors: Arc::new(Processors::new(memory, cpus)), cpus }
    }

    /// As the bus uses them. Interrupts of virtual processor `i` go out as vector `i`.
    pub(crate) fn synic(&self, interrupts: Box<dyn InterruptSink>) -> Box<dyn Synic> {
        Box::new(VmbusSynic::new(Arc::clone(&self.processors), interrupts))
    }
}

/// What virtual CPUs reach of Hyper-V, on their threads.
pub(crate) struct Hyperv {
    processors: Arc<Processors>,
    msrs: Msrs,
    vmbus: Reach<dyn VmbusDevice>,
}

impl Hyperv {
    pub(crate) fn new(
        Controllers { processors, cpus }: Controllers,
        vmbus: Reach<dyn VmbusDevice>,
        tsc_hz: u64,
        origin: Instant,
    ) -> Self {
        let msrs = Msrs::new(Arc::clone(&processors), cpus, tsc_hz, origin);
        Self { processors, msrs, vmbus }
    }

    /// A virtual CPU reads an MSR.
    pub(crate) fn read_msr(&self, vp: usize, msr: u32) -> Result<u64, Refused> {
        self.msrs.read(vp, msr)
    }

    /// A virtual CPU writes an MSR.
    pub(crate) fn write_msr(&self, vp: usize, msr: u32, value: u64) -> Result<(), Refused> {
        if self.msrs.write(vp, msr, value)? == Written::EndOfMessage {
            // Waits for the answer: else a guest could fill the mailbox. A device that has ended posts no more; its end was reported.
            let _ = self.vmbus.mailbox.call(move |bus, now| bus.on_end_of_message(vp as u32, now));
        }
        Ok(())
    }

    /// Whether the port is that of hypercalls: not before the guest has a page that writes there.
    pub(crate) fn takes_hypercalls(&self) -> bool {
        self.msrs.hypercalls_enabled()
    }

    /// A virtual CPU makes a hypercall that was not a signal to a connection that KVM knows. What RAX is then.
    pub(crate) fn hypercall(&self, input: Input) -> u64 {
        let status = match hypercall::parse(input, &self.processors.memory) {
            Ok(Call::PostMessage { connection, kind, payload }) => {
                let post = move |bus: &mut (dyn VmbusDevice + 'static), now| {
                    bus.on_message(connection, kind, &payload, now)
                };
                // The connections of a device that has ended are gone with it.
                self.vmbus.mailbox.call(post).unwrap_or(HypercallStatus::InvalidConnectionId).into()
            }
            Ok(Call::SignalEvent { connection }) => self.signal(connection),
            Err(status) => status,
        };
        status.register()
    }

    fn signal(&self, connection: u32) -> Status {
        match self.vmbus.doorbells.find_value(layout::SIGNAL_EVENT, connection) {
            Some(index) => {
                self.vmbus.ring(index);
                HypercallStatus::Success.into()
            }
            None => HypercallStatus::InvalidConnectionId.into(),
        }
    }
}

/// The port for signals, where these leave the guest: KVM does not know the connection, or is told to leave it to the virtual CPU's thread.
impl BusHandler for Hyperv {
    fn read(&self, _: u64, data: &mut [u8]) {
        data.fill(0xff);
    }

    fn write(&self, _: u64, data: &[u8]) -> Flow {
        if let Ok(connection) = data.try_into() {
            // The page that writes here has no way to return a status.
            let _ = self.signal(u32::from_le_bytes(connection));
        }
        Flow::Continue
    }
}

#[cfg(test)]
mod tests;

//! The part of Hyper-V that a VMBus needs (Hypervisor Top-Level Functional Specification 6.0): CPUID leaves, synthetic MSRs, the hypercall
//! page and synthetic interrupt controllers.
//!
//! None of this uses KVM's own implementation (`KVM_CAP_HYPERV_SYNIC2`). So it works on host kernels that are built without Hyper-V's
//! interfaces, and interrupts are plain MSI messages, whose end of interrupt does not exit.
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
use crate::io_thread::DeviceHandle;
use crate::layout;
use crate::memory::{GuestMemory, Vm};

pub(crate) use self::hypercall::{Caller, Input};

/// Report Hyper-V to the guest by CPUID, and make accesses to Hyper-V's MSRs exit. Before the virtual CPUs run. The caller passes the
/// CPUID table of each, because KVM_GET_CPUID2 of Linux 6.1 does not return the length of KVM's table. `tsc_is_clock`: the host's kernel
/// uses the time-stamp counter as its clock.
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
    // A clear bit makes an access exit. KVM reads the bitmap in words of 64 bits.
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

/// The synthetic interrupt controllers of a machine, created before the bus that uses them.
pub(crate) struct Controllers {
    processors: Arc<Processors>,
    cpus: u8,
}

impl Controllers {
    pub(crate) fn new(memory: GuestMemory, cpus: u8) -> Self {
        Self { processors: Arc::new(Processors::new(memory, cpus)), cpus }
    }

    /// The interface for the bus. Interrupts of virtual processor `i` are vector `i` of `interrupts`.
    pub(crate) fn synic(&self, interrupts: Box<dyn InterruptSink>) -> Box<dyn Synic> {
        Box::new(VmbusSynic::new(Arc::clone(&self.processors), interrupts))
    }
}

/// Hyper-V's interfaces for the threads of the virtual CPUs.
pub(crate) struct Hyperv {
    processors: Arc<Processors>,
    msrs: Msrs,
    vmbus: DeviceHandle<dyn VmbusDevice>,
}

impl Hyperv {
    pub(crate) fn new(
        Controllers { processors, cpus }: Controllers,
        vmbus: DeviceHandle<dyn VmbusDevice>,
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
            // Waits for the call to return, so that a guest cannot fill the mailbox. An error: the I/O thread has ended, which was
            // reported.
            let _ = self.vmbus.mailbox.call(move |bus, now| bus.on_end_of_message(vp as u32, now));
        }
        Ok(())
    }

    /// Whether the hypercall port is active: only while the guest has enabled a hypercall page.
    pub(crate) fn takes_hypercalls(&self) -> bool {
        self.msrs.hypercalls_enabled()
    }

    /// A virtual CPU makes a hypercall; signals that KVM's ioeventfds take do not get here. Returns the value of RAX.
    pub(crate) fn hypercall(&self, input: Input) -> u64 {
        let status = match hypercall::parse(input, &self.processors.memory) {
            Ok(Call::PostMessage { connection, kind, payload }) => {
                let post = move |bus: &mut (dyn VmbusDevice + 'static), now| {
                    bus.on_message(connection, kind, &payload, now)
                };
                // The I/O thread of the bus has ended, so its connections do not exist any more.
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
                self.vmbus.doorbells.ring(index);
                HypercallStatus::Success.into()
            }
            None => HypercallStatus::InvalidConnectionId.into(),
        }
    }
}

/// The port of signals, for those that exit: KVM has no ioeventfd for the connection.
impl BusHandler for Hyperv {
    fn read(&self, _: u64, data: &mut [u8]) {
        data.fill(0xff);
    }

    fn write(&self, _: u64, data: &[u8]) -> Flow {
        if let Ok(connection) = data.try_into() {
            // The code that writes here returns no status.
            let _ = self.signal(u32::from_le_bytes(connection));
        }
        Flow::Continue
    }
}

#[cfg(test)]
mod tests;

#[path = "../../tests/common/no_io.rs"]
mod no_io;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use kvm_bindings::kvm_cpuid_entry2;
use no_io::no_io;
use paradisk_devices::vmbus::Posted;
use paradisk_devices::{IoDevice, MsiMessage, Stats, Time};
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::capabilities::Host;
use crate::io_thread::{IoThread, Options};
use crate::memory;

const SOON: Duration = Duration::from_secs(60);
const CONNECTIONS: [u32; 2] = [0x2001, 0x2007];
/// MSRs.
const GUEST_OS_ID: u32 = 0x4000_0000;
const HYPERCALL: u32 = 0x4000_0001;
const SCONTROL: u32 = 0x4000_0080;
const SIMP: u32 = 0x4000_0083;
const EOM: u32 = 0x4000_0084;

/// Calls of the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Called {
    Doorbell(usize),
    Message(u32, u32, Vec<u8>),
    EndOfMessage(u32),
}

struct Fake {
    synic: Box<dyn Synic>,
    called: Sender<Called>,
}

impl IoDevice for Fake {
    fn on_doorbell(&mut self, index: usize, _: Time) {
        self.called.send(Called::Doorbell(index)).unwrap();
    }

    no_io! {}

    fn quiesce(&mut self, _: Time) {}

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

impl VmbusDevice for Fake {
    fn on_message(&mut self, connection: u32, kind: u32, payload: &[u8], _: Time) -> HypercallStatus {
        self.called.send(Called::Message(connection, kind, payload.to_vec())).unwrap();
        match self.synic.post_message(1, payload) {
            Posted::Done => HypercallStatus::Success,
            Posted::Busy => HypercallStatus::InsufficientBuffers,
            Posted::Off => HypercallStatus::InvalidConnectionId,
        }
    }

    fn on_end_of_message(&mut self, vp: u32, _: Time) {
        self.called.send(Called::EndOfMessage(vp)).unwrap();
    }

    fn connections(&self) -> &[u32] {
        &CONNECTIONS
    }
}

struct NoInterrupts;

impl InterruptSink for NoInterrupts {
    fn route(&mut self, _: u16, _: Option<MsiMessage>) {}

    fn message(&mut self, _: u16) {}

    fn line(&mut self, _: bool) {}
}

struct Rig {
    hyperv: Hyperv,
    memory: GuestMemory,
    called: Receiver<Called>,
    thread: Option<IoThread>,
}

fn rig() -> Rig {
    let memory = memory::allocate(0x10_0000).unwrap();
    let controllers = Controllers::new(Arc::clone(&memory), 2);
    let (sender, called) = channel();
    let bus: Box<dyn VmbusDevice> =
        Box::new(Fake { synic: controllers.synic(Box::new(NoInterrupts)), called: sender });
    let start = Instant::now();
    let (thread, handle) = IoThread::start("io".to_owned(), bus, Options::default(), start, |_| ()).unwrap();
    let hyperv = Hyperv::new(controllers, handle, 1_000_000_000, start);
    Rig { hyperv, memory, called, thread: Some(thread) }
}

impl Rig {
    fn call(&self, control: u64, parameters: u64) -> u64 {
        self.hyperv.hypercall(Input { caller: Caller::Kernel64, control, parameters })
    }

    /// Post a message from 0x1000.
    fn post(&self, connection: u32, payload: &[u8]) -> u64 {
        let header = [connection, 0, 1, payload.len() as u32].map(u32::to_le_bytes).concat();
        self.memory.write_slice(&[&header, payload].concat(), GuestAddress(0x1000)).unwrap();
        self.call(0x5c, 0x1000)
    }

    fn calls(&self) -> Vec<Called> {
        self.called.try_iter().collect()
    }
}

/// KVM's CPUID tables are never read back: KVM_GET_CPUID2 differs between versions. Here KVM has no table yet.
#[test]
fn the_leaves_join_the_table_that_comes_with_each_virtual_cpu() {
    let host = match Host::open() {
        Ok(host) => host,
        Err(error) => {
            return println!("SKIP: the_leaves_join_the_table_that_comes_with_each_virtual_cpu: {error}");
        }
    };
    let vm = Vm::new(host.create_vm().unwrap(), memory::allocate(0x10_0000).unwrap()).unwrap();
    let vcpus = [0, 1].map(|id| vm.fd.create_vcpu(id).unwrap());
    let table = |vcpu: u32| {
        let entry = |function, eax| kvm_cpuid_entry2 { function, eax, ..Default::default() };
        CpuId::from_entries(&[entry(0, 1), entry(1, 100 + vcpu), entry(0x4000_0000, 7)]).unwrap()
    };
    advertise(&vm, 2, true, vcpus.iter().zip((0..).map(table))).unwrap();
    for (vcpu, id) in vcpus.iter().zip(0..) {
        let found = vcpu.get_cpuid2(kvm_bindings::KVM_MAX_CPUID_ENTRIES).unwrap();
        let of =
            |leaf| found.as_slice().iter().filter(|e| e.function == leaf).map(|e| e.eax).collect::<Vec<_>>();
        assert_eq!((of(1), of(0x4000_0000)), (vec![100 + id], vec![0x4000_0005]));
    }
}

#[test]
fn a_message_is_answered_before_the_processor_goes_on() {
    let rig = rig();
    assert_eq!(rig.post(4, b"contact"), 18, "processor 1 takes none yet");
    assert_eq!(rig.calls(), [Called::Message(4, 1, b"contact".to_vec())]);
    rig.hyperv.write_msr(1, SIMP, 0x2001).unwrap();
    rig.hyperv.write_msr(1, SCONTROL, 1).unwrap();
    assert_eq!(rig.post(1, b"contact"), 0);
    assert_eq!(rig.post(1, b"again"), 19, "the slot is taken");
    assert_eq!(rig.calls().len(), 2);
}

#[test]
fn the_end_of_a_message_is_told_to_a_bus_that_waits() {
    let rig = rig();
    rig.hyperv.write_msr(1, SIMP, 0x2001).unwrap();
    rig.hyperv.write_msr(1, SCONTROL, 1).unwrap();
    rig.post(1, b"first");
    rig.hyperv.write_msr(1, EOM, 0).unwrap();
    rig.post(1, b"second");
    assert_eq!(rig.calls().len(), 2, "nothing waited at the first end");
    rig.hyperv.write_msr(0, EOM, 0).unwrap();
    assert_eq!(rig.calls(), [], "of another processor");
    rig.hyperv.write_msr(1, EOM, 0).unwrap();
    assert_eq!(rig.calls(), [Called::EndOfMessage(1)]);
    rig.hyperv.write_msr(1, EOM, 0).unwrap();
    assert_eq!(rig.calls(), [], "once");
}

#[test]
fn a_message_page_that_moves_is_told_to_a_bus_that_waits() {
    let rig = rig();
    rig.hyperv.write_msr(1, SIMP, 0x2001).unwrap();
    rig.hyperv.write_msr(1, SCONTROL, 1).unwrap();
    assert_eq!((rig.post(1, b"first"), rig.post(1, b"second")), (0, 19));
    assert_eq!(rig.calls().len(), 2);
    rig.hyperv.write_msr(1, SIMP, 0x5001).unwrap();
    assert_eq!(rig.calls(), [Called::EndOfMessage(1)]);
    assert_eq!(rig.post(1, b"second"), 0, "its slot is free");
}

#[test]
fn signals_that_leave_the_guest_ring() {
    let rig = rig();
    let rung = || rig.called.recv_timeout(SOON);
    assert_eq!(rig.hyperv.write(0, &0x2007_u32.to_le_bytes()), Flow::Continue);
    assert_eq!(rung(), Ok(Called::Doorbell(1)));
    assert_eq!(rig.call(0x1_005d, 0x2001), 0);
    assert_eq!(rung(), Ok(Called::Doorbell(0)));
    assert_eq!(rig.call(0x1_005d, 0x2002), 18);
    // Neither unknown connections nor other widths.
    rig.hyperv.write(0, &0x2002_u32.to_le_bytes());
    rig.hyperv.write(0, &[1, 0x20]);
    rig.hyperv.write(0, &0x2007_u32.to_le_bytes());
    assert_eq!(rung(), Ok(Called::Doorbell(1)));
}

#[test]
fn hypercalls_are_taken_when_there_is_a_page() {
    let rig = rig();
    assert!(!rig.hyperv.takes_hypercalls());
    rig.hyperv.write_msr(0, GUEST_OS_ID, 1).unwrap();
    rig.hyperv.write_msr(0, HYPERCALL, 0x3001).unwrap();
    assert!(rig.hyperv.takes_hypercalls());
    assert_eq!(rig.hyperv.read_msr(1, HYPERCALL), Ok(0x3001));
    assert_eq!(rig.call(0x5b, 0), 2, "an unknown one");
    let user = Input { caller: Caller::User, control: 0x1_005d, parameters: 0x2001 };
    assert_eq!(rig.hyperv.hypercall(user), 6);
}

#[test]
fn a_bus_that_has_ended_has_no_connections() {
    let mut rig = rig();
    rig.thread = None;
    assert_eq!(rig.post(4, b"contact"), 18);
    assert_eq!(rig.hyperv.write_msr(0, EOM, 0), Ok(()));
}

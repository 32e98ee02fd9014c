//! A small guest that uses Hyper-V's interfaces, with a bus that answers. Without `/dev/kvm` each test says why it is skipped.

mod common;
#[path = "common/no_io.rs"]
mod no_io;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use common::{CODE, End, SOON, TABLES, descriptor_tables, ended_by_handler, host};
use no_io::no_io;
use paradisk_devices::vmbus::{HypercallStatus, Posted, Synic, VmbusDevice};
use paradisk_devices::{IoDevice, Stats, Time};
use paradisk_vmm::{Config, Event, GuestMemory, Machine, MsiDelivery, StopReason, layout};
use vm_memory::{Bytes, GuestAddress};

/// Where things are in guest memory.
const INTERRUPT_HANDLER: u64 = CODE + 0x800;
const FAULT_HANDLER: u64 = CODE + 0x900;
const HYPERCALL_PAGE: u32 = 0x30_0000;
const MESSAGES: u32 = 0x30_1000;
const FLAGS: u32 = 0x30_2000;
const SLOT: u32 = MESSAGES + 0x200;
/// Inputs of hypercalls.
const POST: u32 = 0x30_3000;
const STRANGER: u32 = 0x30_3100;
const SLOW_SIGNAL: u32 = 0x30_3200;
/// What the guest found.
const RESULTS: u32 = 0x30_4000;
const INTERRUPTS: u32 = RESULTS + 0x80;
const FAULTS: u32 = RESULTS + 0x88;
const FIRST_SLOT: u32 = RESULTS + 0x100;
const SECOND_SLOT: u32 = RESULTS + 0x200;

const VECTOR: u8 = 0x50;
const GENERAL_PROTECTION: u8 = 13;
const CONNECTIONS: [u32; 2] = [0x2001, 0x2002];

/// A call of the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Called {
    Message(u32, u32, Vec<u8>),
    EndOfMessage(u32),
    Doorbell(usize),
}

/// A bus that answers a message with two, and a signal with an event.
struct Fake {
    synic: Box<dyn Synic>,
    waiting: VecDeque<&'static [u8]>,
    called: Sender<Called>,
}

impl Fake {
    fn post(&mut self) {
        while let Some(message) = self.waiting.front() {
            if self.synic.post_message(0, message) != Posted::Done {
                return;
            }
            self.waiting.pop_front();
        }
    }
}

impl IoDevice for Fake {
    fn on_doorbell(&mut self, index: usize, _: Time) {
        self.called.send(Called::Doorbell(index)).unwrap();
        self.synic.signal_event(0, [5, 70][index]);
    }

    no_io! {}

    fn quiesce(&mut self, _: Time) {}

    fn stats(&self) -> Stats {
        Stats { requests: 42, ..Stats::default() }
    }
}

impl VmbusDevice for Fake {
    fn on_message(&mut self, connection: u32, kind: u32, payload: &[u8], _: Time) -> HypercallStatus {
        self.called.send(Called::Message(connection, kind, payload.to_vec())).unwrap();
        if connection != 4 {
            return HypercallStatus::InvalidConnectionId;
        }
        self.waiting.extend([b"first".as_slice(), b"second"]);
        self.post();
        HypercallStatus::Success
    }

    fn on_end_of_message(&mut self, vp: u32, _: Time) {
        self.called.send(Called::EndOfMessage(vp)).unwrap();
        self.post();
    }

    fn connections(&self) -> &[u32] {
        &CONNECTIONS
    }
}

/// Guest code.
#[derive(Default)]
struct Code(Vec<u8>);

impl Code {
    fn add(&mut self, bytes: &[u8], operands: &[u32]) {
        self.0.extend_from_slice(bytes);
        operands.iter().for_each(|operand| self.0.extend(operand.to_le_bytes()));
    }

    /// Segments, interrupt handlers, and the local APIC.
    fn set_up(&mut self) {
        let tables = TABLES as u32;
        self.add(&[0x0f, 0x01, 0x14, 0x25], &[tables]); // lgdt [tables]
        self.add(&[0x0f, 0x01, 0x1c, 0x25], &[tables + 0x10]); // lidt [tables + 16]
        self.add(&[0xb8], &[layout::LOCAL_APIC as u32]); // mov eax, the APIC
        self.add(&[0xc7, 0x80], &[0xf0, 0x1ff]); // mov [rax + 0xf0], 0x1ff: enable it
    }

    /// EAX, EBX, ECX, EDX of a leaf.
    fn cpuid(&mut self, leaf: u32, to: u32) {
        self.add(&[0xb8], &[leaf]); // mov eax, leaf
        self.add(&[0x31, 0xc9, 0x0f, 0xa2], &[]); // xor ecx, ecx; cpuid
        for (register, at) in [0x04, 0x1c, 0x0c, 0x14].into_iter().zip((to..).step_by(4)) {
            self.add(&[0x89, register, 0x25], &[at]); // mov [at], eax, ebx, ecx, edx
        }
    }

    fn rdmsr(&mut self, msr: u32, to: u32) {
        self.add(&[0xb9], &[msr]); // mov ecx, msr
        self.add(&[0x0f, 0x32], &[]); // rdmsr
        self.add(&[0x89, 0x04, 0x25], &[to]); // mov [to], eax
        self.add(&[0x89, 0x14, 0x25], &[to + 4]); // mov [to + 4], edx
    }

    fn wrmsr(&mut self, msr: u32, value: u32) {
        self.add(&[0xb9], &[msr]); // mov ecx, msr
        self.add(&[0xb8], &[value]); // mov eax, value
        self.add(&[0x31, 0xd2, 0x0f, 0x30], &[]); // xor edx, edx; wrmsr
    }

    fn hypercall(&mut self, control: u32, parameters: u32, to: u32) {
        self.add(&[0xb9], &[control]); // mov ecx, control
        self.add(&[0xba], &[parameters]); // mov edx, parameters
        self.add(&[0x45, 0x31, 0xc0], &[]); // xor r8d, r8d
        self.add(&[0xb8], &[u32::MAX]); // mov eax, -1
        self.add(&[0xbb], &[HYPERCALL_PAGE]); // mov ebx, the page
        self.add(&[0xff, 0xd3], &[]); // call rbx
        self.add(&[0x48, 0x89, 0x04, 0x25], &[to]); // mov [to], rax
    }

    /// Sleep until there were so many interrupts. They come only then.
    fn wait(&mut self, interrupts: u32) {
        self.add(&[0xfa, 0x81, 0x3c, 0x25], &[INTERRUPTS, interrupts]); // cli; cmp [INTERRUPTS], interrupts
        self.add(&[0x74, 0x04], &[]); // je on
        self.add(&[0xfb, 0xf4, 0xeb, 0xee], &[]); // sti; hlt; jmp cli
    }

    /// Copy the message slot, and free it.
    fn take_message(&mut self, to: u32) {
        self.add(&[0xbe], &[SLOT]); // mov esi, SLOT
        self.add(&[0xbf], &[to]); // mov edi, to
        self.add(&[0xb9], &[0x100]); // mov ecx, 256
        self.add(&[0xf3, 0xa4], &[]); // rep movsb
        self.add(&[0xc7, 0x04, 0x25], &[SLOT, 0]); // mov [SLOT], 0
    }

    fn end(&mut self) {
        self.add(&[0xba], &[0x500]); // mov edx, 0x500
        self.add(&[0xee], &[]); // out dx, al
    }
}

fn program() -> Vec<u8> {
    let msr = |number: u32| 0x4000_0000 + number;
    let mut code = Code::default();
    code.set_up();
    code.cpuid(0x4000_0000, RESULTS);
    code.cpuid(0x4000_0003, RESULTS + 0x10);
    code.rdmsr(msr(0x02), RESULTS + 0x20);
    code.rdmsr(msr(0x81), RESULTS + 0x28);
    // The reset register and a crash register: there are none.
    code.wrmsr(msr(0x03), 1);
    code.rdmsr(msr(0x100), RESULTS + 0x70);
    code.wrmsr(msr(0x00), 0x8100_0000);
    code.wrmsr(msr(0x01), HYPERCALL_PAGE | 1);
    code.wrmsr(msr(0x83), MESSAGES | 1);
    code.wrmsr(msr(0x82), FLAGS | 1);
    code.wrmsr(msr(0x92), VECTOR.into());
    code.wrmsr(msr(0x80), 1);
    // A message that is answered by two.
    code.hypercall(0x5c, POST, RESULTS + 0x30);
    code.wait(1);
    code.take_message(FIRST_SLOT);
    code.wrmsr(msr(0x84), 0);
    code.wait(2);
    code.take_message(SECOND_SLOT);
    code.hypercall(0x5c, STRANGER, RESULTS + 0x38);
    // Signals: in registers, in memory, and to a connection that does not exist. Then an unknown hypercall.
    code.hypercall(0x1_005d, CONNECTIONS[0], RESULTS + 0x40);
    code.wait(3);
    code.hypercall(0x5d, SLOW_SIGNAL, RESULTS + 0x48);
    code.wait(4);
    code.hypercall(0x1_005d, 0x2003, RESULTS + 0x50);
    code.hypercall(0x46, 0, RESULTS + 0x58);
    code.end();
    code.0
}

#[rustfmt::skip]
fn handlers() -> [(u64, Vec<u8>); 2] {
    let mut interrupt = Code::default();
    interrupt.add(&[0xff, 0x04, 0x25], &[INTERRUPTS]);                  // inc [INTERRUPTS]
    interrupt.add(&[0x50, 0xb8], &[layout::LOCAL_APIC as u32 + 0xb0]);  // push rax; mov eax, end of interrupt
    interrupt.add(&[0xc7, 0x00], &[0]);                                 // mov [rax], 0
    interrupt.add(&[0x58, 0x48, 0xcf], &[]);                            // pop rax; iretq
    let mut fault = Code::default();
    fault.add(&[0xff, 0x04, 0x25], &[FAULTS]);                          // inc [FAULTS]
    fault.add(&[0x48, 0x83, 0xc4, 0x08], &[]);                          // add rsp, 8: the error code
    fault.add(&[0x48, 0x83, 0x04, 0x24, 0x02], &[]);                    // add [rsp], 2: behind rdmsr or wrmsr
    fault.add(&[0x48, 0xcf], &[]);                                      // iretq
    [(INTERRUPT_HANDLER, interrupt.0), (FAULT_HANDLER, fault.0)]
}

fn write_inputs(memory: &GuestMemory) {
    for (at, connection, payload) in [(POST, 4_u32, b"contact!"), (STRANGER, 3, b"stranger")] {
        let header = [connection, 0, 1, payload.len() as u32].map(u32::to_le_bytes).concat();
        memory.write_slice(&[&header, payload.as_slice()].concat(), GuestAddress(at.into())).unwrap();
    }
    memory.write_obj(u64::from(CONNECTIONS[1]), GuestAddress(SLOW_SIGNAL.into())).unwrap();
}

/// Run the program to its end.
fn run(msi: MsiDelivery) -> Option<(Machine, Receiver<Called>)> {
    let (mut machine, events) = common::machine(&host()?, Config { msi, ..Config::default() });
    let (called, calls) = channel();
    let build = |_, synic| {
        let fake: Box<dyn VmbusDevice> = Box::new(Fake { synic, waiting: VecDeque::new(), called });
        Ok(fake)
    };
    let id = machine.add_vmbus(build).unwrap();
    assert_eq!((id.slot(), id.to_string().as_str()), (None, "the VMBus"));
    let second = machine.add_vmbus(|_, _| Err("not called".into()));
    assert_eq!(second.unwrap_err().to_string(), "a machine has one VMBus at the most");
    assert_eq!(machine.device(id).unwrap().call(|device, _| device.stats().requests), Ok(42));
    machine.add_pio(0x500..0x501, Arc::new(End));
    let code = program();
    assert!(code.len() as u64 <= INTERRUPT_HANDLER - CODE);
    let memory = Arc::clone(machine.memory());
    for (at, bytes) in [(CODE, code)].into_iter().chain(handlers()) {
        memory.write_slice(&bytes, GuestAddress(at)).unwrap();
    }
    descriptor_tables(&memory, &[(VECTOR, INTERRUPT_HANDLER), (GENERAL_PROTECTION, FAULT_HANDLER)]);
    write_inputs(&memory);
    common::start(&mut machine, 0);
    match events.recv_timeout(SOON) {
        Ok(Event::Vcpu { id: 0, outcome: Ok(StopReason::Handler) }) => Some((machine, calls)),
        other => {
            let mut results = [0_u32; 0x40];
            for (word, at) in results.iter_mut().zip((u64::from(RESULTS)..).step_by(4)) {
                *word = memory.read_obj(GuestAddress(at)).unwrap();
            }
            let calls: Vec<_> = calls.try_iter().collect();
            panic!("{other:?}; {calls:?}; {results:x?}")
        }
    }
}

#[test]
fn a_guest_talks_to_its_bus() {
    for msi in [MsiDelivery::Ioctl, MsiDelivery::Irqfd] {
        let Some((machine, calls)) = run(msi) else { return };
        let word = |at: u32| machine.memory().read_obj::<u32>(GuestAddress(at.into())).unwrap();
        let long = |at: u32| machine.memory().read_obj::<u64>(GuestAddress(at.into())).unwrap();
        let leaf = |at: u32| [0, 4, 8, 12].map(|offset| word(RESULTS + at + offset));
        let [most, signature @ ..] = leaf(0);
        assert_eq!((most, signature.map(u32::to_le_bytes).concat()), (0x4000_0005, b"Microsoft Hv".to_vec()));
        assert_eq!(leaf(0x10), [0x8874, 0x30, 0, 0x100]);
        assert_eq!((long(RESULTS + 0x20), long(RESULTS + 0x28)), (0, 1), "processor 0, version 1");
        assert_eq!(word(FAULTS), 2, "general protection for each register that is not there");
        let statuses = [0x30, 0x38, 0x40, 0x48, 0x50, 0x58].map(|at| long(RESULTS + at));
        // The page has no status for a fast signal.
        assert_eq!(statuses, [0, 18, 0, 0, 0, 2], "{msi:?}");
        assert_eq!(word(INTERRUPTS), 4);
        // Exits: two messages, the signal in memory, the signal to a connection that does not exist, the unknown hypercall, the end. KVM
        // itself delivers the fast signal to a connection.
        assert_eq!(machine.exits()[0].pio, 6);
        for (slot, flags, text) in [(FIRST_SLOT, 1, b"first".as_slice()), (SECOND_SLOT, 0, b"second")] {
            let mut bytes = [0; 256];
            machine.memory().read_slice(&mut bytes, GuestAddress(slot.into())).unwrap();
            assert_eq!(bytes[..8], [1, 0, 0, 0, text.len() as u8, flags, 0, 0]);
            assert_eq!(&bytes[16..16 + text.len()], text);
        }
        assert_eq!([0, 8].map(|at| long(FLAGS + 0x200 + at)), [1 << 5, 1 << 6], "events 5 and 70");
        let expected = [
            Called::Message(4, 1, b"contact!".to_vec()),
            Called::EndOfMessage(0),
            Called::Message(3, 1, b"stranger".to_vec()),
            Called::Doorbell(0),
            Called::Doorbell(1),
        ];
        assert_eq!(calls.try_iter().collect::<Vec<_>>(), expected, "{msi:?}");
    }
}

/// Without a bus, a machine has none of Hyper-V's interfaces.
#[test]
fn a_machine_without_a_bus_is_kvms() {
    let Some(host) = host() else { return };
    let (mut machine, events) = common::machine(&host, Config::default());
    machine.add_pio(0x500..0x501, Arc::new(End));
    let mut code = Code::default();
    code.cpuid(0x4000_0000, RESULTS);
    // The hypercall port: nothing answers.
    code.add(&[0xb8], &[7]); // mov eax, 7
    code.add(&[0xe7, layout::HYPERCALL as u8], &[]); // out HYPERCALL, eax
    code.add(&[0x89, 0x04, 0x25], &[RESULTS + 0x10]); // mov [RESULTS + 16], eax
    code.end();
    let memory = Arc::clone(machine.memory());
    memory.write_slice(&code.0, GuestAddress(CODE)).unwrap();
    common::start(&mut machine, 0);
    ended_by_handler(&events, 0);
    let word = |at: u32| memory.read_obj::<u32>(GuestAddress((RESULTS + at).into())).unwrap();
    assert_eq!([4, 8, 12].map(word).map(u32::to_le_bytes).concat(), b"KVMKVMKVM\0\0\0");
    assert_eq!(word(0x10), 7);
}

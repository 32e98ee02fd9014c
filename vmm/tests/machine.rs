//! Machines with a few bytes of code. Without `/dev/kvm` each test says why it is skipped.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use common::{CODE, SOON, descriptor_tables, ended_by_handler, host};
use paradisk_vmm::{BusHandler, Config, Event, Flow, GuestMemory, Host, Machine, StopReason, layout};
use vm_memory::{Bytes, GuestAddress};

/// Keeps the sum of what is written and the number of reads; ends the guest at a write of zero.
#[derive(Default)]
struct Sum(AtomicU64, AtomicU64);

impl BusHandler for Sum {
    fn read(&self, offset: u64, data: &mut [u8]) {
        self.1.fetch_add(1, Ordering::Relaxed);
        data.fill(offset as u8);
    }

    fn write(&self, _: u64, data: &[u8]) -> Flow {
        self.0.fetch_add(u64::from(data[0]), Ordering::Relaxed);
        if data[0] == 0 { Flow::Stop } else { Flow::Continue }
    }
}

fn machine(code: &[u8], cpus: u8) -> Option<(Machine, Receiver<Event>, Arc<Sum>)> {
    machine_with(code, cpus, |_| {})
}

fn machine_with(
    code: &[u8],
    cpus: u8,
    prepare: impl FnOnce(&GuestMemory),
) -> Option<(Machine, Receiver<Event>, Arc<Sum>)> {
    let (mut machine, events) = common::machine(&host()?, Config { cpus, ..Config::default() });
    let sum = Arc::new(Sum::default());
    machine.add_mmio(layout::USER_MMIO.start..layout::USER_MMIO.start + 0x1000, sum.clone());
    machine.add_pio(0x500..0x504, sum.clone());
    machine.memory().write_slice(code, GuestAddress(CODE)).unwrap();
    prepare(machine.memory());
    common::start(&mut machine, 7);
    Some((machine, events, sum))
}

#[test]
fn handlers_see_accesses_and_end_the_guest() {
    #[rustfmt::skip]
    let code = [
        0xb8, 0x00, 0x00, 0x00, 0xf0,   // mov eax, 0xf0000000
        0x40, 0x88, 0x38,               // mov [rax], dil: the argument, 7
        0x8a, 0x48, 0x09,               // mov cl, [rax + 9]
        0x88, 0x08,                     // mov [rax], cl: 9
        0xba, 0x00, 0x05, 0x00, 0x00,   // mov edx, 0x500
        0xb0, 0x14,                     // mov al, 20
        0xee,                           // out dx, al
        0x30, 0xc0,                     // xor al, al
        0xee,                           // out dx, al
    ];
    let Some((machine, events, sum)) = machine(&code, 1) else { return };
    ended_by_handler(&events, 0);
    assert_eq!(sum.0.load(Ordering::Relaxed), 36);
    let exits = machine.exits()[0];
    assert_eq!((exits.mmio, exits.pio), (3, 2));
}

#[test]
fn string_instructions_access_the_port_each_time() {
    #[rustfmt::skip]
    let code = [
        0xbf, 0x80, 0x00, 0x10, 0x00,   // mov edi, 0x100080
        0xb9, 0x03, 0x00, 0x00, 0x00,   // mov ecx, 3
        0xba, 0x02, 0x05, 0x00, 0x00,   // mov edx, 0x502
        0xf3, 0x66, 0x6d,               // rep insw
        0xba, 0x00, 0x05, 0x00, 0x00,   // mov edx, 0x500
        0x30, 0xc0,                     // xor al, al
        0xee,                           // out dx, al
    ];
    let Some((machine, events, port)) = machine(&code, 1) else { return };
    ended_by_handler(&events, 0);
    assert_eq!(port.1.load(Ordering::Relaxed), 3);
    let mut words = [0; 8];
    machine.memory().read_slice(&mut words, GuestAddress(CODE + 0x80)).unwrap();
    assert_eq!(words, [2, 2, 2, 2, 2, 2, 0, 0]);
}

#[test]
fn a_triple_fault_is_told_with_registers() {
    // ud2, without an interrupt descriptor table.
    let Some((_machine, events, _)) = machine(&[0x0f, 0x0b], 1) else { return };
    match events.recv_timeout(SOON) {
        Ok(Event::Vcpu { outcome: Err(error), .. }) => {
            let text = error.to_string();
            assert!(text.starts_with("virtual CPU 0: ") && text.contains("rip 0x100000"), "{text}");
            assert!(text.contains("instruction 0f 0b") && text.contains("cr3 0x10000"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn several_spinning_cpus_stop() {
    // jmp to itself. Others than the first wait for their start-up message.
    let Some((mut machine, events, _)) = machine(&[0xeb, 0xfe], 3) else { return };
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    machine.stop();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(machine.exits().len(), 3);
    assert!(events.try_recv().is_err(), "stopping is no event");
}

/// Instructions that KVM's interpreter may lack do what they do on the CPU.
#[test]
fn what_an_interpreter_lacks_is_done() {
    const HANDLER: u64 = CODE + 0x80;
    if !std::fs::read_to_string("/proc/cpuinfo").unwrap().contains(" smap") {
        println!("SKIP: what_an_interpreter_lacks_is_done: a CPU without clac and stac");
        return;
    }
    #[rustfmt::skip]
    let mut code = vec![
        0x0f, 0x01, 0x14, 0x25, 0x00, 0x00, 0x20, 0x00, // lgdt [0x200000]
        0x0f, 0x01, 0x1c, 0x25, 0x10, 0x00, 0x20, 0x00, // lidt [0x200010]
        0x31, 0xdb,                     // xor ebx, ebx
        0x9b,                           // fwait
        0x0f, 0x01, 0xcb,               // stac
        0x9c,                           // pushfq
        0x0f, 0x01, 0xca,               // clac
        0x9c,                           // pushfq
        0xcc,                           // int3
        0x59,                           // pop rcx
        0x58,                           // pop rax
        0xc1, 0xe8, 0x12,               // shr eax, 18
        0x83, 0xe0, 0x01,               // and eax, 1: AC after stac
        0xc1, 0xe9, 0x12,               // shr ecx, 18
        0x83, 0xe1, 0x01,               // and ecx, 1: AC after clac
        0x8d, 0x04, 0x48,               // lea eax, [rax + rcx*2]
        0x8d, 0x04, 0x98,               // lea eax, [rax + rbx*4]: breakpoints
        0xba, 0x00, 0x05, 0x00, 0x00,   // mov edx, 0x500
        0xee,                           // out dx, al
        0x30, 0xc0,                     // xor al, al
        0xee,                           // out dx, al
    ];
    code.resize((HANDLER - CODE) as usize, 0x90);
    code.extend([0xff, 0xc3, 0x48, 0xcf]); // inc ebx; iretq
    let tables = |memory: &GuestMemory| descriptor_tables(memory, &[(3, HANDLER)]);
    let Some((_machine, events, sum)) = machine_with(&code, 1, tables) else { return };
    ended_by_handler(&events, 0);
    assert_eq!(sum.0.load(Ordering::Relaxed), 5);
}

#[test]
fn what_cannot_be_done_is_named() {
    // cmpxchg16b [rip + 8]; hlt
    let code = [0x48, 0x0f, 0xc7, 0x0d, 0x08, 0x00, 0x00, 0x00, 0xf4];
    let Some((_machine, events, _)) = machine(&code, 1) else { return };
    if Host::open().unwrap().native_kernel_mode {
        println!(
            "SKIP: what_cannot_be_done_is_named: this KVM runs kernel mode on the CPU, which knows the instruction"
        );
        return;
    }
    match events.recv_timeout(SOON) {
        Ok(Event::Vcpu { outcome: Err(error), .. }) => {
            let text = error.to_string();
            assert!(text.contains("suberror 1 (emulation)") && text.contains("rip 0x100000"), "{text}");
            assert!(text.contains("instruction 48 0f c7 0d"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_machine_that_nothing_can_wake_is_seen() {
    // cli; hlt: the other CPUs were never started.
    let Some((halted, events, _)) = machine(&[0xfa, 0xf4, 0xeb, 0xfc], 3) else { return };
    let start = Instant::now();
    while !halted.is_halted() {
        assert!(start.elapsed() < SOON);
    }
    assert!(events.try_recv().is_err(), "it has not ended");
    // sti; hlt, and a jump to itself.
    for code in [[0xfb, 0xf4, 0xeb, 0xfc], [0xfa, 0xeb, 0xfe, 0x90]] {
        let Some((alive, ..)) = machine(&code, 1) else { return };
        std::thread::sleep(Duration::from_millis(200));
        assert!((0..5).all(|_| !alive.is_halted()), "{code:02x?}");
    }
}

#[test]
fn one_cpu_starts_another() {
    #[rustfmt::skip]
    let code = [
        0xb8, 0x00, 0x00, 0xe0, 0xfe,                               // mov eax, 0xfee00000: the local APIC
        0xc7, 0x80, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // enable it
        0xc7, 0x80, 0x10, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, // for CPU 2:
        0xc7, 0x80, 0x00, 0x03, 0x00, 0x00, 0x00, 0x45, 0x00, 0x00, // INIT
        0xc7, 0x80, 0x00, 0x03, 0x00, 0x00, 0x08, 0x46, 0x00, 0x00, // start-up at 0x8000
        0xf4,                                                       // hlt
    ];
    // In real mode: mov dx, 0x500; mov al, 42; out dx, al; xor al, al; out dx, al
    let started = [0xba, 0x00, 0x05, 0xb0, 0x2a, 0xee, 0x30, 0xc0, 0xee];
    let put = |memory: &GuestMemory| memory.write_slice(&started, GuestAddress(0x8000)).unwrap();
    let Some((_machine, events, port)) = machine_with(&code, 3, put) else { return };
    ended_by_handler(&events, 2);
    assert_eq!(port.0.load(Ordering::Relaxed), 42);
}

/// The second CPU reads a port. While the handler has this read, the first CPU sends INIT and start-up messages to the second, and the test
/// asks whether the machine is halted. The answer has to wait until KVM has completed the read: `KVM_GET_MP_STATE` processes the INIT, and
/// the completion of the read would then move the new RIP.
#[test]
fn a_cpu_that_reads_a_port_is_started_anew() {
    /// Port 0, which the second CPU reads: the read lasts until the first CPU has sent INIT and the test has asked several times. Port 1,
    /// which the first CPU reads: the read lasts until the second CPU reads port 0.
    #[derive(Default)]
    struct Ports {
        reading: AtomicBool,
        sent: AtomicBool,
        questions: AtomicU64,
    }
    impl Ports {
        fn wait_for(&self, ready: impl Fn() -> bool) {
            let start = Instant::now();
            while !ready() && start.elapsed() < SOON {
                std::thread::yield_now();
            }
        }
    }
    impl BusHandler for Ports {
        fn read(&self, offset: u64, _: &mut [u8]) {
            let questions = || self.questions.load(Ordering::Acquire);
            match offset {
                0 => {
                    self.reading.store(true, Ordering::Release);
                    self.wait_for(|| self.sent.load(Ordering::Acquire));
                    let asked = questions();
                    self.wait_for(|| questions() > asked + 20);
                }
                1 => self.wait_for(|| self.reading.load(Ordering::Acquire)),
                _ => self.sent.store(true, Ordering::Release),
            }
        }

        fn write(&self, _: u64, _: &[u8]) -> Flow {
            Flow::Stop
        }
    }
    #[rustfmt::skip]
    let code = [
        0xbb, 0x00, 0x00, 0xe0, 0xfe,                               // mov ebx, 0xfee00000: the local APIC
        0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // enable it
        0xc7, 0x83, 0x10, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, // for CPU 1:
        0xc7, 0x83, 0x00, 0x03, 0x00, 0x00, 0x00, 0x45, 0x00, 0x00, // INIT
        0xc7, 0x83, 0x00, 0x03, 0x00, 0x00, 0x08, 0x46, 0x00, 0x00, // start-up at 0x8000
        0xba, 0x01, 0x05, 0x00, 0x00, 0xec,                         // mov edx, 0x501; in al, dx
        0xc7, 0x83, 0x00, 0x03, 0x00, 0x00, 0x00, 0x45, 0x00, 0x00, // INIT
        0xc7, 0x83, 0x00, 0x03, 0x00, 0x00, 0x09, 0x46, 0x00, 0x00, // start-up at 0x9000
        0xff, 0xc2, 0xec,                                           // inc edx; in al, dx
        0xfa, 0xf4, 0xeb, 0xfc,                                     // cli; hlt
    ];
    // In real mode: mov dx, 0x500; in al, dx; and nothing after it.
    let first = [0xba, 0x00, 0x05, 0xec, 0x0f, 0x0b];
    // mov dx, 0x503; out dx, al
    let second = [0xba, 0x03, 0x05, 0xee];
    let Some(host) = host() else { return };
    let (mut machine, events) = common::machine(&host, Config { cpus: 2, ..Config::default() });
    let ports = Arc::new(Ports::default());
    machine.add_pio(0x500..0x504, ports.clone());
    for (at, bytes) in [(CODE, &code[..]), (0x8000, &first), (0x9000, &second)] {
        machine.memory().write_slice(bytes, GuestAddress(at)).unwrap();
    }
    common::start(&mut machine, 0);
    let start = Instant::now();
    let ended = loop {
        // Asked before the event is received, so that an event sent meanwhile is not mistaken for a halted machine.
        let is_halted = machine.is_halted();
        ports.questions.fetch_add(1, Ordering::AcqRel);
        if let Ok(event) = events.try_recv() {
            break event;
        }
        assert!(!is_halted, "the second CPU has never read");
        assert!(start.elapsed() < 3 * SOON, "nothing has ended");
    };
    match ended {
        Event::Vcpu { id: 1, outcome: Ok(StopReason::Handler) } => {}
        other => panic!("{other}"),
    }
}

/// ACPI and MP tables say that the timer, interrupt 0 of the ISA bus, is at pin 2 of the I/O APIC.
#[test]
fn the_timer_interrupts_through_the_pin_that_the_tables_tell() {
    const HANDLER: u64 = CODE + 0x80;
    #[rustfmt::skip]
    let mut code = vec![
        0x0f, 0x01, 0x14, 0x25, 0x00, 0x00, 0x20, 0x00, // lgdt [0x200000]
        0x0f, 0x01, 0x1c, 0x25, 0x10, 0x00, 0x20, 0x00, // lidt [0x200010]
        0xb8, 0x00, 0x00, 0xe0, 0xfe,                               // mov eax, 0xfee00000: the local APIC
        0xc7, 0x80, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // enable it
        0xb8, 0x00, 0x00, 0xc0, 0xfe,                               // mov eax, 0xfec00000: the I/O APIC
        0xc7, 0x00, 0x15, 0x00, 0x00, 0x00,                         // pin 2:
        0xc7, 0x40, 0x10, 0x00, 0x00, 0x00, 0x00,                   // to CPU 0
        0xc7, 0x00, 0x14, 0x00, 0x00, 0x00,
        0xc7, 0x40, 0x10, 0x40, 0x00, 0x00, 0x00,                   // vector 0x40, edge-triggered
        0xb0, 0xff, 0xe6, 0x21,                                     // nothing through the PIC
        0xb0, 0x34, 0xe6, 0x43,                                     // timer 0: again and again,
        0xb0, 0x00, 0xe6, 0x40, 0xb0, 0x40, 0xe6, 0x40,             // every 0x4000 / 1.19 MHz
        0xfb, 0xf4, 0xeb, 0xfd,                                     // sti; hlt; jmp
    ];
    code.resize((HANDLER - CODE) as usize, 0x90);
    // mov edx, 0x500; xor al, al; out dx, al
    code.extend([0xba, 0x00, 0x05, 0x00, 0x00, 0x30, 0xc0, 0xee]);
    let tables = |memory: &GuestMemory| descriptor_tables(memory, &[(0x40, HANDLER)]);
    let Some((_machine, events, _)) = machine_with(&code, 1, tables) else { return };
    ended_by_handler(&events, 0);
}

#[test]
fn a_virtual_cpu_whose_thread_panics_is_told() {
    struct Broken;
    impl BusHandler for Broken {
        fn read(&self, _: u64, _: &mut [u8]) {
            panic!("broken handler");
        }

        fn write(&self, _: u64, _: &[u8]) -> Flow {
            Flow::Continue
        }
    }
    let Some(host) = host() else { return };
    let (mut machine, events) = common::machine(&host, Config::default());
    machine.add_pio(0x500..0x501, Arc::new(Broken));
    // mov edx, 0x500; in al, dx
    machine.memory().write_slice(&[0xba, 0x00, 0x05, 0x00, 0x00, 0xec], GuestAddress(CODE)).unwrap();
    common::start(&mut machine, 0);
    match events.recv_timeout(SOON) {
        Ok(Event::Vcpu { id: 0, outcome: Err(error) }) => assert!(error.to_string().contains("panicked")),
        other => panic!("{other:?}"),
    }
}

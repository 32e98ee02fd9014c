//! Small machines: memory, code, segments and interrupt handlers.
#![allow(dead_code, reason = "each test uses its part")]

mod host;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

pub(crate) use host::host;
use paradisk_vmm::boot::LongMode;
use paradisk_vmm::{BusHandler, Config, Event, Flow, GuestMemory, Host, Machine, StopReason};
use vm_memory::{Bytes, GuestAddress};

/// Where the code begins.
pub(crate) const CODE: u64 = 0x10_0000;
/// Where [`descriptor_tables`] puts what `lgdt` and, 16 bytes on, `lidt` read.
pub(crate) const TABLES: u64 = 0x20_0000;
/// Timeout for an event that is expected soon.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A machine with 4 MiB of memory, and its events.
pub(crate) fn machine(host: &Host, config: Config) -> (Machine, Receiver<Event>) {
    let (sender, events) = channel();
    let sink = Arc::new(move |event| drop(sender.send(event)));
    (Machine::new(host, Config { memory: 4 << 20, ..config }, sink).unwrap(), events)
}

/// Start the first virtual CPU at [`CODE`], with this argument.
pub(crate) fn start(machine: &mut Machine, argument: u64) {
    let boot = LongMode { entry: CODE, stack: CODE, argument, low_pages: Vec::new() };
    boot.write_tables(machine.memory()).unwrap();
    machine.start(|_, vcpu| boot.set_registers(vcpu)).unwrap();
}

/// Wait until a handler has ended virtual CPU `cpu`. No other event may come before.
#[track_caller]
pub(crate) fn ended_by_handler(events: &Receiver<Event>, cpu: usize) {
    match events.recv_timeout(SOON) {
        Ok(Event::Vcpu { id, outcome: Ok(StopReason::Handler) }) if id == cpu => {}
        other => panic!("{other:?}"),
    }
}

/// Flat segments, and these handlers of vectors.
pub(crate) fn descriptor_tables(memory: &GuestMemory, handlers: &[(u8, u64)]) {
    let (gdt, idt) = (TABLES + 0x100, TABLES + 0x200);
    let gate = |handler: u64| handler & 0xffff | 0x08 << 16 | 0x8e00 << 32 | handler >> 16 << 48;
    let tables = [
        (TABLES, 0x17 | gdt << 16),
        (TABLES + 8, gdt >> 48),
        (TABLES + 0x10, 0xfff | idt << 16),
        (TABLES + 0x18, idt >> 48),
        (gdt + 8, 0x00af_9b00_0000_ffff),
        (gdt + 16, 0x00cf_9300_0000_ffff),
    ];
    let gates = handlers.iter().map(|(vector, handler)| (idt + u64::from(*vector) * 16, gate(*handler)));
    for (at, value) in tables.into_iter().chain(gates) {
        memory.write_obj(value, GuestAddress(at)).unwrap();
    }
}

/// Ends the guest at a write.
pub(crate) struct End;

impl BusHandler for End {
    fn read(&self, _: u64, _: &mut [u8]) {}

    fn write(&self, _: u64, _: &[u8]) -> Flow {
        Flow::Stop
    }
}

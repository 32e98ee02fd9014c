//! String instructions on ports of a PCI function. Without `/dev/kvm` the test says why it is skipped.

mod common;
#[path = "common/no_io.rs"]
mod no_io;

use std::iter;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use common::{CODE, End, ended_by_handler, host};
use no_io::no_io;
use paradisk_devices::{AccessKind, Bar, BarKind, Doorbell, IoDevice, PciDevice, Stats, Time};
use paradisk_vmm::{Config, Host, layout};
use vm_memory::{Bytes, GuestAddress};

const READ: u64 = CODE + 0x100;
const HANG: Duration = Duration::from_secs(60);
const PORTS: u16 = layout::PCI_IO.start as u16;
/// Ports of the function.
const REGISTER: u64 = 0;
const DOORBELL: u64 = 4;
const PLAIN: u64 = 8;

/// What reached the function.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Rung,
    /// At this offset.
    Write(u64, Vec<u8>),
    Read(u64, usize),
    StringWrite(u64, usize, Vec<u8>),
    StringRead(u64, usize, usize),
}

struct Function {
    seen: Sender<Seen>,
    command: u8,
    bar: [u8; 4],
}

impl PciDevice for Function {
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        data.fill(0);
        if offset == 4 {
            data[0] = self.command;
        }
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        match (offset, data) {
            (4, [command, ..]) => self.command = *command,
            (0x10, [a, b, c, d]) => self.bar = [*a, *b, *c, *d],
            _ => {}
        }
    }

    fn bars(&self) -> Vec<Bar> {
        let address = (self.command & 1 != 0).then_some(u64::from(u32::from_le_bytes(self.bar) & !3));
        vec![Bar { index: 0, kind: BarKind::Io, size: 16, address }]
    }

    fn bar_read(&mut self, _: u8, offset: u64, data: &mut [u8], _: Time) {
        data.fill(0xb0);
        let _ = self.seen.send(Seen::Read(offset, data.len()));
    }

    fn bar_write(&mut self, _: u8, offset: u64, data: &[u8], _: Time) {
        let _ = self.seen.send(Seen::Write(offset, data.to_vec()));
    }

    fn port_read_string(&mut self, _: u8, offset: u64, width: usize, data: &mut [u8], _: Time) {
        data.fill(0xb1);
        let _ = self.seen.send(Seen::StringRead(offset, width, data.len()));
    }

    fn port_write_string(&mut self, _: u8, offset: u64, width: usize, data: &[u8], _: Time) {
        let _ = self.seen.send(Seen::StringWrite(offset, width, data.to_vec()));
    }

    fn access_kind(&self, _: u8, offset: u64, _: Option<&[u8]>) -> AccessKind {
        if offset == REGISTER { AccessKind::Register } else { AccessKind::Command }
    }

    fn doorbells(&self) -> &[Doorbell] {
        &[Doorbell { bar: 0, offset: DOORBELL, len: 2 }]
    }
}

impl IoDevice for Function {
    fn on_doorbell(&mut self, _: usize, _: Time) {
        let _ = self.seen.send(Seen::Rung);
    }

    no_io! {}

    fn quiesce(&mut self, _: Time) {}

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// `rep insw` or `rep outsw`, three words, at a port of the function.
fn string(port: u64, is_read: bool) -> Vec<u8> {
    let [low, high] = (PORTS + port as u16).to_le_bytes();
    let mut code = vec![0xba, low, high, 0, 0]; //     mov edx, port
    code.extend([0xb9, 3, 0, 0, 0]); //                 mov ecx, 3
    let [address, instruction] = if is_read { [0xbf, 0x6d] } else { [0xbe, 0x6f] };
    code.push(address); //                              mov edi or esi, READ or CODE
    code.extend((if is_read { READ } else { CODE } as u32).to_le_bytes());
    code.extend([0xf3, 0x66, instruction]);
    code
}

/// What the function sees of strings read and written at its ports, and what the guest reads.
fn run(host: &Host, ports: &[(u64, bool)]) -> (Vec<Seen>, [u8; 8]) {
    let (mut machine, events) = common::machine(host, Config::default());
    let (seen, all) = channel();
    machine.add_device(move |_, _| Ok(Box::new(Function { seen, command: 0, bar: [0; 4] }))).unwrap();
    machine.add_pio(0x500..0x501, Arc::new(End));
    let mut code: Vec<u8> = ports.iter().flat_map(|(port, is_read)| string(*port, *is_read)).collect();
    code.extend([0xba, 0x00, 0x05, 0x00, 0x00, 0xee]); // mov edx, 0x500; out dx, al
    machine.memory().write_slice(&code, GuestAddress(CODE)).unwrap();
    common::start(&mut machine, 0);
    ended_by_handler(&events, 0);
    let mut read = [0; 8];
    machine.memory().read_slice(&mut read, GuestAddress(READ)).unwrap();
    // A doorbell is an event that the I/O thread takes when it runs.
    let first = all.recv_timeout(HANG).unwrap();
    drop(machine);
    (iter::once(first).chain(&all).collect(), read)
}

/// A string access is one call, unless KVM splits it, which it does to writes.
#[test]
fn a_string_is_one_access() {
    let Some(host) = host() else { return };
    for port in [REGISTER, PLAIN] {
        let (seen, read) = run(&host, &[(port, true), (port, false)]);
        let Some((Seen::StringRead(at, 2, 6), writes)) = seen.split_first() else { panic!("{seen:?}") };
        let written: Vec<_> = writes
            .iter()
            .flat_map(|seen| match seen {
                Seen::Write(at, data) | Seen::StringWrite(at, 2, data) if *at == port => data.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        // The first bytes of the code are what the string writes.
        assert_eq!((*at, &written[..]), (port, &string(port, true)[..6]));
        assert_eq!(read, [0xb1, 0xb1, 0xb1, 0xb1, 0xb1, 0xb1, 0, 0]);
    }
    // Writes may be one event. Nothing reaches the register.
    let (seen, _) = run(&host, &[(DOORBELL, false)]);
    assert!((1..=3).contains(&seen.len()) && seen.iter().all(|seen| *seen == Seen::Rung), "{seen:?}");
}

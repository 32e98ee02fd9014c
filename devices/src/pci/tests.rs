//! BAR sizing, the capability list, and the conditions of interrupts.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Route(u16, Option<MsiMessage>),
    Message(u16),
    Line(bool),
}

struct Sink(Sender<Event>);

impl InterruptSink for Sink {
    fn route(&mut self, vector: u16, message: Option<MsiMessage>) {
        self.0.send(Event::Route(vector, message)).unwrap();
    }
    fn message(&mut self, vector: u16) {
        self.0.send(Event::Message(vector)).unwrap();
    }
    fn line(&mut self, asserted: bool) {
        self.0.send(Event::Line(asserted)).unwrap();
    }
}

const IDENTITY: Identity = Identity {
    vendor: 0x1234,
    device: 0x5678,
    revision: 3,
    class: [1, 7, 2],
    subsystem_vendor: 0xabcd,
    subsystem: 0xef01,
};

fn function() -> (Function, Receiver<Event>) {
    let (sender, receiver) = channel();
    let function = Function::new(&IDENTITY, Box::new(Sink(sender)))
        .with_bar(0, BarKind::Io, 256)
        .and_then(|function| function.with_bar(1, BarKind::Memory64, 1 << 33))
        .and_then(|function| function.with_bar(3, BarKind::Memory32, 0x4000))
        .and_then(|function| function.with_msi(4))
        .and_then(|function| function.with_msix(3, 3, 0x1000, 0x2000))
        .unwrap()
        .with_intx(1);
    (function, receiver)
}

fn read(function: &Function, offset: u16) -> u32 {
    let mut data = [0; 4];
    function.config_read(offset, &mut data);
    u32::from_le_bytes(data)
}

fn write(function: &mut Function, offset: u16, value: u32) {
    function.config_write(offset, &value.to_le_bytes());
}

fn events(receiver: &Receiver<Event>) -> Vec<Event> {
    receiver.try_iter().collect()
}

fn capability(function: &Function, id: u8) -> u16 {
    let mut at = read(function, 0x34) as u8;
    while at != 0 {
        let header = read(function, at.into());
        if header as u8 == id {
            return at.into();
        }
        at = (header >> 8) as u8;
    }
    panic!("no capability {id:#x}");
}

#[test]
fn identity_and_space_beyond() {
    let (mut function, _) = function();
    assert_eq!(read(&function, 0), 0x5678_1234);
    assert_eq!(read(&function, 8), 0x0107_0203);
    assert_eq!(read(&function, 0x2c), 0xef01_abcd);
    assert_eq!(read(&function, 0x3c) >> 8, 1);
    assert_eq!(read(&function, 0x100), 0xffff_ffff);
    assert_eq!(read(&function, 0xffc), 0xffff_ffff);
    // Identity and absent registers do not change.
    for offset in (0..4096).step_by(4) {
        write(&mut function, offset, if offset == 4 { 0 } else { u32::MAX });
    }
    assert_eq!(read(&function, 0), 0x5678_1234);
    assert_eq!(read(&function, 0x30), 0);
    assert_eq!(read(&function, 0x20), 0);
    let mut byte = [0];
    function.config_read(3, &mut byte);
    assert_eq!(byte, [0x56]);
}

#[test]
fn base_address_registers_size_and_move() {
    let (mut function, _) = function();
    for (offset, mask) in
        [(0x10, 0xffff_ff01), (0x14, 0x0000_0004), (0x18, 0xffff_fffe), (0x1c, 0xffff_c000), (0x20, 0)]
    {
        write(&mut function, offset, u32::MAX);
        assert_eq!(read(&function, offset), mask, "{offset:#x}");
    }
    write(&mut function, 0x10, 0xc001);
    write(&mut function, 0x14, 0);
    write(&mut function, 0x18, 0x10);
    write(&mut function, 0x1c, 0xfe00_0000);
    assert!(function.bars().iter().all(|bar| bar.address.is_none()));
    write(&mut function, 4, 3);
    let addresses: Vec<_> = function.bars().iter().map(|bar| (bar.index, bar.address)).collect();
    assert_eq!(addresses, [(0, Some(0xc000)), (1, Some(0x10_0000_0000)), (3, Some(0xfe00_0000))]);
    function.reset();
    assert_eq!(read(&function, 0x1c), 0);
}

#[test]
fn impossible_layouts_are_refused() {
    let new = || Function::new(&IDENTITY, Box::new(Sink(channel().0)));
    assert!(new().with_bar(5, BarKind::Memory64, 4096).is_err());
    assert!(new().with_bar(6, BarKind::Io, 16).is_err());
    assert!(new().with_bar(0, BarKind::Memory32, 3000).is_err());
    let one = || new().with_bar(0, BarKind::Memory64, 4096).unwrap();
    assert_eq!(one().with_bar(1, BarKind::Io, 16).err(), Some(LayoutError::BarTaken(1)));
    assert_eq!(one().with_msix(100, 0, 0, 0xff8).err(), Some(LayoutError::MsixPlace(0)));
    assert!(one().with_msix(4, 1, 0, 0x800).is_err());
    assert!(one().with_msix(2049, 0, 0, 0x800).is_err());
    assert!(new().with_msi(3).is_err());
    let mut function = new();
    while let Ok(more) = { new_with_more(function) } {
        function = more;
    }
    fn new_with_more(function: Function) -> Result<Function, LayoutError> {
        function.with_msi(1)
    }
}

#[test]
fn the_line_obeys_disable_and_gives_way_to_messages() {
    let (mut function, receiver) = function();
    write(&mut function, 4, 0x7);
    assert!(function.set_line(true));
    assert_eq!(events(&receiver), [Event::Line(true)]);
    assert_ne!(read(&function, 4) & 1 << 19, 0);
    write(&mut function, 4, 0x407);
    assert_eq!(events(&receiver), [Event::Line(false)]);
    // The status bit is the level that the device requests.
    assert_ne!(read(&function, 4) & 1 << 19, 0);
    write(&mut function, 4, 0x7);
    assert_eq!(events(&receiver), [Event::Line(true)]);
    assert!(!function.signal(0));
    let msi = capability(&function, 5);
    write(&mut function, msi, 1 << 16);
    assert_eq!(function.mode(), InterruptMode::Msi);
    assert!(events(&receiver).contains(&Event::Line(false)));
    function.set_line(false);
    assert_eq!(read(&function, 4) & 1 << 19, 0);
}

#[test]
fn msi_routes_what_was_granted() {
    let (mut function, receiver) = function();
    let msi = capability(&function, 5);
    assert_eq!(read(&function, msi) >> 16, 0x84);
    write(&mut function, 4, 6);
    write(&mut function, msi + 4, 0xfee0_1003);
    write(&mut function, msi + 8, 1);
    write(&mut function, msi + 12, 0x4043);
    // Two vectors granted of four.
    write(&mut function, msi, 0x0011 << 16);
    let message = |data| Some(MsiMessage { address: 0x1_fee0_1000, data });
    assert_eq!(events(&receiver), [Event::Route(0, message(0x4042)), Event::Route(1, message(0x4043))]);
    for vector in 0..4 {
        assert!(function.signal(vector));
    }
    assert_eq!(events(&receiver), [0, 1, 0, 1].map(Event::Message));
    // A message is a memory write, which needs bus mastering.
    write(&mut function, 4, 2);
    assert!(!function.signal(0));
    assert_eq!(events(&receiver), [Event::Route(0, None), Event::Route(1, None)]);
}

#[test]
fn msix_masks_and_keeps_pending_bits() {
    let (mut function, receiver) = function();
    let msix = capability(&function, 0x11);
    assert_eq!(read(&function, msix) >> 16, 2);
    assert_eq!((read(&function, msix + 4), read(&function, msix + 8)), (0x1003, 0x2003));
    write(&mut function, 4, 6);
    write(&mut function, msix, 0x8000 << 16);
    assert_eq!(function.mode(), InterruptMode::Msix);
    // All vectors start masked.
    assert!(!function.signal(2));
    let pending = |function: &Function| {
        let mut data = [0; 8];
        assert!(function.msix_read(3, 0x2000, &mut data));
        u64::from_le_bytes(data)
    };
    assert_eq!(pending(&function), 4);
    assert_eq!(events(&receiver), []);
    assert!(function.msix_write(3, 0x1020, &0x0000_0002_fee0_0000u64.to_le_bytes()));
    assert!(function.msix_write(3, 0x1028, &7u32.to_le_bytes()));
    assert!(function.msix_write(3, 0x102c, &0u32.to_le_bytes()));
    let message = Some(MsiMessage { address: 0x2_fee0_0000, data: 7 });
    assert_eq!(events(&receiver), [Event::Route(2, message), Event::Message(2)]);
    assert_eq!(pending(&function), 0);
    // The function mask: one delivery after it is cleared.
    write(&mut function, msix, 0xc000 << 16);
    assert!(!function.signal(2) && !function.signal(2));
    write(&mut function, msix, 0x8000 << 16);
    assert_eq!(events(&receiver), [Event::Route(2, None), Event::Route(2, message), Event::Message(2)]);
    // A vector that does not exist, and accesses that are not aligned dwords or qwords.
    assert!(!function.signal(3));
    let mut data = [0xff; 2];
    assert!(function.msix_read(3, 0x1020, &mut data) && data == [0; 2]);
    assert!(function.msix_write(3, 0x1022, &[0xff; 4]));
    assert!(function.msix_write(3, 0x102c, &[0xff; 8]));
    assert!(!function.msix_write(3, 0x1030, &[0; 4]) && !function.msix_write(0, 0x1000, &[0; 4]));
    assert_eq!(events(&receiver), []);
}

//! The configuration table of the MultiProcessor Specification 1.4, chapter 4: the content of `acpi` for kernels
//! without ACPI.

use vm_memory::{Bytes, GuestAddress};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{Immutable, IntoBytes};

use crate::error::Error;
use crate::layout::{self, intx_gsi, isa_gsi};
use crate::memory::GuestMemory;

const PCI_BUS: u8 = 0;
const ISA_BUS: u8 = 1;
/// Versions of the APICs: integrated, and that of KVM's I/O APIC.
const LOCAL_APIC_VERSION: u8 = 0x14;
const IO_APIC_VERSION: u8 = 0x11;
const ENABLED: u8 = 1;
const BOOTSTRAP: u8 = 2;

#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct FloatingPointer {
    signature: [u8; 4],
    table: U32,
    /// In units of 16 bytes.
    length: u8,
    revision: u8,
    checksum: u8,
    features: [u8; 5],
}

#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    signature: [u8; 4],
    length: U16,
    revision: u8,
    checksum: u8,
    oem: [u8; 8],
    product: [u8; 12],
    oem_table: U32,
    oem_table_size: U16,
    entries: U16,
    local_apic: U32,
    extended_length: U16,
    extended_checksum: u8,
    reserved: u8,
}

#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Processor {
    kind: u8,
    apic: u8,
    version: u8,
    flags: u8,
    signature: U32,
    features: U32,
    reserved: [u8; 8],
}

#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Bus {
    kind: u8,
    id: u8,
    name: [u8; 6],
}

#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct IoApic {
    kind: u8,
    apic: u8,
    version: u8,
    flags: u8,
    address: U32,
}

/// An interrupt into an I/O APIC or into all local ones.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Interrupt {
    kind: u8,
    interrupt_type: u8,
    flags: U16,
    bus: u8,
    source: u8,
    apic: u8,
    pin: u8,
}

const INT: u8 = 0;
const NMI: u8 = 1;
const EXT_INT: u8 = 3;
/// Level-triggered, active low: PCI interrupts.
const LEVEL_ACTIVE_LOW: u16 = 0b1111;
/// The bus's default: edge-triggered, active high for ISA.
const AS_THE_BUS: u16 = 0;
const ALL_LOCAL_APICS: u8 = 0xff;

/// Write the tables of a machine with `cpus` virtual CPUs.
pub(crate) fn write(memory: &GuestMemory, cpus: u8) -> Result<(), Error> {
    let (mut bytes, entries) = entries(cpus);
    let pointer = size_of::<FloatingPointer>();
    let table = layout::MP_TABLE.start + pointer as u64;
    let header = Header {
        signature: *b"PCMP",
        length: ((size_of::<Header>() + bytes.len()) as u16).into(),
        revision: 4,
        checksum: 0,
        oem: *b"PARADISK",
        product: *b"KVM MACHINE ",
        oem_table: 0.into(),
        oem_table_size: 0.into(),
        entries: entries.into(),
        local_apic: (layout::LOCAL_APIC as u32).into(),
        extended_length: 0.into(),
        extended_checksum: 0,
        reserved: 0,
    };
    let sum = checksum(header.as_bytes()).wrapping_add(checksum(&bytes));
    bytes.splice(0..0, Header { checksum: sum, ..header }.as_bytes().iter().copied());
    let pointer = FloatingPointer {
        signature: *b"_MP_",
        table: (table as u32).into(),
        length: 1,
        revision: 4,
        checksum: 0,
        features: [0; 5],
    };
    let pointer = FloatingPointer { checksum: checksum(pointer.as_bytes()), ..pointer };
    bytes.splice(0..0, pointer.as_bytes().iter().copied());
    let (address, len) = (layout::MP_TABLE.start, bytes.len() as u64);
    let outside = Error::OutsideMemory { what: "MP table", address, len };
    if address + len > layout::MP_TABLE.end {
        return Err(outside);
    }
    memory.write_slice(&bytes, GuestAddress(address)).map_err(|_| outside)
}

/// The byte that makes the sum of all bytes zero.
fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte))
}

/// The entries in order of their types, and their number.
fn entries(cpus: u8) -> (Vec<u8>, u16) {
    let io_apic = layout::io_apic_id(cpus);
    let mut table = (Vec::new(), 0);
    for cpu in 0..cpus {
        let flags = if cpu == 0 { ENABLED | BOOTSTRAP } else { ENABLED };
        // Signature and features of a 64-bit CPU with FPU and APIC: operating systems read CPUID instead.
        let (signature, features) = (0x600.into(), 0x201.into());
        let version = LOCAL_APIC_VERSION;
        add(
            &mut table,
            &Processor { kind: 0, apic: cpu, version, flags, signature, features, reserved: [0; 8] },
        );
    }
    for (id, name) in [(PCI_BUS, *b"PCI   "), (ISA_BUS, *b"ISA   ")] {
        add(&mut table, &Bus { kind: 1, id, name });
    }
    let address = (layout::IO_APIC as u32).into();
    add(&mut table, &IoApic { kind: 2, apic: io_apic, version: IO_APIC_VERSION, flags: ENABLED, address });
    let interrupt = Interrupt {
        kind: 3,
        interrupt_type: INT,
        flags: AS_THE_BUS.into(),
        bus: ISA_BUS,
        source: 0,
        apic: io_apic,
        pin: 0,
    };
    // Interrupt 2 is the cascade of the second PIC.
    for source in (0..16).filter(|irq| *irq != 2) {
        add(&mut table, &Interrupt { source, pin: isa_gsi(source), ..interrupt });
    }
    for slot in layout::DEVICE_SLOTS {
        let source = slot << 2;
        let (flags, pin) = (LEVEL_ACTIVE_LOW.into(), intx_gsi(slot) as u8);
        add(&mut table, &Interrupt { flags, bus: PCI_BUS, source, pin, ..interrupt });
    }
    let local = Interrupt { kind: 4, apic: ALL_LOCAL_APICS, ..interrupt };
    for (interrupt_type, pin) in [(EXT_INT, 0), (NMI, 1)] {
        add(&mut table, &Interrupt { interrupt_type, pin, ..local });
    }
    table
}

fn add(table: &mut (Vec<u8>, u16), entry: &(impl IntoBytes + Immutable)) {
    table.0.extend_from_slice(entry.as_bytes());
    table.1 += 1;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::memory;

    /// Type and content of each entry, parsed as by an operating system.
    fn parse(cpus: u8) -> Vec<(u8, Vec<u8>)> {
        let memory = memory::allocate(1 << 20).unwrap();
        write(&memory, cpus).unwrap();
        let read = |address: u64, len: usize| {
            let mut bytes = vec![0; len];
            memory.read_slice(&mut bytes, GuestAddress(address)).unwrap();
            assert_eq!(checksum(&bytes), 0);
            bytes
        };
        let pointer = read(layout::MP_TABLE.start, 16);
        assert_eq!(pointer[..4], *b"_MP_");
        let table = u64::from(u32::from_le_bytes(pointer[4..8].try_into().unwrap()));
        let mut length = [0; 2];
        memory.read_slice(&mut length, GuestAddress(table + 4)).unwrap();
        let bytes = read(table, u16::from_le_bytes(length).into());
        assert_eq!(bytes[..4], *b"PCMP");
        let mut rest = &bytes[44..];
        let mut entries = Vec::new();
        while let Some(kind) = rest.first() {
            let (entry, after) = rest.split_at(if *kind == 0 { 20 } else { 8 });
            entries.push((*kind, entry[1..].to_vec()));
            rest = after;
        }
        assert_eq!(u16::from_le_bytes([bytes[34], bytes[35]]) as usize, entries.len());
        entries
    }

    #[test]
    fn every_cpu_is_there_and_the_first_boots() {
        for cpus in [1, 3, 255] {
            let entries = parse(cpus);
            let apics: Vec<_> =
                entries.iter().filter(|(kind, _)| *kind == 0).map(|(_, e)| (e[0], e[2])).collect();
            let expected: Vec<_> = (0..cpus).map(|cpu| (cpu, if cpu == 0 { 3 } else { 1 })).collect();
            assert_eq!(apics, expected);
            let io_apic = entries.iter().find(|(kind, _)| *kind == 2).unwrap();
            assert_eq!(io_apic.1, [[cpus, 0x11, 1].as_slice(), &0xfec0_0000_u32.to_le_bytes()].concat());
        }
    }

    #[test]
    fn interrupts_go_to_their_pins() {
        let entries = parse(1);
        let interrupts = entries.iter().filter(|(kind, _)| *kind == 3);
        let pins: BTreeMap<_, _> = interrupts.map(|(_, e)| ((e[3], e[4]), (e[6], e[1], e[5]))).collect();
        assert_eq!(pins.len(), 15 + 31);
        assert_eq!(pins[&(ISA_BUS, 0)], (2, 0, 1), "the timer");
        assert_eq!(pins[&(ISA_BUS, 4)], (4, 0, 1), "edge-triggered");
        // Slots 1 and 9 have pin 17. PCI source numbers consist of slot and INTx pin.
        assert_eq!(pins[&(PCI_BUS, 1 << 2)], (17, 0b1111, 1));
        assert_eq!(pins[&(PCI_BUS, 9 << 2)], (17, 0b1111, 1));
        let local: Vec<_> =
            entries.iter().filter(|(kind, _)| *kind == 4).map(|(_, e)| (e[0], e[5], e[6])).collect();
        assert_eq!(local, [(EXT_INT, 0xff, 0), (NMI, 0xff, 1)]);
    }
}

use std::collections::BTreeMap;

use super::*;
use crate::memory;

/// Tables by signature, located as an operating system does.
fn tables(cpus: u8) -> BTreeMap<[u8; 4], Vec<u8>> {
    tables_of(Hardware { cpus, vmbus: false })
}

fn tables_of(hardware: Hardware) -> BTreeMap<[u8; 4], Vec<u8>> {
    let memory = memory::allocate(1 << 20).unwrap();
    let root = write(&memory, hardware).unwrap();
    assert!(root.is_multiple_of(16) && (0xe_0000..0x10_0000).contains(&root));
    let read = |address: u64, len: usize| {
        let mut bytes = vec![0; len];
        memory.read_slice(&mut bytes, GuestAddress(address)).unwrap();
        bytes
    };
    let table = |address: u64| {
        let header = read(address, 8);
        read(address, dword(&header, 4) as usize)
    };
    let rsdp = read(root, 36);
    assert_eq!(rsdp[..8], *b"RSD PTR ");
    assert_eq!((sum(&rsdp[..20]), sum(&rsdp)), (0, 0));
    let xsdt = table(qword(&rsdp, 24));
    let mut found: Vec<_> = xsdt[36..].chunks_exact(8).map(|entry| table(qword(entry, 0))).collect();
    let fadt = found.iter().find(|table| table[..4] == *b"FACP").unwrap().clone();
    let (facs, dsdt) = (table(dword(&fadt, 36).into()), table(dword(&fadt, 40).into()));
    assert_eq!((&facs[..4], facs.len()), (b"FACS".as_slice(), 64));
    found.extend([xsdt, dsdt]);
    for table in &found {
        assert_eq!(sum(table), 0, "{:?}", String::from_utf8_lossy(&table[..4]));
    }
    found.into_iter().map(|table| (table[..4].try_into().unwrap(), table)).collect()
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte))
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn dword(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn qword(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn the_root_leads_to_every_table() {
    for cpus in [1, 254] {
        let tables = tables(cpus);
        let signatures: Vec<_> = tables.keys().collect();
        assert_eq!(signatures, [b"APIC", b"DSDT", b"FACP", b"MCFG", b"XSDT"]);
    }
}

#[test]
fn fixed_hardware_is_where_the_devices_are() {
    let fadt = &tables(1)[b"FACP"];
    assert_eq!(word(fadt, 46), 9, "SCI");
    assert_eq!((dword(fadt, 56), fadt[88]), (0x600, 4), "PM1a events");
    assert_eq!((dword(fadt, 64), fadt[89]), (0x604, 2), "PM1a control");
    assert_eq!(
        (fadt[116], fadt[117], qword(fadt, 120), fadt[128]),
        (1, 8, 0xcf9, 6),
        "reset register and value"
    );
    assert_eq!((fadt[148], fadt[149], qword(fadt, 152)), (1, 32, 0x600), "PM1a events");
    assert_eq!((fadt[172], fadt[173], qword(fadt, 176)), (1, 16, 0x604), "PM1a control");
    // WBINVD, C1, no fixed power or sleep button, no fixed alarm of the clock, reset register, headless.
    assert_eq!(dword(fadt, 112), 1 << 0 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 10 | 1 << 12);
}

#[test]
fn every_cpu_and_the_io_apic_are_there() {
    let madt = &tables(3)[b"APIC"];
    assert_eq!(dword(madt, 36), 0xfee0_0000);
    let mut rest = &madt[44..];
    let mut entries = Vec::new();
    while let Some(len) = rest.get(1) {
        let (entry, after) = rest.split_at((*len).into());
        entries.push(entry);
        rest = after;
    }
    #[rustfmt::skip]
    let expected: [&[u8]; 7] = [
        &[0, 8, 0, 0, 1, 0, 0, 0],
        &[0, 8, 1, 1, 1, 0, 0, 0],
        &[0, 8, 2, 2, 1, 0, 0, 0],
        &[1, 12, 3, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0],
        &[2, 10, 0, 0, 2, 0, 0, 0, 0, 0],
        &[2, 10, 0, 9, 9, 0, 0, 0, 0b1101, 0],
        &[4, 6, 0xff, 0, 0, 1],
    ];
    assert_eq!(entries, expected);
}

#[test]
fn configuration_space_is_told() {
    let mcfg = &tables(1)[b"MCFG"];
    assert_eq!(mcfg.len(), 60);
    assert_eq!((qword(mcfg, 44), word(mcfg, 52), mcfg[54], mcfg[55]), (0xe000_0000, 0, 0, 255));
}

/// Offset of `needle`, which occurs once.
fn find(bytes: &[u8], needle: &[u8]) -> usize {
    let mut found = bytes.windows(needle.len()).enumerate().filter(|(_, window)| *window == needle);
    let at = found.next().expect("not there").0;
    assert!(found.next().is_none(), "twice");
    at
}

#[test]
fn the_namespace_tells_windows_routes_and_soft_off() {
    let dsdt = &tables(1)[b"DSDT"];
    // Name(_S5, Package(4) {0, 0, 0, 0})
    find(dsdt, b"\x08_S5_\x12\x06\x04\0\0\0\0");
    // Device PCI0, PNP0A08.
    find(dsdt, b"PCI0\x08_HID\x0c\x41\xd0\x0a\x08");
    // DWord memory, producer, fixed: 0xc0000000 to 0xdfffffff.
    let window = find(dsdt, &[0x87, 0x17, 0, 0, 0x0c, 1]);
    assert_eq!((dword(dsdt, window + 10), dword(dsdt, window + 14)), (0xc000_0000, 0xdfff_ffff));
    // Slot 1 INTA to pin 17, slot 8 to 16, the last to 23.
    for (slot, gsi) in [(1_u8, 17), (8, 16), (31, 23)] {
        find(dsdt, &[0x04, 0x0c, 0xff, 0xff, slot, 0, 0, 0, 0x0a, gsi]);
    }
    // Serial port: I/O ports, and its interrupt, edge-triggered, active high.
    find(dsdt, &[0x47, 1, 0xf8, 3, 0xf8, 3, 1, 8, 0x89, 6, 0, 0b0011, 1, 4, 0, 0, 0]);
    // Clock: I/O ports.
    find(dsdt, &[0x47, 1, 0x70, 0, 0x70, 0, 1, 2]);
    // ECAM is claimed.
    find(dsdt, &[0x86, 9, 0, 1, 0, 0, 0, 0xe0, 0, 0, 0, 0x10]);
}

#[test]
fn a_vmbus_is_told_where_there_is_one() {
    let dsdt = &tables_of(Hardware { cpus: 254, vmbus: true })[b"DSDT"];
    // _HID is a string; _UID 0, _STA present and functioning.
    let at = find(dsdt, b"VMBS\x08_HID\x0dVMBus\0\x08_UID\0\x08_STA\x0a\x0f\x08_CRS");
    // Ports of hypercalls.
    let ports = find(dsdt, &[0x47, 1, 0xe0, 0, 0xe0, 0, 1, 8]);
    assert!(ports > at);
    let without = &tables(254)[b"DSDT"];
    assert!(without.windows(5).all(|window| window != b"VMBus"));
}

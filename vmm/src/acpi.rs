//! ACPI tables (ACPI 6.5, chapter 5; PCI Firmware 3.3, section 4.1.2 for MCFG): the description of the machine for kernels with ACPI.
//! `mp_table` is for the others.

use std::ops::Range;

use acpi_tables::aml;
use acpi_tables::facs::FACS;
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::mcfg::MCFG;
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use vm_memory::{Bytes, GuestAddress};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{Immutable, IntoBytes};

use crate::error::Error;
use crate::layout::{self, intx_gsi, isa_gsi};
use crate::memory::GuestMemory;
use crate::rtc;

const OEM: [u8; 6] = *b"PARDSK";
const OEM_TABLE: [u8; 8] = *b"PARADISK";
const REVISION: u32 = 1;

/// The properties that differ between machines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hardware {
    /// Virtual CPUs.
    pub(crate) cpus: u8,
    /// The machine has a VMBus.
    pub(crate) vmbus: bool,
}

/// Write the tables of a machine. Returns the address of the root pointer.
pub(crate) fn write(memory: &GuestMemory, Hardware { cpus, vmbus }: Hardware) -> Result<u64, Error> {
    let root = layout::ACPI.start;
    let mut tables = Tables { next: root + Rsdp::len() as u64, parts: Vec::new() };
    // The specification requires an address that is a multiple of 64; here all tables have one.
    let facs = tables.add(&FACS::new());
    let dsdt = tables.add_bytes(dsdt(vmbus));
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, REVISION);
    for table in [tables.add_bytes(bytes(&fadt(facs, dsdt))), tables.add(&madt(cpus)), tables.add(&mcfg())] {
        xsdt.add_entry(table);
    }
    let xsdt = tables.add(&xsdt);
    tables.parts.push((root, bytes(&Rsdp::new(OEM, xsdt))));
    for (address, bytes) in tables.parts {
        let outside = Error::OutsideMemory { what: "ACPI table", address, len: bytes.len() as u64 };
        if address + bytes.len() as u64 > layout::ACPI.end {
            return Err(outside);
        }
        memory.write_slice(&bytes, GuestAddress(address)).map_err(|_| outside)?;
    }
    Ok(root)
}

/// Tables with their addresses.
struct Tables {
    next: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

impl Tables {
    fn add(&mut self, table: &dyn Aml) -> u64 {
        self.add_bytes(bytes(table))
    }

    fn add_bytes(&mut self, bytes: Vec<u8>) -> u64 {
        let address = self.next.next_multiple_of(64);
        self.next = address + bytes.len() as u64;
        self.parts.push((address, bytes));
        address
    }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// A register in I/O space.
fn io_register(ports: Range<u16>, access: AccessSize) -> GAS {
    GAS::new(AddressSpace::SystemIo, 8 * (ports.end - ports.start) as u8, 0, access, ports.start.into())
}

/// Fixed hardware: power management, reset, and the legacy PC devices that exist.
fn fadt(facs: u64, dsdt: u64) -> acpi_tables::fadt::FADT {
    const LEGACY_DEVICES: u16 = 1 << 0;
    const NO_VGA: u16 = 1 << 2;
    const RESET_VALUE: u8 = 0x06;
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, REVISION)
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        // Neither power nor sleep button nor the clock's alarm as fixed hardware.
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::FixRtc)
        .flag(Flags::ResetRegSup)
        .flag(Flags::Headless)
        // 32-bit addresses: both tables are in the first 1 MiB.
        .firmware_ctrl_32(facs as u32)
        .dsdt_32(dsdt as u32);
    fadt.sci_int = u16::from(layout::ACPI_IRQ).into();
    fadt.pm1a_evt_blk = u32::from(layout::POWER_EVENTS.start).into();
    fadt.pm1_evt_len = layout::POWER_EVENTS.len() as u8;
    fadt.pm1a_cnt_blk = u32::from(layout::POWER_CONTROL.start).into();
    fadt.pm1_cnt_len = layout::POWER_CONTROL.len() as u8;
    // Latencies beyond the limits say that CPUs have no deeper sleep than HLT.
    fadt.p_lvl2_lat = 101.into();
    fadt.p_lvl3_lat = 1001.into();
    fadt.century = rtc::CENTURY;
    fadt.iapc_boot_arch = (LEGACY_DEVICES | NO_VGA).into();
    fadt.reset_reg = io_register(layout::RESET_CONTROL..layout::RESET_CONTROL + 1, AccessSize::ByteAccess);
    fadt.reset_value = RESET_VALUE;
    fadt.x_pm1a_evt_blk = io_register(layout::POWER_EVENTS, AccessSize::WordAccess);
    fadt.x_pm1a_cnt_blk = io_register(layout::POWER_CONTROL, AccessSize::WordAccess);
    fadt.finalize()
}

/// An interrupt of the ISA bus that differs from the default: pin of the same number, edge-triggered, active high.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct InterruptSourceOverride {
    kind: u8,
    length: u8,
    bus: u8,
    source: u8,
    gsi: U32,
    flags: U16,
}

impl Aml for InterruptSourceOverride {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(self.as_bytes());
    }
}

/// A local interrupt of all CPUs.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct LocalApicNmi {
    kind: u8,
    length: u8,
    processor: u8,
    flags: [u8; 2],
    pin: u8,
}

impl Aml for LocalApicNmi {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(self.as_bytes());
    }
}

/// CPUs and interrupt controllers.
fn madt(cpus: u8) -> MADT {
    const ALL_PROCESSORS: u8 = 0xff;
    const LEVEL_ACTIVE_HIGH: u16 = 0b1101;
    let apic = LocalInterruptController::Address(layout::LOCAL_APIC as u32);
    let mut madt = MADT::new(OEM, OEM_TABLE, REVISION, apic);
    for cpu in 0..cpus {
        madt.add_structure(ProcessorLocalApic::new(cpu, cpu, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(layout::io_apic_id(cpus), layout::IO_APIC as u32, 0));
    for (source, flags) in [(0, 0), (layout::ACPI_IRQ, LEVEL_ACTIVE_HIGH)] {
        let gsi = u32::from(isa_gsi(source)).into();
        let length = size_of::<InterruptSourceOverride>() as u8;
        madt.add_structure(InterruptSourceOverride {
            kind: 2,
            length,
            bus: 0,
            source,
            gsi,
            flags: flags.into(),
        });
    }
    let length = size_of::<LocalApicNmi>() as u8;
    madt.add_structure(LocalApicNmi { kind: 4, length, processor: ALL_PROCESSORS, flags: [0; 2], pin: 1 });
    madt
}

/// Memory-mapped configuration space.
fn mcfg() -> MCFG {
    const BUS: u64 = 1 << 20;
    let mut mcfg = MCFG::new(OEM, OEM_TABLE, REVISION);
    let buses = (layout::ECAM.end - layout::ECAM.start) / BUS;
    mcfg.add_ecam(layout::ECAM.start, 0, 0, (buses - 1) as u8);
    mcfg
}

/// Devices that cannot be enumerated, and the sleep states.
fn dsdt(vmbus: bool) -> Vec<u8> {
    let mut code = Vec::new();
    let mut devices: Vec<&dyn Aml> = vec![&PciRoot, &SerialPort, &Clock, &Motherboard];
    if vmbus {
        devices.push(&Vmbus);
    }
    aml::Scope::new("_SB_".into(), devices).to_aml_bytes(&mut code);
    // Sleep type of soft off, for PM1a and PM1b.
    let zero = aml::ZERO;
    let soft_off = aml::Package::new(vec![&zero, &zero, &zero, &zero]);
    aml::Name::new("_S5_".into(), &soft_off).to_aml_bytes(&mut code);
    // Integers of 64 bits.
    let mut dsdt = Sdt::new(*b"DSDT", 36, 2, OEM, OEM_TABLE, REVISION);
    dsdt.append_slice(&code);
    dsdt.as_slice().to_vec()
}

struct PciRoot;

impl Aml for PciRoot {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let io = aml::IO::new(layout::CONFIG_ADDRESS, layout::CONFIG_ADDRESS, 1, 8);
        let buses = aml::AddressSpace::new_bus_number(0_u16, 255);
        let ports_below = aml::AddressSpace::new_io(0, layout::CONFIG_ADDRESS - 1, None);
        let ports_above = aml::AddressSpace::new_io(layout::CONFIG_DATA + 4, u16::MAX, None);
        let memory = aml::AddressSpace::new_memory(
            aml::AddressSpaceCacheable::NotCacheable,
            true,
            layout::PCI_MEMORY.start as u32,
            (layout::PCI_MEMORY.end - 1) as u32,
            None,
        );
        let resources = aml::ResourceTemplate::new(vec![&io, &buses, &ports_below, &ports_above, &memory]);
        let mut routes = aml::PackageBuilder::new();
        for slot in layout::DEVICE_SLOTS {
            // All functions of the slot, INTA.
            let address = u32::from(slot) << 16 | 0xffff;
            let gsi = intx_gsi(slot);
            routes.add_element(&aml::Package::new(vec![&address, &aml::ZERO, &aml::ZERO, &gsi]));
        }
        let (express, conventional) = (aml::EISAName::new("PNP0A08"), aml::EISAName::new("PNP0A03"));
        aml::Device::new(
            "PCI0".into(),
            vec![
                &aml::Name::new("_HID".into(), &express),
                &aml::Name::new("_CID".into(), &conventional),
                &aml::Name::new("_UID".into(), &aml::ZERO),
                &aml::Name::new("_SEG".into(), &aml::ZERO),
                &aml::Name::new("_BBN".into(), &aml::ZERO),
                &aml::Name::new("_CRS".into(), &resources),
                &aml::Name::new("_PRT".into(), &routes),
            ],
        )
        .to_aml_bytes(sink);
    }
}

struct SerialPort;

impl Aml for SerialPort {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let io = aml::IO::new(layout::SERIAL.start, layout::SERIAL.start, 1, layout::SERIAL.len() as u8);
        let interrupt = aml::Interrupt::new(true, true, false, false, layout::SERIAL_IRQ.into());
        let resources = aml::ResourceTemplate::new(vec![&io, &interrupt]);
        aml::Device::new(
            "COM1".into(),
            vec![
                &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0501")),
                &aml::Name::new("_UID".into(), &aml::ONE),
                &aml::Name::new("_CRS".into(), &resources),
            ],
        )
        .to_aml_bytes(sink);
    }
}

struct Clock;

impl Aml for Clock {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let io = aml::IO::new(layout::RTC.start, layout::RTC.start, 1, layout::RTC.len() as u8);
        let resources = aml::ResourceTemplate::new(vec![&io]);
        aml::Device::new(
            "RTC_".into(),
            vec![
                &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0B00")),
                &aml::Name::new("_CRS".into(), &resources),
            ],
        )
        .to_aml_bytes(sink);
    }
}

/// Addresses that no other device may get. Linux uses the configuration space window only if a device claims it.
struct Motherboard;

impl Aml for Motherboard {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let Range { start, end } = layout::ECAM;
        let ecam = aml::Memory32Fixed::new(true, start as u32, (end - start) as u32);
        let ports = layout::POWER_EVENTS.start..layout::POWER_CONTROL.end;
        let power = aml::IO::new(ports.start, ports.start, 1, ports.len() as u8);
        let resources = aml::ResourceTemplate::new(vec![&ecam, &power]);
        aml::Device::new(
            "MBRD".into(),
            vec![
                &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0C02")),
                &aml::Name::new("_UID".into(), &aml::ZERO),
                &aml::Name::new("_CRS".into(), &resources),
            ],
        )
        .to_aml_bytes(sink);
    }
}

/// Hyper-V's VMBus: without this device Linux does not look for the bus. It is no child of another device, because Linux would use the
/// parent's resources as the bus's.
struct Vmbus;

impl Aml for Vmbus {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        const PRESENT: u8 = 0xf;
        let Range { start, end } = layout::HYPERCALLS;
        let ports = aml::IO::new(start, start, 1, (end - start) as u8);
        let resources = aml::ResourceTemplate::new(vec![&ports]);
        aml::Device::new(
            "VMBS".into(),
            vec![
                &aml::Name::new("_HID".into(), &"VMBus"),
                &aml::Name::new("_UID".into(), &aml::ZERO),
                &aml::Name::new("_STA".into(), &PRESENT),
                &aml::Name::new("_CRS".into(), &resources),
            ],
        )
        .to_aml_bytes(sink);
    }
}

#[cfg(test)]
mod tests;

//! Guest-physical address map. Below 4 GiB, RAM has a hole for everything else.

use std::ops::Range;

/// End of RAM below the hole. More RAM starts at [`HIGH_RAM`].
pub const LOW_RAM_END: u64 = 0xc000_0000;
/// RAM beyond [`LOW_RAM_END`] bytes.
pub const HIGH_RAM: u64 = 1 << 32;
/// Memory base address registers, including 64-bit ones.
pub const PCI_MEMORY: Range<u64> = 0xc000_0000..0xe000_0000;
/// I/O base address registers.
pub const PCI_IO: Range<u64> = 0xc000..0x1_0000;
/// Enhanced configuration access mechanism, 256 buses of 1 MiB.
pub const ECAM: Range<u64> = 0xe000_0000..0xf000_0000;
/// Free for bus handlers of the machine's user.
pub const USER_MMIO: Range<u64> = 0xf000_0000..0xfec0_0000;
/// I/O APIC, in the kernel.
pub const IO_APIC: u64 = 0xfec0_0000;
/// Local APIC, in the kernel; also the target of message-signalled interrupts.
pub const LOCAL_APIC: u64 = 0xfee0_0000;
/// One page for Intel's identity map, then three for its task state segment. KVM requires them outside RAM.
pub const IDENTITY_MAP: u64 = 0xfffb_c000;
/// See [`IDENTITY_MAP`].
pub const TSS: u64 = IDENTITY_MAP + 0x1000;
/// The part of the first 1 MiB that is no RAM for an operating system: video memory and firmware.
pub const LOW_RAM_RESERVED: Range<u64> = 0x9_fc00..0x10_0000;
/// ACPI tables. The root pointer is at the start; operating systems search for it at multiples of 16 up to 1 MiB.
pub const ACPI: Range<u64> = 0xe_0000..0xf_0000;
/// MultiProcessor Specification's tables, where operating systems search for the floating pointer.
pub const MP_TABLE: Range<u64> = 0xf_0000..0x10_0000;
/// 16550 serial port, on interrupt [`SERIAL_IRQ`].
pub const SERIAL: Range<u16> = 0x3f8..0x400;
/// Interrupt of [`SERIAL`].
pub const SERIAL_IRQ: u8 = 4;
/// Clock: index port, and data port after it.
pub const RTC: Range<u16> = 0x70..0x72;
/// Keyboard controller, without a keyboard, for its reset line only. [`RESET_COMMAND`] written to the last of these
/// ports resets the machine.
pub const KEYBOARD_CONTROLLER: Range<u16> = 0x60..0x65;
/// See [`KEYBOARD_CONTROLLER`].
pub const RESET_COMMAND: u8 = 0xfe;
/// ACPI power management event block: status and enable, a word each; no event ever happens.
pub const POWER_EVENTS: Range<u16> = 0x600..0x604;
/// ACPI power management control, a word. [`POWER_OFF`] written to it, by an operating system with or without ACPI, ends the
/// machine.
pub const POWER_CONTROL: Range<u16> = 0x604..0x606;
/// Sleep enable, with sleep type 0, which is S5, soft off. The same port and value power off a virtual machine of QEMU.
pub const POWER_OFF: u16 = 1 << 13;
/// Reset control register of chip sets, a byte: a write with bit 2 set resets the machine.
pub const RESET_CONTROL: u16 = 0xcf9;
/// Hypercalls of a machine with a VMBus: the hypercall page, which only such a machine has, writes to these ports.
pub const HYPERCALLS: Range<u16> = 0xe0..0xe8;
/// The port for signals to the VMBus: the number of a connection, four bytes.
pub const SIGNAL_EVENT: u16 = HYPERCALLS.start;
/// The port for all other hypercalls: a write of any four bytes; the call is in the registers.
pub const HYPERCALL: u16 = HYPERCALLS.start + 4;
/// Interrupt of ACPI events.
pub const ACPI_IRQ: u8 = 9;
/// Configuration mechanism 1: address port, and data port after it.
pub const CONFIG_ADDRESS: u16 = 0xcf8;
/// See [`CONFIG_ADDRESS`].
pub const CONFIG_DATA: u16 = 0xcfc;

/// Slots on PCI bus 0 for devices; the host bridge has slot 0.
pub const DEVICE_SLOTS: Range<u8> = 1..32;

/// Pins of the I/O APIC.
pub const IO_APIC_PINS: u8 = 24;

/// APIC number of the I/O APIC: the first that no virtual CPU has.
#[must_use]
pub const fn io_apic_id(cpus: u8) -> u8 {
    cpus
}

/// Interrupts of the ISA bus.
pub const ISA_IRQS: u8 = 16;

/// I/O APIC pin of an interrupt of the ISA bus: the pin with the number of the interrupt, but pin 2 for the timer (interrupt 0).
#[must_use]
pub const fn isa_gsi(irq: u8) -> u8 {
    if irq == 0 { 2 } else { irq }
}

/// I/O APIC pin of the INTx line of the device in a slot: pins 16 to 23, shared by every eighth slot.
#[must_use]
pub const fn intx_gsi(slot: u8) -> u32 {
    16 + (slot % 8) as u32
}

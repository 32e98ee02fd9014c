//! Guest-physical address map. RAM has a hole below 4 GiB for everything that is none.

use std::ops::Range;

/// RAM below the hole ends here at the latest; the rest of it starts at [`HIGH_RAM`].
pub const LOW_RAM_END: u64 = 0xc000_0000;
/// RAM beyond [`LOW_RAM_END`] bytes.
pub const HIGH_RAM: u64 = 1 << 32;
/// Memory base address registers are put here, 64-bit ones too.
pub const PCI_MEMORY: Range<u64> = 0xc000_0000..0xe000_0000;
/// I/O base address registers are put here.
pub const PCI_IO: Range<u64> = 0xc000..0x1_0000;
/// Enhanced configuration access mechanism, 256 buses of 1 MiB.
pub const ECAM: Range<u64> = 0xe000_0000..0xf000_0000;
/// Free for bus handlers of the machine's user.
pub const USER_MMIO: Range<u64> = 0xf000_0000..0xfec0_0000;
/// I/O APIC, in the kernel.
pub const IO_APIC: u64 = 0xfec0_0000;
/// Local APIC, in the kernel; also where message-signalled interrupts are written.
pub const LOCAL_APIC: u64 = 0xfee0_0000;
/// One page for Intel's identity map, then three for its task state segment: KVM wants them outside RAM.
pub const IDENTITY_MAP: u64 = 0xfffb_c000;
/// See [`IDENTITY_MAP`].
pub const TSS: u64 = IDENTITY_MAP + 0x1000;
/// Configuration mechanism 1: address port, and data port after it.
pub const CONFIG_ADDRESS: u16 = 0xcf8;
/// See [`CONFIG_ADDRESS`].
pub const CONFIG_DATA: u16 = 0xcfc;

/// I/O APIC pin of the INTx line of the device in a slot: pins 16 to 23, shared by every eighth slot.
#[must_use]
pub const fn intx_gsi(slot: u8) -> u32 {
    16 + (slot % 8) as u32
}

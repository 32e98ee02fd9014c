//! Addresses and contents of the structures that both boot protocols share.

/// Address of the descriptor table.
pub(super) const DESCRIPTORS: u64 = 0x500;
/// Address of the zero page, or of PVH's start information.
pub(super) const START_INFO: u64 = 0x7000;
/// Address of the command line.
pub(super) const CMDLINE: u64 = 0x2_0000;

/// Null, null, flat 64-bit code, flat data: with the selectors that the boot protocol requires.
pub(super) const GDT: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
/// The code segment in [`GDT`].
pub(super) const CODE_SELECTOR: u16 = 0x10;

/// Content of the start information.
pub(super) struct Parts {
    /// Address and size.
    pub(super) initrd: Option<(u64, u64)>,
    /// Address of ACPI's root pointer.
    pub(super) rsdp: u64,
}

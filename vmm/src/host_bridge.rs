//! The host bridge in slot 0. Guests detect the PCI bus by it (PCI Local Bus 3.0, section 6.1).

/// Red Hat's identifiers for a virtual PCI Express host bridge.
const VENDOR_DEVICE: u32 = 0x0008_1b36;
/// Class 06h bridge, subclass 00h host bridge.
const CLASS: u32 = 0x0600_0000;

/// The dword at a configuration space offset. Nothing is writable.
pub(crate) const fn config_dword(offset: u16) -> u32 {
    match offset & !3 {
        0x00 => VENDOR_DEVICE,
        0x08 => CLASS,
        _ => 0,
    }
}

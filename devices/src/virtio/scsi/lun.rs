//! Addresses of logical units: a byte 1, the target, and a single-level logical unit number (VIRTIO 1.2, 5.6.6.1).

use crate::scsi::{Address, single_level_lun};

/// The REPORT LUNS well known logical unit.
pub(super) const REPORT_LUNS: [u8; 8] = [0xc1, 0x01, 0, 0, 0, 0, 0, 0];

/// The addressee of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A logical unit, which need not exist.
    Unit(Address),
    /// The REPORT LUNS well known logical unit.
    ReportLuns,
}

/// Parse an address, for a device with `targets` targets. `None`: there is no such target.
#[inline]
pub(super) fn place(lun: &[u8; 8], targets: u16) -> Option<Place> {
    let [first, target, a, b, c, d, e, f] = *lun;
    if *lun == REPORT_LUNS {
        return Some(Place::ReportLuns);
    }
    if first != 1 || u16::from(target) >= targets {
        return None;
    }
    let lun = single_level_lun(&[a, b, c, d, e, f, 0, 0])?;
    Some(Place::Unit(Address { target, lun }))
}

/// The address of a unit.
pub(super) fn lun(address: Address) -> [u8; 8] {
    let [high, low] = address.lun.to_be_bytes();
    // Peripheral device addressing up to 255, flat space addressing above.
    let high = if high == 0 { 0 } else { 0x40 | high };
    [1, address.target, high, low, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_written() {
        for (target, number) in [(0, 0), (5, 1), (63, 255), (7, 256), (1, 0x3fff)] {
            let address = Address { target, lun: number };
            assert_eq!(place(&lun(address), 64), Some(Place::Unit(address)));
        }
        // Drivers also use flat space addressing for small numbers.
        let seven = Some(Place::Unit(Address { target: 3, lun: 7 }));
        assert_eq!(place(&[1, 3, 0x40, 7, 0, 0, 0, 0], 64), seven);
        assert_eq!(place(&REPORT_LUNS, 1), Some(Place::ReportLuns));
    }

    #[test]
    fn other_addresses_are_none() {
        for lun in [
            [0; 8],
            [2, 0, 0, 0, 0, 0, 0, 0],
            [1, 4, 0, 0, 0, 0, 0, 0],
            [1, 0, 0x80, 0, 0, 0, 0, 0],
            [1, 0, 1, 0, 0, 0, 0, 0],
            [1, 0, 0, 0, 1, 0, 0, 0],
            [1, 0, 0, 0, 0, 0, 0, 1],
            [0xc1, 2, 0, 0, 0, 0, 0, 0],
            [0xc1, 1, 0, 0, 0, 0, 0, 1],
        ] {
            assert_eq!(place(&lun, 4), None, "{lun:?}");
        }
    }
}

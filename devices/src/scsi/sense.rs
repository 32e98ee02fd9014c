//! Sense data (SPC-4, 4.5), in fixed and descriptor format.

use paradisk_disk_formats::IoError;
use zerocopy::IntoBytes;

use super::spec::{DescriptorSense, FixedSense, InformationDescriptor, SpecificDescriptor};

/// Sense key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Key {
    NoSense = 0x0,
    NotReady = 0x2,
    MediumError = 0x3,
    HardwareError = 0x4,
    IllegalRequest = 0x5,
    UnitAttention = 0x6,
    DataProtect = 0x7,
    Miscompare = 0xe,
}

/// Additional sense code (high byte) and qualifier (low byte).
pub(super) mod asc {
    pub(in crate::scsi) const NONE: u16 = 0x0000;
    pub(in crate::scsi) const INITIALIZING_COMMAND_REQUIRED: u16 = 0x0402;
    pub(in crate::scsi) const WRITE_ERROR: u16 = 0x0c00;
    pub(in crate::scsi) const UNRECOVERED_READ_ERROR: u16 = 0x1100;
    pub(in crate::scsi) const PARAMETER_LIST_LENGTH_ERROR: u16 = 0x1a00;
    pub(in crate::scsi) const MISCOMPARE_DURING_VERIFY: u16 = 0x1d00;
    pub(in crate::scsi) const INVALID_OPERATION_CODE: u16 = 0x2000;
    pub(in crate::scsi) const LBA_OUT_OF_RANGE: u16 = 0x2100;
    pub(in crate::scsi) const INVALID_FIELD_IN_CDB: u16 = 0x2400;
    pub(in crate::scsi) const LOGICAL_UNIT_NOT_SUPPORTED: u16 = 0x2500;
    pub(in crate::scsi) const INVALID_FIELD_IN_PARAMETER_LIST: u16 = 0x2600;
    pub(in crate::scsi) const INVALID_RELEASE_OF_PERSISTENT_RESERVATION: u16 = 0x2604;
    pub(in crate::scsi) const WRITE_PROTECTED: u16 = 0x2700;
    pub(in crate::scsi) const SOFTWARE_WRITE_PROTECTED: u16 = 0x2702;
    pub(in crate::scsi) const SPACE_ALLOCATION_FAILED: u16 = 0x2707;
    pub(in crate::scsi) const POWER_ON: u16 = 0x2901;
    pub(in crate::scsi) const SCSI_BUS_RESET: u16 = 0x2902;
    pub(in crate::scsi) const BUS_DEVICE_RESET: u16 = 0x2903;
    pub(in crate::scsi) const CAPACITY_CHANGED: u16 = 0x2a09;
    pub(in crate::scsi) const MEDIUM_FORMAT_CORRUPTED: u16 = 0x3100;
    pub(in crate::scsi) const SAVING_PARAMETERS_NOT_SUPPORTED: u16 = 0x3900;
    pub(in crate::scsi) const FAILED_SELF_TEST: u16 = 0x3e03;
    pub(in crate::scsi) const REPORTED_LUNS_CHANGED: u16 = 0x3f0e;
    pub(in crate::scsi) const INTERNAL_TARGET_FAILURE: u16 = 0x4400;
}

/// Position of the invalid field (SPC-4, 4.5.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    in_cdb: bool,
    byte: u16,
    /// Most significant bit of the field in that byte; `None` for the whole byte.
    bit: Option<u8>,
}

impl Field {
    /// The sense-key specific bytes: SKSV, C/D, BPV, bit pointer, field pointer.
    fn bytes(self) -> [u8; 3] {
        let [high, low] = self.byte.to_be_bytes();
        let bit = self.bit.map_or(0, |bit| 0x08 | (bit & 0x07));
        [0x80 | if self.in_cdb { 0x40 } else { 0 } | bit, high, low]
    }
}

/// Sense key, code and information to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sense {
    pub(super) key: Key,
    pub(super) asc: u16,
    pub(super) information: Option<u64>,
    pub(super) field: Option<Field>,
    /// For a command that has already ended with GOOD.
    pub(super) deferred: bool,
}

impl Sense {
    pub(super) const fn new(key: Key, asc: u16) -> Self {
        Self { key, asc, information: None, field: None, deferred: false }
    }

    pub(super) const fn illegal(asc: u16) -> Self {
        Self::new(Key::IllegalRequest, asc)
    }

    pub(super) const fn information(self, value: u64) -> Self {
        Self { information: Some(value), ..self }
    }

    /// INVALID FIELD IN CDB, at a byte.
    pub(super) const fn cdb(byte: u16) -> Self {
        let field = Some(Field { in_cdb: true, byte, bit: None });
        Self { field, ..Self::illegal(asc::INVALID_FIELD_IN_CDB) }
    }

    /// INVALID FIELD IN CDB, at a bit of a byte.
    pub(super) const fn cdb_bit(byte: u16, bit: u8) -> Self {
        let field = Some(Field { in_cdb: true, byte, bit: Some(bit) });
        Self { field, ..Self::illegal(asc::INVALID_FIELD_IN_CDB) }
    }

    /// INVALID FIELD IN PARAMETER LIST, at a byte.
    pub(super) const fn list(byte: u16) -> Self {
        let field = Some(Field { in_cdb: false, byte, bit: None });
        Self { field, ..Self::illegal(asc::INVALID_FIELD_IN_PARAMETER_LIST) }
    }

    /// INVALID FIELD IN PARAMETER LIST, at a bit of a byte.
    pub(super) const fn list_bit(byte: u16, bit: u8) -> Self {
        let field = Some(Field { in_cdb: false, byte, bit: Some(bit) });
        Self { field, ..Self::illegal(asc::INVALID_FIELD_IN_PARAMETER_LIST) }
    }

    /// The sense data of a failed disk operation; `lba` is the first block of the range.
    pub(super) fn from_io(error: IoError, medium: u16, lba: Option<u64>) -> Self {
        let at = |sense: Self| Self { information: lba, ..sense };
        match error {
            IoError::OutOfRange => Self::illegal(asc::LBA_OUT_OF_RANGE),
            IoError::Misaligned => Self::new(Key::HardwareError, asc::INTERNAL_TARGET_FAILURE),
            IoError::ReadOnly => Self::new(Key::DataProtect, asc::WRITE_PROTECTED),
            IoError::Unsupported => Self::illegal(asc::INVALID_OPERATION_CODE),
            IoError::NoSpace => at(Self::new(Key::DataProtect, asc::SPACE_ALLOCATION_FAILED)),
            IoError::Damaged(_) => at(Self::new(Key::MediumError, asc::MEDIUM_FORMAT_CORRUPTED)),
            _ => at(Self::new(Key::MediumError, medium)),
        }
    }

    /// Encode in descriptor or fixed format.
    pub(super) fn encode(self, descriptor: bool) -> SenseData {
        if descriptor { self.descriptor() } else { self.fixed() }
    }

    fn response(self, current: u8) -> u8 {
        current + u8::from(self.deferred)
    }

    fn fixed(self) -> SenseData {
        // INFORMATION has four bytes here; a larger value is omitted (SPC-4, 4.5.3).
        let information = self.information.and_then(|value| u32::try_from(value).ok());
        let sense = FixedSense {
            response: self.response(0x70) | if information.is_some() { 0x80 } else { 0 },
            key: self.key as u8,
            information: information.unwrap_or(0).into(),
            additional: 10,
            asc: self.asc.into(),
            specific: self.field.map_or([0; 3], Field::bytes),
            ..FixedSense::default()
        };
        SenseData::empty().with(sense.as_bytes())
    }

    fn descriptor(self) -> SenseData {
        let information = self.information.map(|value| InformationDescriptor {
            kind: 0x00,
            len: 0x0a,
            valid: 0x80,
            reserved: 0,
            information: value.into(),
        });
        let specific = self.field.map(|field| SpecificDescriptor {
            kind: 0x02,
            len: 0x06,
            specific: field.bytes(),
            ..SpecificDescriptor::default()
        });
        let additional = information.map_or(0, |_| size_of::<InformationDescriptor>())
            + specific.map_or(0, |_| size_of::<SpecificDescriptor>());
        let header = DescriptorSense {
            response: self.response(0x72),
            key: self.key as u8,
            asc: self.asc.into(),
            additional: additional as u8,
            ..DescriptorSense::default()
        };
        let mut data = SenseData::empty().with(header.as_bytes());
        if let Some(information) = information {
            data = data.with(information.as_bytes());
        }
        if let Some(specific) = specific {
            data = data.with(specific.as_bytes());
        }
        data
    }
}

/// Encoded sense data, in the format that the control mode page selects (SPC-4, 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenseData {
    bytes: [u8; 32],
    len: u8,
}

impl SenseData {
    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    const fn empty() -> Self {
        Self { bytes: [0; 32], len: 0 }
    }

    /// Append bytes; those that do not fit are cut.
    fn with(mut self, more: &[u8]) -> Self {
        let start = usize::from(self.len);
        for (to, from) in self.bytes.iter_mut().skip(start).zip(more) {
            *to = *from;
            self.len += 1;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_sense_points_at_the_field() {
        assert_eq!(
            Sense::cdb_bit(1, 7).encode(false).as_slice(),
            [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcf, 0, 1]
        );
        assert_eq!(
            Sense::list(0x102).encode(false).as_slice(),
            [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x26, 0, 0, 0x80, 1, 2]
        );
    }

    #[test]
    fn fixed_sense_leaves_out_information_that_does_not_fit() {
        let sense = Sense::new(Key::MediumError, asc::UNRECOVERED_READ_ERROR);
        assert_eq!(
            sense.information(0x0102_0304).encode(false).as_slice(),
            [0xf0, 0, 3, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            sense.information(1 << 32).encode(false).as_slice(),
            [0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn descriptor_sense_carries_both_descriptors() {
        assert_eq!(
            Sense::cdb(2).information(1 << 32).encode(true).as_slice(),
            [
                0x72, 5, 0x24, 0, 0, 0, 0, 20, //
                0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0, //
                2, 6, 0, 0, 0xc0, 0, 2, 0
            ]
        );
        assert_eq!(Sense::illegal(0x2500).encode(true).as_slice(), [0x72, 5, 0x25, 0, 0, 0, 0, 0]);
        let deferred = Sense { deferred: true, ..Sense::new(Key::MediumError, asc::WRITE_ERROR) };
        assert_eq!(deferred.encode(true).as_slice(), [0x73, 3, 0x0c, 0, 0, 0, 0, 0]);
        assert_eq!(deferred.encode(false).as_slice()[0], 0x71);
    }
}

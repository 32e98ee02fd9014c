//! INQUIRY (SPC-4, 6.6) and its vital product data pages (SPC-4, 7.8; SBC-3, 6.6).

use paradisk_disk_formats::DiskInfo;
use zerocopy::IntoBytes;
use zerocopy::big_endian::U16;

use super::limits;
use super::opcodes::Supported;
use super::sense::Sense;
use super::spec::{
    BlockCharacteristics, BlockLimits, DesignatorHeader, Provisioning, StandardInquiry, VERSION_DESCRIPTORS,
    VERSION_SPC_4, VpdHeader, vpd,
};

/// The identity of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// T10 vendor identification: ASCII, padded with spaces.
    pub vendor: [u8; 8],
    /// Product identification: ASCII, padded with spaces.
    pub product: [u8; 16],
    /// Product revision level: ASCII, padded with spaces.
    pub revision: [u8; 4],
    /// Serial number, which distinguishes units of the same vendor and product. The first 64 bytes count.
    pub serial: String,
    /// UUID of the disk, if it has one.
    pub uuid: Option<[u8; 16]>,
}

impl Default for Identity {
    fn default() -> Self {
        let mut revision = [b' '; 4];
        for (to, from) in revision.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
            *to = from;
        }
        let (vendor, product) = (*b"PARADISK", *b"VIRTUAL DISK    ");
        Self { vendor, product, revision, serial: String::new(), uuid: None }
    }
}

impl Identity {
    /// The serial number in the form of the pages.
    fn serial_bytes(&self) -> &[u8] {
        let bytes = self.serial.as_bytes();
        bytes.get(..64).unwrap_or(bytes)
    }
}

/// CMDQUE, in byte 7 of standard INQUIRY data.
const CMDQUE: u8 = 0x02;

const PAGES: [u8; 6] = [
    vpd::SUPPORTED_PAGES,
    vpd::UNIT_SERIAL_NUMBER,
    vpd::DEVICE_IDENTIFICATION,
    vpd::BLOCK_LIMITS,
    vpd::BLOCK_DEVICE_CHARACTERISTICS,
    vpd::LOGICAL_BLOCK_PROVISIONING,
];

/// Standard INQUIRY data; `peripheral` is qualifier and device type.
fn standard(identity: &Identity, peripheral: u8) -> Vec<u8> {
    let mut versions = [U16::ZERO; 8];
    for (to, from) in versions.iter_mut().zip(VERSION_DESCRIPTORS) {
        to.set(from);
    }
    StandardInquiry {
        peripheral,
        version: VERSION_SPC_4,
        response_format: 2,
        additional_length: (size_of::<StandardInquiry>() - 5) as u8,
        flags: [0, 0, CMDQUE],
        vendor: identity.vendor,
        product: identity.product,
        revision: identity.revision,
        versions,
        ..StandardInquiry::default()
    }
    .as_bytes()
    .to_vec()
}

/// The answer of an absent or a well known logical unit; `peripheral` is its qualifier and device type.
pub(super) fn without_disk(peripheral: u8, page: Option<u8>) -> Result<Vec<u8>, Sense> {
    match page {
        None => Ok(standard(&Identity::default(), peripheral)),
        Some(vpd::SUPPORTED_PAGES) => Ok(vec![peripheral, vpd::SUPPORTED_PAGES, 0, 1, vpd::SUPPORTED_PAGES]),
        Some(_) => Err(Sense::cdb(2)),
    }
}

/// Complete INQUIRY data of a logical unit.
pub(super) fn data(
    page: Option<u8>,
    identity: &Identity,
    info: &DiskInfo,
    supported: Supported,
) -> Result<Vec<u8>, Sense> {
    let Some(page) = page else {
        return Ok(standard(identity, 0));
    };
    let body = match page {
        vpd::SUPPORTED_PAGES => PAGES.to_vec(),
        vpd::UNIT_SERIAL_NUMBER => identity.serial_bytes().to_vec(),
        vpd::DEVICE_IDENTIFICATION => designators(identity),
        vpd::BLOCK_LIMITS => block_limits(info, supported).as_bytes().to_vec(),
        // Rotation rate 1: not rotating.
        vpd::BLOCK_DEVICE_CHARACTERISTICS => {
            BlockCharacteristics { rotation_rate: 1.into(), ..BlockCharacteristics::default() }
                .as_bytes()
                .to_vec()
        }
        vpd::LOGICAL_BLOCK_PROVISIONING => provisioning(info, supported).as_bytes().to_vec(),
        _ => return Err(Sense::cdb(2)),
    };
    let header = VpdHeader { peripheral: 0, page, len: (body.len() as u16).into() };
    Ok([header.as_bytes(), &body].concat())
}

/// A T10 vendor ID based designator (for people), a locally assigned NAA designator (for software), and the disk's UUID if it has one
/// (SPC-5, 7.7.6.11).
fn designators(identity: &Identity) -> Vec<u8> {
    let serial = identity.serial_bytes();
    let t10 = [&identity.vendor[..], &identity.product[..], serial].concat();
    let naa = naa(identity).to_be_bytes();
    let mut page = Vec::new();
    // UUID type 1h (RFC 9562) in the high half of the first byte.
    let uuid = identity.uuid.map(|uuid| [&[0x10, 0][..], &uuid].concat());
    let uuid = uuid.as_ref().map(|uuid| (1, 0x0a, &uuid[..]));
    for (code_set, kind, designator) in [(2, 1, &t10[..]), (1, 3, &naa[..])].into_iter().chain(uuid) {
        let header = DesignatorHeader { code_set, kind, reserved: 0, len: designator.len() as u8 };
        page.extend_from_slice(header.as_bytes());
        page.extend_from_slice(designator);
    }
    page
}

/// NAA 3h and 60 bits of a hash (FNV-1a) of vendor, product and serial number.
fn naa(identity: &Identity) -> u64 {
    let text = identity.vendor.iter().chain(&identity.product).chain(identity.serial_bytes());
    let hash = text.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    0x3 << 60 | hash >> 4
}

fn block_limits(info: &DiskInfo, supported: Supported) -> BlockLimits {
    let shift = info.logical_sector.shift();
    let physical = (info.physical_sector >> shift).max(1);
    let (compare, same) = if supported.has_long() {
        ((limits::COMPARE_BYTES >> shift) as u8, limits::SAME_BYTES >> shift)
    } else {
        // The limit of WRITE SAME (10): for more blocks Linux sends WRITE SAME (16), even if it is not supported.
        (0, (limits::SAME_BYTES >> shift).min(u16::MAX.into()))
    };
    let mut page = BlockLimits {
        wsnz: 1,
        max_compare_and_write: compare,
        optimal_granularity: u16::try_from(physical).unwrap_or(u16::MAX).into(),
        max_transfer: ((limits::TRANSFER_BYTES >> shift) as u32).into(),
        max_write_same: same.into(),
        ..BlockLimits::default()
    };
    if let Some(discard) = info.discard {
        page.max_unmap_lbas = limits::UNMAP_BLOCKS.into();
        page.max_unmap_descriptors = limits::UNMAP_DESCRIPTORS.into();
        page.optimal_unmap_granularity =
            u32::try_from(discard.granularity >> shift).unwrap_or(u32::MAX).max(1).into();
        // UGAVALID, alignment 0.
        page.unmap_alignment = 0x8000_0000.into();
    }
    page
}

fn provisioning(info: &DiskInfo, supported: Supported) -> Provisioning {
    // LBPU and LBPWS10; LBPWS, for WRITE SAME (16); LBPRZ if unmapped blocks read as zeros; thin provisioned.
    let long = if supported.has_long() { 0x40 } else { 0 };
    info.discard.map_or_else(Provisioning::default, |discard| Provisioning {
        flags: 0xa0 | long | if discard.reads_zero { 0x04 } else { 0 },
        kind: 2,
        ..Provisioning::default()
    })
}

//! Mode parameters (SPC-4, 6.11 to 6.14 and 7.5; SBC-3, 6.5): the caching and control pages.

use zerocopy::{FromBytes, IntoBytes};

use super::cdb::ModeSense;
use super::sense::{Sense, asc};
use super::spec::{
    CachingPage, ControlPage, LongBlockDescriptor, ModeHeader6, ModeHeader10, ShortBlockDescriptor,
};

const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;
/// Caching page, flags: write cache enable.
const WCE: u8 = 0x04;
/// Control page, flags: sense data in descriptor format.
const D_SENSE: u8 = 0x04;
/// Control page, queue: commands may be reordered without restriction.
const QUEUE_UNRESTRICTED: u8 = 0x10;
/// Control page, protect: software write protect.
const SWP: u8 = 0x08;
/// Device-specific parameter: write protected.
const WP: u8 = 0x80;
/// Device-specific parameter: DPO and FUA are supported.
const DPOFUA: u8 = 0x10;

/// The changeable parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Modes {
    /// Writes may complete before they are on stable storage.
    pub(super) write_cache: bool,
    pub(super) descriptor_sense: bool,
    pub(super) write_protect: bool,
}

/// The disk's values in the pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct MediumInfo {
    pub(super) blocks: u64,
    pub(super) block_len: u32,
    pub(super) volatile_cache: bool,
    pub(super) read_only: bool,
}

impl Modes {
    /// After power on or reset.
    pub(super) const fn new(volatile_cache: bool) -> Self {
        Self { write_cache: volatile_cache, descriptor_sense: false, write_protect: false }
    }

    fn caching(self) -> CachingPage {
        let flags = if self.write_cache { WCE } else { 0 };
        CachingPage { code: CACHING, len: 0x12, flags, ..CachingPage::default() }
    }

    fn control(self) -> ControlPage {
        ControlPage {
            code: CONTROL,
            len: 0x0a,
            flags: if self.descriptor_sense { D_SENSE } else { 0 },
            queue: QUEUE_UNRESTRICTED,
            protect: if self.write_protect { SWP } else { 0 },
            ..ControlPage::default()
        }
    }

    /// A page, or the mask of its changeable bits.
    fn page(self, code: u8, changeable: bool, medium: &MediumInfo) -> Option<Vec<u8>> {
        Some(match code {
            CACHING if changeable => {
                let flags = if medium.volatile_cache { WCE } else { 0 };
                CachingPage { flags, ..self.caching() }.as_bytes().to_vec()
            }
            CACHING => self.caching().as_bytes().to_vec(),
            CONTROL if changeable => {
                ControlPage { flags: D_SENSE, queue: 0, protect: SWP, ..self.control() }.as_bytes().to_vec()
            }
            CONTROL => self.control().as_bytes().to_vec(),
            _ => return None,
        })
    }

    /// Complete MODE SENSE data.
    pub(super) fn sense(self, command: &ModeSense, medium: &MediumInfo) -> Result<Vec<u8>, Sense> {
        let (values, changeable) = match command.control {
            0 => (self, false),
            1 => (self, true),
            2 => (Self::new(medium.volatile_cache), false),
            _ => return Err(Sense::illegal(asc::SAVING_PARAMETERS_NOT_SUPPORTED)),
        };
        if !matches!(command.subpage, 0 | ALL_SUBPAGES) {
            return Err(Sense::cdb(3));
        }
        let codes: &[u8] = match command.page {
            ALL_PAGES => &[CACHING, CONTROL],
            CACHING => &[CACHING],
            CONTROL => &[CONTROL],
            _ => return Err(Sense::cdb_bit(2, 5)),
        };
        let pages: Vec<u8> =
            codes.iter().filter_map(|code| values.page(*code, changeable, medium)).flatten().collect();
        let descriptor =
            if command.block_descriptor { block_descriptor(command.long_lba, medium) } else { Vec::new() };
        let device = DPOFUA | if medium.read_only || self.write_protect { WP } else { 0 };
        let rest = descriptor.len() + pages.len();
        let header = if command.ten {
            ModeHeader10 {
                len: ((rest + size_of::<ModeHeader10>() - 2) as u16).into(),
                device,
                long_lba: u8::from(command.long_lba && command.block_descriptor),
                descriptors: (descriptor.len() as u16).into(),
                ..ModeHeader10::default()
            }
            .as_bytes()
            .to_vec()
        } else {
            let len = (rest + size_of::<ModeHeader6>() - 1) as u8;
            ModeHeader6 { len, device, descriptors: descriptor.len() as u8, ..ModeHeader6::default() }
                .as_bytes()
                .to_vec()
        };
        Ok([header, descriptor, pages].concat())
    }

    /// The parameters after MODE SELECT with this list. If any part is invalid, nothing changes.
    pub(super) fn select(self, ten: bool, list: &[u8], medium: &MediumInfo) -> Result<Self, Sense> {
        let length_error = Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR);
        let (descriptors, long, medium_type, header) = if ten {
            let (header, _) = ModeHeader10::ref_from_prefix(list).map_err(|_| length_error)?;
            (
                usize::from(header.descriptors.get()),
                header.long_lba & 1 != 0,
                (header.medium, 2),
                size_of::<ModeHeader10>(),
            )
        } else {
            let (header, _) = ModeHeader6::ref_from_prefix(list).map_err(|_| length_error)?;
            (usize::from(header.descriptors), false, (header.medium, 1), size_of::<ModeHeader6>())
        };
        if medium_type.0 != 0 {
            return Err(Sense::list(medium_type.1));
        }
        let descriptor = list.get(header..header + descriptors).ok_or(length_error)?;
        check_descriptor(descriptor, long, header, medium)?;
        let mut at = header + descriptors;
        let mut modes = self;
        while let Some(page) = list.get(at..).filter(|rest| !rest.is_empty()) {
            let &[code, len, ..] = page else { return Err(length_error) };
            // Subpages are not supported; PS is reserved here and ignored.
            let page_at = u16::try_from(at).unwrap_or(u16::MAX);
            if code & 0x40 != 0 {
                return Err(Sense::list_bit(page_at, 6));
            }
            let current = modes.page(code & 0x3f, false, medium).ok_or(Sense::list_bit(page_at, 5))?;
            if usize::from(len) + 2 != current.len() {
                return Err(Sense::list(page_at + 1));
            }
            let page = page.get(..current.len()).ok_or(length_error)?;
            modes = modes.change(page, &current, page_at, medium)?;
            at += current.len();
        }
        Ok(modes)
    }

    /// Apply one page of a parameter list.
    fn change(self, page: &[u8], current: &[u8], at: u16, medium: &MediumInfo) -> Result<Self, Sense> {
        let code = page.first().map_or(0, |code| code & 0x3f);
        let mask = self.page(code, true, medium).unwrap_or_default();
        for (offset, ((new, old), mask)) in (0u16..).zip(page.iter().zip(current).zip(&mask)).skip(2) {
            let refused = (new ^ old) & !mask;
            if refused != 0 {
                return Err(Sense::list_bit(at + offset, 7 - refused.leading_zeros() as u8));
            }
        }
        let mut modes = self;
        if let (CACHING, Ok(page)) = (code, CachingPage::ref_from_bytes(page)) {
            modes.write_cache = page.flags & WCE != 0;
        }
        if let (CONTROL, Ok(page)) = (code, ControlPage::ref_from_bytes(page)) {
            modes.descriptor_sense = page.flags & D_SENSE != 0;
            modes.write_protect = page.protect & SWP != 0;
        }
        Ok(modes)
    }
}

fn block_descriptor(long: bool, medium: &MediumInfo) -> Vec<u8> {
    if long {
        LongBlockDescriptor {
            blocks: medium.blocks.into(),
            block_len: medium.block_len.into(),
            ..LongBlockDescriptor::default()
        }
        .as_bytes()
        .to_vec()
    } else {
        let blocks = u32::try_from(medium.blocks).unwrap_or(u32::MAX);
        ShortBlockDescriptor { blocks: blocks.into(), block_len: medium.block_len.into() }.as_bytes().to_vec()
    }
}

/// The block descriptor of MODE SELECT must equal the current one, because the format cannot be changed.
fn check_descriptor(bytes: &[u8], long: bool, at: usize, medium: &MediumInfo) -> Result<(), Sense> {
    let at = at as u16;
    if bytes.is_empty() {
        return Ok(());
    }
    let (blocks, max, block_len, len_at) = if long {
        let descriptor = LongBlockDescriptor::ref_from_bytes(bytes).map_err(|_| Sense::list(6))?;
        (descriptor.blocks.get(), u64::MAX, descriptor.block_len.get(), at + 12)
    } else {
        let len_field = if at == 4 { 3 } else { 6 };
        let descriptor = ShortBlockDescriptor::ref_from_bytes(bytes).map_err(|_| Sense::list(len_field))?;
        // The high byte is reserved (a density code elsewhere).
        (
            u64::from(descriptor.blocks.get()),
            u64::from(u32::MAX),
            descriptor.block_len.get() & 0xff_ffff,
            at + 5,
        )
    };
    // Zero: no change. All ones: the current capacity.
    if blocks != 0 && blocks != medium.blocks && blocks != max {
        return Err(Sense::list(at));
    }
    if block_len != medium.block_len {
        return Err(Sense::list(len_at));
    }
    Ok(())
}

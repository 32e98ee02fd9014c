//! LOG SENSE (SPC-4, 6.8 and 7.3). Nothing is logged, so the only pages are those that list pages.

use zerocopy::IntoBytes;

use super::sense::Sense;
use super::spec::LogHeader;

/// Supported log pages; with subpage FFh, also their subpages.
const SUPPORTED_PAGES: u8 = 0x00;
const ALL_SUBPAGES: u8 = 0xff;
/// Subpage format, in the first byte of a page with a subpage code.
const SPF: u8 = 0x40;

/// A complete log page.
pub(super) fn page(page: u8, subpage: u8) -> Result<Vec<u8>, Sense> {
    if page != SUPPORTED_PAGES {
        return Err(Sense::cdb_bit(2, 5));
    }
    let (first, list) = match subpage {
        0 => (page, &[SUPPORTED_PAGES][..]),
        ALL_SUBPAGES => (page | SPF, &[SUPPORTED_PAGES, 0, SUPPORTED_PAGES, ALL_SUBPAGES][..]),
        _ => return Err(Sense::cdb(3)),
    };
    let header = LogHeader { page: first, subpage, len: (list.len() as u16).into() };
    Ok([header.as_bytes(), list].concat())
}

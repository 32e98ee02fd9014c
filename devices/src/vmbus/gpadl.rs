//! GPADLs (guest physical address descriptor lists): lists of guest pages that the guest creates for a channel, by one message or several.
//!
//! A list is identified by its channel and its number. Messages that continue a list contain its number only, so two incomplete lists may
//! not have the same number. Each list must have one range of whole pages, as the rings need; others are refused. [`MAX_PAGES`] bounds the
//! sum of the pages of all lists. The first message of a list reserves its pages.

use std::collections::BTreeMap;

use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::spec::{GpadlBody, GpadlCreated, GpadlHeader, MessageHeader, message, status};
use crate::dma::PAGE_SIZE;

/// Maximum number of pages of all lists: 128 MiB.
pub(super) const MAX_PAGES: usize = 32_768;
/// Maximum number of lists.
pub(super) const MAX_LISTS: usize = 256;

/// Identifies a list: channel and number.
type Key = (u32, u32);

/// A list.
struct Gpadl {
    pages: Vec<u64>,
    /// Number of pages of the complete list.
    total: usize,
}

/// All lists of the guest.
#[derive(Default)]
pub(super) struct Gpadls {
    lists: BTreeMap<Key, Gpadl>,
    /// Lists that are not complete, by number.
    incomplete: BTreeMap<u32, Key>,
    /// Sum of the lists' totals.
    reserved: usize,
}

impl Gpadls {
    /// GPADL_HEADER: begin a list. Returns the answer if the list is complete or refused.
    pub(super) fn header(&mut self, payload: &[u8]) -> Option<GpadlCreated> {
        let (header, pages) = GpadlHeader::read_from_prefix(payload).ok()?;
        let key = (header.relid.get(), header.gpadl.get());
        match self.establish(key, &header) {
            Ok(()) => self.add(key, pages),
            Err(status) => Some(answer(key, status)),
        }
    }

    /// GPADL_BODY: continue a list. Returns the answer if the list is complete or refused. Pages of an unknown list are ignored: it was
    /// answered before.
    pub(super) fn body(&mut self, payload: &[u8]) -> Option<GpadlCreated> {
        let (body, pages) = GpadlBody::read_from_prefix(payload).ok()?;
        let key = *self.incomplete.get(&body.gpadl.get())?;
        self.add(key, pages)
    }

    /// Page numbers of a complete list.
    pub(super) fn pages(&self, relid: u32, gpadl: u32) -> Option<&[u64]> {
        let list = self.lists.get(&(relid, gpadl))?;
        (list.pages.len() == list.total).then_some(&*list.pages)
    }

    /// Remove a list, complete or not.
    pub(super) fn remove(&mut self, relid: u32, gpadl: u32) {
        if let Some(list) = self.lists.remove(&(relid, gpadl)) {
            self.reserved -= list.total;
            self.incomplete.retain(|_, key| *key != (relid, gpadl));
        }
    }

    /// Remove all lists of a channel.
    pub(super) fn remove_all(&mut self, relid: u32) {
        let numbers: Vec<u32> =
            self.lists.range((relid, 0)..=(relid, u32::MAX)).map(|((_, gpadl), _)| *gpadl).collect();
        for gpadl in numbers {
            self.remove(relid, gpadl);
        }
    }

    /// Remove all lists.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn establish(&mut self, key: Key, header: &GpadlHeader) -> Result<(), u32> {
        let bytes = u64::from(header.range.byte_count.get());
        let total = (bytes / PAGE_SIZE) as usize;
        // The buffer holds exactly the range and its page numbers.
        let whole = size_of_val(&header.range) + 8 * total == usize::from(header.range_buflen.get());
        let paged = bytes > 0 && bytes.is_multiple_of(PAGE_SIZE) && header.range.byte_offset.get() == 0;
        let known = self.lists.contains_key(&key) || self.incomplete.contains_key(&key.1);
        if header.rangecount.get() != 1 || !whole || !paged || known {
            return Err(status::INVALID_PARAMETER);
        }
        if self.lists.len() >= MAX_LISTS || total > MAX_PAGES - self.reserved {
            return Err(status::INSUFFICIENT_RESOURCES);
        }
        self.reserved += total;
        self.lists.insert(key, Gpadl { pages: Vec::new(), total });
        self.incomplete.insert(key.1, key);
        Ok(())
    }

    /// Add page numbers to a list that is not complete. More than the list declares are an error.
    fn add(&mut self, key: Key, pages: &[u8]) -> Option<GpadlCreated> {
        let list = self.lists.get_mut(&key)?;
        let numbers = pages.chunks_exact(8).filter_map(|bytes| U64::read_from_bytes(bytes).ok());
        list.pages.extend(numbers.map(U64::get));
        let missing = list.total.checked_sub(list.pages.len());
        match missing {
            Some(0) => {
                self.incomplete.remove(&key.1);
                Some(answer(key, status::SUCCESS))
            }
            Some(_) => None,
            None => {
                self.remove(key.0, key.1);
                Some(answer(key, status::INVALID_PARAMETER))
            }
        }
    }
}

/// The answer if the channel is unknown or rescinded.
pub(super) fn refused(header: &GpadlHeader) -> GpadlCreated {
    answer((header.relid.get(), header.gpadl.get()), status::INVALID_PARAMETER)
}

fn answer((relid, gpadl): Key, status: u32) -> GpadlCreated {
    GpadlCreated {
        header: MessageHeader::new(message::GPADL_CREATED),
        relid: relid.into(),
        gpadl: gpadl.into(),
        status: status.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Bytes of a list that begins: channel, number, bytes of the buffer, ranges, bytes and offset of the range, pages.
    fn header(key: Key, buflen: u16, ranges: u16, bytes: u32, offset: u32, pages: &[u64]) -> Vec<u8> {
        let mut message = [8u32.to_le_bytes(), [0; 4], key.0.to_le_bytes(), key.1.to_le_bytes()].concat();
        message.extend([buflen.to_le_bytes(), ranges.to_le_bytes()].concat());
        message.extend([bytes.to_le_bytes(), offset.to_le_bytes()].concat());
        message.extend(pages.iter().flat_map(|page| page.to_le_bytes()));
        message
    }

    fn body(gpadl: u32, pages: &[u64]) -> Vec<u8> {
        let mut message = [9u32.to_le_bytes(), [0; 4], [0; 4], gpadl.to_le_bytes()].concat();
        message.extend(pages.iter().flat_map(|page| page.to_le_bytes()));
        message
    }

    fn status_of(answer: Option<GpadlCreated>) -> Option<(u32, u32, u32)> {
        answer.map(|answer| (answer.relid.get(), answer.gpadl.get(), answer.status.get()))
    }

    #[test]
    fn a_list_is_assembled_from_header_and_bodies() {
        let mut lists = Gpadls::default();
        let pages: Vec<u64> = (100..164).collect();
        // As Linux sends 64 pages: 26, 28 and 10.
        let first = header((1, 0xe1e10), 8 + 64 * 8, 1, 64 << 12, 0, &pages[..26]);
        assert_eq!(status_of(lists.header(&first)), None);
        assert_eq!(lists.pages(1, 0xe1e10), None, "it is not complete");
        assert_eq!(status_of(lists.body(&body(0xe1e10, &pages[26..54]))), None);
        assert_eq!(status_of(lists.body(&body(0xe1e10, &pages[54..]))), Some((1, 0xe1e10, 0)));
        assert_eq!(lists.pages(1, 0xe1e10), Some(&*pages));
        assert_eq!(lists.pages(2, 0xe1e10), None, "of another channel");
        // One page more has no list to go to.
        assert_eq!(status_of(lists.body(&body(0xe1e10, &[7]))), None);
        assert_eq!(lists.pages(1, 0xe1e10), Some(&*pages));
        lists.remove(1, 0xe1e10);
        assert_eq!((lists.pages(1, 0xe1e10), lists.reserved), (None, 0));
    }

    #[test]
    fn what_is_wrong_with_a_list_is_answered() {
        let invalid = |key: Key| Some((key.0, key.1, status::INVALID_PARAMETER));
        let mut lists = Gpadls::default();
        for bad in [
            header((1, 5), 16, 0, 4096, 0, &[1]),
            header((1, 5), 16, 2, 4096, 0, &[1]),
            header((1, 5), 16, 1, 4096, 1, &[1]),
            header((1, 5), 16, 1, 4095, 0, &[1]),
            header((1, 5), 16, 1, 0, 0, &[1]),
            header((1, 5), 8, 1, 0, 0, &[]),
            header((1, 5), 24, 1, 4096, 0, &[1]),
            header((1, 5), 8, 1, 4096, 0, &[1]),
            header((1, 5), 16, 1, u32::MAX, 0, &[1]),
            header((1, 5), u16::MAX, 1, 0xffff_f000, 0, &[1]),
            header((1, 5), 16, 1, 4096, 0, &[1, 2]),
        ] {
            assert_eq!(status_of(lists.header(&bad)), invalid((1, 5)), "{bad:x?}");
            assert_eq!((lists.lists.len(), lists.incomplete.len(), lists.reserved), (0, 0, 0));
        }
        let good = header((1, 5), 16, 1, 4096, 0, &[1]);
        for len in 0..28 {
            assert_eq!(status_of(lists.header(&good[..len])), None, "too short to be answered");
        }
        assert_eq!(status_of(lists.header(&good)), Some((1, 5, 0)));
        assert_eq!(status_of(lists.header(&good)), invalid((1, 5)), "there is one");
        // The same number for another channel, but not while it is incomplete.
        let begun = header((2, 5), 24, 1, 8192, 0, &[1]);
        assert_eq!(status_of(lists.header(&begun)), None);
        assert_eq!(status_of(lists.header(&header((3, 5), 24, 1, 8192, 0, &[1]))), invalid((3, 5)));
        assert_eq!(status_of(lists.body(&body(5, &[1, 2]))), invalid((2, 5)));
        assert_eq!(lists.pages(1, 5), Some(&[1][..]));
        assert_eq!(lists.reserved, 1);
    }

    #[test]
    fn memory_for_lists_is_bounded() {
        let mut lists = Gpadls::default();
        let full = Some(status::INSUFFICIENT_RESOURCES);
        // The longest that the size of the ranges can tell.
        let pages = 8190;
        let of = |gpadl: u32| header((1, gpadl), 8 + 8 * pages, 1, u32::from(pages) << 12, 0, &[]);
        for gpadl in 0..4 {
            assert_eq!(status_of(lists.header(&of(gpadl))), None);
        }
        assert_eq!(lists.header(&of(4)).map(|answer| answer.status.get()), full);
        lists.remove_all(1);
        assert_eq!((lists.reserved, lists.incomplete.len()), (0, 0));
        for gpadl in 0..MAX_LISTS as u32 {
            assert_eq!(
                status_of(lists.header(&header((1, gpadl), 16, 1, 4096, 0, &[1]))),
                Some((1, gpadl, 0))
            );
        }
        let one_more = lists.header(&header((2, 1 << 20), 16, 1, 4096, 0, &[1]));
        assert_eq!(one_more.map(|answer| answer.status.get()), full);
        lists.remove_all(2);
        assert_eq!(lists.lists.len(), MAX_LISTS);
        lists.clear();
        assert_eq!(lists.reserved, 0);
    }

    #[test]
    fn whatever_a_guest_sends_the_books_balance() {
        let mut random = Random::new(1);
        let mut lists = Gpadls::default();
        for _ in 0..100_000 {
            let key = (random.below(3) as u32, random.below(6) as u32);
            let pages: Vec<u64> = (0..random.below(28)).collect();
            let total = random.below(40) as u32;
            match random.below(8) {
                0..3 => {
                    let buflen =
                        if random.below(8) == 0 { random.value() as u16 } else { 8 + 8 * total as u16 };
                    let message = header(key, buflen, 1, total << 12, 0, &pages);
                    lists.header(&message[..message.len() - random.below(8) as usize]);
                }
                3..6 => drop(lists.body(&body(key.1, &pages))),
                6 => lists.remove(key.0, key.1),
                _ if random.below(50) == 0 => lists.remove_all(key.0),
                _ => drop(lists.body(&(0..random.below(64)).map(|n| n as u8).collect::<Vec<_>>())),
            }
            let totals: usize = lists.lists.values().map(|list| list.total).sum();
            assert_eq!(totals, lists.reserved);
            let incomplete = lists.lists.values().filter(|list| list.pages.len() < list.total).count();
            assert_eq!(incomplete, lists.incomplete.len());
            assert!(lists.lists.values().all(|list| list.pages.len() <= list.total));
        }
    }
}

//! Scatter-gather lists: simple 32- and 64-bit elements, chained through segments in guest memory (MPI 1.5, message
//! passing, scatter-gather lists).

use super::spec::sge;

/// Maximum number of chained segments beyond the one in the request; `MaxChainDepth` of IOC FACTS.
pub(super) const MAX_CHAIN_DEPTH: u8 = 0x22;
/// Maximum number of pieces of a list: far more than drivers use, but bounded memory.
const MAX_PIECES: u32 = 2048;
/// Maximum length of a chain segment in bytes.
pub(super) const MAX_SEGMENT: usize = 4096;

/// Why a list is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SglError {
    /// An element reaches beyond its segment.
    #[error("element reaches beyond its segment")]
    Truncated,
    /// An element type that is not allowed in a data list.
    #[error("element type {0:#04x} in a data list")]
    ElementType(u8),
    /// More chained segments than allowed.
    #[error("chain of more than {MAX_CHAIN_DEPTH} segments")]
    TooDeep,
    /// More elements than allowed.
    #[error("list of more than {MAX_PIECES} elements")]
    TooMany,
    /// The list ends before the data length is reached.
    #[error("list is shorter than the data length")]
    Short,
    /// A segment or data are outside guest memory.
    #[error("segment or data outside guest memory")]
    Memory,
}

/// Where a list starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// Byte offset of the first element in the request frame.
    pub(super) offset: usize,
    /// Byte offset of the chain element in the request frame; 0 if there is none.
    pub(super) chain: usize,
}

/// Walk a list, and call `emit` for each piece (address, length) of the first `wanted` bytes.
///
/// `read` copies a chain segment from guest memory to `storage`. The walk ends after `wanted` bytes and ignores the
/// elements that follow. So a null element, whose address is all ones, is never accessed.
pub(super) fn walk(
    frame: &[u8],
    start: Start,
    wanted: u64,
    storage: &mut [u8; MAX_SEGMENT],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), SglError>,
    mut emit: impl FnMut(u64, usize) -> Result<(), SglError>,
) -> Result<(), SglError> {
    let mut left = wanted;
    // The current segment is the frame at first, then the segment that was copied last.
    let mut fetched = 0;
    let mut at = start.offset;
    let mut chain_at = start.chain;
    let (mut depth, mut pieces) = (0, 0);
    while left > 0 {
        let element = Element::parse(if depth == 0 { frame } else { &storage[..fetched] }, at)?;
        match element {
            Element::Simple { address, len, flags, size } => {
                let len = u64::from(len).min(left);
                if len > 0 {
                    pieces += 1;
                    if pieces > MAX_PIECES {
                        return Err(SglError::TooMany);
                    }
                    emit(address, len as usize)?;
                    left -= len;
                }
                at += size;
                if left > 0 && flags & sge::LAST_ELEMENT != 0 {
                    if flags & sge::END_OF_LIST != 0 || chain_at < at {
                        return Err(SglError::Short);
                    }
                    at = chain_at;
                }
            }
            Element::Chain { address, len, next } => {
                depth += 1;
                if depth > MAX_CHAIN_DEPTH {
                    return Err(SglError::TooDeep);
                }
                fetched = usize::from(len);
                read(address, storage.get_mut(..fetched).ok_or(SglError::Truncated)?)?;
                at = 0;
                chain_at = usize::from(next) * 4;
            }
        }
    }
    Ok(())
}

/// The address of all `wanted` bytes, if the first element has them, as in most requests. `None`: use [`walk`].
#[inline(always)]
pub(super) fn whole(frame: &[u8], start: Start, wanted: u64) -> Option<u64> {
    match Element::parse(frame, start.offset) {
        Ok(Element::Simple { address, len, .. }) if wanted > 0 && u64::from(len) >= wanted => Some(address),
        _ => None,
    }
}

enum Element {
    Simple { address: u64, len: u32, flags: u8, size: usize },
    Chain { address: u64, len: u16, next: u8 },
}

impl Element {
    #[inline(always)]
    fn parse(segment: &[u8], at: usize) -> Result<Self, SglError> {
        let word = |index: usize| -> Result<u32, SglError> {
            let bytes = segment.get(at + index * 4..at + index * 4 + 4).ok_or(SglError::Truncated)?;
            Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let head = word(0)?;
        let flags = (head >> 24) as u8;
        let low = u64::from(word(1)?);
        let (address, size) =
            if flags & sge::ADDRESS_64 != 0 { (low | u64::from(word(2)?) << 32, 12) } else { (low, 8) };
        match flags & sge::TYPE_MASK {
            sge::TYPE_SIMPLE => Ok(Self::Simple { address, len: head & 0x00ff_ffff, flags, size }),
            sge::TYPE_CHAIN => Ok(Self::Chain { address, len: head as u16, next: (head >> 16) as u8 }),
            other => Err(SglError::ElementType(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simple32(flags: u8, len: u32, address: u32) -> Vec<u8> {
        [(u32::from(flags) << 24 | len).to_le_bytes(), address.to_le_bytes()].concat()
    }

    fn simple64(flags: u8, len: u32, address: u64) -> Vec<u8> {
        let mut bytes = (u32::from(flags | sge::ADDRESS_64) << 24 | len).to_le_bytes().to_vec();
        bytes.extend(address.to_le_bytes());
        bytes
    }

    fn chain(len: u16, next: u8, address: u32) -> Vec<u8> {
        let head = u32::from(sge::TYPE_CHAIN) << 24 | u32::from(next) << 16 | u32::from(len);
        [head.to_le_bytes(), address.to_le_bytes()].concat()
    }

    fn run(
        frame: &[u8],
        chain_at: usize,
        wanted: u64,
        memory: &[(u64, Vec<u8>)],
    ) -> Result<Vec<(u64, usize)>, SglError> {
        let mut pieces = Vec::new();
        walk(
            frame,
            Start { offset: 0, chain: chain_at },
            wanted,
            &mut [0; MAX_SEGMENT],
            |address, bytes| {
                let (_, content) =
                    memory.iter().find(|(base, _)| *base == address).ok_or(SglError::Memory)?;
                bytes.copy_from_slice(content.get(..bytes.len()).ok_or(SglError::Memory)?);
                Ok(())
            },
            |address, len| {
                pieces.push((address, len));
                Ok(())
            },
        )?;
        // `whole` must return the same piece, if it returns one.
        if let Some(address) = whole(frame, Start { offset: 0, chain: chain_at }, wanted) {
            assert_eq!(pieces, [(address, wanted as usize)]);
        } else {
            assert!(pieces.len() != 1 || !memory.is_empty(), "one piece of the frame goes the short way");
        }
        Ok(pieces)
    }

    const LAST: u8 = sge::LAST_ELEMENT | sge::END_OF_BUFFER | sge::END_OF_LIST | sge::TYPE_SIMPLE;

    #[test]
    fn simple_elements_of_both_widths() {
        let frame = [simple32(sge::TYPE_SIMPLE, 4096, 0x1000), simple64(LAST, 512, 0x1_0000_0000)].concat();
        assert_eq!(run(&frame, 0, 4608, &[]), Ok(vec![(0x1000, 4096), (0x1_0000_0000, 512)]));
        assert_eq!(run(&frame, 0, 4096, &[]), Ok(vec![(0x1000, 4096)]), "ends with the data");
        assert_eq!(run(&frame, 0, 4609, &[]), Err(SglError::Short));
    }

    #[test]
    fn the_null_element_is_not_touched() {
        let frame = simple64(LAST, 0, u64::MAX);
        assert_eq!(run(&frame, 0, 0, &[]), Ok(vec![]));
        assert_eq!(run(&frame, 0, 1, &[]), Err(SglError::Short));
    }

    #[test]
    fn chains_are_followed_through_the_announced_offsets() {
        let first = [simple32(sge::TYPE_SIMPLE | sge::LAST_ELEMENT, 8, 0x10), chain(16, 2, 0x9000)].concat();
        let second = [simple32(sge::TYPE_SIMPLE | sge::LAST_ELEMENT, 8, 0x20), chain(8, 0, 0xa000)].concat();
        let memory = [(0x9000, second), (0xa000, simple32(LAST, 8, 0x30))];
        assert_eq!(run(&first, 8, 24, &memory), Ok(vec![(0x10, 8), (0x20, 8), (0x30, 8)]));
    }

    #[test]
    fn a_chain_that_loops_ends() {
        let segment = chain(8, 0, 0x9000);
        assert_eq!(run(&segment, 0, 1, &[(0x9000, segment.clone())]), Err(SglError::TooDeep));
        let zero = [simple32(sge::TYPE_SIMPLE | sge::LAST_ELEMENT, 0, 0), chain(16, 2, 0x9000)].concat();
        assert_eq!(run(&zero, 8, 1, &[(0x9000, zero.clone())]), Err(SglError::TooDeep));
        // The chain element's offset is before the element that ends the segment.
        let back = simple32(sge::TYPE_SIMPLE | sge::LAST_ELEMENT, 0, 0);
        assert_eq!(run(&back, 4, 1, &[]), Err(SglError::Short));
    }

    #[test]
    fn lists_that_lie_are_refused() {
        assert_eq!(run(&[], 0, 1, &[]), Err(SglError::Truncated));
        assert_eq!(run(&simple32(sge::TYPE_SIMPLE, 8, 0)[..6], 0, 1, &[]), Err(SglError::Truncated));
        assert_eq!(run(&simple32(0, 8, 0), 0, 1, &[]), Err(SglError::ElementType(0)));
        assert_eq!(run(&chain(8, 0, 0x5000), 0, 1, &[]), Err(SglError::Memory));
        assert_eq!(run(&chain(0xffff, 0, 0x5000), 0, 1, &[]), Err(SglError::Truncated));
    }
}

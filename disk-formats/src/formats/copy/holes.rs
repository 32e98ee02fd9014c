//! Copies that keep holes: zeros become holes of the destination, so that a copy takes no more of the host's space than its source.

use std::io;
use std::ops::Range;

use crate::host::store::Store;

/// Unit in which zeros become holes: the block size of nearly all file systems, and a multiple of every sector size.
pub(crate) const GRAIN: u64 = 4096;
/// Bytes that are copied at once.
const CHUNK: u64 = 1 << 20;

/// Copy `len` bytes inside a store. Offsets and length are whole sectors of 512 bytes; the ranges must not overlap. `may_unmap`: as for
/// [`write_keeping_holes`].
pub(crate) fn copy_run(store: &dyn Store, from: u64, to: u64, len: u64, may_unmap: bool) -> io::Result<()> {
    let mut bytes = vec![0; CHUNK.min(len) as usize];
    let mut done = 0;
    while done < len {
        // Grains are aligned in the destination, where a host's block becomes a hole only as a whole.
        let before_grain = (to + done).next_multiple_of(GRAIN) - (to + done);
        let part = if before_grain == 0 { CHUNK } else { before_grain }.min(len - done);
        let chunk = bytes.get_mut(..part as usize).unwrap_or_default();
        store.read_at(chunk, from + done)?;
        write_keeping_holes(store, chunk, to + done, may_unmap)?;
        done += part;
    }
    Ok(())
}

/// Write `data` over an existing range at `offset`. With `may_unmap` its grains of zeros become holes if the host supports that; else they are
/// zeroed, and their space stays allocated.
pub(crate) fn write_keeping_holes(
    store: &dyn Store,
    data: &[u8],
    offset: u64,
    may_unmap: bool,
) -> io::Result<()> {
    let zero = |range: Range<usize>| match range.len() as u64 {
        0 => Ok(()),
        len => store.write_zeroes(offset + range.start as u64, len, may_unmap).map_err(io::Error::from),
    };
    let mut done = 0;
    for part in filled(data, GRAIN as usize) {
        zero(done..part.start)?;
        done = part.end;
        store.write_at(data.get(part.clone()).unwrap_or_default(), offset + part.start as u64)?;
    }
    zero(done..data.len())
}

/// Whether all bytes are zeros.
pub(crate) fn all_zeros(data: &[u8]) -> bool {
    // 256 bytes: long enough for vector instructions, short enough to stop early.
    data.chunks(256).all(|step| step.iter().fold(0, |seen, byte| seen | byte) == 0)
}

/// The parts of `data` that are not zeros, in units of `grain` bytes, adjacent ones merged.
pub(crate) fn filled(data: &[u8], grain: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let skipped =
            data.get(at..)?.chunks(grain).take_while(|part| all_zeros(part)).map(<[u8]>::len).sum::<usize>();
        let start = at + skipped;
        let len = data
            .get(start..)?
            .chunks(grain)
            .take_while(|part| !all_zeros(part))
            .map(<[u8]>::len)
            .sum::<usize>();
        at = start + len;
        (len > 0).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_parts_in_grains() {
        let parts = |data: &[u8]| filled(data, 4).collect::<Vec<_>>();
        assert!(parts(&[]).is_empty());
        assert!(parts(&[0; 9]).is_empty());
        assert_eq!(parts(&[1; 9]), [Range { start: 0, end: 9 }]);
        assert_eq!(parts(&[0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]), [0..8, 16..17]);
    }

    #[test]
    fn one_byte_anywhere_is_seen() {
        let mut data = vec![0; 1000];
        assert!(all_zeros(&data));
        for at in 0..data.len() {
            data[at] = 0x80;
            assert!(!all_zeros(&data), "{at}");
            data[at] = 0;
        }
    }
}

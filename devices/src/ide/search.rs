//! Finds the first unreadable sector after a failed disk read, which does not name it.
//!
//! The range is read again from its start: in pieces of 64 sectors, and the piece that fails sector by sector. So all sectors before the
//! one that the drive reports are in guest memory, as drivers assume (ATA/ATAPI-7, 6.2.2: the address is that of the first unrecoverable
//! error). If all sectors of that piece can be read, the search continues behind it. If another piece fails then, the drive reports the
//! first sector of that piece. A read of 65,536 sectors takes at most 1,151 more requests, of which at most two fail.

use super::command::{Operation, Protocol, Transfer};
use super::taskfile::Sectors;

/// Sectors of a piece.
const PIECE: u32 = 64;

/// The state of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Search {
    /// The transfer whose disk request failed.
    transfer: Transfer,
    /// The sectors to read again; the first unreadable one is among them.
    suspects: Sectors,
    /// Sectors left of the piece that has failed; `None`: no piece has failed.
    failed: Option<u32>,
}

/// The next step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Read the search's [piece](Search::piece).
    Read(Search),
    /// This sector cannot be read, or one of the second piece that failed, which begins with it.
    Found(Transfer, u64),
    /// All suspects were read: the error does not repeat.
    AllRead(Transfer),
}

impl Search {
    /// The first step after the disk has failed to read the first `count` sectors of this transfer.
    pub(super) const fn after_error(transfer: Transfer, count: u32) -> Next {
        match count {
            1 => Next::Found(transfer, transfer.sectors.lba),
            _ => Next::Read(Self { transfer, suspects: Sectors { count, ..transfer.sectors }, failed: None }),
        }
    }

    /// Whether the first bad sector of a transfer can be reported. For programmed I/O it cannot: the port transfers whole blocks, so the
    /// drive reports the first sector of the block.
    pub(super) fn is_possible(transfer: &Transfer) -> bool {
        match transfer.operation {
            Operation::Read => transfer.protocol == Protocol::Dma,
            Operation::Write => false,
            Operation::Verify => true,
        }
    }

    pub(super) const fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// The sectors to read next.
    pub(super) const fn piece(&self) -> Sectors {
        let singly = self.suspects.count <= PIECE || matches!(self.failed, Some(1..));
        let count = if singly { 1 } else { PIECE };
        Sectors { count, ..self.suspects }
    }

    /// The step after the [piece](Self::piece) was read, or failed.
    pub(super) fn after(self, is_read: bool) -> Next {
        let Self { transfer, suspects, failed } = self;
        let Sectors { lba, count } = self.piece();
        if !is_read {
            return match failed {
                None if count > 1 => Next::Read(Self { failed: Some(count), ..self }),
                _ => Next::Found(transfer, lba),
            };
        }
        let suspects = Sectors { lba: lba + u64::from(count), count: suspects.count - count };
        let failed = failed.map(|left| left.saturating_sub(count));
        match suspects.count {
            0 => Next::AllRead(transfer),
            _ => Next::Read(Self { transfer, suspects, failed }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::taskfile::Addressing;
    use super::*;

    fn transfer(count: u32) -> Transfer {
        let sectors = Sectors { lba: 1000, count };
        Transfer {
            operation: Operation::Read,
            protocol: Protocol::Dma,
            addressing: Addressing::Lba48,
            sectors,
        }
    }

    /// The sector that is found if these fail, and the number of requests.
    fn search(count: u32, bad: &[u64]) -> (Option<u64>, usize) {
        let mut next = Search::after_error(transfer(count), count);
        for requests in 0.. {
            match next {
                Next::Read(search) => {
                    let Sectors { lba, count } = search.piece();
                    next = search.after(!bad.iter().any(|bad| (lba..lba + u64::from(count)).contains(bad)));
                }
                Next::Found(_, lba) => return (Some(lba), requests),
                Next::AllRead(_) => return (None, requests),
            }
        }
        unreachable!()
    }

    #[test]
    fn the_first_bad_sector_is_found_in_a_bounded_number_of_requests() {
        for count in [1u32, 2, 63, 64, 65, 128, 129, 2560, 65_536] {
            let last = 999 + u64::from(count);
            for at in [0, 1, 63, 64, 65, count / 2, count - 1].map(|index| 1000 + u64::from(index)) {
                for bad in [&[at][..], &[at, at + 1, last]] {
                    let Some(first) = bad.iter().copied().find(|bad| *bad <= last) else { continue };
                    let (found, requests) = search(count, bad);
                    assert_eq!(found, Some(first), "{count} {at}");
                    assert!(requests <= count as usize / 64 + 64, "{count} {at}: {requests}");
                }
            }
        }
        assert_eq!(search(65_536, &[1000 + 65_535]).1, 1023 + 64);
        assert_eq!(search(200, &[]).0, None);
    }

    #[test]
    fn every_sector_is_read_again_where_errors_do_not_repeat() {
        // Requests that fail, by their number, and what is found.
        for (fails, found) in
            [(&[][..], None), (&[0], None), (&[3], None), (&[0, 65], Some(1064)), (&[0, 20], Some(1019))]
        {
            let mut read = 1000;
            let mut next = Search::after_error(transfer(1000), 1000);
            let mut requests = 0;
            let ended = loop {
                match next {
                    Next::Read(search) => {
                        let Sectors { lba, count } = search.piece();
                        assert_eq!(lba, read, "no sector is left out");
                        let is_read = !fails.contains(&requests);
                        read += if is_read { u64::from(count) } else { 0 };
                        requests += 1;
                        next = search.after(is_read);
                    }
                    Next::Found(_, lba) => break Some(lba),
                    Next::AllRead(_) => break None,
                }
            };
            assert_eq!(ended, found, "{fails:?}");
            assert!(ended.is_some() || read == 2000, "{fails:?}: read up to {read}");
        }
    }
}

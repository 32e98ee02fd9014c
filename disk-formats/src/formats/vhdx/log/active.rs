//! The active sequence: the entries that count. [MS-VHDX] 2.3.2.

use super::scan::Place;

/// The active sequence of these entries (all valid ones, by their start) of a ring of `count` sectors, oldest first.
/// Its first may be older than its last one's tail. Empty: there is none.
///
/// The specification tries every sector as the start of a run of entries and keeps the run with the highest last
/// sequence number among those that hold the tail of their last entry. Of a run that does not hold it no part does that
/// ends alike, so each entry is tried once.
pub(super) fn active(entries: &[Place], count: u32) -> Vec<Place> {
    let (mut best, mut best_sequence) = (Vec::new(), 0);
    let mut at = 0;
    while at < entries.len() {
        let run = run(entries, at, count);
        let length = run.len();
        if let (Some(first), Some(head)) = (run.first(), run.last()) {
            let sectors: u64 = run.iter().map(|entry| u64::from(entry.summary.sectors)).sum();
            let into = u64::from((head.summary.tail + count - first.start) % count);
            if into < sectors && head.summary.sequence > best_sequence {
                best_sequence = head.summary.sequence;
                best = run;
            }
        }
        at += length;
    }
    best
}

/// Entries from one on, each where the one before ends, with the next sequence number. It ends: the numbers rise.
fn run(entries: &[Place], at: usize, count: u32) -> Vec<Place> {
    let mut run: Vec<Place> = Vec::new();
    for entry in entries[at..].iter().chain(entries) {
        let follows = run.last().is_none_or(|last| {
            (last.start + last.summary.sectors) % count == entry.start
                && last.summary.sequence.checked_add(1) == Some(entry.summary.sequence)
        });
        if !follows {
            break;
        }
        run.push(*entry);
    }
    run
}

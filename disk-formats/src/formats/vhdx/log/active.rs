//! The active sequence: the log entries to replay. [MS-VHDX] 2.3.2.

use super::scan::Place;

/// The active sequence, oldest entry first, of all valid entries of a ring of `count` sectors. `entries` are in the
/// order of their start. The first entry of the result may be older than the tail of the last one. Empty if there is no
/// active sequence.
///
/// The specification tries every sector as the start of a sequence. Among the sequences that contain the tail of their
/// last entry, it selects the one with the highest last sequence number. If a sequence does not contain the tail,
/// neither does a part of it with the same end. So it is enough to try each entry once.
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

/// The longest sequence from `entries[at]` on: each entry starts where the previous one ends, and has the next sequence
/// number. The loop ends because the numbers increase.
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

use super::super::entry::{Parser, Step, encode};
use super::super::replay::active;
use super::super::scan::{Place, entries};
use super::*;
use crate::host::crash::CrashFile;

/// The entry that begins in this sector, parsed by itself.
fn entry_at(file: &[u8], start: u32) -> Option<Place> {
    let sector = |at: u32| file[REGION.position(at.into()) as usize..].first_chunk::<SECTOR>();
    let mut parser = Parser::new(sector(start)?, REGION, GUID)?;
    for at in start.. {
        match parser.feed(sector(at)?) {
            Step::More => {}
            Step::Whole(summary) => return Some(Place { start, summary }),
            Step::Broken => break,
        }
    }
    None
}

/// The search in the specification's words: try every sector.
fn slow(file: &[u8]) -> Vec<Place> {
    let count = REGION.sectors();
    let sequence = |run: &[Place]| run.last().map_or(0, |head| head.summary.sequence);
    let mut best: Vec<Place> = Vec::new();
    let mut tail = 0;
    while tail < count {
        let (mut run, mut end) = (Vec::new(), tail);
        while let Some(entry) = entry_at(file, end % count) {
            if !run.is_empty() && sequence(&run) + 1 != entry.summary.sequence {
                break;
            }
            end += entry.summary.sectors;
            run.push(entry);
        }
        let holds = |head: &Place| (tail..end).any(|at| at % count == head.summary.tail);
        if !run.last().is_some_and(holds) {
            tail += 1;
            continue;
        }
        if sequence(&run) > sequence(&best) {
            best = run;
        }
        tail = end;
    }
    best
}

/// Entries that overwrite each other, with sequence numbers that often follow, and tails that often refer to an entry.
fn ring(random: &mut Random) -> Vec<u8> {
    let mut file = vec![0; LEN as usize];
    let count = u64::from(REGION.sectors());
    let (mut at, mut sequence) = (random.below(count), 1 + random.below(3));
    let mut starts = vec![at];
    for _ in 0..random.below(16) {
        let tail = match random.below(8) {
            0 => random.below(count),
            1..4 => at,
            _ => starts[starts.len() - 1 - random.below(starts.len().min(4) as u64) as usize],
        };
        let guid = if random.below(16) == 0 { Uuid::from_u128(1) } else { GUID };
        let changes = changes(random.below(3) as usize, random);
        let entry = encode(&changes, sequence, tail as u32, guid, SIZES);
        put(&mut file, &entry, at as u32);
        at = (at + (entry.len() / SECTOR) as u64) % count;
        sequence += 1;
        if random.below(12) == 0 {
            at = random.below(count);
        }
        if random.below(12) == 0 {
            sequence = 1 + random.below(8);
        }
        starts.push(at);
    }
    file
}

#[test]
fn the_active_sequence_is_that_of_the_specification() {
    let mut random = Random(5);
    let (mut runs, mut wrapped, mut partial) = ([0; 8], 0, 0);
    for _ in 0..4_000 {
        let file = ring(&mut random);
        let found = entries(&CrashFile::new(file.clone()), REGION, GUID).expect("a ring");
        let each: Vec<Place> = (0..REGION.sectors()).filter_map(|at| entry_at(&file, at)).collect();
        assert_eq!(found, each);
        let run = active(&found, REGION.sectors());
        assert_eq!(run, slow(&file));
        runs[run.len().min(7)] += 1;
        if let (Some(first), Some(head)) = (run.first(), run.last()) {
            wrapped += u32::from(head.start < first.start);
            partial += u32::from(head.summary.tail != first.start);
        }
    }
    println!("{runs:?} entries in the sequence, {wrapped} wrapped, {partial} with a later tail");
    assert!(runs.iter().all(|count| *count > 20) && wrapped > 100 && partial > 100);
}

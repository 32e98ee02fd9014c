//! Power failures: logged changes in a recorded file, cut after every change, with any combination of the unflushed
//! changes lost.

use super::super::entry::sectors;
use super::super::{Log, find};
use super::*;
use crate::formats::vhdx::testing::picks;
use crate::host::crash::CrashFile;
use crate::host::effort::effort;
use crate::host::store::Store;

/// Sectors that are changed; the last one is beyond the initial end of the file.
const TARGETS: [u64; 6] = [0x30000, 0x31000, 0x32000, 0x33000, 0x3F000, 0x80000];

/// The values of the targets; 0 stands for zeros.
type Values = [u64; TARGETS.len()];

fn stamped(value: u64) -> Box<[u8; SECTOR]> {
    Box::new(std::array::from_fn(|at| value.to_le_bytes()[at % 8]))
}

/// `None` if a sector is torn.
fn values(file: &CrashFile) -> Option<Values> {
    let mut values = [0; TARGETS.len()];
    for (value, at) in values.iter_mut().zip(TARGETS) {
        let mut sector = [0; SECTOR];
        file.read_at(&mut sector, at).expect("a file that was grown");
        *value = u64::from_le_bytes(*sector.first_chunk()?);
        // A sector repeats its value every eight bytes.
        if sector[8..] != sector[..SECTOR - 8] {
            return None;
        }
    }
    Some(values)
}

/// An attempt to log changes.
struct Attempt {
    /// Number of recorded changes at its start and at its end.
    span: (usize, usize),
    logged: bool,
    /// The values of the targets after it.
    values: Values,
}

struct Workload {
    file: CrashFile,
    base: Vec<u8>,
    /// Number of recorded changes when the log's GUID could be written to the header.
    started: usize,
    attempts: Vec<Attempt>,
    random: Random,
}

impl Workload {
    /// Random changes in the order of a flush: fdatasync; the entry with its fdatasync; the same in place, which the
    /// next flush covers.
    fn run(base: Vec<u8>, seed: u64, flushes: u64, failures: bool) -> Self {
        let file = CrashFile::new(base.clone());
        let mut log = Log::start(&file, REGION, GUID, SIZES).expect("space");
        let (started, mut random) = (file.len_of_log(), Random(seed));
        let (mut attempts, mut settled) = (Vec::new(), [0; TARGETS.len()]);
        for flush in 1..=flushes {
            file.sync().expect("a flush");
            let (mut values, mut updates) = (settled, Vec::new());
            for number in 0..1 + random.below(log.capacity() as u64) {
                let target = random.below(TARGETS.len() as u64) as usize;
                let (value, update) = update(TARGETS[target], flush << 8 | (number + 1), &mut random);
                values[target] = value;
                updates.push(update);
            }
            // A failure of the sync, or of any earlier write.
            let all = sectors(&updates) * 8;
            let fuse = if random.below(2) == 0 { all } else { random.below(all) };
            file.fail((failures && random.below(2) == 0).then_some(fuse));
            let began = file.len_of_log();
            let logged = log.append(&file, &updates, SIZES).is_ok();
            file.fail(None);
            attempts.push(Attempt { span: (began, file.len_of_log()), logged, values });
            if logged {
                settled = values;
                updates.iter().for_each(|update| in_place(&file, update));
            }
        }
        Self { file, base, started, attempts, random }
    }

    /// The values that are permitted after a replay.
    fn allowed(&self, cut: usize) -> Vec<Values> {
        let mut allowed = vec![[0; TARGETS.len()]];
        for attempt in self.attempts.iter().take_while(|attempt| attempt.span.0 < cut) {
            if attempt.logged && attempt.span.1 <= cut {
                allowed.clear();
            }
            allowed.push(attempt.values);
        }
        allowed
    }

    /// Cut after every change since the start, with every combination of up to `exhaustive` unflushed changes. Returns
    /// the number of states.
    fn crash(&mut self, exhaustive: usize) -> usize {
        let (mut states, random) = (0, &mut Random(self.random.next()));
        for cut in self.started..=self.file.len_of_log() {
            let allowed = self.allowed(cut);
            let mut picks = picks(self.file.open_changes(cut), exhaustive, 12, random).into_iter();
            let visit = |image: Vec<u8>| {
                states += 1;
                let kept = (random.below(1024) == 0).then(|| image.clone());
                let file = CrashFile::new(image);
                replayed(&file, &allowed).unwrap_or_else(|why| panic!("cut at {cut}: {why}"));
                states += kept.map_or(0, |image| cut_replay(&image, &file, random));
            };
            self.file.after_crash(&self.base, cut, |_| picks.next(), visit);
        }
        states
    }
}

/// A change of a sector to this value, or to zeros.
fn update(offset: u64, value: u64, random: &mut Random) -> (u64, Update) {
    match random.below(5) {
        0 => (0, Update::Zero { offset, len: SECTOR as u64 }),
        _ => (value, Update::Data { offset, sector: stamped(value) }),
    }
}

fn in_place(file: &CrashFile, update: &Update) {
    match update {
        Update::Data { offset, sector } => file.write_at(&sector[..], *offset).expect("space"),
        Update::Zero { offset, len } => file.write_zeroes(*offset, *len, true).expect("space"),
    }
}

fn replay(file: &CrashFile) -> Result<(), String> {
    let replay = find(file, REGION, GUID).map_err(|error| format!("{error:?}"))?;
    replay.apply(file).map_err(|error| error.to_string())
}

/// Replay, and check that the result is permitted.
fn replayed(file: &CrashFile, allowed: &[Values]) -> Result<(), String> {
    replay(file)?;
    let len = file.len().map_err(|error| error.to_string())?;
    if len < SIZES.last || !len.is_multiple_of(1 << 20) {
        return Err(format!("{len} bytes"));
    }
    let found = values(file).ok_or("torn")?;
    if !allowed.contains(&found) {
        return Err(format!("{found:x?} instead of {allowed:x?}"));
    }
    if file.open_changes(file.len_of_log()) == 0 { Ok(()) } else { Err("not flushed".into()) }
}

/// Cut the replay that has produced `whole` after every change, and replay again. Returns the number of states.
fn cut_replay(image: &[u8], whole: &CrashFile, random: &mut Random) -> usize {
    let whole_bytes = whole.bytes();
    let mut states = 0;
    for cut in 0..=whole.len_of_log() {
        let mut picks = picks(whole.open_changes(cut), 2, 4, random).into_iter();
        let visit = |left: Vec<u8>| {
            states += 1;
            let again = CrashFile::new(left);
            replay(&again).unwrap_or_else(|why| panic!("replay cut at {cut}: {why}"));
            assert!(again.bytes() == whole_bytes, "replay cut at {cut}");
        };
        whole.after_crash(image, cut, |_| picks.next(), visit);
    }
    states
}

#[test]
fn every_crash_leaves_all_that_was_logged() {
    // All combinations of so many changes.
    let (exhaustive, least) = if effort() > 1 { (10, 15_000) } else { (7, 2_000) };
    let states = Workload::run(vec![0; 1 << 20], 1, 6, false).crash(exhaustive);
    println!("{states} states after a crash");
    assert!(states > least, "{states}");
}

/// The entry of a failed attempt is applied as a whole or not at all, and never replaces an entry that was logged.
#[test]
fn every_crash_leaves_all_that_was_logged_though_attempts_fail() {
    let mut work = Workload::run(vec![0; LEN as usize], 2, 12, true);
    let failed = work.attempts.iter().filter(|attempt| !attempt.logged).count();
    assert!((3..10).contains(&failed), "{failed} of 12");
    let (exhaustive, least) = if effort() > 1 { (7, 8_000) } else { (5, 2_000) };
    let states = work.crash(exhaustive);
    println!("{states} states after a crash");
    assert!(states > least, "{states}");
}

/// Before the GUID may be written to the header, only the ring is written.
#[test]
fn a_log_that_did_not_start_has_changed_nothing_else() {
    let base = vec![3; LEN as usize];
    let file = CrashFile::new(base.clone());
    file.fail(Some(8));
    Log::start(&file, REGION, GUID, SIZES).expect_err("no sync");
    let (bytes, ring) = (file.bytes(), REGION.offset as usize);
    assert!(bytes[..ring] == base[..ring] && bytes[ring + SECTOR..] == base[ring + SECTOR..]);
}

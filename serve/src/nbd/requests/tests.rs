use paradisk_disk_formats::{Disk, QueueConfig, RamDisk, SectorSize};

use super::*;

const SECTOR: u64 = 512;
const WRITE: Op = Op::Write { fua: false };
const ZEROES: Op = Op::WriteZeroes { may_unmap: true };

fn connection<'a>(disk: &dyn Disk, gate: &'a WriteGate) -> Requests<'a> {
    let config = QueueConfig { depth: 128, ..QueueConfig::default() };
    Requests::new(disk.queue(&config).unwrap(), 128, SECTOR as u32, gate).unwrap()
}

fn ram(sectors: u64) -> RamDisk {
    RamDisk::new(sectors * SECTOR, SectorSize::B512).unwrap()
}

impl Requests<'_> {
    /// Start an operation. `data`: a write's payload; else only its length counts.
    fn begin(&mut self, cookie: u64, op: Op, offset: u64, data: &[u8]) {
        let parts = self.parts(op, offset, data.len() as u32).unwrap();
        let mut buffer = Some(parts.buffer_len()).filter(|len| *len > 0).map(|len| Buffer::new(len).unwrap());
        if let Some(buffer) = &mut buffer {
            buffer.bytes_mut().fill(0xEE);
            if matches!(op, Op::Write { .. }) {
                buffer.bytes_mut()[parts.place(data.len())].copy_from_slice(data);
            }
        }
        let (reads, len) = (op == Op::Read, data.len() as u32);
        self.start(Task { cookie, offset, len, reads, parts, flushes: false, buffer });
    }

    /// One step of all that can go on. The cookies of what has finished, and what reads have read.
    fn step(&mut self) -> Vec<(u64, Vec<u8>)> {
        self.submit();
        let mut finished = Vec::new();
        self.advance(&mut finished);
        self.submit();
        let of = |Finished { task, result }: Finished| {
            result.unwrap();
            let data = task
                .buffer
                .filter(|_| task.reads)
                .map(|buffer| buffer.bytes()[task.parts.place(task.len as usize)].to_vec());
            (task.cookie, data.unwrap_or_default())
        };
        finished.into_iter().map(of).collect()
    }

    fn finish_all(&mut self) {
        while self.is_busy() {
            self.step();
        }
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        self.begin(0, Op::Read, offset, &vec![0; len]);
        loop {
            if let Some((_, data)) = self.step().pop() {
                return data;
            }
        }
    }
}

/// Each connection writes a byte of the same sector. Both have started before either continues.
#[test]
fn neighbours_in_a_sector_both_survive() {
    for op in [WRITE, ZEROES] {
        let (disk, gate) = (ram(8), WriteGate::default());
        let [mut one, mut other] = [(), ()].map(|()| connection(&disk, &gate));
        one.begin(0, WRITE, 0, &[9; 1024]);
        one.finish_all();
        one.begin(1, op, 600, &[0]);
        other.begin(2, op, 601, &[0]);
        while one.is_busy() || other.is_busy() {
            one.step();
            other.step();
        }
        assert_eq!(other.read(598, 5), [9, 9, 0, 0, 9]);
        assert!(one.read(0, 600) == [9; 600] && one.read(602, 422) == [9; 422]);
    }
}

/// The same, with a write of the whole sector: the bytes of the one or the other, not those before both.
#[test]
fn a_whole_sector_is_not_undone_by_a_part() {
    for whole in [WRITE, ZEROES] {
        let (disk, gate) = (ram(8), WriteGate::default());
        let [mut one, mut other] = [(), ()].map(|()| connection(&disk, &gate));
        one.begin(0, WRITE, 0, &[9; 4096]);
        one.finish_all();
        one.begin(1, WRITE, 512, &[7]);
        other.begin(2, whole, 0, &[0; 4096]);
        while one.is_busy() || other.is_busy() {
            one.step();
            other.step();
        }
        assert!(one.read(0, 512) == [0; 512] && one.read(513, 3583) == [0; 3583]);
    }
}

/// Zeros are written between the edges without a permit for the edges.
#[test]
fn the_middle_of_zeros_does_not_hold_the_edges() {
    let (disk, gate) = (ram(64), WriteGate::default());
    let [mut one, mut other] = [(), ()].map(|()| connection(&disk, &gate));
    one.begin(1, ZEROES, 100, &[0; 63 * 512]);
    // Both edges: read, and written.
    for _ in 0..4 {
        assert_eq!(one.step(), []);
    }
    other.begin(2, WRITE, 0, &[5]);
    other.begin(3, WRITE, 64 * 512 - 1, &[5]);
    other.begin(4, WRITE, 5 * 512, &[5]);
    let mut finished: Vec<u64> = Vec::new();
    for _ in 0..4 {
        finished.extend(other.step().into_iter().map(|(cookie, _)| cookie));
    }
    finished.sort_unstable();
    assert_eq!(finished, [2, 3], "the third waits for the zeros");
    one.finish_all();
    other.finish_all();
    assert_eq!(one.read(5 * 512, 2), [5, 0]);
}

/// A connection with many writes of one sector does not delay that of another by all of them.
#[test]
fn connections_take_turns_at_a_sector() {
    let (disk, gate) = (ram(8), WriteGate::default());
    let [mut many, mut few] = [(), ()].map(|()| connection(&disk, &gate));
    for number in 0..100 {
        many.begin(number, WRITE, number, &[1]);
    }
    few.begin(0, WRITE, 0, &[2; 512]);
    let mut before = 0;
    while few.step().is_empty() {
        before += many.step().len();
    }
    assert!(before <= PARTS_IN_GATE as usize, "{before}");
    many.finish_all();
    assert_eq!(few.read(0, 101), [&[2; PARTS_IN_GATE as usize][..], &[1; 96], &[2]].concat());
}

/// Connections that write, zero, trim and read ranges of any length, many at a time, in any order of their steps. Ranges in flight have no
/// byte in common; sectors they have.
#[test]
fn every_byte_is_that_of_the_last_write() {
    const SIZE: u64 = 24 * SECTOR;
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (disk, gate) = (ram(SIZE / SECTOR), WriteGate::default());
        let mut connections: Vec<_> = (0..random.usize(1..=4)).map(|_| connection(&disk, &gate)).collect();
        let mut model = vec![0u8; SIZE as usize];
        // Range, and what a read expects.
        let mut in_flight: Vec<(u64, std::ops::Range<usize>, Option<Vec<u8>>)> = Vec::new();
        let (mut started, mut left) = (0, 400);
        while left > 0 || !in_flight.is_empty() {
            let which = random.usize(..connections.len());
            if left > 0 && random.u8(..3) > 0 {
                left -= 1;
                let longest = if random.bool() { 40 } else { 3000 };
                let offset = random.usize(..SIZE as usize);
                let len = random.usize(1..=longest.min(SIZE as usize - offset));
                let range = offset..offset + len;
                if in_flight.iter().any(|(_, other, _)| other.start < range.end && range.start < other.end) {
                    continue;
                }
                let op = [Op::Read, WRITE, WRITE, ZEROES, Op::Discard][random.usize(..5)];
                let mut data = vec![0; len];
                let mut expected = None;
                match op {
                    Op::Read => expected = Some(model[range.clone()].to_vec()),
                    Op::Write { .. } => {
                        random.fill(&mut data);
                        model[range.clone()].copy_from_slice(&data);
                    }
                    ZEROES => model[range.clone()].fill(0),
                    // A disk in memory zeroes what is trimmed.
                    _ => {
                        let inside = offset.next_multiple_of(512)..range.end - range.end % 512;
                        model.get_mut(inside).unwrap_or_default().fill(0);
                    }
                }
                started += 1;
                in_flight.push((started, range, expected));
                connections[which].begin(started, op, offset as u64, &data);
            }
            for (cookie, data) in connections[which].step() {
                let place = in_flight.iter().position(|(of, _, _)| *of == cookie).unwrap();
                let (_, range, expected) = in_flight.swap_remove(place);
                assert!(expected.is_none_or(|expected| expected == data), "seed {seed}, {range:?}");
            }
        }
        assert!(connections[0].read(0, SIZE as usize) == model, "seed {seed}");
    }
}

/// A connection that ends leaves the gate, with the writes that were with the disk and with those that were not.
#[test]
fn who_ends_leaves_the_gate() {
    let (disk, gate) = (ram(8), WriteGate::default());
    let [mut one, mut other] = [(), ()].map(|()| connection(&disk, &gate));
    for number in 0..10 {
        one.begin(number, WRITE, 1 + number, &[1]);
    }
    one.step();
    other.begin(0, WRITE, 0, &[2]);
    assert!(other.step().is_empty() && other.at_gate == 1);
    drop(one);
    while other.step().is_empty() {}
    assert_eq!(other.read(0, 1), [2]);
}

/// However many writes of parts wait for each other, a stop waits for few of them.
#[test]
fn a_stop_refuses_those_that_wait_for_their_connection() {
    let (disk, gate) = (ram(1), WriteGate::default());
    let mut requests = connection(&disk, &gate);
    (0..100).for_each(|cookie| requests.begin(cookie, WRITE, 1, &[1; 8]));
    requests.refuse_waiting();
    requests.begin(100, WRITE, 1, &[1; 8]);
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    while requests.is_busy() {
        requests.submit();
        let mut finished = Vec::new();
        requests.advance(&mut finished);
        for Finished { task, result } in finished {
            match result {
                Ok(()) => done.push(task.cookie),
                Err(error) => {
                    assert_eq!(error, SERVER_STOPS);
                    refused.push(task.cookie);
                }
            }
        }
    }
    assert_eq!(done, [0, 1, 2, 3]);
    assert_eq!(refused, (4..=100).collect::<Vec<_>>());
    assert_eq!(requests.capacity(), 128);
}

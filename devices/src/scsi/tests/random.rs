//! Random commands: nothing panics, every task ends once, and reads return the written data. Also the measurement of
//! the I/O path.

use std::collections::HashSet;

use paradisk_disk_formats::{Completion, DiskQueue, IoError, PushError, QueueStats, Request, SectorSize};
use proptest::prelude::*;

use super::*;

const CODES: [u8; 42] = [
    0x00, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x16, 0x17, 0x1a, 0x1b, 0x25, 0x28, 0x2a, 0x2f, 0x35, 0x41, 0x42,
    0x55, 0x56, 0x57, 0x5a, 0x5e, 0x5f, 0x88, 0x89, 0x8a, 0x8f, 0x91, 0x93, 0x9e, 0xa0, 0xa3, 0xa8, 0xaa,
    0xaf, 0x7f, 0xc1, 0x1d, 0x2e, 0x4d, 0x8e, 0xae,
];

#[derive(Clone, Debug)]
struct Step {
    cdb: Vec<u8>,
    lun: u16,
    attribute: Attribute,
    direction: Direction,
    len: usize,
    at: usize,
    allowed: usize,
    fail: bool,
    manage: u8,
}

/// Mostly small numbers, so that many commands are valid.
fn cdb_byte() -> impl Strategy<Value = u8> {
    prop_oneof![8 => Just(0u8), 3 => 0u8..16, 1 => any::<u8>()]
}

fn step() -> impl Strategy<Value = Step> {
    let cdb = (proptest::sample::select(&CODES[..]), proptest::collection::vec(cdb_byte(), 0..20));
    let attribute = prop_oneof![
        6 => Just(Attribute::Simple), 1 => Just(Attribute::Ordered), 1 => Just(Attribute::HeadOfQueue)
    ];
    let direction = prop_oneof![
        1 => Just(Direction::None), 1 => Just(Direction::In), 1 => Just(Direction::Out), 4 => Just(Direction::Either)
    ];
    let len = prop_oneof![0usize..600, (0usize..9).prop_map(|sectors| sectors * 512), 0usize..20_000];
    let lun = prop_oneof![9 => Just(0u16), 1 => 1u16..4];
    let rest = (0usize..4096, 0usize..4, proptest::bool::weighted(0.1), any::<u8>());
    (cdb, lun, attribute, direction, len, rest).prop_map(
        |((code, rest), lun, attribute, direction, len, (at, allowed, fail, manage))| Step {
            cdb: std::iter::once(code).chain(rest).collect(),
            lun,
            attribute,
            direction,
            len,
            at,
            allowed,
            fail,
            manage,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn random_commands_end_once(steps in proptest::collection::vec(step(), 1..120), large in any::<bool>()) {
        let mut rig = Rig::with(|info| if large { info.logical_sector = SectorSize::B4096 });
        let garbage: Vec<u8> = (0..65_536u32).map(|at| if at % 5 == 0 { (at / 5) as u8 } else { 0 }).collect();
        rig.memory.buf(0, 65_536).write(&garbage);
        rig.control(|control| control.allowed = 0);
        let mut in_flight = HashSet::new();
        for (number, step) in steps.iter().enumerate() {
            let id = number as u32 % 64;
            if !in_flight.contains(&id) {
                let bufs = [rig.memory.buf(step.at, step.len / 2), rig.memory.buf(step.at, step.len - step.len / 2)];
                let address = Address { lun: step.lun, ..HERE };
                let Step { ref cdb, attribute, direction, .. } = *step;
                let task = Task { id, address, cdb, attribute, direction, bufs: &bufs, len: step.len as u64 };
                match rig.bus.submit(&task) {
                    None => prop_assert!(in_flight.insert(id)),
                    Some(TaskEnd::Answered { transferred, wanted, .. }) => {
                        prop_assert!(transferred <= wanted && transferred <= step.len as u64);
                    }
                    Some(end) => prop_assert_eq!(end, TaskEnd::WrongDirection),
                }
            }
            match step.manage {
                0..3 => rig.bus.reset_unit(HERE),
                3..20 => { rig.bus.abort(u32::from(step.manage)); }
                20..180 => rig.bus.submit_pushed(),
                _ => {}
            }
            rig.control(|control| {
                control.allowed = step.allowed;
                control.errors.extend(step.fail.then_some(Some(IoError::NoSpace)));
            });
            for (id, end) in rig.reap() {
                prop_assert!(in_flight.remove(&id), "{} ended as {:?}", id, end);
            }
            prop_assert_eq!(rig.bus.in_flight(), in_flight.len());
        }
        rig.bus.drain();
        for (id, end) in rig.reap() {
            prop_assert!(in_flight.remove(&id), "{} ended as {:?}", id, end);
        }
        prop_assert!(in_flight.is_empty());
        prop_assert!(rig.reap().is_empty());
    }

    #[test]
    fn reads_return_what_was_written(
        ops in proptest::collection::vec((0u8..6, 0u32..64, 1u16..40, any::<u8>()), 1..60)
    ) {
        let mut rig = Rig::small();
        let mut model = vec![0u8; 64 * 512];
        for (what, lba, count, seed) in ops {
            let count = count.min(64 - lba as u16);
            let range = lba as usize * 512..(lba as usize + usize::from(count)) * 512;
            let len = range.len();
            let data: Vec<u8> = (0..len).map(|at| (at / 3) as u8 ^ seed).collect();
            match what {
                0 | 1 => {
                    rig.good(&ten(0x2a, what << 3, lba, count), Direction::Out, &data, 0);
                    model[range].copy_from_slice(&data);
                }
                2 => {
                    rig.good(&ten(0x41, 0, lba, count), Direction::Out, &data[..512], 0);
                    model[range].chunks_mut(512).for_each(|sector| sector.copy_from_slice(&data[..512]));
                }
                3 => {
                    rig.good(&sixteen(0x93, 9, lba.into(), count.into()), Direction::None, &[], 0);
                    model[range].fill(0);
                }
                4 => {
                    let both = [&model[range.clone()], &data].concat();
                    rig.good(&sixteen(0x89, 0, lba.into(), count.into()), Direction::Out, &both, 0);
                    model[range].copy_from_slice(&data);
                }
                _ => {
                    let capacity = len - usize::from(seed);
                    let (end, read) = rig.run(&ten(0x28, 0, lba, count), Direction::In, &[], capacity);
                    prop_assert_eq!(end, good(capacity as u64, len as u64));
                    prop_assert_eq!(&read[..], &model[range][..capacity]);
                }
            }
        }
        prop_assert_eq!(rig.control(|control| control.data.clone()), model);
    }
}

/// A queue that completes everything without transferring data.
struct NullQueue {
    tags: Vec<u64>,
    event: std::fs::File,
}

impl DiskQueue for NullQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        self.tags.push(request.tag);
        Ok(())
    }
    fn submit(&mut self) {}
    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.extend(self.tags.drain(..).map(|tag| Completion { tag, result: Ok(()) }));
    }
    fn in_flight(&self) -> usize {
        self.tags.len()
    }
    fn event(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.event)
    }
    fn wait(&mut self) {}
    fn engine(&self) -> &'static str {
        "null"
    }
    fn stats(&self) -> QueueStats {
        QueueStats::default()
    }
}

fn null_queue() -> Box<dyn DiskQueue> {
    Box::new(NullQueue { tags: Vec::with_capacity(64), event: std::fs::File::open("/dev/null").unwrap() })
}

/// Time of one round of `work`, the best of many, in nanoseconds for each of its 32 tasks.
fn per_task(mut work: impl FnMut()) -> f64 {
    const ROUNDS: u32 = 2000;
    let mut best = f64::MAX;
    for _ in 0..50 {
        let start = std::time::Instant::now();
        (0..ROUNDS).for_each(|_| work());
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(ROUNDS * 32));
    }
    best
}

fn small_read<'a>(id: u32, cdb: &'a [u8], bufs: &'a [IoBuf]) -> Task<'a> {
    let (attribute, direction) = (Attribute::Simple, Direction::In);
    Task { id, address: HERE, cdb, attribute, direction, bufs, len: 4096 }
}

/// `cargo test --release -p paradisk-devices --lib -- --ignored --nocapture cost_of_a_task`
#[test]
#[ignore = "a measurement"]
fn cost_of_a_task() {
    let disk = Arc::new(MemoryDisk::new(disk::info(1 << 20)));
    let mut bus = Bus::new(64);
    bus.attach(HERE, LogicalUnit::new(disk, null_queue(), identity())).unwrap();
    let memory = Scratch::new(4096);
    let bufs = [memory.buf(0, 4096)];
    assert!(bus.submit(&small_read(0, &[0; 6], &bufs)).is_some());
    let mut ended = Vec::with_capacity(64);
    let whole = per_task(|| {
        for id in 0..32 {
            let cdb = ten(0x28, 0, id * 8, 8);
            assert!(bus.submit(&small_read(id, &cdb, &bufs)).is_none());
        }
        bus.submit_pushed();
        bus.reap(&mut ended);
        assert_eq!(std::hint::black_box(&ended).len(), 32);
        ended.clear();
    });
    let (mut queue, mut completions) = (null_queue(), Vec::with_capacity(64));
    let alone = per_task(|| {
        for id in 0..32u64 {
            let request = Request {
                tag: id,
                op: paradisk_disk_formats::Op::Read,
                offset: id * 4096,
                len: 4096,
                bufs: &bufs,
            };
            assert!(std::hint::black_box(&mut queue).push(&request).is_ok());
        }
        queue.submit();
        queue.reap(&mut completions);
        assert_eq!(std::hint::black_box(&completions).len(), 32);
        completions.clear();
    });
    println!(
        "target and null queue {whole:.1} ns a task, null queue alone {alone:.1} ns: target {:.1} ns",
        whole - alone
    );
}

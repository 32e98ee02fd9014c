use proptest::prelude::*;

use super::*;
use crate::contract::error::OpenError;
use crate::formats::copy::scattered::{Scattered, sample, vhd};
use crate::formats::flat::raw::Raw;
use crate::formats::vhd::create_fixed;
use crate::host::backing::Access;

const SECTORS: u64 = 96;

#[derive(Clone, Debug)]
enum Step {
    /// In sectors.
    Write { first: u64, count: u64, fill: u8 },
    /// In bytes.
    Read { offset: u64, len: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = SECTORS * 512;
    prop_oneof![
        (0..SECTORS, 0..20u64, any::<u8>()).prop_map(|(first, count, fill)| Step::Write {
            first,
            count: count.min(SECTORS - first),
            fill
        }),
        (0..bytes, 0..9000u64)
            .prop_map(move |(offset, len)| Step::Read { offset, len: len.min(bytes - offset) }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever mappings a format returns, the content is the same as that of plain memory.
    #[test]
    fn content_is_that_of_memory(steps in prop::collection::vec(step(), 1..60)) {
        let folder = tempfile::tempdir().unwrap();
        let format = Scattered::create(folder.path(), SECTORS);
        let disk = Content::new(&format);
        let mut model = vec![0; (SECTORS * 512) as usize];
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write { first, count, fill } => {
                    let at = (first * 512) as usize;
                    let data: Vec<u8> = (0..count * 512).map(|byte| fill ^ byte as u8 ^ number as u8).collect();
                    disk.write_at(&data, at as u64).unwrap();
                    model[at..at + data.len()].copy_from_slice(&data);
                }
                Step::Read { offset, len } => {
                    let mut seen = vec![0xAA; len as usize];
                    disk.read_at(&mut seen, offset).unwrap();
                    prop_assert!(seen == model[offset as usize..(offset + len) as usize], "{len} bytes at {offset}");
                }
            }
        }
    }
}

#[test]
fn ranges_outside_the_disk_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let format = Scattered::create(folder.path(), SECTORS);
    let disk = Content::new(&format);
    let end = SECTORS * 512;
    let cause = |done: Result<(), ImageError>| match done {
        Err(ImageError::Io { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    assert_eq!(cause(disk.read_at(&mut [0; 2], end - 1)), IoError::OutOfRange);
    assert_eq!(cause(disk.read_at(&mut [0; 1], u64::MAX)), IoError::OutOfRange);
    assert_eq!(cause(disk.read_at(&mut [0; 1], u64::MAX - 700)), IoError::OutOfRange);
    assert_eq!(cause(disk.write_at(&[0; 512], end)), IoError::OutOfRange);
    assert_eq!(cause(disk.write_at(&[0; 512], 256)), IoError::Misaligned);
    assert_eq!(cause(disk.write_at(&[0; 100], 512)), IoError::Misaligned);
    disk.read_at(&mut [0; 1], end - 1).unwrap();
}

#[test]
fn a_file_that_became_shorter_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.vhd");
    create_fixed(&path, 1 << 20).unwrap();
    let format = vhd(&path, Access::READ_ONLY);
    let disk = Content::new(&*format);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    disk.read_at(&mut [0; 1000], 0).unwrap();
    let error = disk.read_at(&mut [0; 1001], 0).unwrap_err().to_string();
    assert!(error.contains("a.vhd: cannot read byte 0: damaged image: a file ends"), "{error}");
    let error = disk.write_at(&[0; 512], 0).unwrap_err().to_string();
    assert!(error.contains("a.vhd: cannot allocate byte 0: disk is read-only"), "{error}");
}

#[test]
fn direct_input_and_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    let data = sample(1 << 20, 5);
    std::fs::write(&path, &data).unwrap();
    let format = match Raw::open(&path, Access { read_only: false, direct: true }) {
        Ok(format) => format,
        Err(OpenError::Unsupported { reason, .. }) => {
            return println!("SKIP: direct_input_and_output: {reason}");
        }
        Err(error) => panic!("{error}"),
    };
    let disk = Content::new(&format);
    let mut seen = vec![0; 300_003];
    for at in [0, 1, 511, 4096, 700_000] {
        disk.read_at(&mut seen, at).unwrap();
        assert!(seen == data[at as usize..at as usize + seen.len()], "{at}");
    }
    // From memory that is unaligned, and from aligned memory.
    let mut buffer = crate::formats::copy::content::Buffer::new(8192);
    let aligned = buffer.first(8192);
    aligned.fill(7);
    disk.write_at(aligned, 4096).unwrap();
    disk.write_at(&vec![8; 4097][1..], 16384).unwrap();
    let mut expected = data;
    expected[4096..12288].fill(7);
    expected[16384..20480].fill(8);
    assert!(std::fs::read(&path).unwrap() == expected);
}

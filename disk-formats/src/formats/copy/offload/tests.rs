use std::process::Command;

use super::*;
use crate::contract::disk::Status;
use crate::formats::copy::scattered::sample;
use crate::formats::flat::raw::Raw;
use crate::host::backing::Access;
use crate::map::format::Format;

const READ: Access = Access::READ_ONLY;
const WRITE: Access = Access { read_only: false, direct: false };

fn whole(len: u64) -> Run {
    Run { offset: 0, len, status: Status::Mapped, place: Place::File { file: 0, offset: 0 } }
}

/// copy_file_range on a file server, here executed by the kernel.
#[test]
fn copy_file_range_moves_the_range_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let data = sample(3 << 20, 11);
    std::fs::write(&a, &data).unwrap();
    std::fs::write(&b, vec![9; 3 << 20]).unwrap();
    let source = BackingFile::open(&a, READ).unwrap();
    let destination = BackingFile::open(&b, WRITE).unwrap();
    match Method::Server.copy(&source, 8192, &destination, 4096, 2 << 20) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            return println!(
                "SKIP: copy_file_range_moves_the_range_and_nothing_else: no copy_file_range here"
            );
        }
        done => done.unwrap(),
    }
    let seen = std::fs::read(&b).unwrap();
    assert!(seen[4096..4096 + (2 << 20)] == data[8192..8192 + (2 << 20)]);
    assert!(seen[..4096].iter().chain(&seen[4096 + (2 << 20)..]).all(|byte| *byte == 9));
    // The source ends inside the range.
    assert_eq!(Method::Server.copy(&source, 2 << 20, &destination, 0, 2 << 20), Err(Errno::OPNOTSUPP));
}

/// The first failure is remembered for each file, and the run is left to reads and writes.
#[test]
fn a_way_that_fails_is_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let a = folder.path().join("a");
    std::fs::write(&a, vec![1; 1 << 20]).unwrap();
    // On another file system: neither clones nor copies.
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else {
        return println!("SKIP: a_way_that_fails_is_not_tried_again: no /dev/shm");
    };
    let b = other.path().join("b");
    Raw::create(&b, 1 << 20).unwrap();
    let (source, destination) = (Raw::open(&a, READ).unwrap(), Raw::open(&b, WRITE).unwrap());
    let offload = Offload::new(Content::new(&source), Content::new(&destination));
    for _ in 0..2 {
        assert_eq!(offload.copy(&whole(1 << 20), &mut Extents::new()).unwrap(), None);
        assert_eq!(Method::of(offload.methods[0].load(Ordering::Relaxed)), Method::None);
    }
}

/// On an XFS that the test creates, if it may mount: ranges are cloned, unaligned parts are not.
#[test]
fn storage_is_shared_where_the_file_system_can() {
    let folder = tempfile::tempdir().unwrap();
    let (medium, mounted) = (folder.path().join("medium"), folder.path().join("mounted"));
    std::fs::File::create(&medium).unwrap().set_len(400 << 20).unwrap();
    std::fs::create_dir(&mounted).unwrap();
    let ran = |program: &str, arguments: &[&std::ffi::OsStr]| {
        Command::new(program).args(arguments).output().is_ok_and(|done| done.status.success())
    };
    let made = ran("mkfs.xfs", &["-q".as_ref(), medium.as_ref()])
        && ran("mount", &["-o".as_ref(), "loop".as_ref(), medium.as_ref(), mounted.as_ref()]);
    if !made {
        return println!(
            "SKIP: storage_is_shared_where_the_file_system_can: no XFS can be mounted here from /dev/loop-control"
        );
    }
    let outcome = std::panic::catch_unwind(|| shares(&mounted));
    assert!(ran("umount", &[mounted.as_ref()]));
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

fn shares(folder: &std::path::Path) {
    let [a, b] = ["a", "b"].map(|name| folder.join(name));
    let data = sample((4 << 20) + 512, 12);
    std::fs::write(&a, &data).unwrap();
    Raw::create(&b, data.len() as u64).unwrap();
    let (source, destination) = (Raw::open(&a, READ).unwrap(), Raw::open(&b, WRITE).unwrap());
    let offload = Offload::new(Content::new(&source), Content::new(&destination));
    let copy = |run: Run| offload.copy(&run, &mut Extents::new()).unwrap();
    assert_eq!(copy(whole(data.len() as u64)), Some((0..4 << 20, Method::Clone)));
    assert!(std::fs::read(&b).unwrap()[..4 << 20] == data[..4 << 20]);
    let shifted = Run { place: Place::File { file: 0, offset: 512 }, ..whole(4 << 20) };
    assert_eq!(copy(shifted), None, "no clone by 512 bytes");
    let inside = Run {
        offset: 512,
        len: (1 << 20) - 512,
        place: Place::File { file: 0, offset: 8192 + 512 },
        status: Status::Mapped,
    };
    assert_eq!(copy(inside), Some((4096..1 << 20, Method::Clone)));
    assert_eq!(copy(whole(SHORTEST - 512)), None, "too short to be worth it");
    let seen = std::fs::read(&b).unwrap();
    assert!(seen[..4096] == data[..4096] && seen[4096..1 << 20] == data[12288..8192 + (1 << 20)]);
    assert_eq!(destination.info().capacity, data.len() as u64);
}

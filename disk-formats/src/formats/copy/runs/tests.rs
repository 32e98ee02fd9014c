use std::os::unix::fs::FileExt;

use super::*;
use crate::formats::copy::scattered::Scattered;
use crate::formats::flat::raw::Raw;
use crate::host::backing::Access;
use crate::map::format::Format;

const READ: Access = Access::READ_ONLY;

fn runs(format: &dyn Format) -> Vec<Run> {
    Runs::new(Content::new(format)).map(Result::unwrap).collect()
}

/// Runs cover the disk in order, and no two neighbors could be merged.
#[track_caller]
fn covers(runs: &[Run], capacity: u64) {
    let mut at = 0;
    for run in runs {
        assert_eq!(run.offset, at);
        assert!(run.len > 0 && run.len.is_multiple_of(512));
        at += run.len;
    }
    assert_eq!(at, capacity);
    for pair in runs.windows(2) {
        assert!(pair[0].status != pair[1].status || pair[0].place.advanced(pair[0].len) != pair[1].place);
    }
}

#[test]
fn holes_and_data_of_a_sparse_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    let file = std::fs::File::create(&path).unwrap();
    // More than one window, with data across a window's end.
    file.set_len(2 * WINDOW + 1536).unwrap();
    file.write_all_at(&[1; 8192], WINDOW - 4096).unwrap();
    let format = Raw::open(&path, READ).unwrap();
    let place = |offset| Place::File { file: 0, offset };
    let run = |offset, len, status| Run { offset, len, status, place: place(offset) };
    assert_eq!(
        runs(&format),
        [
            run(0, WINDOW - 4096, Status::Zeros),
            run(WINDOW - 4096, 8192, Status::Mapped),
            run(WINDOW + 4096, WINDOW - 4096 + 1536, Status::Zeros),
        ]
    );
    let disk = Content::new(&format);
    let part: Vec<_> = Runs::between(disk, 512, WINDOW).map(Result::unwrap).collect();
    assert_eq!(part, [run(512, WINDOW - 4608, Status::Zeros), run(WINDOW - 4096, 4096, Status::Mapped)]);
    // What the file system said of one range serves the next.
    let mut all = Runs::between(disk, 0, 0);
    for at in (0..=2 * WINDOW + 1024).rev().step_by(4096 + 512).map(|at| at - at % 512) {
        all.restart(at, at + WINDOW);
        let fresh: Vec<_> = Runs::between(disk, at, at + WINDOW).map(Result::unwrap).collect();
        assert_eq!(all.by_ref().map(Result::unwrap).collect::<Vec<_>>(), fresh, "{at}");
    }
    let go_on = AtomicBool::new(false);
    assert_eq!(zeros_until(disk, 512, &go_on).unwrap(), WINDOW - 4096);
    assert_eq!(zeros_until(disk, WINDOW, &go_on).unwrap(), WINDOW);
    assert_eq!(zeros_until(disk, WINDOW + 4096, &go_on).unwrap(), u64::MAX);
    assert_eq!(zeros_until(disk, u64::MAX - 511, &go_on).unwrap(), u64::MAX);
    // The search may take long, so that it is cancelled within.
    let cancelled = zeros_until(disk, WINDOW + 4096, &AtomicBool::new(true));
    assert!(matches!(cancelled, Err(ImageError::Cancelled)), "{cancelled:?}");
}

/// Beyond the end of a file, a format with `zeros_past_end` reads zeros. For other formats a read reports the error.
#[test]
fn a_file_that_became_shorter() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    std::fs::write(&path, vec![1; 65536]).unwrap();
    let format = Raw::open(&path, READ).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
    let runs = runs(&format);
    covers(&runs, 65536);
    assert!(runs.iter().all(|run| run.status == Status::Mapped), "{runs:?}");
}

#[test]
fn scattered_places() {
    let folder = tempfile::tempdir().unwrap();
    let format = Scattered::create(folder.path(), 70);
    let disk = Content::new(&format);
    disk.write_at(&[1; 5 * 512], 512).unwrap();
    let runs = runs(&format);
    covers(&runs, 70 * 512);
    assert_eq!(runs[0], Run { offset: 0, len: 512, status: Status::Zeros, place: Place::Zeros });
    let stored: u64 = runs.iter().filter(|run| run.status == Status::Mapped).map(|run| run.len).sum();
    assert_eq!(stored, 5 * 512);
    // Sector 10 is beyond the end of the second file.
    let tenth = runs.iter().find(|run| run.offset == 10 * 512).unwrap();
    assert_eq!((tenth.status, tenth.place), (Status::Zeros, Place::File { file: 1, offset: 80 * 512 }));
}

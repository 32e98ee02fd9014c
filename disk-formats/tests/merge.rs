//! Merging a differencing disk into its parent, on file systems that can clone and on others.

mod common;

use std::path::Path;

use common::{bytes, check, content, image, image_of, mount_xfs, write};
use paradisk_disk_formats::Access;
use paradisk_disk_formats::ParentRules;
use paradisk_disk_formats::Siblings;
use paradisk_disk_formats::image::Overlaid;
use paradisk_disk_formats::vhd::{create_differencing, create_dynamic, create_fixed, open};

const MIB: usize = 1 << 20;
const SIZE: usize = 24 * MIB;

/// Create a parent by `create`, and a child with whole blocks, single sectors, zeros and a hole. Merge, and return the result.
fn merged(folder: &Path, create: impl Fn(&Path)) -> Overlaid {
    let [base, child] = ["base.vhd", "child.vhd"].map(|name| folder.join(name));
    create(&base);
    let mut model = vec![0; SIZE];
    write(&base, &[(0, bytes(6 * MIB, 1)), (12 * MIB, bytes(4 * MIB, 2))], &mut model);
    create_differencing(&child, &base, None).unwrap();
    let parts = [
        // Over data; over unallocated blocks; unaligned to the file system's blocks.
        (2 * MIB, bytes(4 * MIB, 3)),
        (8 * MIB, bytes(2 * MIB, 4)),
        (12 * MIB + 512, bytes(MIB, 5)),
        (20 * MIB, bytes(512, 6)),
        (MIB, vec![0; 4096]),
    ];
    write(&child, &parts, &mut model);
    let disk = open(&child, Access::default(), &ParentRules::default()).unwrap();
    disk.write_zeroes(4 * MIB as u64, 65536, true).unwrap();
    model[4 * MIB..4 * MIB + 65536].fill(0);
    drop(disk);
    assert!(content(&child) == model, "the chain");
    let mut last = (0, 0);
    let done = image_of(&child, &ParentRules::default()).merge(Siblings::Refuse, |at, end| {
        assert!(at >= last.0, "back from {last:?} to {at}");
        last = (at, end);
        true
    });
    assert_eq!(last, (SIZE as u64, SIZE as u64));
    assert!(!child.exists());
    assert!(content(&base) == model, "the merged disk");
    assert!(check(&base, false).unwrap().findings.is_empty());
    done.unwrap().copied
}

fn kinds(folder: &Path) -> [Overlaid; 3] {
    let size = SIZE as u64;
    let of = |name: &str, create: &dyn Fn(&Path)| {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        merged(&folder, create)
    };
    [
        of("fixed", &|path| create_fixed(path, size).unwrap()),
        of("dynamic", &|path| create_dynamic(path, size, None).unwrap()),
        of("differencing", &|path| {
            let root = path.with_file_name("root.vhd");
            create_dynamic(&root, size, None).unwrap();
            create_differencing(path, &root, Some(512 << 10)).unwrap();
        }),
    ]
}

#[test]
fn the_parent_holds_what_the_child_held() {
    let (_folder, path) = image("any");
    for done in kinds(path.parent().unwrap()) {
        let all = done.shared + done.written + done.zeros;
        assert_eq!(all, 7 * MIB as u64 + 512 + 4096, "each sector of the child once: {done:?}");
    }
}

#[test]
fn whole_blocks_are_shared_where_the_file_system_can() {
    let Some((mounted, _device)) = mount_xfs() else {
        return println!(
            "SKIP: whole_blocks_are_shared_where_the_file_system_can: no XFS can be mounted here from /dev/loop-control"
        );
    };
    for done in kinds(mounted.path()) {
        // All but the single sectors and the unaligned ends of a run.
        assert!(done.shared >= 7 * MIB as u64 - (64 << 10) - 8192, "{done:?}");
        assert!(done.written < 16 << 10, "{done:?}");
    }
}

/// After a merge was stopped, the child reads the same data, and another merge succeeds.
#[test]
fn a_merge_that_is_stopped_can_go_on() {
    let (_folder, base) = image("base.vhd");
    let child = base.with_file_name("child.vhd");
    create_dynamic(&base, SIZE as u64, None).unwrap();
    create_differencing(&child, &base, None).unwrap();
    let mut model = vec![0; SIZE];
    write(&child, &[(0, bytes(4 * MIB, 1)), (10 * MIB, bytes(4 * MIB, 2))], &mut model);
    let mut left = 1;
    let stopped = image_of(&child, &ParentRules::default()).merge(Siblings::Refuse, |_, _| {
        left -= 1;
        left >= 0
    });
    assert_eq!(stopped.unwrap_err().to_string(), "cancelled");
    assert!(content(&child) == model);
    image_of(&child, &ParentRules::default()).merge(Siblings::Refuse, |_, _| true).unwrap();
    assert!(content(&base) == model);
}

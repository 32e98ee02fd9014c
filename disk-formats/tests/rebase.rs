//! Rebase of a differencing disk with copying: it reads the same data afterwards.

mod common;

use std::path::{Path, PathBuf};

use common::{bytes, check, content, image, image_of, mount_xfs, write};
use paradisk_disk_formats::ParentRules;
use paradisk_disk_formats::vhd::{create_differencing, create_dynamic, create_fixed};
use paradisk_disk_formats::{RebaseData, Scope};
use tempfile::TempDir;

const MIB: usize = 1 << 20;
const SIZE: usize = 16 * MIB;

/// A base with data, a disk over it with more, and a child over that.
struct Chain {
    _folder: Option<TempDir>,
    base: PathBuf,
    middle: PathBuf,
    child: PathBuf,
    model: Vec<u8>,
}

impl Chain {
    fn new() -> Self {
        let (folder, base) = image("base.vhd");
        Self { _folder: Some(folder), ..Self::at(base) }
    }

    fn at(base: PathBuf) -> Self {
        let [middle, child] = ["middle.vhd", "child.vhd"].map(|name| base.with_file_name(name));
        let mut model = vec![0; SIZE];
        create_dynamic(&base, SIZE as u64, None).unwrap();
        write(&base, &[(0, bytes(6 * MIB, 1))], &mut model);
        create_differencing(&middle, &base, Some(512 << 10)).unwrap();
        write(&middle, &[(MIB, bytes(MIB, 2)), (3 * MIB + 512, vec![0; 4096])], &mut model);
        create_differencing(&child, &middle, None).unwrap();
        write(&child, &[(MIB + 4096, bytes(8192, 3)), (8 * MIB, bytes(512, 4))], &mut model);
        Self { _folder: None, base, middle, child, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.with_file_name(name)
    }

    fn keeping(&self, parent: &Path) -> u64 {
        let mut last = 0;
        let copied =
            image_of(&self.child, &ParentRules::default()).rebase(parent, RebaseData::Copy, |done, all| {
                assert!(last <= done && done <= all);
                last = done;
                true
            });
        assert_eq!(last, SIZE as u64);
        assert!(check(&self.child, false).unwrap().findings.is_empty());
        copied.unwrap()
    }

    fn parent(&self) -> PathBuf {
        image_of(&self.child, &ParentRules::default()).info(Scope::Chain).unwrap()[1].path.clone()
    }
}

#[test]
fn over_the_grandparent_it_holds_what_was_between() {
    over_the_grandparent(&Chain::new());
}

/// The same on a file system that clones.
#[test]
fn over_the_grandparent_on_a_file_system_that_clones() {
    let Some((mounted, _device)) = mount_xfs() else {
        return println!(
            "SKIP: over_the_grandparent_on_a_file_system_that_clones: no XFS can be mounted here from /dev/loop-control"
        );
    };
    over_the_grandparent(&Chain::at(mounted.path().join("base.vhd")));
}

fn over_the_grandparent(chain: &Chain) {
    // The data of the middle image that the child did not have itself.
    assert_eq!(chain.keeping(&chain.base), (MIB - 8192 + 4096) as u64);
    assert!(chain.parent().ends_with("base.vhd"));
    std::fs::remove_file(&chain.middle).unwrap();
    assert!(content(&chain.child) == chain.model);
    // The same parent again, then a new empty image over it: nothing is copied.
    assert_eq!(chain.keeping(&chain.base), 0);
    let side = chain.path("side.vhd");
    create_differencing(&side, &chain.base, None).unwrap();
    assert_eq!(chain.keeping(&side), 0);
    assert!(content(&chain.child) == chain.model);
}

/// The new parent has data where the old one had none and the reverse, another size, and another kind.
#[test]
fn over_anything_it_reads_the_same() {
    for (size, create) in [
        (SIZE as u64 - 512 * 5, create_fixed as fn(&Path, u64) -> _),
        (4 << 20, |path: &Path, size| create_dynamic(path, size, Some(4096))),
        (2 * SIZE as u64, |path: &Path, size| create_dynamic(path, size, None)),
    ] {
        let chain = Chain::new();
        let other = chain.path("other.vhd");
        create(&other, size).unwrap();
        let mut there = vec![0; size as usize];
        let end = (size as usize).min(14 * MIB) - 512;
        write(&other, &[(2 * MIB, bytes(MIB, 1)), (end - MIB, bytes(MIB, 9))], &mut there);
        let copied = chain.keeping(&other);
        let expected = (0..SIZE).step_by(512).filter(|at| {
            let own = (MIB + 4096..MIB + 4096 + 8192).contains(at) || *at == 8 * MIB;
            let sector = |data: &[u8]| data.get(*at..at + 512).map_or(vec![0; 512], <[u8]>::to_vec);
            !own && sector(&there) != sector(&chain.model)
        });
        assert_eq!(copied, 512 * expected.count() as u64, "the sectors that differ, and no others");
        assert!(content(&chain.child) == chain.model, "over {size} bytes");
        assert!(content(&other) == there, "the parent is only read");
    }
}

/// A rebase without copying changes what the child reads, if the parents differ.
#[test]
fn a_plain_rebase_compares_nothing() {
    let chain = Chain::new();
    image_of(&chain.child, &ParentRules::default())
        .rebase(&chain.base, RebaseData::Assume, |_, _| true)
        .unwrap();
    assert!(content(&chain.child) != chain.model);
}

#[test]
fn what_cannot_be_done_leaves_the_disk_over_its_parent() {
    let chain = Chain::new();
    let rules = ParentRules::default();
    let refused = |child: &Path, parent: &Path| {
        image_of(child, &rules).rebase(parent, RebaseData::Copy, |_, _| true).unwrap_err().to_string()
    };
    assert!(refused(&chain.middle, &chain.child).contains("an image that is not in the chain already"));
    let alone = chain.path("alone.vhd");
    create_dynamic(&alone, SIZE as u64, None).unwrap();
    assert!(refused(&alone, &chain.middle).contains("a dynamic disk has no parent"));
    let mut left = 3;
    let stopped = image_of(&chain.child, &rules).rebase(&chain.base, RebaseData::Copy, |_, _| {
        left -= 1;
        left > 0
    });
    assert_eq!(stopped.unwrap_err().to_string(), "cancelled");
    assert!(chain.parent().ends_with("middle.vhd"));
    assert!(content(&chain.child) == chain.model);
    // Without the old parent the content of the disk is unknown.
    std::fs::rename(&chain.middle, chain.path("elsewhere.vhd")).unwrap();
    assert!(refused(&chain.child, &chain.base).contains("missing"));
    std::fs::rename(chain.path("elsewhere.vhd"), &chain.middle).unwrap();
    assert!(content(&chain.child) == chain.model);
}

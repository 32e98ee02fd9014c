//! The identity of a disk, stable from one open to the next.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::host::backing::BackingFile;

/// The image's identity; `None` for all zeros, which some programs write.
pub(crate) fn of_image(id: [u8; 16]) -> Option<[u8; 16]> {
    (id != [0; 16]).then_some(id)
}

/// See [`Identity::file`]; `None` if the host does not report it.
pub(crate) fn of_file(file: &BackingFile) -> Option<[u8; 16]> {
    let metadata = file.file().metadata().ok()?;
    if metadata.file_type().is_block_device() {
        // Inode and device number of a block device may change at the host's next boot. A path below /dev/disk/by-id is
        // stable, so it is not resolved.
        let path = std::path::absolute(file.path()).ok()?;
        return Some(digest(&[path.as_os_str().as_bytes()]));
    }
    let path = file.path().canonicalize().ok()?;
    // The path stands for the file system, too. Its number (statvfs) would not do: on XFS and F2FS it is a device
    // number, which may change at the host's next boot.
    Some(digest(&[&metadata.ino().to_le_bytes(), path.as_os_str().as_bytes()]))
}

/// 128 bits: FNV-1a over all parts with two offset bases, each finalized as in SplitMix64.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let half = |start: u64| {
        let bytes = parts.iter().flat_map(|part| part.iter());
        let hash = bytes.fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ hash >> 31
    };
    let halves = u128::from(half(0xcbf2_9ce4_8422_2325)) << 64 | u128::from(half(0x6c62_272e_07bb_0142));
    halves.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::contract::disk::Disk;
    use crate::formats::flat::raw::Raw;
    use crate::formats::open::OpenOptions;

    fn open(path: &Path) -> Arc<dyn Disk> {
        OpenOptions { read_only: true, ..OpenOptions::new(path) }.open().unwrap()
    }

    #[test]
    fn files_are_distinguished_and_recognized() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b, link] = ["a", "b", "link"].map(|name| folder.path().join(name));
        Raw::create(&a, 1 << 20).unwrap();
        std::fs::copy(&a, &b).unwrap();
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let [of_a, of_b, of_link] = [&a, &b, &link].map(|path| open(path).identity());
        assert_eq!((of_a.image, of_a), (None, open(&a).identity()));
        assert!(of_a.file.is_some() && of_a != of_b);
        assert_eq!(of_a, of_link);
        // The same name for another file.
        std::fs::rename(&b, &a).unwrap();
        assert_ne!(open(&a).identity(), of_a);
        // Nothing else is part of the digest, such as the file system's number, which may change at the host's next
        // boot.
        let path = a.canonicalize().unwrap();
        let parts = [&a.metadata().unwrap().ino().to_le_bytes()[..], path.as_os_str().as_bytes()];
        assert_eq!(open(&a).identity().file, Some(digest(&parts)));
    }

    #[cfg(all(feature = "vhd", feature = "vhdx"))]
    #[test]
    fn images_say_who_they_are() {
        use crate::disk::image::Image;
        use crate::formats::info::Scope;
        use crate::formats::{vhd, vhdx};
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        vhd::create_fixed(&path("fixed.vhd"), 1 << 20).unwrap();
        vhd::create_dynamic(&path("dynamic.vhd"), 1 << 20, None).unwrap();
        vhd::create_differencing(&path("child.vhd"), &path("dynamic.vhd"), None).unwrap();
        vhdx::create_dynamic(&path("dynamic.vhdx"), 1 << 20, vhdx::CreateOptions::default()).unwrap();
        vhdx::create_differencing(&path("child.vhdx"), &path("dynamic.vhdx"), None).unwrap();
        let told = |name| Image::open(path(name)).unwrap().info(Scope::Image).unwrap().remove(0).id;
        for name in ["fixed.vhd", "dynamic.vhd", "child.vhd"] {
            let told = told(name);
            let id = open(&path(name)).identity().image.unwrap();
            assert_eq!(id.map(|byte| format!("{byte:02x}")).concat(), told.replace('-', ""), "{name}");
        }
        for name in ["dynamic.vhdx", "child.vhdx"] {
            let told = told(name);
            let id = open(&path(name)).identity().image.map(|id| uuid::Uuid::from_bytes(id).to_string());
            assert_eq!(id, Some(told), "{name}");
        }
        // A copy of an image is another file.
        std::fs::copy(path("dynamic.vhdx"), path("copy.vhdx")).unwrap();
        let (copied, copy) = (open(&path("dynamic.vhdx")).identity(), open(&path("copy.vhdx")).identity());
        assert_eq!(copied.image, copy.image);
        assert_ne!(copied.file, copy.file);
        assert_eq!(of_image([0; 16]), None);
    }
}

//! Serial numbers of disks that were given none: of the image, of its file, of the place in the machine.

use disk_formats::Disk;

/// A disk of a machine that gets a serial number.
#[derive(Clone, Copy)]
pub struct Nameless<'a> {
    /// The disk.
    pub disk: &'a dyn Disk,
    /// The serial number that it was given.
    pub serial: Option<&'a str>,
    /// Adapter and target, in a way that no other disk of the machine has.
    pub place: &'a str,
}

/// Serial numbers for all disks of a machine, in their order: the one that a disk was given; else that of its image, or of its file,
/// whichever no other disk of the machine has; else its place. So copies of an image are told apart, and a disk keeps its number
/// from one start of the machine to the next.
#[must_use]
pub fn serial_numbers(disks: &[Nameless<'_>]) -> Vec<String> {
    let of_image = disks.iter().map(|each| each.disk.identity().image);
    let of_file = disks.iter().map(|each| each.disk.identity().file);
    let (of_image, of_file): (Vec<_>, Vec<_>) = (of_image.collect(), of_file.collect());
    let given = |text: &str| disks.iter().any(|other| other.serial == Some(text));
    // Also of disks that were given another number: what is common is never taken.
    let alone = |all: &[Option<[u8; 16]>], index: usize| {
        let id = all.get(index).copied().flatten()?;
        let once = all.iter().filter(|other| **other == Some(id)).count() == 1;
        Some(hex(id)).filter(|text| once && !given(text))
    };
    let number = |(index, each): (usize, &Nameless<'_>)| match each.serial {
        Some(serial) => serial.to_owned(),
        None => alone(&of_image, index)
            .or_else(|| alone(&of_file, index))
            .unwrap_or_else(|| each.place.to_owned()),
    };
    disks.iter().enumerate().map(number).collect()
}

/// The serial number of a disk that is alone in its machine; empty where neither image nor file tell.
pub(crate) fn serial_number(disk: &dyn Disk) -> String {
    let identity = disk.identity();
    identity.image.or(identity.file).map(hex).unwrap_or_default()
}

/// The image's own identity, where the serial number says the same.
pub(crate) fn uuid_of(disk: &dyn Disk, serial: &str) -> Option<[u8; 16]> {
    disk.identity().image.filter(|id| hex(*id) == serial)
}

/// 32 digits: a virtio block device shows the first 20.
fn hex(id: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(id))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use disk_formats::{OpenOptions, RamDisk, Raw, SectorSize, vhdx};

    use super::*;

    struct Files {
        folder: tempfile::TempDir,
    }

    impl Files {
        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn open(&self, name: &str) -> Arc<dyn Disk> {
            OpenOptions { read_only: true, ..OpenOptions::new(self.path(name)) }.open().unwrap()
        }
    }

    /// Two VHDX, a copy of one, two raw images.
    fn files() -> Files {
        let files = Files { folder: tempfile::tempdir().unwrap() };
        let vhdx = |path: &Path| vhdx::create_dynamic(path, 1 << 20, vhdx::CreateOptions::default()).unwrap();
        ["a.vhdx", "b.vhdx"].into_iter().for_each(|name| vhdx(&files.path(name)));
        ["a.raw", "b.raw"].into_iter().for_each(|name| Raw::create(&files.path(name), 1 << 20).unwrap());
        std::fs::copy(files.path("a.vhdx"), files.path("copy.vhdx")).unwrap();
        files
    }

    fn numbers(disks: &[(Arc<dyn Disk>, Option<&str>)]) -> Vec<String> {
        let places: Vec<_> = (0..disks.len()).map(|index| format!("pvscsi0:{index}")).collect();
        let nameless: Vec<_> = disks
            .iter()
            .zip(&places)
            .map(|((disk, serial), place)| Nameless { disk: &**disk, serial: *serial, place })
            .collect();
        serial_numbers(&nameless)
    }

    #[test]
    fn no_two_disks_have_the_same_number_and_each_keeps_its_own() {
        let files = files();
        let ram = || -> Arc<dyn Disk> { Arc::new(RamDisk::new(1 << 20, SectorSize::B512).unwrap()) };
        let names = ["a.vhdx", "b.vhdx", "copy.vhdx", "a.raw", "b.raw"];
        let all = || {
            let disks = names.iter().map(|name| files.open(name)).chain([ram(), ram(), files.open("b.raw")]);
            numbers(&disks.map(|disk| (disk, None)).collect::<Vec<_>>())
        };
        let found = all();
        assert_eq!(found, all());
        let mut different = found.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), found.len(), "{found:?}");
        // What only one has is the image's; a copy and what it is of go by their files; the rest by the place.
        let image = |name: &str| hex(files.open(name).identity().image.unwrap());
        assert_eq!(found[1], image("b.vhdx"));
        assert!(found[0] != image("a.vhdx") && found[2] != image("a.vhdx"));
        assert_eq!(found[4..], ["pvscsi0:4", "pvscsi0:5", "pvscsi0:6", "pvscsi0:7"]);
        // Alone, each has the best.
        for name in names {
            let disk = files.open(name);
            let best = numbers(&[(Arc::clone(&disk), None)]);
            assert_eq!((best.len(), &best[0], best[0].len()), (1, &serial_number(&*disk), 32));
        }
        assert_eq!(serial_number(&*files.open("a.vhdx")), image("a.vhdx"));
        assert_eq!(
            (serial_number(&*ram()), numbers(&[(ram(), None)])),
            (String::new(), vec!["pvscsi0:0".to_owned()])
        );
    }

    #[test]
    fn numbers_that_were_given_stay_and_are_not_given_again() {
        let files = files();
        let (a, b) = (files.open("a.vhdx"), files.open("b.vhdx"));
        let of_b: &'static str = Box::leak(serial_number(&*b).into_boxed_str());
        let found = numbers(&[(Arc::clone(&a), Some(of_b)), (Arc::clone(&b), None)]);
        assert_eq!(found[0], of_b);
        assert_ne!(found[1], of_b);
        assert_eq!(uuid_of(&*b, of_b), b.identity().image);
        assert_eq!((uuid_of(&*a, of_b), uuid_of(&*b, &found[1])), (None, None));
    }
}

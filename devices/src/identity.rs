//! Serial numbers of disks that were given none: the image's identity, else its file's identity, else the disk's place in the machine.

use std::collections::HashSet;

use paradisk_disk_formats::Disk;

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

/// Serial numbers for all disks of a machine, in their order: the one that a disk was given; else that of its image, else that of its
/// file, else its place, whichever was neither given to another disk nor taken by an earlier one.
///
/// So if a copy of an image is attached later, it has another number, and no earlier disk's number changes. At the next start of the
/// machine, all numbers are the same.
#[must_use]
pub fn serial_numbers(disks: &[Nameless<'_>]) -> Vec<String> {
    let mut taken: HashSet<String> =
        disks.iter().filter_map(|each| each.serial).map(ToOwned::to_owned).collect();
    let mut number = |each: &Nameless<'_>| {
        if let Some(serial) = each.serial {
            return serial.to_owned();
        }
        let identity = each.disk.identity();
        let ids = [identity.image, identity.file].into_iter().flatten().map(hex);
        // If the text of the place was given to another disk as its serial number, a number is appended.
        let places =
            (1..).map(|n| if n == 1 { each.place.to_owned() } else { format!("{}-{n}", each.place) });
        let mut free = ids.chain(places).filter(|number| taken.insert(number.clone()));
        free.next().unwrap_or_default()
    };
    disks.iter().map(&mut number).collect()
}

/// The serial number of a disk that is alone in its machine; empty if neither image nor file has an identity.
pub(crate) fn serial_number(disk: &dyn Disk) -> String {
    let identity = disk.identity();
    identity.image.or(identity.file).map(hex).unwrap_or_default()
}

/// The image's own identity, if the serial number is that identity in hexadecimal.
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

    use paradisk_disk_formats::{
        Allocation, DiskInfo, DiskQueue, Identity, IoError, OpenError, OpenOptions, QueueConfig, RamDisk,
        Raw, SectorSize, vhdx,
    };

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

    /// A disk whose file has no identity, with this one of its image.
    fn of_image(image: Option<[u8; 16]>) -> Arc<dyn Disk> {
        struct Image(RamDisk, Option<[u8; 16]>);
        impl Disk for Image {
            fn info(&self) -> &DiskInfo {
                self.0.info()
            }
            fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
                self.0.queue(config)
            }
            fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
                self.0.status(offset, limit)
            }
            fn identity(&self) -> Identity {
                let mut identity = Identity::default();
                identity.image = self.1;
                identity
            }
        }
        Arc::new(Image(RamDisk::new(1 << 20, SectorSize::B512).unwrap(), image))
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
        // The first of several copies has the image's, or the file's; later ones the file's, or their place.
        let image = |name: &str| hex(files.open(name).identity().image.unwrap());
        let file = |name: &str| hex(files.open(name).identity().file.unwrap());
        let first = [image("a.vhdx"), image("b.vhdx"), file("copy.vhdx"), file("a.raw"), file("b.raw")];
        assert_eq!(found[..5], first);
        assert_eq!(found[5..], ["pvscsi0:5", "pvscsi0:6", "pvscsi0:7"]);
        assert_eq!(files.open("copy.vhdx").identity().image, files.open("a.vhdx").identity().image);
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

    /// At the next start of the machine, or while it runs.
    #[test]
    fn a_disk_that_comes_later_changes_no_number_of_those_before() {
        let files = files();
        let names = ["a.raw", "a.vhdx", "copy.vhdx", "b.raw", "a.vhdx", "b.raw", "b.vhdx", "copy.vhdx"];
        let opened: Vec<_> = names.iter().map(|name| (files.open(name), None)).collect();
        let all = numbers(&opened);
        for count in 0..names.len() {
            assert_eq!(numbers(&opened[..count]), all[..count]);
            // What runs has been given its number.
            let running = opened[..count].iter().zip(&all).map(|((disk, _), number)| (disk, Some(&**number)));
            let running = running.map(|(disk, number)| (Arc::clone(disk), number));
            let with_one_more: Vec<_> = running.chain([opened[count].clone()]).collect();
            assert_eq!(numbers(&with_one_more), all[..=count]);
        }
    }

    /// A file system may not say which it is, and the file cannot be told from those of others then.
    #[test]
    fn without_the_files_identity_the_place_counts() {
        let disks: Vec<(Arc<dyn Disk>, Option<&str>)> =
            [None, Some([1; 16]), Some([1; 16])].map(|image| (of_image(image), None)).into();
        assert_eq!(numbers(&disks), ["pvscsi0:0".to_owned(), hex([1; 16]), "pvscsi0:2".to_owned()]);
        // A place that was given to another disk.
        let given = [(of_image(None), None), (of_image(None), Some("pvscsi0:0"))];
        assert_eq!(numbers(&given), ["pvscsi0:0-2", "pvscsi0:0"]);
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

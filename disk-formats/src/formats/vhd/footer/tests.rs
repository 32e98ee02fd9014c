use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::contract::error::OpenError;
use crate::formats::chain::Member;
use crate::formats::parents::ParentRules;
use crate::formats::vhd::chain::Image;
use crate::formats::vhd::create_fixed;
use crate::formats::vhd::spec::EPOCH;
use crate::host::backing::Access;
use crate::map::format::Format;

const SIZE: u64 = 8 << 20;

fn good() -> Footer {
    new(Subformat::Fixed, SIZE, NO_DATA_OFFSET, [7; 16], UNIX_EPOCH + Duration::from_secs(EPOCH + 1))
}

fn with(change: impl FnOnce(&mut Footer)) -> Footer {
    let mut footer = good();
    change(&mut footer);
    footer.seal();
    footer
}

fn size_of(footer: &Footer, data: u64) -> u64 {
    match validate(footer, data) {
        Ok((Subformat::Fixed, size)) => size,
        other => panic!("{other:?}"),
    }
}

fn bad_field(footer: &Footer) -> &'static str {
    validate(footer, SIZE).expect_err("a bad footer").field
}

#[test]
fn the_footer_has_the_layout_of_the_specification() {
    let footer = good();
    let bytes = footer.as_bytes();
    assert_eq!(&bytes[..8], b"conectix");
    assert_eq!(bytes[8..16], [0, 0, 0, 2, 0, 1, 0, 0]);
    assert_eq!(bytes[16..24], [0xFF; 8]);
    assert_eq!(bytes[24..28], [0, 0, 0, 1]);
    assert_eq!(bytes[48..56], SIZE.to_be_bytes());
    assert_eq!(bytes[60..64], [0, 0, 0, 2]);
    // The checksum by its definition: the complement of the sum of all bytes except those of the checksum.
    let sum: u32 =
        bytes.iter().enumerate().filter(|(at, _)| !(64..68).contains(at)).map(|(_, b)| u32::from(*b)).sum();
    assert_eq!(bytes[64..68], (!sum).to_be_bytes());
    assert_eq!(size_of(&footer, SIZE), SIZE);
}

#[test]
fn each_field_is_checked_and_named() {
    let mut flipped = good();
    flipped.reserved[400] ^= 1;
    assert_eq!(bad_field(&flipped), "footer checksum");
    assert_eq!(bad_field(&with(|footer| footer.cookie[0] = b'C')), "footer cookie");
    assert_eq!(
        bad_field(&with(|footer| footer.file_format_version = 0x0002_0000.into())),
        "file format version"
    );
    assert_eq!(bad_field(&with(|footer| footer.features = 1.into())), "features");
    for disk_type in [0, 1, 5, 6, u32::MAX] {
        assert_eq!(bad_field(&with(|footer| footer.disk_type = disk_type.into())), "disk type");
    }
    assert_eq!(bad_field(&with(|footer| footer.data_offset = 512.into())), "data offset");
    for size in [0, 511, SIZE - 1, SIZE + 512, u64::MAX, u64::MAX - 511] {
        assert_eq!(bad_field(&with(|footer| footer.current_size = size.into())), "current size", "{size}");
    }
    for (number, kind) in [(3, "dynamic"), (4, "differencing")] {
        let footer = with(|footer| (footer.disk_type, footer.data_offset) = (number.into(), 512.into()));
        assert!(matches!(validate(&footer, SIZE), Ok((found, SIZE)) if found.as_str() == kind));
        assert_eq!(bad_field(&with(|footer| footer.disk_type = number.into())), "data offset");
    }
}

#[test]
fn oddities_of_other_writers_are_accepted() {
    assert_eq!(size_of(&with(|footer| footer.data_offset = 0xFFFF_FFFF.into()), SIZE), SIZE);
    assert_eq!(size_of(&with(|footer| footer.features = 3.into()), SIZE), SIZE);
    assert_eq!(size_of(&with(|footer| footer.reserved[0] = 1), SIZE), SIZE, "XenServer's hidden flag");
    let bare = with(|footer| {
        (footer.cylinders, footer.heads, footer.sectors_per_track) = (0.into(), 0, 0);
        (footer.time_stamp, footer.creator_application) = (0.into(), [0; 4]);
    });
    assert_eq!(size_of(&bare, SIZE), SIZE);
}

#[test]
fn the_size_comes_from_the_field_that_the_creator_means() {
    let footer = |creator: &[u8; 4], chs: (u16, u8, u8)| {
        with(|footer| {
            footer.creator_application = *creator;
            (footer.cylinders, footer.heads, footer.sectors_per_track) = (chs.0.into(), chs.1, chs.2);
        })
    };
    let by_geometry = 100 * 4 * 17 * 512;
    for creator in [b"vpc ", b"qemu"] {
        assert_eq!(size_of(&footer(creator, (100, 4, 17)), SIZE), by_geometry);
        assert_eq!(
            size_of(&footer(creator, (65535, 16, 255)), SIZE),
            SIZE,
            "the largest geometry says nothing"
        );
        assert_eq!(bad_field(&footer(creator, (0, 4, 17))), "disk geometry");
        assert_eq!(bad_field(&footer(creator, (65535, 16, 63))), "disk geometry");
    }
    for creator in [b"win ", b"qem2", b"vs  ", b"tap\0", b"pdsk"] {
        assert_eq!(size_of(&footer(creator, (100, 4, 17)), SIZE), SIZE);
    }
}

fn open(path: &Path) -> Result<Arc<dyn Format>, OpenError> {
    crate::formats::vhd::open(path, Access::READ_ONLY, &ParentRules::default())
}

fn error_of(path: &Path) -> String {
    match open(path) {
        Ok(_) => panic!("{} opened", path.display()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_new_image_opens_and_a_footer_of_511_bytes_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.vhd");
    create_fixed(&path, SIZE).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), SIZE + 512);
    let disk = open(&path).unwrap();
    assert_eq!((disk.info().capacity, disk.info().kind.subformat), (SIZE, Some("fixed")));
    drop(disk);
    let image = Image::open(&path, Access::READ_ONLY).unwrap();
    assert_eq!(image.found.footer.unique_id[6] >> 4, 4, "a random identity");
    drop(image);
    assert!(matches!(create_fixed(&path, SIZE), Err(OpenError::Os { action: "cannot create", .. })));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(SIZE + 511).unwrap();
    assert_eq!(open(&path).unwrap().info().capacity, SIZE);
}

#[test]
fn damaged_images_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.vhd");
    for size in [0, 1, 510, 511, 512, 513, 4096] {
        std::fs::write(&path, vec![0; size]).unwrap();
        let error = error_of(&path);
        assert!(error.contains("bad.vhd: VHD footer is missing"), "{error}");
    }
    // A footer without data before it.
    std::fs::write(&path, good().as_bytes()).unwrap();
    let error = error_of(&path);
    assert!(error.contains("current size is 8388608 bytes, expected at most the 0 bytes"), "{error}");
    // A dynamic disk whose file ends before the dynamic header.
    let dynamic = with(|footer| (footer.disk_type, footer.data_offset) = (3.into(), 512.into()));
    std::fs::write(&path, dynamic.as_bytes()).unwrap();
    let error = error_of(&path);
    assert!(error.contains("data offset is 0x200, expected space for a dynamic header"), "{error}");
}

#[test]
fn sizes_that_no_vhd_has_are_not_created() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no.vhd");
    for size in [0, 1, 513, MAX_FIXED_SIZE + 512, u64::MAX - 511] {
        assert!(matches!(create_fixed(&path, size), Err(OpenError::Invalid { field: "size", .. })), "{size}");
        assert!(!path.exists());
    }
}

proptest! {
    #[test]
    fn random_footers_never_panic(bytes in prop::collection::vec(any::<u8>(), FOOTER_SIZE), data in any::<u64>(), seal in any::<bool>(), head in any::<bool>()) {
        let mut footer = Footer::read_from_bytes(&bytes).unwrap();
        if head {
            // Valid values for the first checks, so that the later ones are reached.
            (footer.cookie, footer.file_format_version, footer.features) = (COOKIE, FILE_FORMAT_VERSION.into(), 2.into());
            (footer.disk_type, footer.data_offset) = (2.into(), NO_DATA_OFFSET.into());
        }
        if seal {
            footer.seal();
        }
        if let Ok((Subformat::Fixed, size)) = validate(&footer, data) {
            prop_assert!(seal && size > 0 && size <= data && size.is_multiple_of(SECTOR));
        }
    }

    #[test]
    fn a_footer_with_any_byte_changed_is_refused(at in 0usize..FOOTER_SIZE, flip in 1u8..) {
        let mut footer = good();
        footer.as_mut_bytes()[at] ^= flip;
        prop_assert!(validate(&footer, SIZE).is_err());
    }
}

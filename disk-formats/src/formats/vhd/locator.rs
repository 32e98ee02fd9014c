//! Parent locators: the paths by which a differencing disk refers to its parent, and the host paths to try for them.

use std::io;
use std::path::{Path, PathBuf};

use super::footer::Subformat;
use super::layout::locator_areas;
use super::spec::{DynamicHeader, ParentLocator, SECTOR, platform};
use crate::formats::parents::{base_name, unix_path, windows_path};
use crate::host::store::Store;

/// Maximum length in bytes of a path that is read.
pub(super) const MAX_PATH: u64 = 64 << 10;

/// Paths that the parent may have, the most likely first: relative to the child, absolute, in the child's directory.
pub(super) fn candidates(store: &dyn Store, header: &DynamicHeader) -> io::Result<Vec<PathBuf>> {
    let folder = store.path().parent().unwrap_or(Path::new(""));
    let (mut relative, mut absolute, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    for (slot, at, bytes, _) in locator_areas(Subformat::Differencing, header, store.len()?) {
        if bytes > MAX_PATH {
            continue;
        }
        let mut path = vec![0; bytes as usize];
        store.read_at(&mut path, at)?;
        match header.parent_locators.get(slot).map(|locator| locator.platform_code) {
            Some(platform::W2RU | platform::WI2R) => relative.push(folder.join(unix_path(&text(&path)))),
            Some(platform::W2KU | platform::WI2K) => {
                let name = text(&path);
                match name.starts_with('/') {
                    true => absolute.push(PathBuf::from(name)),
                    // Of a Windows path, only the file name is usable here.
                    false => beside.extend(base_name(&name).map(|name| folder.join(name))),
                }
            }
            Some(platform::MACX) => {
                let url = String::from_utf8_lossy(&path).into_owned();
                let path = url.strip_prefix("file://localhost").or_else(|| url.strip_prefix("file://"));
                absolute.extend(path.filter(|path| path.starts_with('/')).map(PathBuf::from));
            }
            _ => {}
        }
    }
    let units =
        header.parent_unicode_name.chunks_exact(2).map(|unit| unit.try_into().map_or(0, u16::from_be_bytes));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    beside.extend(base_name(&String::from_utf16_lossy(&units)).map(|name| folder.join(name)));
    let mut all: Vec<PathBuf> = Vec::new();
    for path in relative.into_iter().chain(absolute).chain(beside) {
        if !path.as_os_str().is_empty()
            && !path.as_os_str().as_encoded_bytes().contains(&0)
            && !all.contains(&path)
        {
            all.push(path);
        }
    }
    Ok(all)
}

/// Decode UTF-16 little-endian; old writers stored bytes.
fn text(bytes: &[u8]) -> String {
    let wide = bytes.len().is_multiple_of(2) && bytes.chunks_exact(2).all(|unit| unit != [0, 0]) && {
        bytes.iter().skip(1).step_by(2).any(|high| *high == 0) || String::from_utf8(bytes.to_vec()).is_err()
    };
    let decoded = match wide {
        true => {
            let units = bytes.chunks_exact(2).map(|unit| unit.try_into().map_or(0, u16::from_le_bytes));
            String::from_utf16_lossy(&units.collect::<Vec<u16>>())
        }
        false => {
            let units: Vec<u16> =
                bytes.chunks_exact(2).map(|unit| unit.try_into().map_or(0, u16::from_le_bytes)).collect();
            match bytes.contains(&0) {
                true => String::from_utf16_lossy(&units),
                false => String::from_utf8_lossy(bytes).into_owned(),
            }
        }
    };
    decoded.trim_end_matches('\0').to_owned()
}

/// A locator to write.
#[derive(Debug)]
pub(super) struct NewLocator {
    pub(super) platform_code: [u8; 4],
    /// The encoded path.
    pub(super) path: Vec<u8>,
}

impl NewLocator {
    /// Bytes reserved for the path.
    pub(super) fn space(&self) -> u64 {
        (self.path.len() as u64).next_multiple_of(SECTOR)
    }

    /// Its entry in the dynamic header, for a path at `offset`.
    pub(super) fn at(&self, offset: u64) -> ParentLocator {
        ParentLocator {
            platform_code: self.platform_code,
            // In bytes, as other programs write it.
            data_space: (self.space() as u32).into(),
            data_length: (self.path.len() as u32).into(),
            reserved: 0.into(),
            data_offset: offset.into(),
        }
    }

    /// Write the path at `offset`.
    pub(super) fn write(&self, store: &dyn Store, offset: u64) -> io::Result<()> {
        let mut area = self.path.clone();
        area.resize(self.space() as usize, 0);
        store.write_at(&area, offset)
    }
}

/// The locators from `child` to `parent`, and the parent's name. Both paths are absolute and resolved. `None` if a path
/// cannot be encoded.
pub(super) fn new(child: &Path, parent: &Path) -> Option<(Vec<NewLocator>, [u8; 512])> {
    let wide = |path: &str| path.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let locators = vec![
        NewLocator { platform_code: platform::W2RU, path: wide(&windows_path(child, parent)?) },
        NewLocator { platform_code: platform::W2KU, path: wide(parent.to_str()?) },
    ];
    let mut name = [0; 512];
    let units = parent.file_name()?.to_str()?.encode_utf16();
    // The last unit stays zero.
    for (slot, unit) in name.chunks_exact_mut(2).take(255).zip(units) {
        slot.copy_from_slice(&unit.to_be_bytes());
    }
    Some((locators, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_other_systems() {
        assert_eq!(unix_path(r".\base.vhd"), Path::new("base.vhd"));
        assert_eq!(unix_path(r"..\a\base.vhd"), Path::new("../a/base.vhd"));
        assert_eq!(unix_path(r"\\server\share"), Path::new("server/share"));
        assert_eq!(base_name(r"C:\disks\base.vhd"), Some("base.vhd"));
        assert_eq!(base_name(r"C:base.vhd"), Some("base.vhd"));
        assert_eq!([base_name(""), base_name(r"C:\"), base_name(r"a\..")], [None; 3]);
    }

    #[test]
    fn both_ways_of_storing_text() {
        let wide = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        for path in [r".\base.vhd", "ä.vhd", "磁盘.vhd", ""] {
            assert_eq!(text(&wide(path)), path);
        }
        assert_eq!(text(br".\base.vhd"), r".\base.vhd");
        assert_eq!(text(&wide("a.vhd\0\0")), "a.vhd");
    }

    #[test]
    fn a_parent_as_seen_from_its_child() {
        let from = |child: &str, parent: &str| {
            let (locators, name) = new(Path::new(child), Path::new(parent)).expect("locators");
            assert_eq!(name.len(), 512);
            (text(&locators[0].path), text(&locators[1].path))
        };
        assert_eq!(from("/d/c.vhd", "/d/p.vhd"), (r".\p.vhd".into(), "/d/p.vhd".into()));
        assert_eq!(from("/d/e/c.vhd", "/d/p.vhd"), (r"..\p.vhd".into(), "/d/p.vhd".into()));
        assert_eq!(from("/c.vhd", "/d/e/p.vhd"), (r".\d\e\p.vhd".into(), "/d/e/p.vhd".into()));
        assert!(new(Path::new("/c"), Path::new("/a\\b")).is_none());
    }
}

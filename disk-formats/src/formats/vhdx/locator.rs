//! The parent locator: how a differencing disk refers to its parent (\[MS-VHDX\] 2.6.2.6).

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::spec::{LOCATOR_TYPE, LocatorEntry, LocatorHeader};
use crate::contract::error::BadField;
use crate::formats::parents::{base_name, unix_path, windows_path};

/// Maximum number of keys.
const MAX_KEYS: usize = 256;
/// Maximum total length of all texts in bytes: twice that of three paths of maximum length. Texts may overlap in the
/// item, so the item's size is no bound.
const MAX_TEXT: usize = 384 << 10;
const LINKAGE: &str = "parent_linkage";
const LINKAGE2: &str = "parent_linkage2";
const RELATIVE: &str = "relative_path";
const VOLUME: &str = "volume_path";
const ABSOLUTE: &str = "absolute_win32_path";

/// Keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Locator {
    pairs: Vec<(String, String)>,
    linkage: Uuid,
    linkage2: Option<Uuid>,
}

impl Locator {
    /// Parse the item.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadField> {
        let bad = |value: String, expected: &str| BadField::new("parent locator", value, expected);
        let Ok((header, rest)) = LocatorHeader::read_from_prefix(bytes) else {
            return Err(bad(format!("{} bytes", bytes.len()), "at least 20"));
        };
        let kind = Uuid::from_bytes_le(header.locator_type);
        if kind != LOCATOR_TYPE {
            return Err(bad(format!("of type {kind}"), &format!("of type {LOCATOR_TYPE}")));
        }
        let count = usize::from(header.key_value_count.get());
        let entries =
            rest.get(..count * size_of::<LocatorEntry>()).filter(|_| (1..=MAX_KEYS).contains(&count));
        let Some(entries) = entries else {
            return Err(bad(format!("{count} keys in {} bytes", bytes.len()), "1 to 256 that fit"));
        };
        let (mut pairs, mut seen, mut total) = (Vec::new(), HashSet::new(), 0);
        for entry in entries.chunks_exact(size_of::<LocatorEntry>()) {
            let Ok(entry) = LocatorEntry::read_from_bytes(entry) else { continue };
            let text = |offset: u32, length: u16| {
                let range = offset as usize..offset as usize + usize::from(length);
                let part = bytes.get(range).filter(|part| !part.is_empty() && part.len().is_multiple_of(2));
                part.and_then(utf16).ok_or_else(|| {
                    bad(format!("text of {length} bytes at {offset}"), "UTF-16 inside the item, without NUL")
                })
            };
            total += usize::from(entry.key_length.get()) + usize::from(entry.value_length.get());
            if total > MAX_TEXT {
                return Err(bad(format!("texts of {total} bytes and more"), "at most 384 KiB"));
            }
            let key = text(entry.key_offset.get(), entry.key_length.get())?;
            let value = text(entry.value_offset.get(), entry.value_length.get())?;
            if !seen.insert(key.clone()) {
                return Err(bad(format!("{key} twice"), "each key once"));
            }
            pairs.push((key, value));
        }
        let get = |key: &str| {
            pairs.iter().find(|(name, _)| name == key).map(|(_, value): &(String, String)| value.as_str())
        };
        let guid = |key: &'static str, text: &str| {
            let plain = text.trim_start_matches('{').trim_end_matches('}');
            Uuid::try_parse(plain).map_err(|_| BadField::new(key, format!("{text:?}"), "a GUID in braces"))
        };
        let linkage = get(LINKAGE).ok_or_else(|| bad("without parent_linkage".into(), "with it"))?;
        let linkage = guid(LINKAGE, linkage)?;
        let linkage2 = get(LINKAGE2).map(|text| guid(LINKAGE2, text)).transpose()?;
        Ok(Self { linkage, linkage2, pairs })
    }

    /// A locator from the image `child` to `parent`, which has the data write GUID `linkage`. Both paths are absolute
    /// and resolved. `None` if a path cannot be encoded.
    pub(super) fn new(child: &Path, parent: &Path, linkage: Uuid) -> Option<Self> {
        let relative = windows_path(child, parent)?;
        let pairs = vec![(RELATIVE.to_owned(), relative), (ABSOLUTE.to_owned(), parent.to_str()?.to_owned())];
        Some(Self { pairs, linkage, linkage2: None })
    }

    /// The same paths with other GUIDs of the parent.
    pub(super) fn linked(&self, linkage: Uuid, linkage2: Option<Uuid>) -> Self {
        Self { pairs: self.pairs.clone(), linkage, linkage2 }
    }

    /// Encode the item.
    ///
    /// # Errors
    /// `InvalidInput` if a path is too long.
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let braced = |guid: Uuid| guid.braced().to_string();
        let mut pairs = vec![(LINKAGE.to_owned(), braced(self.linkage))];
        pairs.extend(self.linkage2.map(|guid| (LINKAGE2.to_owned(), braced(guid))));
        let others = self.pairs.iter().filter(|(key, _)| key != LINKAGE && key != LINKAGE2);
        pairs.extend(others.cloned());
        let header = LocatorHeader {
            locator_type: LOCATOR_TYPE.to_bytes_le(),
            reserved: 0.into(),
            key_value_count: (pairs.len() as u16).into(),
        };
        let mut at = size_of::<LocatorHeader>() + pairs.len() * size_of::<LocatorEntry>();
        let (mut table, mut texts) = (header.as_bytes().to_vec(), Vec::new());
        for (key, value) in &pairs {
            let [key, value] =
                [key, value].map(|text| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
            let short = |text: &[u8]| u16::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidInput);
            let entry = LocatorEntry {
                key_offset: (at as u32).into(),
                value_offset: ((at + key.len()) as u32).into(),
                key_length: short(&key)?.into(),
                value_length: short(&value)?.into(),
            };
            at += key.len() + value.len();
            table.extend_from_slice(entry.as_bytes());
            texts.extend_from_slice(&key);
            texts.extend_from_slice(&value);
        }
        table.extend_from_slice(&texts);
        Ok(table)
    }

    /// Approximate memory use in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.pairs.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() as u64
    }

    /// The data write GUIDs that the parent may have.
    pub(super) fn linkages(&self) -> (Uuid, Option<Uuid>) {
        (self.linkage, self.linkage2)
    }

    /// Whether the parent may have this data write GUID. A nil GUID is never accepted.
    pub(super) fn accepts(&self, identity: Uuid) -> bool {
        !identity.is_nil() && (identity == self.linkage || Some(identity) == self.linkage2)
    }

    /// Paths that the parent of the image at `child` may have, the most likely first: relative, by volume, absolute, in
    /// the directory of the child.
    pub(super) fn candidates(&self, child: &Path) -> Vec<PathBuf> {
        let folder = child.parent().unwrap_or(Path::new(""));
        let get =
            |key: &str| self.pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        let own = |path: &&str| path.starts_with('/');
        let mut all: Vec<PathBuf> = Vec::new();
        all.extend(get(RELATIVE).map(|path| folder.join(unix_path(path))));
        all.extend(get(VOLUME).filter(own).map(PathBuf::from));
        all.extend(get(ABSOLUTE).filter(own).map(PathBuf::from));
        // Of a Windows path, only the file name is usable here.
        for path in [RELATIVE, VOLUME, ABSOLUTE].into_iter().filter_map(get) {
            all.extend(base_name(path).map(|name| folder.join(name)));
        }
        let mut candidates: Vec<PathBuf> = Vec::new();
        for path in all {
            if !candidates.contains(&path) {
                candidates.push(path);
            }
        }
        candidates
    }
}

fn utf16(bytes: &[u8]) -> Option<String> {
    let units: Vec<u16> =
        bytes.chunks_exact(2).map(|unit| unit.try_into().map_or(0, u16::from_le_bytes)).collect();
    String::from_utf16(&units).ok().filter(|text| !text.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let guid = Uuid::from_u128(0x1234_5678_9ABC_DEF0_1122_3344_5566_7788);
        let locator =
            Locator::new(Path::new("/d/e/child.vhdx"), Path::new("/d/ä.vhdx"), guid).expect("paths");
        let again = Locator::parse(&locator.encode().expect("short")).expect("a locator");
        assert_eq!(again.linkages(), (guid, None));
        assert_eq!(
            again.candidates(Path::new("/d/e/child.vhdx")),
            ["/d/e/../ä.vhdx", "/d/ä.vhdx", "/d/e/ä.vhdx"].map(PathBuf::from)
        );
        let other = Uuid::from_u128(7);
        let both =
            Locator::parse(&again.linked(guid, Some(other)).encode().expect("short")).expect("a locator");
        assert_eq!(both.linkages(), (guid, Some(other)));
        let text = String::from_utf8_lossy(&locator.encode().expect("short")).replace('\0', "");
        assert!(text.contains("{12345678-9abc-def0-1122-334455667788}"), "{text}");
    }

    #[test]
    fn nil_is_nobodys_identity() {
        let [guid, other, third] = [7, 8, 9].map(Uuid::from_u128);
        let locator = |linkage, linkage2| {
            let new = Locator::new(Path::new("/d/c.vhdx"), Path::new("/d/p.vhdx"), linkage).expect("paths");
            new.linked(linkage, linkage2)
        };
        let both = locator(guid, Some(other));
        assert!(both.accepts(guid) && both.accepts(other) && !both.accepts(third));
        assert!(!both.accepts(Uuid::nil()));
        assert!(!locator(Uuid::nil(), Some(Uuid::nil())).accepts(Uuid::nil()));
    }

    #[test]
    fn damaged_items_are_refused() {
        let guid = Uuid::from_u128(1);
        let locator = Locator::new(Path::new("/d/c.vhdx"), Path::new("/d/p.vhdx"), guid).expect("paths");
        let good = locator.encode().expect("short");
        for len in 0..good.len() {
            assert!(Locator::parse(&good[..len]).is_err(), "{len} bytes");
        }
        for at in 0..20 + 3 * 12 {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                // Must not panic. A changed reserved field is accepted.
                let _ = Locator::parse(&bad);
            }
        }
        let mut other = good.clone();
        other[0] ^= 1;
        assert!(Locator::parse(&other).is_err_and(|bad| bad.value.contains("type")));
        // Overlapping texts, each nearly as long as the item.
        let mut over = good.clone();
        over[18..20].copy_from_slice(&200u16.to_le_bytes());
        over.truncate(20);
        for number in 0..200u32 {
            over.extend([2420 + 2 * number, 2420].map(u32::to_le_bytes).concat());
            over.extend([4000u16, 4000].map(u16::to_le_bytes).concat());
        }
        over.extend((0..8000u16).flat_map(|at| (0x100 + at).to_le_bytes()));
        assert!(Locator::parse(&over).is_err_and(|bad| bad.value.starts_with("texts of")));
        let mut many = good;
        many[18..20].copy_from_slice(&u16::MAX.to_le_bytes());
        assert!(Locator::parse(&many).is_err_and(|bad| bad.value.contains("65535 keys")));
    }
}

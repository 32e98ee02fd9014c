//! XenServer's batmap: a bit for each block that is present as a whole, so that its reader does not read the bitmaps.
//!
//! Behind the BAT, at the next sector, stands a header with the map's place, and a checksum of the map. XenServer looks
//! for it in images whose creator is its own (`tap`), and cannot open the image if it is missing or wrong. Here it keeps
//! its place. A missing bit is always right, so writes need not set bits. When a block is freed, its bit must be cleared:
//! the block may be allocated again with some sectors only. Map and header cannot be changed in one step, so the tool
//! that frees blocks first changes the creator in the footer, by which XenServer ignores the batmap.
//!
//! libvhd of blktap, `include/vhd.h` and `vhd_has_batmap`.

use std::collections::BTreeMap;
use std::io;

use super::footer;
use super::layout::Layout;
use super::spec::{FOOTER_SIZE, Footer, SECTOR};
use crate::host::store::Store;

const COOKIE: &[u8; 8] = b"tdbatmap";
/// Version 1.1, whose checksum adds signed bytes.
const VERSION_SIGNED: u32 = 0x0001_0001;

/// The creator whose images XenServer looks for a batmap in.
const XENSERVER: &[u8] = b"tap";

/// Make XenServer ignore the batmap, before it is overwritten.
pub(super) fn disown(footer: &mut Footer) {
    if footer.creator_application.starts_with(XENSERVER) {
        // The size of both creators' images is the field "current size".
        footer::set_hyper_v(footer);
    }
}

/// A batmap of an image.
pub(super) struct Batmap {
    /// Byte offset of its header, a sector.
    at: u64,
    header: [u8; SECTOR as usize],
    /// The map in the file; empty if the header's values are no place in the file.
    map: (u64, u64),
}

/// A big-endian field of the header.
fn field<const BYTES: usize>(header: &[u8], at: usize) -> [u8; BYTES] {
    header.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; BYTES])
}

impl Batmap {
    /// The batmap behind the BAT of `layout` in a file of `len` bytes.
    pub(super) fn find(store: &dyn Store, layout: &Layout, len: u64) -> io::Result<Option<Self>> {
        let at = layout.bat + Layout::bat_bytes(layout.entries);
        let mut header = [0; SECTOR as usize];
        if at + SECTOR > len {
            return Ok(None);
        }
        store.read_at(&mut header, at)?;
        if !header.starts_with(COOKIE) {
            return Ok(None);
        }
        let start = u64::from_be_bytes(field(&header, 8));
        let end = start.saturating_add(u64::from(u32::from_be_bytes(field(&header, 16))) * SECTOR);
        let inside = start.is_multiple_of(SECTOR)
            && end.saturating_add(FOOTER_SIZE as u64) <= len
            && !layout.hits_metadata(start, end)
            && (start >= at + SECTOR || end <= at);
        Ok(Some(Self { at, header, map: if inside { (start, end) } else { (at, at) } }))
    }

    /// The ranges of header and map in the file.
    pub(super) fn areas(&self) -> [(u64, u64); 2] {
        [(self.at, self.at + SECTOR), self.map]
    }

    /// Clear the bits of these blocks, in ascending order. Not atomic: see the module.
    pub(super) fn clear(&mut self, store: &dyn Store, blocks: &[u32]) -> io::Result<()> {
        let signed = u32::from_be_bytes(field(&self.header, 20)) == VERSION_SIGNED;
        let mut sum = !u32::from_be_bytes(field::<4>(&self.header, 24));
        let mut sectors: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for block in blocks {
            let at = self.map.0 + u64::from(*block) / (8 * SECTOR) * SECTOR;
            if at < self.map.1 {
                sectors.entry(at).or_default().push(*block);
            }
        }
        for (at, blocks) in sectors {
            let mut bits = [0u8; SECTOR as usize];
            store.read_at(&mut bits, at)?;
            let before = bits;
            for block in blocks {
                let bit = (u64::from(block) % (8 * SECTOR)) as usize;
                let mask = 0x80 >> (bit % 8);
                if let Some(byte) = bits.get_mut(bit / 8).filter(|byte| **byte & mask != 0) {
                    *byte &= !mask;
                    let value = if signed { i32::from(mask as i8) as u32 } else { u32::from(mask) };
                    sum = sum.wrapping_sub(value);
                }
            }
            if bits != before {
                store.write_at(&bits, at)?;
            }
        }
        let sum = (!sum).to_be_bytes();
        if field::<4>(&self.header, 24) != sum {
            if let Some(field) = self.header.get_mut(24..28) {
                field.copy_from_slice(&sum);
            }
            store.write_at(&self.header, self.at)?;
        }
        store.sync()
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromBytes, IntoBytes};

    use super::super::check::check_in;
    use super::super::compact::compact_in;
    use super::super::footer::{self, Subformat};
    use super::super::resize::resize_in;
    use super::super::spec::{Footer, UNALLOCATED};
    use super::super::testing::{SIZE, layout_of, new_image, open};
    use super::*;
    use crate::host::crash::{CrashFile, stamped};
    use crate::map::format::Format;
    use crate::queue::conformance::Random;

    const BLOCK: u64 = 4096;

    /// An image as XenServer makes it: creator `tap`, a batmap behind the BAT, `padding` bytes before the footer.
    fn xen_image(padding: usize) -> CrashFile {
        let mut bytes = new_image(Subformat::Dynamic, BLOCK as u32);
        let mut footer = Footer::read_from_bytes(&bytes[..512]).unwrap();
        footer.creator_application = *b"tap\0";
        footer.creator_version = 0x0001_0003.into();
        footer.seal();
        bytes[..512].copy_from_slice(footer.as_bytes());
        bytes.truncate(2048);
        bytes.extend(COOKIE);
        bytes.extend(2560u64.to_be_bytes());
        bytes.extend([1u32, 0x0001_0002, u32::MAX].iter().flat_map(|value| value.to_be_bytes()));
        bytes.resize(3072 + padding, 0);
        bytes.extend(footer.as_bytes());
        CrashFile::new(bytes)
    }

    /// The batmap as libvhd finds it: `None` if the creator is another program, else cookie and checksum must be right.
    fn libvhd(file: &CrashFile) -> Option<Vec<u8>> {
        let (found, _, layout) = layout_of(file).expect("an image");
        if !found.footer.creator_application.starts_with(b"tap") {
            return None;
        }
        let bytes = file.bytes();
        let at = (layout.bat + Layout::bat_bytes(layout.entries)) as usize;
        assert_eq!(&bytes[at..at + 8], COOKIE, "the batmap is gone");
        let map = u64::from_be_bytes(bytes[at + 8..at + 16].try_into().unwrap()) as usize;
        let map = bytes[map..map + 512].to_vec();
        let sum: u32 = map.iter().map(|byte| u32::from(*byte)).sum();
        assert_eq!(u32::from_be_bytes(bytes[at + 24..at + 28].try_into().unwrap()), !sum, "the checksum");
        Some(map)
    }

    /// Set the bits of the blocks, as XenServer does.
    fn set(file: &CrashFile, blocks: &[usize]) {
        let mut map = [0u8; 512];
        blocks.iter().for_each(|block| map[block / 8] |= 0x80 >> (block % 8));
        let mut header = [0; 512];
        file.read_at(&mut header, 2048).unwrap();
        let sum: u32 = map.iter().map(|byte| u32::from(*byte)).sum();
        header[24..28].copy_from_slice(&(!sum).to_be_bytes());
        file.write_at(&map, 2560).and_then(|()| file.write_at(&header, 2048)).unwrap();
    }

    fn fill(file: &CrashFile, blocks: &[u64], value: u64) {
        let disk = open(file, None, false).expect("a disk");
        for block in blocks {
            disk.write_now(block * BLOCK, &stamped(7).repeat(8)).expect("a write");
            disk.write_now(block * BLOCK, &stamped(value).repeat(8)).expect("a write");
        }
        disk.flush().expect("a flush");
    }

    #[test]
    fn the_first_block_leaves_the_batmap_in_place() {
        let file = xen_image(0);
        fill(&file, &[0, 5], 9);
        assert_eq!(libvhd(&file).expect("the creator stays"), vec![0; 512]);
        assert_eq!(check_in(&file, false).unwrap().findings, []);
        let (found, ..) = layout_of(&file).unwrap();
        let footer: &Footer = &found.footer;
        assert!(footer.reserved.iter().all(|byte| *byte == 0), "the reserved bytes are zeros");
    }

    /// Also unknown data between the structures and the first block stay, whatever the tool does.
    #[test]
    fn compacting_clears_the_bits_of_freed_blocks_through_any_crash() {
        let file = xen_image(1024);
        file.write_at(&stamped(77), 3584).unwrap();
        fill(&file, &[0, 1, 2, 3, 4, 9], 9);
        fill(&file, &[0, 2, 9], 0);
        set(&file, &[0, 1, 2, 3, 4, 9]);
        let base = file.image();
        let file = CrashFile::of(base.clone());
        assert_eq!(compact_in(&file, |_, _| true).unwrap().released, 3);
        let mut random = Random(3);
        let (mut states, mut ignored, mut number) = (0, 0, 0);
        let pick = |_cut, open: usize| {
            number = (number + 1) % 8;
            let survives = |_| number == 1 || number > 2 && random.below(2) == 1;
            (number != 0).then(|| (0..open).map(survives).collect())
        };
        file.all_states(&base, pick, |cut, left| {
            let left = CrashFile::of(left);
            states += 1;
            let (_, _, layout) = layout_of(&left).expect("an image");
            let table = super::super::layer::read_bat(&left, &layout, 0, 32).unwrap();
            match libvhd(&left) {
                None => ignored += 1,
                Some(map) => {
                    let freed = (0..).zip(&table).filter(|(_, entry)| **entry == UNALLOCATED);
                    for (block, _) in freed {
                        let byte: u8 = map[block / 8];
                        assert!(byte & (0x80 >> (block % 8)) == 0, "cut at {cut}: block {block}");
                    }
                }
            }
        });
        assert!(ignored > 0 && states > 100, "{ignored} of {states}");
        assert_eq!(libvhd(&file).expect("the creator is back")[..2], [0x58, 0]);
        let mut unknown = [0; 512];
        file.read_at(&mut unknown, 3584).unwrap();
        assert_eq!(unknown, stamped(77));
        assert_eq!(check_in(&file, false).unwrap().findings, []);
        // All blocks go: what lies before the first of them stays.
        fill(&file, &[1, 3, 4], 0);
        compact_in(&file, |_, _| true).unwrap();
        file.read_at(&mut unknown, 3584).unwrap();
        assert_eq!((unknown, libvhd(&file)), (stamped(77), Some(vec![0; 512])));
        assert!(footer::find(&file).is_ok() && file.len().unwrap() <= 8192);
    }

    /// The larger table overwrites the batmap, which XenServer ignores by then.
    #[test]
    fn a_table_that_grows_over_the_batmap_disowns_it_through_any_crash() {
        let file = xen_image(0);
        fill(&file, &[0, 1, 2, 3], 9);
        set(&file, &[0, 1, 2, 3]);
        let base = file.image();
        let file = CrashFile::of(base.clone());
        resize_in(&file, 64 * SIZE, false).unwrap();
        let (mut random, mut number, mut kept, mut ignored) = (Random(3), 0, 0, 0);
        let pick = |_cut, open: usize| {
            number = (number + 1) % 8;
            let survives = |_| number == 1 || number > 2 && random.below(2) == 1;
            (number != 0).then(|| (0..open).map(survives).collect())
        };
        file.all_states(&base, pick, |_, left| match libvhd(&CrashFile::of(left)) {
            Some(map) => {
                assert_eq!(map[..2], [0xF0, 0]);
                kept += 1;
            }
            None => ignored += 1,
        });
        assert!(kept > 0 && ignored > 0, "{kept} {ignored}");
        let (_, _, layout) = layout_of(&file).unwrap();
        assert_eq!((layout.bat, layout.entries), (1536, 2048));
        assert_eq!(check_in(&file, false).unwrap().findings, []);
        // No remains of it are in the way of the next one.
        resize_in(&file, 256 * SIZE, false).unwrap();
        assert_eq!(layout_of(&file).unwrap().2.bat, 1536);
    }

    #[test]
    fn a_lost_block_makes_xenserver_ignore_the_batmap() {
        let file = xen_image(0);
        fill(&file, &[0, 5], 9);
        set(&file, &[0, 5]);
        let (_, _, layout) = layout_of(&file).unwrap();
        let mut sector = [0; 512];
        file.read_at(&mut sector, layout.bat).unwrap();
        sector[..4].copy_from_slice(&1u32.to_be_bytes());
        file.write_at(&sector, layout.bat).unwrap();
        assert!(check_in(&file, true).unwrap().findings.iter().any(|finding| finding.field == "BAT entry"));
        assert_eq!(libvhd(&file), None);
        assert!(check_in(&file, false).unwrap().findings.iter().all(|finding| finding.field != "BAT entry"));
    }

    #[test]
    fn a_hostile_header_names_no_place() {
        for (offset, sectors) in [(u64::MAX, u32::MAX), (2561, 1), (0, 1), (1536, 1), (2048, 1), (1 << 40, 9)]
        {
            let file = xen_image(0);
            let mut header = [0; 512];
            file.read_at(&mut header, 2048).unwrap();
            header[8..16].copy_from_slice(&offset.to_be_bytes());
            header[16..20].copy_from_slice(&sectors.to_be_bytes());
            file.write_at(&header, 2048).unwrap();
            let (_, _, layout) = layout_of(&file).unwrap();
            let mut found = Batmap::find(&file, &layout, file.len().unwrap()).unwrap().expect("a header");
            assert_eq!(found.areas(), [(2048, 2560), (2048, 2048)]);
            let before = file.bytes();
            found.clear(&file, &[0, 1, u32::MAX]).unwrap();
            assert!(file.bytes() == before);
        }
    }
}

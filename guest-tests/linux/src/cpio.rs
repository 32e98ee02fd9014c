//! Archives for initramfs: cpio's "new ASCII" format, as `Documentation/driver-api/early-userspace/buffer-format.rst` has it.

const MAGIC: &str = "070701";
const DIRECTORY: u32 = 0o040_755;
const CHARACTER_DEVICE: u32 = 0o020_600;
const PROGRAM: u32 = 0o100_755;
/// Names the end.
const TRAILER: &str = "TRAILER!!!";

/// An archive that grows.
#[derive(Debug, Default)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    /// A folder. Those above it come first.
    pub(crate) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, (0, 0), &[]);
    }

    /// A file that anybody may read and run.
    pub(crate) fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, PROGRAM, (0, 0), content);
    }

    /// A character device with its numbers.
    pub(crate) fn device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, CHARACTER_DEVICE, (major, minor), &[]);
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let (user, group, links, time, check) = (0, 0, 1, 0, 0);
        let size = content.len() as u32;
        let fields = [
            self.entries,
            mode,
            user,
            group,
            links,
            time,
            size,
            0,
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            check,
        ];
        self.bytes.extend(MAGIC.as_bytes());
        fields.iter().for_each(|field| self.bytes.extend(format!("{field:08x}").as_bytes()));
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn entries_are_aligned_and_end_with_the_trailer() {
        let mut archive = Cpio::default();
        archive.directory("dev");
        archive.device("dev/console", 5, 1);
        archive.file("init", b"hello");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8(bytes).unwrap();
        let headers: Vec<usize> = text.match_indices(MAGIC).map(|(at, _)| at).collect();
        assert_eq!(headers.len(), 4);
        assert!(headers.iter().all(|at| at % 4 == 0));
        let field = |header: usize, index: usize| {
            u32::from_str_radix(&text[headers[header] + 6 + 8 * index..][..8], 16).unwrap()
        };
        assert_eq!([field(1, 1), field(1, 9), field(1, 10)], [CHARACTER_DEVICE, 5, 1]);
        assert_eq!([field(2, 1), field(2, 6), field(2, 11)], [PROGRAM, 5, 5]);
        assert!(text[headers[2]..].contains("init\0\0hello\0\0\x00070701"));
        assert!(text.trim_end_matches('\0').ends_with(TRAILER));
    }

    #[test]
    fn cpio_unpacks_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut archive = Cpio::default();
        archive.directory("a");
        archive.file("a/b", b"content");
        let path = directory.path().join("archive");
        std::fs::write(&path, archive.finish()).unwrap();
        let mut cpio = Command::new("cpio");
        cpio.args(["--extract", "--quiet", "-F"]).arg(&path).current_dir(directory.path());
        match cpio.status() {
            Ok(status) => assert!(status.success()),
            Err(error) => return println!("SKIP: cpio_unpacks_it: cpio: {error}"),
        }
        assert_eq!(std::fs::read(directory.path().join("a/b")).unwrap(), b"content");
    }
}

//! What the kernel complained of: `/dev/kmsg`, `Documentation/ABI/testing/dev-kmsg`.

use std::fs::File;
use std::io::{self, Read};

use rustix::fs::{Mode, OFlags, open};

/// Severity of a warning; a lower number is worse.
const WARNING: u32 = 4;
/// Longest record.
const RECORD: usize = 8192;

/// Records of the severity of a warning or worse, oldest first, as `LEVEL: text`.
pub(crate) fn complaints() -> io::Result<Vec<String>> {
    let mut log = File::from(open("/dev/kmsg", OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?);
    let mut complaints = Vec::new();
    let mut record = vec![0; RECORD];
    loop {
        match log.read(&mut record) {
            Ok(len) => complaints.extend(complaint(&record[..len])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(complaints),
            // Records were lost to newer ones before they were read.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) => {
                complaints.push("records of the kernel's log were lost".to_owned());
            }
            Err(error) => return Err(error),
        }
    }
}

/// `PRIORITY,SEQUENCE,TIME,FLAGS;text`, the priority with the facility above its three bits of severity.
fn complaint(record: &[u8]) -> Option<String> {
    let record = String::from_utf8_lossy(record);
    let (prefix, rest) = record.split_once(';')?;
    let severity = prefix.split(',').next()?.parse::<u32>().ok()? & 7;
    let text = rest.lines().next().unwrap_or_default();
    (severity <= WARNING).then(|| format!("{severity}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::complaint;

    #[test]
    fn only_complaints_are_kept() {
        assert_eq!(
            complaint(b"4,339,5140900,-;mptbase: late\n DEVICE=+pci\n").as_deref(),
            Some("4: mptbase: late")
        );
        assert_eq!(complaint(b"6,340,5140901,-;scsi host0\n"), None);
        assert_eq!(
            complaint(b"27,341,5140902,-;worse, from user space").as_deref(),
            Some("3: worse, from user space")
        );
        assert_eq!(complaint(b"nonsense"), None);
    }
}

//! Sizes and durations as the command line takes them.

pub(crate) use facts::units::{parse_duration as duration, parse_size as size};

/// Permissions of a file, in octal.
pub(crate) fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected an octal number of 0 to 777".to_owned())
}

/// A group: its number, or its name in /etc/group.
pub(crate) fn group(text: &str) -> Result<u32, String> {
    let groups = || std::fs::read(GROUPS).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let number = match text.parse::<u32>() {
        Ok(number) => Some(number),
        Err(_) => number_of(&groups().map_err(|error| format!("{GROUPS}: {error}"))?, text),
    };
    // For chown, the last number means no change.
    number
        .filter(|number| *number != u32::MAX)
        .ok_or_else(|| format!("expected the number of a group, or its name in {GROUPS}"))
}

/// group(5).
const GROUPS: &str = "/etc/group";

/// The number of a group, from lines `name:password:number:members`.
fn number_of(groups: &str, name: &str) -> Option<u32> {
    let line = groups.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

/// A block size: whole sectors of 512 bytes, at most 1 MiB.
#[cfg(feature = "bench")]
pub(crate) fn block_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| (512..=1 << 20).contains(bytes) && bytes.is_multiple_of(512))
        .ok_or_else(|| format!("block size `{text}`: expected whole sectors of 512 bytes, from 512 to 1M"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("512", 512),
            ("4K", 4096),
            ("64m", 64 << 20),
            ("3G", 3 << 30),
            ("2T", 2 << 40),
            ("0", 0),
            ("10GiB", 10 << 30),
            ("1.5G", 3 << 29),
            ("0.5k", 512),
            ("1.25MiB", 5 << 18),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "4KB",
            "-1",
            "+1",
            "1.5",
            "1.G",
            ".5G",
            "1.2.3G",
            "4iB",
            "iB",
            "1.0000000000000000001G",
            "0.1K",
            "4 K",
            "99999999T",
            "18446744073709551616",
            "4é",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(size("4X").unwrap_err().contains("K, M, G, T"));
    }

    #[test]
    fn groups() {
        let groups = "root:x:0:\nkvm-users:x:7:\nkvm:x:106:qemu,libvirt\nbroken\nodd:x:many:\n";
        for (name, number) in
            [("root", Some(0)), ("kvm", Some(106)), ("qemu", None), ("broken", None), ("odd", None)]
        {
            assert_eq!(number_of(groups, name), number, "{name}");
        }
        assert_eq!((group("0"), group("54321")), (Ok(0), Ok(54321)));
        for text in ["", "-1", "4294967295", "no such group", "x"] {
            assert!(group(text).unwrap_err().contains("/etc/group"), "{text}");
        }
    }

    #[cfg(feature = "bench")]
    #[test]
    fn block_sizes() {
        assert_eq!((block_size("512"), block_size("1M")), (Ok(512), Ok(1 << 20)));
        for text in ["0", "256", "1000", "2M", "4T"] {
            assert!(block_size(text).unwrap_err().contains("from 512 to 1M"), "{text}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("0.5s"), Ok(Duration::from_millis(500)));
        for text in ["", "2", "s", "ms", "2m", "-1s", "1e3s", "infs", "NaNs", "0s", "0.1us", "1000000s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}

//! Sizes and durations as the command line takes them.

use std::time::Duration;

/// Bytes: a number with `K`, `M`, `G`, `T` (binary) or nothing behind it.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("size `{text}`: expected a number with K, M, G, T or nothing behind it, as 4096 or 64M");
    let (digits, shift) = match text.char_indices().next_back().ok_or_else(wrong)? {
        (at, 'K' | 'k') => (&text[..at], 10),
        (at, 'M' | 'm') => (&text[..at], 20),
        (at, 'G' | 'g') => (&text[..at], 30),
        (at, 'T' | 't') => (&text[..at], 40),
        _ => (text, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(wrong());
    }
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("size `{text}`: larger than 16 EiB"))
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

/// A duration: a number with `us`, `ms` or `s` behind it.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("duration `{text}`: expected a number with us, ms or s behind it, as 500ms or 2s");
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, unit) = units
        .into_iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))
        .ok_or_else(wrong)?;
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(wrong());
    }
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * unit;
    if !(1e-6..=86_400.0).contains(&seconds) {
        return Err(format!("duration `{text}`: expected 1us to 86400s"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("512", 512), ("4K", 4096), ("64m", 64 << 20), ("3G", 3 << 30), ("2T", 2 << 40), ("0", 0)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "4KB", "-1", "+1", "1.5G", "4 K", "99999999T", "18446744073709551616", "4é"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(size("4X").unwrap_err().contains("K, M, G, T"));
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

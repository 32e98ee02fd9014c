//! Sizes and durations as text.

use std::time::Duration;

/// A size in bytes as the command line takes it: `4K`, `1M`, `512`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.iter().find(|(shift, _)| bytes >> shift != 0 && bytes.trailing_zeros() >= *shift);
    match unit {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// Bytes: a number with `K`, `M`, `G`, `T` (binary, also `KiB` and so on) or nothing behind it. The number may have a decimal
/// point, if the result is whole bytes: `1.5G`.
///
/// # Errors
/// The text for the user: what is expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "size `{text}`: expected a number with K, M, G, T (or KiB, MiB, GiB, TiB) or nothing behind it, as 4096, 64M or 1.5G"
        )
    };
    let number =
        text.strip_suffix("iB").filter(|number| number.ends_with(char::is_alphabetic)).unwrap_or(text);
    let (number, shift) = match number.char_indices().next_back().ok_or_else(wrong)? {
        (at, 'K' | 'k') => (&number[..at], 10),
        (at, 'M' | 'm') => (&number[..at], 20),
        (at, 'G' | 'g') => (&number[..at], 30),
        (at, 'T' | 't') => (&number[..at], 40),
        _ => (number, 0),
    };
    let (whole, part) = number.split_once('.').map_or((number, None), |(whole, part)| (whole, Some(part)));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    if !digits(whole) || part.is_some_and(|part| !digits(part) || part.len() > 18 || shift == 0) {
        return Err(wrong());
    }
    let bytes = whole.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    let rest = match part {
        None => 0,
        Some(part) => {
            let (scaled, unit) =
                (part.parse::<u128>().map_err(|_| wrong())? << shift, 10u128.pow(part.len() as u32));
            if scaled % unit != 0 {
                return Err(format!("size `{text}`: not whole bytes"));
            }
            (scaled / unit) as u64
        }
    };
    bytes
        .and_then(|bytes| bytes.checked_add(rest))
        .ok_or_else(|| format!("size `{text}`: larger than 16 EiB"))
}

/// A duration: a number with `us`, `ms` or `s` behind it.
///
/// # Errors
/// The text for the user: what is expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
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
    fn a_size_has_the_largest_unit_that_divides_it() {
        let sizes = [512, 4096, 1 << 20, 3 << 30, 1 << 40, 1536, 1025, 0];
        assert_eq!(sizes.map(format_size), ["512", "4K", "1M", "3G", "1T", "1536", "1025", "0"]);
    }
}

//! Sizes as text.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_the_largest_unit_that_divides_it() {
        let sizes = [512, 4096, 1 << 20, 3 << 30, 1 << 40, 1536, 1025, 0];
        assert_eq!(sizes.map(format_size), ["512", "4K", "1M", "3G", "1T", "1536", "1025", "0"]);
    }
}

//! How much the tests try that have no end of their own: crashes, faults, random commands.

/// Factor for the number of their rounds: `PARADISK_TEST_EFFORT`, which `cargo xtask test --all` sets to 8, or 1.
pub(crate) fn effort() -> u64 {
    let text = std::env::var("PARADISK_TEST_EFFORT").ok();
    text.and_then(|text| text.parse().ok()).filter(|effort| *effort > 0).unwrap_or(1)
}

//! The value of `--suite`: a suite, or all.

use std::str::FromStr;

use benches::suite::Suite;

/// The value of `--suite`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suites {
    One(Suite),
    All,
}

impl FromStr for Suites {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        text.parse().map(Self::One).map_err(|error| format!("{error}, or all for each in turn"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_no_suite_of_its_own() {
        assert_eq!("all".parse(), Ok(Suites::All));
        assert_eq!("chain".parse(), Ok(Suites::One(Suite::Chain)));
        let error = "every".parse::<Suites>().unwrap_err();
        assert!(error.contains("chain") && error.ends_with("or all for each in turn"), "{error}");
    }
}

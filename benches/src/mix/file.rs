//! The file of a load, in TOML: see [`KEYS`].

use std::time::Duration;

use facts::units::{parse_duration, parse_size};
use guest_driver::loadgen::MAX_SLOTS;
use serde::Deserialize;

use super::Mix;

/// The keys of a file, for help texts.
pub const KEYS: &str = "  name            in tables and documents [default: the file's name]
  description     one line
  block-size      bytes of an access, as 4096 or \"8K\"; 512 to 1M
  read-percent    reads among 100 accesses
  random-percent  random offsets among 100 accesses; the others follow the access before them
  alignment       offsets are multiples of this [default: block-size]
  working-set     bytes at the disk's start that accesses stay inside [default: all]
  zipf            exponent of the popularity of random offsets, 0.1 to 5 [default: all are equally popular]
  burst           accesses until a pause; all of them complete before it
  think-time      length of the pause, as \"1ms\"
  queue-depth     accesses in flight of each worker, a number or a list, 1 to 256 [default: --queue-depth]
  workers         independent streams, a number or a list, 1 to 16 [default: --workers]";

/// Why a file is no load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixError {
    /// It is not TOML, a key is unknown, or a value has another type.
    #[error("{0}")]
    Syntax(String),
    /// A value is invalid.
    #[error("{key}: {reason}")]
    Value {
        /// The key.
        key: &'static str,
        /// The error, and the allowed values.
        reason: String,
    },
}

/// A number or a text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number of bytes or a text as \"64K\"")]
enum Size {
    Number(u64),
    Text(String),
}

impl Size {
    fn bytes(self, key: &'static str) -> Result<u64, MixError> {
        match self {
            Self::Number(bytes) => Ok(bytes),
            Self::Text(text) => parse_size(&text).map_err(|reason| MixError::Value { key, reason }),
        }
    }
}

/// A number or a list.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number or a list of numbers")]
enum Numbers {
    One(u32),
    Many(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    name: Option<String>,
    #[serde(default)]
    description: String,
    block_size: Size,
    read_percent: u32,
    random_percent: u32,
    alignment: Option<Size>,
    working_set: Option<Size>,
    zipf: Option<f64>,
    burst: Option<u32>,
    think_time: Option<String>,
    queue_depth: Option<Numbers>,
    workers: Option<Numbers>,
}

impl Mix {
    /// Read a file's text; `name`: the load's name if the file has none.
    ///
    /// # Errors
    /// [`MixError`] with the key and the allowed values.
    pub fn read(text: &str, name: &str) -> Result<Self, MixError> {
        // The parser's text has the line, and for an unknown key the known keys.
        let file: File = toml::from_str(text).map_err(|error| MixError::Syntax(error.to_string()))?;
        // Values above 32 bits are refused below.
        let bytes = |key, size: Size| size.bytes(key).map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let numbers = |numbers: Option<Numbers>| match numbers {
            None => Vec::new(),
            Some(Numbers::One(number)) => vec![number],
            Some(Numbers::Many(numbers)) => numbers,
        };
        let think_time = match &file.think_time {
            None => Duration::ZERO,
            Some(text) => {
                parse_duration(text).map_err(|reason| MixError::Value { key: "think-time", reason })?
            }
        };
        let mix = Self {
            name: file.name.unwrap_or_else(|| name.to_owned()),
            description: file.description,
            block_size: bytes("block-size", file.block_size)?,
            read_percent: file.read_percent,
            random_percent: file.random_percent,
            alignment: file.alignment.map(|size| bytes("alignment", size)).transpose()?,
            working_set: file.working_set.map(|size| size.bytes("working-set")).transpose()?,
            queue_depths: numbers(file.queue_depth),
            workers: numbers(file.workers),
            zipf: file.zipf,
            burst: file.burst.unwrap_or(u32::from(!think_time.is_zero())),
            think_time,
        };
        mix.check()?;
        Ok(mix)
    }

    /// Check all values.
    pub(super) fn check(&self) -> Result<(), MixError> {
        let sectors = |bytes: &u32| (512..=1 << 20).contains(bytes) && bytes.is_multiple_of(512);
        let within = |numbers: &[u32], most| numbers.iter().all(|number| (1..=most).contains(number));
        let in_flight = self
            .queue_depths
            .iter()
            .max()
            .copied()
            .unwrap_or(1)
            .saturating_mul(self.workers.iter().max().copied().unwrap_or(1));
        let sized = "expected whole sectors of 512 bytes, from 512 to 1M";
        let (key, reason) = if !sectors(&self.block_size) {
            ("block-size", sized)
        } else if self.alignment.is_some_and(|bytes| !sectors(&bytes)) {
            ("alignment", sized)
        } else if self.read_percent > 100 {
            ("read-percent", "expected 0 to 100")
        } else if self.random_percent > 100 {
            ("random-percent", "expected 0 to 100")
        } else if self.working_set.is_some_and(|bytes| bytes < self.block_size.into()) {
            ("working-set", "expected at least block-size")
        } else if self.zipf.is_some_and(|exponent| !(0.1..=5.0).contains(&exponent)) {
            ("zipf", "expected 0.1 to 5")
        } else if self.zipf.is_some() && self.random_percent == 0 {
            ("zipf", "no access is random")
        } else if self.burst > 0 && self.think_time.is_zero() {
            ("burst", "expected with think-time")
        } else if self.burst == 0 && !self.think_time.is_zero() {
            ("burst", "expected at least 1")
        } else if !within(&self.queue_depths, 256) {
            ("queue-depth", "expected 1 to 256")
        } else if !within(&self.workers, 16) {
            ("workers", "expected 1 to 16")
        } else if in_flight > MAX_SLOTS as u32 {
            ("queue-depth", "expected at most 1024 accesses in flight of all workers")
        } else {
            return Ok(());
        };
        Err(MixError::Value { key, reason: reason.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "block-size = \"8K\"\nread-percent = 70\nrandom-percent = 80\n";

    fn read(more: &str) -> Result<Mix, MixError> {
        Mix::read(&format!("{PLAIN}{more}"), "a")
    }

    #[test]
    fn every_key_is_read() {
        assert_eq!(read("").unwrap(), Mix::plain("a".into(), 8192, 70, 80));
        let all = "name = \"b\"\ndescription = \"c\"\nalignment = 512\nworking-set = \"1G\"\nzipf = 0.9\nburst = 16\n\
                   think-time = \"2ms\"\nqueue-depth = [1, 8]\nworkers = 2\n";
        let wanted = Mix {
            description: "c".into(),
            alignment: Some(512),
            working_set: Some(1 << 30),
            zipf: Some(0.9),
            burst: 16,
            think_time: Duration::from_millis(2),
            queue_depths: vec![1, 8],
            workers: vec![2],
            ..Mix::plain("b".into(), 8192, 70, 80)
        };
        assert_eq!(read(all).unwrap(), wanted);
        assert_eq!(read("think-time = \"1s\"").unwrap().burst, 1);
    }

    #[test]
    fn what_makes_no_sense_is_named_with_what_is_allowed() {
        let error = read("colour = 7").unwrap_err().to_string();
        for part in ["line 4", "colour", "block-size", "think-time", "zipf"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let error = Mix::read("read-percent = 1\nrandom-percent = 1", "a").unwrap_err().to_string();
        assert!(error.contains("missing field `block-size`"), "{error}");
        for (more, wanted) in [
            ("alignment = \"1X\"", "alignment: size `1X`: expected a number"),
            ("alignment = 1000", "alignment: expected whole sectors"),
            ("working-set = 4096", "working-set: expected at least block-size"),
            ("zipf = 9.0", "zipf: expected 0.1 to 5"),
            ("zipf = nan", "zipf: expected 0.1 to 5"),
            ("burst = 4", "burst: expected with think-time"),
            ("burst = 0\nthink-time = \"1ms\"", "burst: expected at least 1"),
            ("think-time = \"5\"", "think-time: duration `5`"),
            ("queue-depth = [1, 257]", "queue-depth: expected 1 to 256"),
            ("workers = 17", "workers: expected 1 to 16"),
            ("workers = 16\nqueue-depth = 256", "queue-depth: expected at most 1024"),
        ] {
            assert!(read(more).unwrap_err().to_string().starts_with(wanted), "{more}: {:?}", read(more));
        }
        for (text, wanted) in
            [("101\nrandom-percent = 0", "read-percent: "), ("0\nrandom-percent = 101", "random-percent: ")]
        {
            let text = format!("block-size = 512\nread-percent = {text}");
            assert!(Mix::read(&text, "a").unwrap_err().to_string().starts_with(wanted), "{text}");
        }
    }
}

//! Loads of applications: block size, percentages of reads and of random offsets, and further properties.
//!
//! A [`Mix`] is read from a small TOML file ([`Mix::read`]), is one of the built-in loads ([`SHIPPED`]), or is a job of fio
//! ([`fio::read`]).

mod file;
pub mod fio;
mod zipf;

use std::time::Duration;

use facts::tsc::to_ticks;
use guest_driver::Shape;

pub use file::{KEYS, MixError};

use crate::axes::Access;

/// A load.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Its name in tables and documents.
    pub name: String,
    /// One line about it; may be empty.
    pub description: String,
    /// Bytes of an access.
    pub block_size: u32,
    /// Percentage of reads.
    pub read_percent: u32,
    /// Percentage of random offsets; the others continue the previous access.
    pub random_percent: u32,
    /// Offsets are multiples of this; `None`: of the block size.
    pub alignment: Option<u32>,
    /// Accesses stay within this number of bytes at the start of the disk; `None`: the whole disk.
    pub working_set: Option<u64>,
    /// Accesses in flight of each worker; empty: the command line's.
    pub queue_depths: Vec<u32>,
    /// Independent streams; empty: the command line's.
    pub workers: Vec<u32>,
    /// Exponent of Zipf's law for random offsets; `None`: uniform.
    pub zipf: Option<f64>,
    /// Number of accesses before a pause, which all complete before it; 0: no pauses.
    pub burst: u32,
    /// Length of a pause.
    pub think_time: Duration,
}

impl Mix {
    /// Plain accesses of one size.
    #[must_use]
    pub const fn plain(name: String, block_size: u32, read_percent: u32, random_percent: u32) -> Self {
        Self {
            name,
            description: String::new(),
            block_size,
            read_percent,
            random_percent,
            alignment: None,
            working_set: None,
            queue_depths: Vec::new(),
            workers: Vec::new(),
            zipf: None,
            burst: 0,
            think_time: Duration::ZERO,
        }
    }

    /// The access pattern.
    #[must_use]
    pub const fn access(&self) -> Access {
        Access::of(self.read_percent, self.random_percent)
    }

    /// The parameters for the load generator, for a span of this many bytes.
    #[must_use]
    pub fn shape(&self, span: u64) -> Shape {
        let align = self.alignment.unwrap_or(0);
        let unit = if align == 0 { self.block_size } else { align };
        let positions = span.saturating_sub(self.block_size.into()) / u64::from(unit.max(1)) + 1;
        let skew = self.zipf.map_or(Shape::PLAIN.skew, |exponent| zipf::shares(exponent, positions));
        let think = if self.think_time.is_zero() { 0 } else { to_ticks(self.think_time).max(1) };
        Shape { align, burst: self.burst, think, skew }
    }

    /// A summary in one line: `8K, 70% read, 100% random, zipf 0.9`.
    #[must_use]
    pub fn summary(&self) -> String {
        let size = |bytes: u64| facts::units::format_size(bytes);
        let mut text = format!(
            "{}, {}% read, {}% random",
            size(self.block_size.into()),
            self.read_percent,
            self.random_percent
        );
        let more = [
            self.alignment.map(|align| format!("aligned to {}", size(align.into()))),
            self.working_set.map(|bytes| format!("{} accessed", size(bytes))),
            self.zipf.map(|exponent| format!("zipf {exponent}")),
            (self.burst > 0).then(|| format!("bursts of {}, {:?} apart", self.burst, self.think_time)),
            (!self.queue_depths.is_empty()).then(|| format!("depth {}", list(&self.queue_depths))),
            (!self.workers.is_empty()).then(|| format!("workers {}", list(&self.workers))),
        ];
        more.into_iter().flatten().for_each(|part| text += &format!(", {part}"));
        text
    }
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

macro_rules! shipped {
    ($($name:literal,)*) => {
        /// Files of the built-in loads: their names on the command line, and their text.
        pub const SHIPPED: &[(&str, &str)] = &[$(($name, include_str!(concat!("../workloads/", $name, ".toml"))),)*];
    };
}

// The applications of the study of VHD performance, in its order.
shipped! {
    "web-file-server-4k",
    "web-file-server-8k",
    "web-file-server-64k",
    "decision-support",
    "media-streaming",
    "sql-log",
    "os-paging",
    "web-server-log",
    "oltp",
    "exchange",
    "workstation",
    "video-on-demand",
}

/// A built-in load; `None` if none has this name.
#[must_use]
pub fn shipped(name: &str) -> Option<Mix> {
    let (_, text) = SHIPPED.iter().find(|(each, _)| *each == name)?;
    // A test reads all of them.
    Mix::read(text, name).ok()
}

/// All built-in loads.
#[must_use]
pub fn all_shipped() -> Vec<Mix> {
    SHIPPED.iter().filter_map(|(name, _)| shipped(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twelve_applications_are_those_of_the_study() {
        let mixes: Vec<_> = all_shipped()
            .into_iter()
            .map(|mix| (mix.block_size >> 10, mix.read_percent, mix.random_percent))
            .collect();
        let study = [
            (4, 95, 75),
            (8, 95, 75),
            (64, 95, 75),
            (1024, 100, 100),
            (64, 98, 0),
            (64, 0, 0),
            (64, 90, 0),
            (8, 0, 0),
            (8, 70, 100),
            (4, 67, 100),
            (8, 80, 80),
            (512, 100, 100),
        ];
        assert_eq!(mixes, study);
        assert!(all_shipped().iter().all(|mix| mix.queue_depths.is_empty() && !mix.description.is_empty()));
        assert_eq!(shipped("oltp").unwrap().summary(), "8K, 70% read, 100% random");
        assert_eq!(shipped("tpc-c"), None);
    }

    #[test]
    fn a_shape_is_of_the_span() {
        let mut mix = Mix::plain("a".into(), 4096, 50, 100);
        assert_eq!(mix.shape(1 << 20), Shape::PLAIN);
        (mix.alignment, mix.burst, mix.think_time) = (Some(512), 4, Duration::from_millis(1));
        let shape = mix.shape(1 << 20);
        assert_eq!((shape.align, shape.burst, shape.think), (512, 4, to_ticks(Duration::from_millis(1))));
        assert_eq!(mix.summary(), "4K, 50% read, 100% random, aligned to 512, bursts of 4, 1ms apart");
    }
}

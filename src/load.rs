//! Options for the accesses that are measured.

use benches::axes::Access;

use crate::failure::Failure;
use crate::units;

/// The accesses; a list is a dimension.
#[derive(clap::Args)]
pub(crate) struct Load {
    /// Access patterns: randread, randwrite, read, write, randrw, mix (reads and writes, random and
    /// sequential)
    #[arg(long, value_delimiter = ',', default_value = "randread")]
    pub(crate) rw: Vec<Access>,
    /// Reads among 100 accesses of randrw and mix [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    read_percent: Option<u32>,
    /// Random offsets among 100 accesses of mix; the others follow the access before them [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    random_percent: Option<u32>,
    /// Bytes of an access, 512 to 1M [default: 4K]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = units::block_size)]
    block_size: Vec<u32>,
    /// Accesses in flight of each worker, 1 to 256
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "32", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) queue_depth: Vec<u32>,
}

impl Load {
    /// Checks that clap cannot express.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let mixed = self.rw.contains(&Access::Mix);
        if self.read_percent.is_some() && !mixed && !self.rw.contains(&Access::RandRw) {
            return Err(Failure::Usage("--read-percent is for --rw randrw and mix".to_owned()));
        }
        if self.random_percent.is_some() && !mixed {
            return Err(Failure::Usage("--random-percent is for --rw mix".to_owned()));
        }
        Ok(())
    }

    /// Whether an access writes.
    pub(crate) fn writes(&self) -> bool {
        self.rw.iter().any(|rw| rw.writes())
    }

    /// Random offsets among 100 accesses of mix.
    pub(crate) fn random_percent(&self) -> u32 {
        self.random_percent.unwrap_or(50)
    }

    /// Reads among 100 accesses of randrw and mix.
    pub(crate) fn read_percent(&self) -> u32 {
        self.read_percent.unwrap_or(50)
    }

    /// Whether block sizes are given.
    pub(crate) fn has_block_sizes(&self) -> bool {
        !self.block_size.is_empty()
    }

    /// Bytes of an access; `default` where the option is not given.
    pub(crate) fn block_sizes(&self, default: impl FnOnce() -> Vec<u32>) -> Vec<u32> {
        if self.block_size.is_empty() { default() } else { self.block_size.clone() }
    }
}

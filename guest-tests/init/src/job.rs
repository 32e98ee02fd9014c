//! The job, as words `paradisk.NAME=VALUE` of the kernel's command line.

use std::fmt;
use std::str::FromStr;

/// What the guest is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// Disks to wait for.
    pub disks: usize,
    /// Seed of what is written.
    pub seed: u64,
    /// Random reads of 4 KiB from each disk after it has been verified.
    pub reads: u32,
    /// Only say which disks there are.
    pub probe: bool,
    /// Wait until each disk has become larger, before anything else.
    pub grows: bool,
    /// Have all disks stalled, for longer than the kernel waits for a command, while fio verifies them all at once; instead of the
    /// verification by the plan. The host stalls them when it reads [`Line::Stalling`](crate::Line::Stalling), and then types a line.
    pub stalls: bool,
    /// Have adapters and disks changed while fio verifies all disks again and again; instead of the verification by the plan. The host
    /// makes each change when it reads [`Line::Changing`](crate::Line::Changing), and then types a line.
    pub changes: bool,
    /// What fio does to each disk, instead of the verification by the plan.
    pub fio: Option<Fio>,
    /// Run libiscsi's conformance suite on each disk, instead of the verification by the plan.
    pub libiscsi: bool,
    /// I/O port that takes a word for power-off, and that word: for a kernel without ACPI.
    pub power: Option<(u16, u16)>,
}

/// What fio is run for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fio {
    /// Random reads and writes of many sizes over the whole disk, then a comparison of what was written.
    Verify,
    /// The same on each virtual CPU in turn.
    VerifyOnCpus {
        /// How many there are.
        cpus: u32,
    },
    /// Each of these three times, on all disks in turns: to warm up; between two marks for an emulator that counts instructions; and between
    /// two marks with twice as many requests.
    Counted(Vec<Counted>),
    /// Random reads of 4 KiB, then random writes.
    Rates {
        /// How long each.
        seconds: u32,
    },
}

/// The kind of requests of a counted run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rw {
    /// Reads at random offsets.
    RandRead,
    /// Writes at random offsets.
    RandWrite,
    /// Reads in ascending order.
    Read,
    /// Writes in ascending order.
    Write,
    /// Reads and writes at random offsets, half of each.
    Mixed,
    /// Writes at random offsets, a flush after each.
    Flush,
    /// Discards at random offsets.
    Discard,
}

impl Rw {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::RandRead, Self::RandWrite, Self::Read, Self::Write, Self::Mixed, Self::Flush, Self::Discard];

    /// The name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::Read => "read",
            Self::Write => "write",
            Self::Mixed => "mixed",
            Self::Flush => "flush",
            Self::Discard => "discard",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rw| rw.name() == name)
    }
}

/// Requests of a number that is known before: `RW/REQUESTS/BYTES/DEPTH/BATCH/SINGLES/CPUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Of which kind.
    pub rw: Rw,
    /// How many.
    pub requests: u32,
    /// Bytes of one.
    pub block_size: u32,
    /// In flight.
    pub depth: u32,
    /// Submitted at once, and waited for at once.
    pub batch: u32,
    /// Requests before each counted run that are in flight one at a time; 0: a warm-up like the run.
    pub singles: u32,
    /// Virtual CPUs that share the requests: each has this depth.
    pub cpus: u32,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rw, requests, block_size, depth, batch, singles, cpus } = self;
        write!(f, "{}/{requests}/{block_size}/{depth}/{batch}/{singles}/{cpus}", rw.name())
    }
}

impl Counted {
    fn parse(text: &str) -> Option<Self> {
        let (rw, numbers) = text.split_once('/')?;
        let numbers = numbers.split('/').map(number).collect::<Option<Vec<u32>>>()?;
        let [requests, block_size, depth, batch, singles, cpus] = numbers[..] else {
            return None;
        };
        let positive = [requests, block_size, depth, batch, cpus].iter().all(|value| *value > 0);
        positive.then_some(Self { rw: Rw::named(rw)?, requests, block_size, depth, batch, singles, cpus })
    }
}

impl fmt::Display for Fio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verify => f.write_str("verify"),
            Self::VerifyOnCpus { cpus } => write!(f, "cpus:{cpus}"),
            Self::Counted(runs) => {
                let runs: Vec<_> = runs.iter().map(Counted::to_string).collect();
                write!(f, "counted:{}", runs.join(","))
            }
            Self::Rates { seconds } => write!(f, "rates:{seconds}"),
        }
    }
}

impl Fio {
    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None => (text == "verify").then_some(Self::Verify),
            Some(("counted", runs)) => {
                runs.split(',').map(Counted::parse).collect::<Option<_>>().map(Self::Counted)
            }
            Some(("cpus", cpus)) => {
                number(cpus).filter(|cpus| *cpus > 0).map(|cpus| Self::VerifyOnCpus { cpus })
            }
            Some(("rates", seconds)) => {
                number(seconds).filter(|seconds| *seconds > 0).map(|seconds| Self::Rates { seconds })
            }
            Some(_) => None,
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { disks, seed, reads, probe, grows, stalls, changes, fio, libiscsi, power } = self;
        write!(f, "paradisk.disks={disks} paradisk.seed={seed} paradisk.reads={reads}")?;
        if *probe {
            f.write_str(" paradisk.probe=1")?;
        }
        if *grows {
            f.write_str(" paradisk.grows=1")?;
        }
        if *stalls {
            f.write_str(" paradisk.stalls=1")?;
        }
        if *changes {
            f.write_str(" paradisk.changes=1")?;
        }
        if *libiscsi {
            f.write_str(" paradisk.libiscsi=1")?;
        }
        if let Some(fio) = fio {
            write!(f, " paradisk.fio={fio}")?;
        }
        power.map_or(Ok(()), |(port, word)| write!(f, " paradisk.power={port}:{word}"))
    }
}

impl Job {
    /// Read the command line. Words of others are passed over.
    ///
    /// # Errors
    /// The word that is unknown or has no sensible value.
    pub fn parse(command_line: &str) -> Result<Self, String> {
        let mut job = Self::default();
        for word in command_line.split_whitespace() {
            let Some((name, value)) = word.strip_prefix("paradisk.").and_then(|own| own.split_once('='))
            else {
                continue;
            };
            job.set(name, value).ok_or_else(|| format!("what is {word}?"))?;
        }
        Ok(job)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "disks" => self.disks = number(value)?,
            "seed" => self.seed = number(value)?,
            "reads" => self.reads = number(value)?,
            "probe" => self.probe = number::<u8>(value)? != 0,
            "grows" => self.grows = number::<u8>(value)? != 0,
            "stalls" => self.stalls = number::<u8>(value)? != 0,
            "changes" => self.changes = number::<u8>(value)? != 0,
            "libiscsi" => self.libiscsi = number::<u8>(value)? != 0,
            "fio" => self.fio = Some(Fio::parse(value)?),
            "power" => {
                let (port, word) = value.split_once(':')?;
                self.power = Some((number(port)?, number(word)?));
            }
            _ => return None,
        }
        Some(())
    }
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_the_command_line() {
        let (fio, power) = (None, Some((0x604, 0x2000)));
        let (libiscsi, stalls, changes) = (true, true, true);
        let job = Job {
            disks: 9,
            seed: u64::MAX,
            reads: 3,
            probe: true,
            grows: true,
            stalls,
            changes,
            fio,
            libiscsi,
            power,
        };
        let run =
            Counted { rw: Rw::Flush, requests: 5, block_size: 512, depth: 32, batch: 8, singles: 0, cpus: 1 };
        let counted = Fio::Counted(vec![run, Counted { batch: 1, singles: 7, cpus: 4, ..run }]);
        for fio in [Fio::Verify, Fio::VerifyOnCpus { cpus: 5 }, Fio::Rates { seconds: 3 }, counted]
            .map(Some)
            .into_iter()
            .chain([None])
        {
            let job = Job { fio, ..job.clone() };
            assert_eq!(Job::parse(&format!("console=ttyS0 quiet {job} root=/dev/ram")), Ok(job));
        }
        assert_eq!(Job::parse("quiet"), Ok(Job::default()));
    }

    #[test]
    fn nonsense_is_named() {
        for word in [
            "disks=x",
            "what=1",
            "power=1",
            "power=70000:1",
            "fio=rates:0",
            "fio=cpus:0",
            "fio=verify:1",
            "fio=counted:randread/1/2/3/4/5",
            "fio=counted:randread/1/2/3/0/0/1",
            "fio=counted:randread/1/2/3/4/0/0",
            "fio=counted:tape/1/2/3/4/0/1",
        ] {
            assert!(Job::parse(&format!("paradisk.{word}")).unwrap_err().contains(word));
        }
    }
}

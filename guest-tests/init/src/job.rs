//! The job, as words `paradisk.NAME=VALUE` of the kernel's command line.

use std::fmt;
use std::str::FromStr;

/// What the guest is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// verification by the plan. They are stalled by whoever reads [`Line::Stalling`](crate::Line::Stalling), and types a line then.
    pub stalls: bool,
    /// Have adapters and disks changed while fio verifies all disks again and again; instead of the verification by the plan. They are changed
    /// by whoever reads [`Line::Changing`](crate::Line::Changing), and types a line then.
    pub changes: bool,
    /// What fio does to each disk, instead of the verification by the plan.
    pub fio: Option<Fio>,
    /// Run libiscsi's conformance suite on each disk, instead of the verification by the plan.
    pub libiscsi: bool,
    /// I/O port that takes a word for power-off, and that word: for a kernel without ACPI.
    pub power: Option<(u16, u16)>,
}

/// What fio is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fio {
    /// Random reads and writes of many sizes over the whole disk, then a comparison of what was written.
    Verify,
    /// Random reads of 4 KiB, so many and then twice as many, at depth 1, then 8, then 32; each run between two marks for an emulator that
    /// counts instructions.
    Counted {
        /// Reads of the first run.
        reads: u32,
    },
    /// Random reads of 4 KiB, then random writes.
    Rates {
        /// How long each.
        seconds: u32,
    },
}

impl fmt::Display for Fio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verify => f.write_str("verify"),
            Self::Counted { reads } => write!(f, "counted:{reads}"),
            Self::Rates { seconds } => write!(f, "rates:{seconds}"),
        }
    }
}

impl Fio {
    /// Depths of [`Counted`](Self::Counted), in their order.
    pub const DEPTHS: [u32; 3] = [1, 8, 32];

    fn parse(text: &str) -> Option<Self> {
        if text == "verify" {
            return Some(Self::Verify);
        }
        let (name, value) = text.split_once(':')?;
        let value = number(value).filter(|value| *value > 0)?;
        match name {
            "counted" => Some(Self::Counted { reads: value }),
            "rates" => Some(Self::Rates { seconds: value }),
            _ => None,
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
        let loads = [Fio::Verify, Fio::Rates { seconds: 3 }, Fio::Counted { reads: 5 }];
        for fio in loads.map(Some).into_iter().chain([None]) {
            let job = Job { fio, ..job };
            assert_eq!(Job::parse(&format!("console=ttyS0 quiet {job} root=/dev/ram")), Ok(job));
        }
        assert_eq!(Job::parse("quiet"), Ok(Job::default()));
    }

    #[test]
    fn nonsense_is_named() {
        for word in ["disks=x", "what=1", "power=1", "power=70000:1", "fio=rates:0", "fio=verify:1"] {
            assert!(Job::parse(&format!("paradisk.{word}")).unwrap_err().contains(word));
        }
    }
}
